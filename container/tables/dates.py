"""Read dates and times in the usual notations, in the same way for files, records and every type of column."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from container.tables.channel_files import Origin
from container.tables.values import MISSING_NUMBERS, contiguous, keys, refuse_values
from contracts.errors import RowErrors
from contracts.tabular_inputs import date_inputs

ISO = "2026-11-27"
# Month before day where both are possible: a column in which every day is at most 12.
FORMATS = (
    ISO, "%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%d-%b-%Y", "%d %b %Y", "%d %B %Y",
    "%b %d, %Y", "%B %d, %Y", "%Y-%m", "%d.%m.%y", "%m/%d/%y", "%d/%m/%y", "%d-%b-%y",
)  # fmt: skip
_CLOCKS = ("", " %H:%M", " %H:%M:%S")  # by the number of colons
_CLOCKS_OF_12_HOURS = ("", " %I:%M %p", " %I:%M:%S %p")
_MISSING = {*MISSING_NUMBERS, "nat"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400.0
_FIX = "Write it as {}, or leave the cell empty."
_EXAMPLE = datetime(2026, 11, 27)
# datetime.fromisoformat takes any sign before the time: that of a time zone, too.
_ISO_FORM = re.compile(r"\d{4}-?(\d\d-?\d\d|W\d\d(-?\d)?)([Tt ].+)?")


@dataclass(frozen=True)
class DateReading:
    """How the dates of a column are written.

    Attributes:
        format: one of FORMATS.
        has_zone: whether every time has a time zone. Such times are read in UTC.
    """

    format: str
    has_zone: bool


@dataclass(frozen=True)
class Dates:
    """A column of dates.

    Attributes:
        seconds: since 1970, NaN where the date is missing. [R] float64
        unread: the rows whose value is no date in this format. [R] bool
        zoned: the rows whose time has a zone. [R] bool
    """

    seconds: np.ndarray
    unread: np.ndarray
    zoned: np.ndarray


def read_dates(column: pa.Array | pa.ChunkedArray, date_format: str) -> Dates:
    """Read a column in one of FORMATS, with or without a time. [R]"""
    distinct = keys(column).dictionary_encode()
    names = distinct.dictionary.to_pylist()
    moments = [_moment(name, date_format) if name.lower() not in _MISSING else None for name in names]
    unread = [moment is None and name.lower() not in _MISSING for name, moment in zip(names, moments)]
    zoned = [moment is not None and moment.tzinfo is not None for moment in moments]
    seconds = [_seconds(moment) if moment else np.nan for moment in moments]
    # The last entry is of cells without a value.
    places = distinct.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
    of_each = (np.array([*values, last]) for values, last in ((seconds, np.nan), (unread, False), (zoned, False)))
    return Dates(*(values[places] for values in of_each))


def date_parts(seconds: np.ndarray) -> np.ndarray:
    """Return the inputs of `date_inputs` for dates: NaN where the date is missing. [R] -> [7, R]"""
    missing = np.isnan(seconds)
    days = np.floor(np.where(missing, 0.0, seconds) / _DAY)
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    parts = (
        months.astype("datetime64[Y]").astype(np.int64) + 1970,
        months.astype(np.int64) % 12 + 1,
        (dates - months).astype(np.int64) + 1,
        (days + 3) % 7,  # 1970 began on a Thursday
        np.floor((seconds - days * _DAY) / 3600),
        seconds / _DAY,
    )
    return np.stack([*(np.where(missing, np.nan, part) for part in parts), missing.astype(np.float64)])


def date_columns(
    table: pa.Table | pa.RecordBatch, readings: Mapping[str, DateReading], *, origin: Origin
) -> dict[str, pa.Array]:
    """Return the numeric columns that a model reads of a table's dates, by name. [R] each

    They are no columns of the table, which may have a column of the same name.

    Raises:
        ContractError: a value that is no date in the column's format, or a time with a zone beside times without one.
    """
    errors = RowErrors()
    columns: dict[str, pa.Array] = {}
    for name, reading in readings.items():
        with errors:
            column = contiguous(table[name])
            dates = read_dates(column, reading.format)
            expected = "a date" if reading.format == ISO else f"a date of the form {reading.format}, as in train"
            example = _EXAMPLE.strftime("%Y-%m-%d" if reading.format == ISO else reading.format)
            fix = _FIX.format(f"{example}T10:00:00+01:00" if reading.has_zone else f"{example}, with or without a time")
            refuse_values(column, dates.unread, name, expected, fix, origin=origin)
            other = (dates.zoned != reading.has_zone) & ~np.isnan(dates.seconds)
            zone = "with" if reading.has_zone else "without"
            fix = f"Write every time {zone} a time zone."
            refuse_values(column, other, name, f"a time {zone} a time zone, as in train", fix, origin=origin)
            for part, values in zip(date_inputs(name), date_parts(dates.seconds)):
                columns[part] = pa.array(values)
    errors.raise_first()
    return columns


def _moment(text: str, date_format: str) -> datetime | None:
    try:
        if date_format == ISO:
            if text.isdigit() and len(text) != len("20261127"):  # e.g. milliseconds since 1970
                return None
            return datetime.fromisoformat(text) if _ISO_FORM.fullmatch(text) else None
        clocks = _CLOCKS_OF_12_HOURS if text[-1:] in "mM" else _CLOCKS
        return datetime.strptime(text, date_format + clocks[min(text.count(":"), 2)])
    except ValueError:
        return None


def _seconds(moment: datetime) -> float:
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH).total_seconds()
