"""Judge an end of the product by what docs/outputs.md promises: exit codes, failure files, rows, ids."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from contracts.paths import JobPaths
from testing.fuzz.outcome import TOO_LONG, product_frame

FIX = "What to change: "
SHOWN_CHARACTERS = 1024  # of a failure file, in SageMaker's console
_COMPARED = (str, bytes, int, Decimal, type(...))
_NAMES_A_PLACE = re.compile(r"[/\\.]\w|'|row \d|record \d|^\w+:|^\w+ \w+:|channel|column|label|\b[A-Z_]{4,}\b")


def exception_names() -> frozenset[str]:
    """Return the names of all exceptions that are loaded: a cause that begins with one was not foreseen."""
    names, pending = set(), [BaseException]
    while pending:
        kind = pending.pop()
        names.add(kind.__name__)
        pending += kind.__subclasses__()
    return frozenset(names)


def message_problems(text: str) -> list[str]:
    """Return what is wrong with the text of a failure: its first line names a thing, its second line a fix."""
    lines = text.splitlines()
    if not lines or not lines[0].strip():
        return ["the failure's first line is empty"]
    cause, problems = lines[0], []
    word = re.split(r"[: (]", cause)[0].rpartition(".")[2]
    if word in exception_names() or cause.startswith("Traceback"):
        problems.append(f"the cause is an exception that was not foreseen{product_frame(text)}: {cause[:300]}")
    elif cause.startswith("out of memory"):
        problems.append(f"the input needs too much memory: {cause[:300]}")
    elif "without a cause" in cause or " was ended by SIG" in cause:
        problems.append(f"a process ended without a cause: {cause[:300]}")
    elif not _NAMES_A_PLACE.search(cause):
        problems.append(f"the cause names no file, column, row or key: {cause[:300]}")
    if not problems:
        if len(lines) < 2 or not lines[1].startswith(FIX) or len(lines[1]) <= len(FIX):
            problems.append(f"the second line does not say what to change: {cause[:200]}")
        elif FIX not in text[:SHOWN_CHARACTERS]:
            problems.append(f"{TOO_LONG} the first {SHOWN_CHARACTERS} characters: {cause[:100]}")
    return problems


def refused_job_problems(paths: JobPaths) -> list[str]:
    """Return what is wrong after exit 1 of a training job."""
    problems = []
    texts = []
    for path in paths.failure_files:
        if path.is_file():
            texts.append(path.read_bytes())
        else:
            problems.append(f"{path.relative_to(paths.root)} is missing after exit 1")
    if len(set(texts)) > 1:
        problems.append("the two failure files differ")
    for text in texts[:1]:
        try:
            problems += message_problems(text.decode())
        except UnicodeDecodeError:
            problems.append("the failure file is not UTF-8")
    if paths.model.is_dir() and any(paths.model.iterdir()):
        problems.append(f"model/ holds {sorted(entry.name for entry in paths.model.iterdir())[:5]} after exit 1")
    return problems


def refused_step_problems(message: Path, outputs: Iterable[Path]) -> list[str]:
    """Return what is wrong after exit 1 of a step.

    Args:
        outputs: folders of its outputs, in which nothing may be left.
    """
    if not message.is_file():
        return ["output/message is missing after exit 1"]
    problems = message_problems(message.read_text("utf-8", errors="replace"))
    for folder in outputs:
        left = [path.name for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
        if left:
            problems.append(f"{folder.name}/ holds {sorted(left)[:5]} after exit 1")
    return problems


def id_problems(place: str, found: Sequence[Any], expected: Sequence[Any], *, ordered: bool = True) -> list[str]:
    """Return whether rows were lost, invented, changed or moved; an expected id `...` may be any."""
    if len(found) != len(expected):
        return [f"{place}: {len(found)} rows instead of {len(expected)}, and exit 0"]
    if any(isinstance(value, float) or not isinstance(value, _COMPARED) for value in expected if value is not None):
        return []  # a text of it has several forms
    left, right = [plain(value) for value in found], [plain(value) for value in expected]
    known = [value is not ... for value in expected]
    if ordered:
        changed = [(a, b) for a, b, is_known in zip(left, right, known) if is_known and a != b]
    else:
        lost = Counter(b for b, is_known in zip(right, known) if is_known) - Counter(left)
        changed = [("another one", value) for value in lost]
    if changed:
        a, b = changed[0]
        return [f"{place}: {len(changed)} ids changed, and exit 0: {b[:60]!r} became {a[:60]!r}"]
    return []


def probability_problems(place: str, rows: Sequence[Sequence[float]]) -> list[str]:
    """Return whether each row of probabilities is finite and sums to 1."""
    for number, row in enumerate(rows):
        if not all(math.isfinite(value) for value in row) or abs(sum(row) - 1) > 1e-3:
            return [f"{place}: probabilities of row {number} are {list(row)[:4]}"]
    return []


def plain(value: Any) -> str:
    """Return an id in one form for all types that can hold it; a missing one is empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, Decimal)):
        whole, _, fraction = f"{Decimal(value):f}".partition(".")
        return whole + ("." + fraction.rstrip("0") if fraction.strip("0") else "")
    return str(value)
