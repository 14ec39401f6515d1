"""A caller's records, in whichever form they are held, as a table of raw columns."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from container.tables.values import keys, replace_surrogates
from contracts.errors import ContractError

_TYPED = "biufmM"  # kinds of dtype: numbers and times, which lose their precision as Python objects


def records_to_table(records: Any) -> pa.Table:
    """Raw records as a table: a list of dicts, a pandas DataFrame, an Arrow table or record batch.

    A key that some dicts lack is null there. A column of mixed types (1, "1") is read as strings, as from a CSV file.
    Surrogates, which JSON can write and UTF-8 cannot hold, become U+FFFD. A column with lists or dicts becomes one of
    lists or dicts, empty ones: only who needs the column has to refuse it.

    Raises:
        ContractError: a record that is no dict, or a column that is there twice.
    """
    if isinstance(records, pa.RecordBatch):
        records = pa.Table.from_batches([records])
    if isinstance(records, pa.Table):
        _check_names(records.column_names)
        return records
    if hasattr(records, "columns") and hasattr(records, "iloc"):
        names = [str(name) for name in records.columns]
        _check_names(names)
        return pa.table({name: _series(records.iloc[:, place]) for place, name in enumerate(names)})
    if isinstance(records, Mapping):
        records = [records]
    rows = list(records)
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ContractError(
                f"record {index + 1}: is a {type(row).__name__}, not a dict of columns",
                "Hand over a list of dicts, a DataFrame or an Arrow table.",
            )
    found = dict.fromkeys(name for row in rows for name in row)
    if not all(isinstance(name, str) for name in found):
        rows = [{str(name): value for name, value in row.items()} for row in rows]
        found = dict.fromkeys(str(name) for name in found)
    return pa.table({replace_surrogates(name): _column([row.get(name) for row in rows]) for name in found})


def _check_names(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ContractError(f"records: the column {twice[0]!r} is there twice", "Give each column a name of its own.")


def _series(column: Any) -> pa.Array | pa.ChunkedArray:
    """A pandas Series."""
    if column.dtype.kind in _TYPED:
        try:
            return pa.array(column, from_pandas=True)
        except (pa.ArrowException, TypeError):  # a dtype that Arrow has not
            pass
    return _column(column.tolist())


def _column(values: list[Any]) -> pa.Array:
    values = [None if _is_missing(value) else value for value in values]
    nested = [value for value in values if isinstance(value, (Mapping, list, tuple, set))]
    if nested:
        kind, empty = (pa.struct([]), {}) if isinstance(nested[0], Mapping) else (pa.list_(pa.null()), [])
        return pa.array([empty if isinstance(value, (Mapping, list, tuple, set)) else None for value in values], kind)
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, OverflowError, UnicodeEncodeError):
        return pa.array([None if value is None else _written(value) for value in values], pa.string())


def _written(value: Any) -> str | None:
    """A value of a column of mixed types, written as it would be in a column of its own kind."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, int):  # true and false too; the usual case of numbers from JSON, and worth not asking Arrow
        return str(int(value))
    try:
        return keys(pa.array([value]))[0].as_py()
    except (pa.ArrowException, TypeError, OverflowError):  # a larger integer, or a kind that Arrow has not
        return replace_surrogates(str(value))


def _is_missing(value: Any) -> bool:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return type(value).__name__ in ("NAType", "NaTType")
