"""Suggest names for misspelled ones."""

import difflib
import re
from collections.abc import Iterable

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
    return hint.format(names[close[0]]) if close else ""


def letters(name: str) -> str:
    """Return a name in lower case, with _ for every separator."""
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_")
