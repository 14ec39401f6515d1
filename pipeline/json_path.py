"""Apply the JSONPath of a filter to a record, as batch transform does."""

import re
from collections.abc import Callable, Sequence
from typing import Any

_PLACE = r"(-?[0-9]+|-?[0-9]*\s*:\s*-?[0-9]*)"
_PART = re.compile(
    rf"""\.(?P<name>[^.\[\]()*'",\s]+)
    | \.?\[(?P<names>\s*'[^']*'\s*(,\s*'[^']*'\s*)*)\]
    | \.?\[(?P<places>\s*{_PLACE}\s*(,\s*{_PLACE}\s*)*)\]
    | (?P<all>\.\*|\.?\[\*\])""",
    re.VERBOSE,
)
Select = Callable[[Any], Any]


def compile_path(path: str) -> Select:
    """Return the function that selects a path's part of a record.

    The parts of a path are .name, ['name'], ['name','name'], [index], [start:end], [index,start:end], .* and [*]. A
    list of names selects an object; a range, a list of indices and ranges, and *, select an array. What follows * is
    selected in each value. SageMaker's documentation has these parts:
    https://docs.aws.amazon.com/sagemaker/latest/dg/batch-transform-data-processing.html#data-processing-operators

    Raises:
        ValueError: the path has another part.
    """
    parts, place = [], 1
    while place < len(path):
        found = _PART.match(path, place)
        if found is None:
            raise ValueError(
                f"its part from {path[place:]!r} is none of .name, ['name'], [index], [start:end], a list of names, a "
                "list of indices and ranges, and *"
            )
        parts.append(_part(found))
        place = found.end()
    return lambda record: _select(parts, record)


def reads_cells(path: str) -> bool:
    """Return whether a path has only parts that select cells by position."""
    return not any(found["name"] or found["names"] for found in _PART.finditer(path, 1))


def _select(parts: Sequence[Select], record: Any) -> Any:
    for i, part in enumerate(parts):
        if part is _values:
            return [_select(parts[i + 1 :], value) for value in _values(record)]
        record = part(record)
    return record


def _part(found: re.Match[str]) -> Select:
    if found["all"] is not None:
        return _values
    if found["places"] is not None:
        places = [_place(text) for text in found["places"].split(",")]
        if len(places) == 1 and isinstance(places[0], int):
            return lambda array: array[places[0]]
        return lambda array: [
            value for place in places for value in (array[place] if isinstance(place, slice) else [array[place]])
        ]
    names = [found["name"]] if found["name"] is not None else re.findall(r"'([^']*)'", found["names"])
    return lambda entries: entries[names[0]] if len(names) == 1 else {name: entries[name] for name in names}


def _values(value: Any) -> list[Any]:
    if not isinstance(value, (dict, list)):
        raise TypeError(f"* selects the values of an object or an array, and this is a {type(value).__name__}")
    return list(value.values()) if isinstance(value, dict) else value


def _place(text: str) -> int | slice:
    start, colon, end = text.partition(":")
    return slice(*(int(part) if part.strip() else None for part in (start, end))) if colon else int(text)
