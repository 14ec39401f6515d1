"""Run a campaign: many inputs of each kind, a few at a time, within a time; collect what the product does wrong."""

import json
import os
import re
import shutil
import signal
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from testing import warm
from testing.fuzz import child
from testing.fuzz.outcome import ACCEPTED, RECIPE, REFUSED, Outcome, product_frame, rng_of, signature

# Folders of the inputs: parts of URLs, patterns, formats, commands and lists of paths.
FOLDER_NAMES = (
    "plain", "a?b", "a%20b", "a#b", "[x]*", "{x}", "%s", "it's \"b\"", "$HOME;&", "a\\b", "s3:", "\u00e9", "-rf"
)  # fmt: skip
WHOLE_EVERY = 20  # of the tables and hyperparameters, a whole training job
_KEPT_BYTES = 4 << 20  # of a saved input


@dataclass(frozen=True)
class Plan:
    """The bounds of a campaign.

    Attributes:
        indices: of the inputs of each kind.
        deadline: of the kind, in seconds of time.monotonic().
        jobs: inputs at a time.
        timeout: seconds of one input; six times as many for a whole job.
        out: the folder for findings.
    """

    seed: int
    indices: Sequence[int]
    deadline: float
    jobs: int
    timeout: float
    model: Path
    work: Path
    out: Path
    whole_every: int = WHOLE_EVERY

    def is_whole(self, kind: str, index: int) -> bool:
        """Return whether an input is a whole training job."""
        return kind in ("tables", "hyperparameters") and self.whole_every > 0 and index % self.whole_every == 0

    def command(self, kind: str, index: int) -> str:
        """Return the command that runs one input again."""
        every = "" if self.whole_every == WHOLE_EVERY else f" --whole-every {self.whole_every}"
        return f"python -m testing.fuzz --kind {kind} --seed {self.seed} --only {index}{every}"


@dataclass
class Finding:
    """What one cause led to: the smallest input, and the number of inputs."""

    signature: str
    problem: str
    index: int
    recipe: list[str]
    size: int
    count: int = 1


@dataclass
class Tally:
    """The results of a kind."""

    kind: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    broken: int = 0
    seconds: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)
    last: Outcome = field(default_factory=Outcome)

    def add(self, index: int, outcome: Outcome) -> list[Finding]:
        """Count an outcome; return the findings of which this is the smallest input so far."""
        self.inputs += 1
        self.last = outcome
        name = re.sub(r"/[^ ]*|'[^']*'|[0-9]+", "*", outcome.message)[:70]
        self.messages[name] = self.messages.get(name, 0) + 1
        self.accepted += outcome.verdict == ACCEPTED
        self.refused += outcome.verdict == REFUSED
        self.broken += bool(outcome.problems)
        news = []
        for problem in outcome.problems:
            name = signature(self.kind, problem)
            found = self.findings.get(name)
            count = 1 if found is None else found.count + 1
            rank = (len(outcome.recipe), outcome.size)
            if found is None or rank < (len(found.recipe), found.size):
                found = Finding(name, problem, index, outcome.recipe, outcome.size)
                self.findings[name] = found
                news.append(found)
            found.count = count
        return news


@dataclass
class _Running:
    index: int
    folder: Path
    process: Any
    deadline: float


def run_kind(kind: str, plan: Plan) -> Tally:
    """Run the inputs of a kind in processes; stop at the deadline."""
    tally, began = Tally(kind), time.monotonic()
    for index, folder, outcome in _outcomes(kind, plan):
        for finding in tally.add(index, outcome):
            save(plan, kind, finding, folder)
        shutil.rmtree(folder, ignore_errors=True)
    tally.seconds = time.monotonic() - began
    return tally


def _outcomes(kind: str, plan: Plan) -> Iterator[tuple[int, Path, Outcome]]:
    running: list[_Running] = []
    waiting = iter(plan.indices)
    index: int | None = next(waiting, None)
    while running or index is not None:
        while index is not None and len(running) < plan.jobs and time.monotonic() < plan.deadline:
            running.append(_start(kind, index, plan))
            index = next(waiting, None)
        if time.monotonic() >= plan.deadline:
            index = None
        for one in [one for one in running if not one.process.is_alive() or time.monotonic() > one.deadline]:
            running.remove(one)
            yield one.index, one.folder, _outcome(one)
        time.sleep(0.005)


def _start(kind: str, index: int, plan: Plan) -> _Running:
    folder = plan.work / rng_of(plan.seed, "folder", index).choice(FOLDER_NAMES) / f"{kind}-{index}"
    shutil.rmtree(folder, ignore_errors=True)
    whole = plan.is_whole(kind, index)
    seconds = plan.timeout * (6 if whole else 1)
    arguments = {"seed": plan.seed, "folder": str(folder), "model": str(plan.model), "whole": whole, "seconds": seconds}
    process = warm.fork_server().Process(target=child.main, args=(kind, index), kwargs=arguments)
    process.start()
    return _Running(index, folder, process, time.monotonic() + seconds)


def _outcome(one: _Running) -> Outcome:
    alive = one.process.is_alive()
    used = _processor_seconds(one.process.pid)
    try:
        os.killpg(one.process.pid, signal.SIGKILL)  # what the input left running, too
    except (ProcessLookupError, PermissionError):
        one.process.kill()
    one.process.join()
    file = one.folder / "outcome.json"
    if file.is_file():
        outcome = Outcome(**json.loads(file.read_text()))
    else:
        recipe = one.folder / RECIPE
        outcome = Outcome(recipe=json.loads(recipe.read_text()) if recipe.is_file() else [])
        log = (one.folder / "log").read_text("utf-8", "replace") if (one.folder / "log").is_file() else ""
        ended = f"the process ended with code {one.process.exitcode}"
        outcome.problems.append(
            (f"no end after {used:.0f} s of processor time" if alive else ended) + product_frame(log, first=True)
        )
    outcome.recipe.append(f"in a folder {one.folder.parent.name!r}")
    outcome.size = sum(path.stat().st_size for path in _files(one.folder / "job"))
    return outcome


def _processor_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def save(plan: Plan, kind: str, finding: Finding, folder: Path) -> None:
    """Keep the input, the log and a description of a finding; a smaller input replaces it."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", finding.signature)[:70]
    target = plan.out / kind / f"{words}-{zlib.crc32(finding.signature.encode()):08x}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    (target / "finding.json").write_text(
        json.dumps({"command": plan.command(kind, finding.index), **asdict(finding)}, indent=1)
    )
    if (folder / "log").is_file():
        (target / "log").write_bytes((folder / "log").read_bytes()[-_KEPT_BYTES:])
    for part in ("input", "processing/input", "output", "model", "requests"):
        source = folder / "job" / part
        if source.is_dir() and sum(path.stat().st_size for path in _files(source)) <= _KEPT_BYTES:
            shutil.copytree(source, target / part, symlinks=True, ignore=_special)


def _special(folder: str, names: list[str]) -> list[str]:
    """Return the names that cannot be copied: pipes and sockets."""
    paths = {name: Path(folder, name) for name in names}
    return [name for name, path in paths.items() if path.is_fifo() or path.is_socket()]


def table(tallies: Iterable[Tally]) -> str:
    """Return the campaign's table."""
    names = ("inputs", "accepted", "refused", "findings", "distinct", "seconds", "s/input")
    lines = [f"{'kind':<16}" + "".join(f"{name:>10}" for name in names)]
    for tally in tallies:
        each = tally.seconds / max(tally.inputs, 1)
        lines.append(
            f"{tally.kind:<16}{tally.inputs:>10}{tally.accepted:>10}{tally.refused:>10}{tally.broken:>10}"
            f"{len(tally.findings):>10}{tally.seconds:>10.0f}{each:>10.2f}"
        )
    return "\n".join(lines)
