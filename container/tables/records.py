"""Convert a caller's records, and Python values as JSON and spreadsheets have, to columns of a table."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa

from container.tables.column_types import (
    NESTED_CELLS,
    decode,
    flat_table,
    invalid_values,
    joined,
    plain_type,
    refused_cells,
    replace_surrogates,
)
from container.tables.number_notations import MISSING_NUMBERS
from container.tables.table_file import Origin, check_names
from container.tables.values import texts
from contracts.errors import ContractError, RowErrors, invalid_rows, shown
from contracts.spelling import as_named

_FIX = "Pass a list of dicts, a DataFrame or an Arrow table."
# Classes of values that are refused by name, as their types are; lists and dicts are refused, too.
_REFUSED: dict[str, str] = dict.fromkeys(("bytes", "bytearray", "memoryview"), "bytes")
_REFUSED |= {"UUID": "a UUID", "Period": "a period", "Interval": "an interval"}
_POSITION = re.compile(r"^(In chunk \d+: )?(Invalid: )?| at string index \d+")  # in the one row that Arrow checked
_LIKE_THOUSANDS = re.compile(r"-?[1-9][0-9]{0,2}\.[0-9]{3}")
_TYPED = "biufmM"  # dtype kinds of numbers and times, which would lose their precision as Python objects
_LONGEST_WORD = max(map(len, MISSING_NUMBERS))
# The type of a column of Python values, as JSON and spreadsheets have.
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


def records_to_table(records: Any, columns: Sequence[str] = (), *, first: int = 0) -> pa.Table:
    """Return raw records as a table: a list of dicts, a pandas DataFrame, an Arrow table or record batch.

    A key that a dict lacks is null, whatever the other dicts have. A column of mixed types (1, "1") is read as strings,
    as from a CSV file, a member of an Enum as its value. Lone surrogates, which JSON can represent and UTF-8 cannot,
    become U+FFFD in values. A list of single values is their text, and a column user.plan is the value "plan" of the
    object "user". Columns have the types of `decode`. One with other lists, dicts or bytes has another type, so that
    only code that needs it refuses it, with check_single_values.

    Args:
        columns: the columns to take from dicts, if not all; a dict without any of them is an error. Names have their
            Unicode form.
        first: position of the first record, for messages.

    Raises:
        ContractError: no records; a record that is not a dict or has none of `columns`; a column name that occurs twice
            or has a lone surrogate; rows without a column; text in an Arrow table that is not UTF-8.
    """
    if isinstance(records, pa.RecordBatch):
        records = pa.Table.from_batches([records])
    if isinstance(records, pa.Table):
        return _from_arrow(records, columns, first=first)
    if hasattr(records, "columns") and hasattr(records, "iloc"):
        return _from_pandas(records, columns)
    rows, names = _named_rows(_rows(records, first=first), columns, first=first)
    empty = [index for index, row in enumerate(rows if columns else ()) if row.keys().isdisjoint(columns)]
    if empty:
        raise ContractError.of_rows(
            {
                index: f"record {first + index + 1}: has no column of the model, only {shown([*rows[index]])}"
                for index in empty
            },
            f"Pass a value, or null, for at least one of {', '.join(map(repr, columns))}.",
        )
    return pa.table({name: _untyped(_column([row.get(name) for row in rows])) for name in names})


def _from_arrow(table: pa.Table, columns: Sequence[str], *, first: int) -> pa.Table:
    check_names(table.column_names, "records")
    errors = RowErrors()
    for name, column in zip(table.column_names, table.columns):
        with errors:
            _check_values(column, name, first=first)
    errors.raise_first()
    table = flat_table(table, kept=columns)
    cells = [_plain(column, each) for column, each in zip(table.columns, table.schema)]
    return pa.table(cells, names=as_named(table.column_names, columns)) if cells else table


def _from_pandas(frame: Any, columns: Sequence[str]) -> pa.Table:
    names = as_named([str(name) for name in frame.columns], columns)
    check_names(names, "records")
    if len(frame) and not names:
        raise ContractError(f"records: {len(frame)} rows have no column", "Pass a table with columns.")
    return pa.table({name: _untyped(_series(frame.iloc[:, i])) for i, name in enumerate(names)})


def _rows(records: Any, *, first: int) -> list[Mapping[Any, Any]]:
    """Return a list of dicts; raise ContractError for anything else."""
    try:
        rows = [records] if isinstance(records, Mapping) else list(iter(records))
    except TypeError:
        raise ContractError(f"records: {shown(records)} is of type {type(records).__name__}", _FIX) from None
    causes = {
        index: f"record {first + index + 1}: {shown(row)} is not a dict of columns"
        for index, row in enumerate(rows)
        if not isinstance(row, Mapping)
    }
    if causes:
        raise ContractError.of_rows(causes, _FIX)
    return rows


def _named_rows(
    rows: Sequence[Mapping[Any, Any]], columns: Sequence[str], *, first: int
) -> tuple[Sequence[Mapping[str, Any]], Iterable[str]]:
    """Return rows whose keys are texts, in the form of `columns`, and the names of the columns to take from them."""
    names = dict.fromkeys(name for row in rows for name in row)
    if not all(isinstance(name, str) for name in names):
        for index, row in enumerate(rows):
            check_names(list(map(str, row)), f"record {first + index + 1}")
        rows = [{str(name): value for name, value in row.items()} for row in rows]
        names = dict.fromkeys(map(str, names))
    try:
        check_names(list(names), "records")
    except ContractError as error:
        error.row_causes = invalid_rows(rows, lambda row: check_names(list(row), "records"))
        raise
    if (named := as_named(list(names), columns)) != list(names):
        of_name = dict(zip(names, named))
        rows = [{of_name[name]: value for name, value in row.items()} for row in rows]
    if any("." in name and name not in names for name in columns):
        rows = [flat(row, kept=columns) for row in rows]
    return rows, dict.fromkeys(columns) or names


def flat(row: Mapping[str, Any], *, kept: Collection[str] = ()) -> dict[str, Any]:
    """Return a record with the dotted name of each value in an object: user.plan for {"user": {"plan": "pro"}}.

    Args:
        kept: names of values that are not taken apart.

    Raises:
        ContractError: two values have one name.
    """
    values: dict[str, Any] = {}
    for name, value in row.items():
        inner = {name: value}
        if isinstance(value, Mapping) and name not in kept:
            inner = flat({f"{name}.{key}": cell for key, cell in value.items()}, kept=kept)
        for key, cell in inner.items():
            if key in values:
                raise ContractError(f"has two values of the name {key!r}", "Give each value another name.")
            values[key] = cell
    return values


def check_single_values(column: pa.Array | pa.ChunkedArray, name: str, *, origin: Origin) -> None:
    """Raise ContractError where a column of records_to_table is not of single values."""
    if column.type == NESTED_CELLS:
        causes = {
            row: f"{origin.row(row)}: column {name!r} contains {cell['kind']}, not a single value"
            for row, cell in enumerate(column.to_pylist())
            if cell
        }
        if causes:
            raise ContractError.of_rows(causes, "Give each column one text or number per record.")


def _untyped(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return _plain(column, pa.field("", column.type))


def _plain(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    if field.type == NESTED_CELLS or plain_type(field) is None:
        cells = column if field.type == NESTED_CELLS else refused_cells(field, len(column))
        return cells if cells.null_count < len(cells) else pa.nulls(len(cells))
    return decode(column, field)


def _check_values(column: pa.ChunkedArray, name: str, *, first: int) -> None:
    """Raise ContractError where values are not of the column's type, for example texts that are not UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        invalid = invalid_values(column, lambda value: value.validate(full=True))
        if not invalid:  # a dictionary may have values that no row has
            return
        causes = {
            row: f"record {first + row + 1}: column {name!r} has an invalid value: {_POSITION.sub('', message)}"
            for row, message in invalid.items()
        }
        raise ContractError.of_rows(causes, "Write texts as UTF-8, and the table again.") from error


def _series(column: Any) -> pa.Array | pa.ChunkedArray:
    """Convert a pandas Series."""
    if column.dtype.name == "category":
        codes = column.cat.codes.to_numpy()
        return _series(column.cat.categories.to_series()).take(pa.array(codes, mask=codes < 0))
    if column.dtype.kind in _TYPED:
        try:
            return pa.array(column, from_pandas=True)
        except (pa.ArrowException, TypeError):  # a dtype without an Arrow type
            pass
    return _column(column.tolist())


def _column(values: list[Any]) -> pa.Array:
    values = [joined(None if _is_missing(value) else _listed(value)) for value in values]
    classes = set(map(type, values))
    if any(issubclass(kind, Enum) for kind in classes):
        return _column([value.value if isinstance(value, Enum) else value for value in values])
    nested = tuple(
        kind for kind in classes if (issubclass(kind, Iterable) and not issubclass(kind, str)) or _refused(kind)
    )
    if nested:
        kinds = (_refused(type(value)) or ("a dict" if isinstance(value, Mapping) else "a list") for value in values)
        cells = [{"kind": kind} if isinstance(value, nested) else None for kind, value in zip(kinds, values)]
        return pa.array(cells, NESTED_CELLS)
    try:
        return _alike(values)
    except (pa.ArrowException, TypeError, OverflowError, UnicodeEncodeError):
        return pa.array([None if value is None else written(value) for value in values])


def _refused(kind: type) -> str | None:
    return _REFUSED.get(kind.__name__)


def _alike(values: list[Any]) -> pa.Array:
    """Convert values that Arrow converts without regard to the others; raise TypeError if there may be others.

    Of several classes, Arrow takes one: it cuts the time off beside a date. Decimals get one scale, times one zone. It
    cuts the nanoseconds off pandas' Timestamp and Timedelta.
    """
    classes = {type(value) for value in values if value is not None}
    scaled = any(issubclass(each, (Decimal, datetime)) or hasattr(each, "nanoseconds") for each in classes)
    if classes == {datetime}:
        scaled = any(value is not None and value.tzinfo is not None for value in values)
    if scaled or not (len(classes) == 1 or classes <= {int, float}):
        raise TypeError(f"classes with a common type: {classes}")
    return pa.array(values)


def written(value: Any) -> str | None:
    """Return a value of a column of mixed types as the text it has in a column of one type.

    2.125 is written as 2.125e+00, which no notation of numbers reads as a thousand; its key is 2.125.
    """
    if isinstance(value, str):
        return replace_surrogates(value)
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        return str(value)
    try:
        text = texts(pa.array([value]))[0]
        if text is not None and _LIKE_THOUSANDS.fullmatch(text):
            return f"{float(text):.{len(text.strip('-')) - 2}e}"
        return text
    except (pa.ArrowException, TypeError, OverflowError):  # a larger integer, or a class without an Arrow type
        # Python writes at most 4300 digits of an integer.
        return replace_surrogates(f"{Decimal(value):f}" if isinstance(value, int) else str(value))


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else list(value) if isinstance(value, tuple) else value


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, Decimal):
        return value.is_nan()
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
    return isinstance(value, (float, np.floating)) and math.isnan(value)


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
