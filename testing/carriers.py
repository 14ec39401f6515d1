"""Columns of every type of Arrow and pandas, and the forms in which a table of them reaches a model."""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from container.tables.channel_files import iter_tables
from container.tables.records import records_to_table
from contracts.serving import CSV, JSON, JSON_LINES, PARQUET
from testing.serving import read_records

FILES = ("csv", "tsv", "parquet")  # in which a table can be train
NARROW = (str(pa.float16()), str(pa.float32()))  # of which CSV does not tell that a Python float has other digits


class Size(str, Enum):  # noqa: UP042 - the older form, whose str() is another text
    """Of which a member is a string."""

    SMALL = "s"
    LARGE = "l"


class Rank(IntEnum):
    """Of which a member is a number."""

    FIRST = 1
    SECOND = 2


def _moment(rng: Random, *, whole_days: bool = False) -> datetime:
    second = 0 if whole_days else rng.choice((0, 1, 3600, 86399, 45000))
    return datetime(rng.choice((1970, 1999, 2024)), rng.randint(1, 12), rng.randint(1, 28)) + timedelta(seconds=second)


def _precise(rng: Random) -> datetime:
    return _moment(rng) + timedelta(microseconds=rng.choice((0, 500_000, 123_456, 1_000, 10)))


def _span(rng: Random) -> timedelta:
    return timedelta(rng.choice((0, 1, -1, 400)), rng.choice((0, 0, 5, 86399)), rng.choice((0, 0, 500_000, 3_000)))


def _decimal(rng: Random) -> Decimal:
    return Decimal(rng.randint(-99999, 99999)).scaleb(-2)


_WORDS = (
    "red",
    "0012",
    "12",
    "é",
    "e\u0301 x",
    "a,b",
    "two\nlines",
    "1e5x",
    "2024-01",
    "None of these",
    '"q"',
    "1.10",
    "v2",
)
_INTEGERS = {
    kind: lambda rng, kind=kind: rng.randint(0, 127) if kind.bit_width == 8 else rng.randint(0, 30_000)
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
}
_ARROW: dict[pa.DataType, Callable[[Random], Any]] = {
    **_INTEGERS,
    pa.bool_(): lambda rng: rng.random() < 0.5,
    pa.float16(): lambda rng: rng.choice((0.5, 2048.0, 8.1, -3.0)),
    pa.float32(): lambda rng: rng.choice((8.1, 0.1, 1e-7, 3e20, 16777216.0, -2.5)),
    pa.float64(): lambda rng: rng.choice((rng.random(), float(rng.randint(-5, 5)), 1e16, 1.5e17, 1e-5, 1e22, -0.0)),
    **{kind: lambda rng: rng.choice(_WORDS) for kind in (pa.string(), pa.large_string(), pa.string_view())},
    **{
        kind: _decimal for kind in (pa.decimal32(9, 4), pa.decimal64(9, 2), pa.decimal128(30, 9), pa.decimal256(50, 12))
    },
    pa.decimal128(38, 10): lambda rng: Decimal(rng.choice(("1e-9", "123456789012345678.5", "7.50", "-1e-10"))),
    **{kind: lambda rng: _moment(rng).date() for kind in (pa.date32(), pa.date64())},
    **{kind: lambda rng: _moment(rng).time() for kind in (pa.time32("s"), pa.time32("ms"))},
    **{kind: lambda rng: _precise(rng).time() for kind in (pa.time64("us"), pa.time64("ns"))},
    **{pa.timestamp("s", zone): _moment for zone in (None, "UTC", "Europe/Berlin", "+05:30")},
    **{pa.timestamp(unit, zone): _precise for unit in ("us", "ns") for zone in (None, "UTC", "America/New_York")},
    pa.duration("s"): lambda rng: timedelta(seconds=_span(rng) // timedelta(seconds=1)),
    **{pa.duration(unit): _span for unit in ("ms", "us", "ns")},
    **{pa.dictionary(pa.int32(), kind): lambda rng: rng.choice(_WORDS) for kind in (pa.string(), pa.large_string())},
    pa.dictionary(pa.int8(), pa.int64()): lambda rng: rng.randint(0, 9),
    pa.bool8(): lambda rng: rng.randint(0, 1),
    pa.json_(): lambda rng: rng.choice(("5", "true", '"x"')),
}
_PANDAS: dict[str, tuple[str, Callable[[Random], Any]]] = {
    "large integers with gaps": ("float64", lambda rng: float(rng.randint(10**16, 2 * 10**18))),
    "nullable integers": ("Int64", lambda rng: rng.randint(10**16, 2 * 10**18)),
    "nullable booleans": ("boolean", lambda rng: rng.random() < 0.5),
    "nullable floats": ("Float64", lambda rng: rng.choice((7.5, 3.0, 1e-7))),
    "strings": ("string", lambda rng: rng.choice(_WORDS)),
    "categories": ("category", lambda rng: rng.choice(_WORDS)),
    "categories of numbers": ("category", lambda rng: rng.choice((1, 2, 3))),
    "midnights": ("datetime64[ns]", lambda rng: _moment(rng, whole_days=True)),
    "times": ("datetime64[us]", _precise),
    "seconds": ("datetime64[s]", _moment),
    "times in UTC": ("datetime64[ns, UTC]", lambda rng: pd.Timestamp(_precise(rng), tz="UTC")),
    "times in a zone": ("datetime64[us, Asia/Tokyo]", lambda rng: pd.Timestamp(_moment(rng), tz="Asia/Tokyo")),
    "spans": ("timedelta64[ns]", _span),
    "whole days": ("timedelta64[s]", lambda rng: timedelta(rng.randint(-2, 4))),
    "decimals": (
        "object",
        lambda rng: Decimal(rng.choice(("7.50", "2", "3.125", "10.0", "1E-7", "12345678901.5"))),
    ),
    "dates": ("object", lambda rng: _moment(rng).date()),
    "clock times": ("object", lambda rng: _precise(rng).time()),
    "enums of strings": ("object", lambda rng: rng.choice(list(Size))),
    "enums of numbers": ("object", lambda rng: rng.choice(list(Rank))),
}
TYPES = {**{str(kind): kind for kind in _ARROW}, **{name: kind for name, (kind, _) in _PANDAS.items()}}


def column(name: str, rng: Random, *, rows: int) -> pa.Array | pd.Series:
    """Return a column of one of TYPES, with a few distinct values and gaps."""
    kind = TYPES[name]
    make = _PANDAS[name][1] if name in _PANDAS else _ARROW[kind]
    values = [make(rng) for _ in range(5)]
    cells = [None if rng.random() < 0.1 else rng.choice(values) for _ in range(rows)]
    if name in _PANDAS:
        return pd.Series(cells, dtype=kind)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(cells, kind.storage_type))
    if pa.types.is_dictionary(kind):
        return pa.array(cells, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(cells, kind)


def frame(columns: dict[str, pa.Array | pd.Series]) -> pd.DataFrame:
    """Return columns as a DataFrame, as pandas reads them from Arrow."""
    series = {}
    for name, given in columns.items():
        cells = given
        series[name] = cells if isinstance(cells, pd.Series) else pd.Series(cells.to_pandas())
    return pd.DataFrame(series)


def arrow(columns: dict[str, pa.Array | pd.Series]) -> pa.Table:
    """Return columns as an Arrow table."""
    return pa.table(
        {name: pa.array(cells) if isinstance(cells, pd.Series) else cells for name, cells in columns.items()}
    )


def write(path: Path, columns: dict[str, pa.Array | pd.Series]) -> Path:
    """Write columns to a file in one of FILES, text as pandas writes it."""
    if path.suffix == ".parquet":
        pq.write_table(arrow(columns), path)
    else:
        frame(columns).to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


def read_back(
    columns: dict[str, pa.Array | pd.Series], folder: Path, names: Sequence[str] = ()
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the table that preprocessing gets from each form, with the form's name.

    Args:
        names: the columns that preprocessing wants; default all.
    """
    names = names or list(columns)
    for suffix in FILES:
        parts = iter_tables([write(folder / f"again.{suffix}", columns)], names, rows_per_batch=1000)
        yield f"{suffix} file", pa.concat_tables([part.table for part in parts])
    rows = records(columns)
    yield "DataFrame", records_to_table(frame(columns), names)
    yield "Arrow table", records_to_table(arrow(columns), names)
    yield "dicts", records_to_table(rows, names)
    yield "JSON", read_records(json.dumps(rows, default=str), JSON, names)
    yield "JSON Lines", read_records("\n".join(json.dumps(row, default=_iso) for row in rows), JSON_LINES, names)
    yield "CSV", read_records(frame(columns).to_csv(index=False), CSV, names)
    body = io.BytesIO()
    pq.write_table(arrow(columns), body)
    yield "Parquet", read_records(body.getvalue(), PARQUET, names)


def records(columns: dict[str, pa.Array | pd.Series]) -> list[dict[str, Any]]:
    """Return the rows as Python values."""
    values = {}
    for name, cells in columns.items():
        listed = cells.tolist() if isinstance(cells, pd.Series) else cells.to_pylist()
        missing = cells.isna() if isinstance(cells, pd.Series) else cells.is_null().to_pylist()
        values[name] = [None if gap else cell for cell, gap in zip(listed, missing)]
    return [dict(zip(values, row)) for row in zip(*values.values())]


def _iso(value: Any) -> str:
    """Return the text of a value as JSON libraries write it, in ISO 8601 where that has a form."""
    return value.isoformat() if isinstance(value, (date, time, pd.Timedelta)) else str(value)
