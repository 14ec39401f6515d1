"""Suggest names for misspelled ones."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'NAME'?" with the known name closest to `name`, or "" if none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else ""
