"""Apply the JSONPath of a filter to a record, as batch transform does."""

import re
from collections.abc import Callable
from typing import Any

from contracts.errors import ContractError

_PART = re.compile(
    r"""\.(?P<name>[^.\[\]'\s]+)
    | \[(?P<names>\s*'[^']*'\s*(,\s*'[^']*'\s*)*)\]
    | \[(?P<places>\s*(-?\d+|-?\d*\s*:\s*-?\d*)\s*(,\s*(-?\d+|-?\d*\s*:\s*-?\d*)\s*)*)\]""",
    re.VERBOSE,
)
Select = Callable[[Any], Any]


def compile_path(path: str, *, key: str) -> Select:
    """Return the function that selects a path's part of a record.

    The parts of a path are .name, ['name'], ['name','name'], [index], [start:end] and [index,start:end]. A list of
    names selects an object; a range, and a list of indices and ranges, select an array.

    Args:
        key: the configuration's key of the path, for messages.

    Raises:
        ContractError: the path has another part. SageMaker knows more of them.
    """
    parts, place = [], 1
    while place < len(path):
        found = _PART.match(path, place)
        if found is None or "*" in (found["name"] or ""):
            raise ContractError(
                f"{key}: {path!r} has a part that `run` does not know, from {path[place:]!r}",
                "Use .name, ['name'], [index], [start:end], and lists of names, or of indices and ranges.",
            )
        parts.append(_part(found))
        place = found.end()

    def select(record: Any) -> Any:
        for part in parts:
            record = part(record)
        return record

    return select


def _part(found: re.Match[str]) -> Select:
    if found["places"] is not None:
        places = [_place(text) for text in found["places"].split(",")]
        if len(places) == 1 and isinstance(places[0], int):
            return lambda array: array[places[0]]
        return lambda array: [
            value for place in places for value in (array[place] if isinstance(place, slice) else [array[place]])
        ]
    names = [found["name"]] if found["name"] is not None else re.findall(r"'([^']*)'", found["names"])
    return lambda entries: entries[names[0]] if len(names) == 1 else {name: entries[name] for name in names}


def _place(text: str) -> int | slice:
    start, colon, end = text.partition(":")
    return slice(*(int(part) if part.strip() else None for part in (start, end))) if colon else int(text)
