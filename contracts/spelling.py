"""Suggest names for misspelled ones."""

import difflib
from collections.abc import Iterable

SIMILAR = "; the similar column {!r} exists"  # hint for a column that a table or a request lacks


def did_you_mean(name: str, known: Iterable[str], *, hint: str = "; did you mean {!r}?") -> str:
    """Return `hint` with the known name closest to `name`, or "" if none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return hint.format(close[0]) if close else ""
