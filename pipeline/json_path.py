"""Apply the JSONPath of a filter to a record, as batch transform does."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

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
    list of names selects an object. A range, a list of indices and ranges, and *, select several values: what follows
    is selected in each of them, and the result is the array of all. SageMaker's documentation has these parts:
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


class _Part(NamedTuple):
    """A part of a path.

    Attributes:
        values: the values that it selects in a value.
        several: whether it can select another number than one.
    """

    values: Callable[[Any], list[Any]]
    several: bool


def reads_cells(path: str) -> bool:
    """Return whether a path has only parts that select cells by position."""
    return not any(found["name"] or found["names"] for found in _PART.finditer(path, 1))


def _select(parts: Sequence[_Part], record: Any) -> Any:
    values = [record]
    for part in parts:
        values = [selected for value in values for selected in part.values(value)]
    return values if any(part.several for part in parts) else values[0]


def _part(found: re.Match[str]) -> _Part:
    if found["all"] is not None:
        return _Part(_all_values, several=True)
    if found["places"] is not None:
        places = [_place(text) for text in found["places"].split(",")]
        return _Part(partial(_at, places), several=len(places) > 1 or isinstance(places[0], slice))
    names = [found["name"]] if found["name"] is not None else re.findall(r"'([^']*)'", found["names"])
    return _Part(partial(_named, names), several=False)


def _all_values(value: Any) -> list[Any]:
    if not isinstance(value, (dict, list)):
        raise TypeError(f"* selects the values of an object or an array, and this is a {type(value).__name__}")
    return list(value.values()) if isinstance(value, dict) else value


def _at(places: Sequence[int | slice], value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a position selects a value of an array, and this is a {type(value).__name__}")
    return [each for place in places for each in (value[place] if isinstance(place, slice) else [value[place]])]


def _named(names: Sequence[str], value: Any) -> list[Any]:
    return [value[names[0]] if len(names) == 1 else {name: value[name] for name in names}]


def _place(text: str) -> int | slice:
    start, colon, end = text.partition(":")
    return slice(*(int(part) if part.strip() else None for part in (start, end))) if colon else int(text)
