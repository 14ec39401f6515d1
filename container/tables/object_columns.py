"""Make columns of Python values, as JSON and spreadsheets have: each of one type, or of texts where types differ."""

from collections.abc import Iterable, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

import pyarrow as pa

from container.tables.column_types import NESTED_CELLS
from container.tables.number_notations import MISSING_NUMBERS
from container.tables.records import written

_LONGEST_WORD = max(map(len, MISSING_NUMBERS))
_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    date: pa.date32(),
    datetime: pa.timestamp("us"),
    time: pa.time64("us"),
    timedelta: pa.duration("us"),
}


class Word(str):
    """The class of a text such as "n/a", which is missing among values of another type."""


def class_of(value: Any) -> type:
    """Return the class of a cell's value that decides the type of its column."""
    kind = type(value)
    return Word if kind is str and len(value) <= _LONGEST_WORD and value.strip().lower() in MISSING_NUMBERS else kind


def common_type(classes: Iterable[type]) -> pa.DataType:
    """Return the type of a column that has values of these classes; NESTED_CELLS if it has lists and objects alone."""
    of_values = {kind for kind in classes if kind is not type(None) and kind is not Word}
    if not of_values:
        return pa.string() if Word in classes else pa.null()
    if of_values <= {list, dict}:
        return NESTED_CELLS
    if of_values == {int, float}:
        return pa.float64()
    if of_values == {date, datetime}:
        return _TYPES[datetime]
    return _TYPES[of_values.pop()] if len(of_values) == 1 else pa.string()


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as a column of a type of `common_type`; in one of texts, each other value has its key."""
    if kind == _TYPES[datetime]:  # a midnight may be a date
        values = [datetime.combine(value, time()) if type(value) is date else value for value in values]
    if kind != pa.string():
        return pa.array([None if isinstance(value, str) else value for value in values], kind)
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, UnicodeEncodeError):  # others than texts, or lone surrogates
        return pa.array([None if value is None else written(value) for value in values], kind)
