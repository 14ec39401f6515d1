"""Suggest names for misspelled ones, and lay out texts."""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence

SIMILAR = "; the similar column {!r} exists"  # hint for a column that a table or a request lacks
_SIMILARITY = 0.7  # below it, names such as world_size and kernel_size would count as close
_LONGEST = 200  # characters that are compared; the time grows with their square


def did_you_mean(name: str, known: Iterable[str], *, hint: str = "; did you mean {!r}?") -> str:
    """Return `hint` with the known name closest to `name`, or "" if none is close.

    Upper case and separators do not count.
    """
    names: dict[str, str] = {}
    for each in known:
        names.setdefault(letters(each), each)
    close = difflib.get_close_matches(letters(name[:_LONGEST]), names, n=1, cutoff=_SIMILARITY)
    if not close:
        return ""
    found = names[close[0]]
    alike = unicodedata.normalize("NFKC", found) == unicodedata.normalize("NFKC", name) or len(found) == len(name)
    escaped = f" ({name!a} is not {found!a})" if alike and not (found + name).isascii() else ""
    return hint.format(found) + escaped


def as_named(present: Sequence[str], wanted: Iterable[str]) -> list[str]:
    """Return the present names; one that differs from a wanted name in its Unicode form only has the wanted form.

    Editors and file systems write the same letter as one character (NFC) or as a letter and an accent (NFD).
    """
    known = set(present)
    forms = {composed(name): name for name in wanted if name not in known and not name.isascii()}
    return [forms.get(composed(name), name) for name in present] if forms else list(present)


def shorten(text: str, length: int) -> str:
    """Cut `text` to at most `length` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def aligned(rows: Sequence[Sequence[str]], *, right: bool = False) -> list[str]:
    """Return the lines of a table; `right` aligns all columns but the first to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sizes = [f"{'>' if right and i else '<'}{width}" for i, width in enumerate(widths)]
    return ["  ".join(f"{cell:{size}}" for cell, size in zip(row, sizes)).rstrip() for row in rows]


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def composed(name: str) -> str:
    """Return a name in Unicode's form NFC."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def letters(name: str) -> str:
    """Return a name in lower case, with _ for every separator."""
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_")
