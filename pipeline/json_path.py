"""Apply the JSONPath of a filter to a record, as batch transform does."""

import re
from collections.abc import Callable, Sequence
from functools import partial
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
    list of names selects an object. A range, a list of indices and ranges, and *, select several values: what follows
    is selected in each of them, and the result is the array of all. SageMaker's documentation has these parts:
    https://docs.aws.amazon.com/sagemaker/latest/dg/batch-transform-data-processing.html#data-processing-operators

    Raises:
        ValueError: the path has another part.
    """
    parts, place = [], 1
    while place < len(path):
        part = _PART.match(path, place)
        if part is None:
            raise ValueError(
                f"its part from {path[place:]!r} is none of .name, ['name'], [index], [start:end], a list of names, a "
                "list of indices and ranges, and *"
            )
        parts.append(part)
        place = part.end()
    return partial(_select, parts)


def reads_cells(path: str) -> bool:
    """Return whether a path has only parts that select cells by position."""
    return not any(found["name"] or found["names"] for found in _PART.finditer(path, 1))


def _select(parts: Sequence[re.Match[str]], record: Any) -> Any:
    values, several = [record], False  # several: whether the parts so far can select another number of values than one
    for part in parts:
        if part["all"] is not None:
            values, several = [inner for value in values for inner in _all_values(value)], True
        elif part["places"] is not None:
            places = [_place(text) for text in part["places"].split(",")]
            several = several or len(places) > 1 or isinstance(places[0], slice)
            values = [inner for value in values for inner in _at(places, value)]
        else:
            names = [part["name"]] if part["name"] is not None else re.findall(r"'([^']*)'", part["names"])
            one = len(names) == 1
            values = [value[names[0]] if one else {name: value[name] for name in names} for value in values]
    return values if several else values[0]


def _all_values(value: Any) -> list[Any]:
    if not isinstance(value, (dict, list)):
        raise TypeError(f"* selects the values of an object or an array, and this is a {type(value).__name__}")
    return list(value.values()) if isinstance(value, dict) else value


def _at(places: Sequence[int | slice], value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a position selects a value of an array, and this is a {type(value).__name__}")
    return [each for place in places for each in (value[place] if isinstance(place, slice) else [value[place]])]


def _place(text: str) -> int | slice:
    start, colon, end = text.partition(":")
    return slice(*(int(part) if part.strip() else None for part in (start, end))) if colon else int(text)
