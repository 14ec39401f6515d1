"""Read dates and times in the usual notations, in the same way for files, records and every type of column."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.column_types import is_text
from container.tables.number_notations import MISSING_NUMBERS, is_missing
from container.tables.table_file import Origin
from container.tables.values import contiguous, keys, refuse_values
from contracts.errors import RowErrors
from contracts.tabular_inputs import date_inputs
from contracts.value_types import EPOCHS, ISO

_MISSING = (*MISSING_NUMBERS, "nat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")  # in every locale
_LONG_MONTHS = "uary|ruary|ch|il|e|y|ust|t|tember|ober|ember"
_WEEKDAY = r"(?i:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\.?,? +)?"
_PARTS = {
    "%Y": "(?P<Y>[0-9]{4})",
    "%y": "(?P<y>[0-9]{2})",
    "%m": "(?P<m>[0-9]{1,2})",
    "%d": "(?P<d>[0-9]{1,2})",
    "%b": rf"(?P<b>(?i:{'|'.join(_MONTHS)}))(?i:{_LONG_MONTHS})?\.?",
    " ": " +",
    ",": ",?",
    ".": r"\.",
}
_PARTS["%B"] = _PARTS["%b"]
_CLOCK = (
    r"(?:(?:[Tt]|,? +)(?P<H>[0-9]{1,2})(?::(?P<M>[0-9]{2})(?::(?P<S>[0-9]{2})(?:[.,](?P<f>[0-9]{1,6})[0-9]*)?)?)?"
    r" *(?:(?P<p>[AaPp])\.?[Mm]\.?)? *(?P<z>[Zz]|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)?(?: \(UTC\))?)?"
)
# Other forms of ISO 8601, which Python reads: 20261127, 2026-W48-5. It takes any sign before the time, so check that.
_ISO_FORM = r"^[0-9]{4}-?([0-9]{2}-?[0-9]{2}|W[0-9]{2}(-?[0-9])?)([Tt ].+)?$"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400.0
_FIRST, _END = -62_135_596_800, 253_402_300_800  # seconds of the years 1 and 10000
_EPOCH_SECONDS = (1e8, 1e10)  # of the years 1973 to 2286: other numbers are no epochs
_FIX = "Write it as {}, or leave the cell empty."
_EXAMPLE = datetime(2026, 11, 27)


@dataclass(frozen=True)
class DateReading:
    """How the dates of a column are written.

    Attributes:
        format: one of DATE_FORMATS.
        has_zone: whether every time has a time zone; None: times without one are in UTC. All are read in UTC.
    """

    format: str
    has_zone: bool | None


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

    @property
    def values(self) -> np.ndarray:
        return self.seconds


def read_dates(column: pa.Array | pa.ChunkedArray, date_format: str, *, missing: Sequence[str] = ()) -> Dates:
    """Read a column in one of DATE_FORMATS, with or without a time; typed dates are dates in every format. [R]

    Args:
        missing: texts in lower case that stand for no date, in addition to the usual ones.
    """
    cells = contiguous(column)
    kind = cells.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        read = cells.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
        zoned = pa.types.is_timestamp(kind) and kind.tz is not None
        return _checked(_seconds_of(read), np.full(len(cells), zoned), present=cells.is_valid())
    text = pc.utf8_trim_whitespace(cells.cast(pa.string()) if is_text(kind) else keys(cells))
    text = pc.if_else(is_missing(text, (*_MISSING, *missing)), pa.scalar(None, pa.string()), text)
    for zone in (None, "UTC") if date_format == ISO else ():  # usual, and needs one pass
        with suppress(pa.ArrowInvalid):
            read = text.cast(pa.timestamp("us", zone))
            return _checked(_seconds_of(read), np.full(len(text), zone is not None), present=text.is_valid())
    distinct = text.dictionary_encode()
    seconds, zoned = _read(distinct.dictionary, date_format)
    # The last entry is of cells without a value.
    places = distinct.indices.fill_null(len(seconds)).to_numpy(zero_copy_only=False)
    seconds, zoned = np.append(seconds, np.nan)[places], np.append(zoned, False)[places]
    return _checked(seconds, zoned, present=text.is_valid())


def _seconds_of(times: pa.Array) -> np.ndarray:
    return times.cast(pa.int64()).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) / 1e6


def _checked(seconds: np.ndarray, zoned: np.ndarray, *, present: pa.Array) -> Dates:
    """Return the dates of the years 1 to 9999; others, and NaN where a text is present, are unread."""
    read = (seconds >= _FIRST) & (seconds < _END)
    there = present.to_numpy(zero_copy_only=False)
    return Dates(np.where(read & there, seconds, np.nan), ~read & there, zoned & read & there)


def _read(names: pa.Array, date_format: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds since 1970 of distinct texts, NaN where they are no dates, and which have a zone. [D], [D]"""
    if date_format in EPOCHS:
        per_second = EPOCHS[date_format]
        is_number = pc.match_substring_regex(names, pattern=r"^-?[0-9]{1,15}(\.[0-9]+)?$")
        numbers = pc.if_else(is_number, names, pa.scalar(None, pa.string())).cast(pa.float64())
        seconds = numbers.to_numpy(zero_copy_only=False) / per_second
        fits = (seconds >= _EPOCH_SECONDS[0]) & (seconds < _EPOCH_SECONDS[1])
        return np.where(fits, seconds, np.nan), np.zeros(len(names), bool)
    parts = pc.extract_regex(names, pattern=_pattern(date_format))
    matched = parts.is_valid().to_numpy(zero_copy_only=False)
    if date_format != ISO and not matched.any():  # usual where a column is compared with all formats
        return np.full(len(names), np.nan), matched
    has = {field.name: parts.field(field.name) for field in parts.type}

    def number(name: str, default: int = 0) -> np.ndarray:
        if name not in has:
            return np.full(len(names), default)
        digits = pc.if_else(pc.equal(has[name], ""), str(default), has[name])
        return pc.fill_null(digits, "0").cast(pa.int64()).to_numpy(zero_copy_only=False)

    def letter(name: str) -> np.ndarray:
        return pc.utf8_lower(pc.fill_null(has[name], "")).to_numpy(zero_copy_only=False).astype(str)

    year = number("Y") if "Y" in has else np.where(number("y") < 69, 2000, 1900) + number("y")
    month, day = number("m", 1), number("d", 1)
    if "b" in has:
        month = np.searchsorted(np.sort(_MONTHS), letter("b"))
        month = (np.argsort(_MONTHS) + 1)[np.minimum(month, 11)]
    hour, minute, second, half = number("H"), number("M"), number("S"), letter("p")
    on_clock = (half == "") | ((hour >= 1) & (hour <= 12))
    hour = np.where(half == "", hour, hour % 12 + 12 * (half == "p"))
    whole_hour = (letter("H") == "") | (letter("M") != "") | (half != "")
    months = (np.clip(year, 1, 9999) - 1970) * 12 + np.clip(month, 1, 12) - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]") + (np.clip(day, 1, 31) - 1)
    valid = matched & on_clock & whole_hour & (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    valid &= (days.astype("datetime64[M]").astype(np.int64) == months) & (hour <= 23) & (minute <= 59) & (second <= 59)
    fraction = np.array([int(digits.ljust(6, "0")) if digits else 0 for digits in letter("f")]) if "f" in has else 0
    zone = letter("z")
    offset = np.array([_offset(each) for each in np.unique(zone)])[np.unique(zone, return_inverse=True)[1]]
    seconds = days.astype(np.int64) * _DAY + hour * 3600 + minute * 60 + second - offset + fraction / 1e6
    seconds, zoned = np.where(valid, seconds, np.nan), valid & (zone != "")
    if date_format == ISO:
        others = ~valid & pc.match_substring_regex(names, pattern=_ISO_FORM).to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(others).tolist():
            seconds[place], zoned[place] = _iso(names[place].as_py())
    return seconds, zoned


@lru_cache
def _pattern(date_format: str) -> str:
    """Return the pattern of a date in a format, with or without a time; weekdays may stand before names of months."""
    date_format = "%Y-%m-%d" if date_format == ISO else date_format
    pattern = "".join(_PARTS.get(str(part), str(part)) for part in re.findall(r"%.|[^%]", date_format))
    if "?P<b>" in pattern:
        pattern = _WEEKDAY + pattern.replace(_PARTS["%d"], _PARTS["%d"] + r"(?:st|nd|rd|th|\.)?")
    return f"^{pattern}{_CLOCK}$"


def _offset(zone: str) -> float:
    """Return the seconds of +02:00, NaN if there is no such zone."""
    if zone[:1] not in ("+", "-"):
        return 0.0
    hours, minutes = int(zone[1:3]), int(zone[3:].removeprefix(":") or 0)
    seconds = hours * 3600.0 + minutes * 60
    return (-seconds if zone[0] == "-" else seconds) if hours < 24 and minutes < 60 else np.nan


def _iso(text: str) -> tuple[float, bool]:
    if text.isdigit() and len(text) != len("20261127"):  # e.g. milliseconds since 1970
        return np.nan, False
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return np.nan, False
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH).total_seconds(), bool(moment.tzinfo)


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


def date_example(reading: DateReading) -> str:
    """Return a date that the model reads."""
    if reading.format in EPOCHS:
        return str(int(_EXAMPLE.replace(tzinfo=UTC).timestamp() * EPOCHS[reading.format]))
    text = re.sub("%[bB]", "Nov", ISO if reading.format == ISO else reading.format)
    return _EXAMPLE.strftime(text)  # digits alone, in every locale


def date_columns(
    table: pa.Table | pa.RecordBatch,
    readings: Mapping[str, DateReading],
    *,
    origin: Origin,
    missing: Sequence[str] = (),
) -> dict[str, pa.Array]:
    """Return the numeric columns that a model reads of a table's dates, by name. [R] each

    They are no columns of the table, which may have a column of the same name.

    Args:
        missing: as for `read_dates`.

    Raises:
        ContractError: a value that is no date in the column's format, or a time with a zone beside times without one.
    """
    errors = RowErrors()
    columns: dict[str, pa.Array] = {}
    for name, reading in readings.items():
        with errors:
            column = contiguous(table[name])
            dates = read_dates(column, reading.format, missing=missing)
            expected = "a date" if reading.format == ISO else f"a date of the form {reading.format}, as in train"
            example = date_example(reading)
            fix = _FIX.format(f"{example}T10:00:00+01:00" if reading.has_zone else f"{example}, with or without a time")
            refuse_values(column, dates.unread, name, expected, fix, origin=origin)
            if reading.has_zone is not None:
                other = (dates.zoned != reading.has_zone) & ~np.isnan(dates.seconds)
                zone = "with" if reading.has_zone else "without"
                fix = f"Write every time {zone} a time zone."
                refuse_values(column, other, name, f"a time {zone} a time zone, as in train", fix, origin=origin)
            for part, values in zip(date_inputs(name), date_parts(dates.seconds)):
                columns[part] = pa.array(values)
    errors.raise_first()
    return columns
