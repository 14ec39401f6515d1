"""Interpret a cell as a number, a category or label key, or a text, in the same way for files and records.

Columns are those of iter_tables and records_to_table: container/tables/column_types.py has decoded them.
"""

import json
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.column_types import exact_integers, is_number, is_text, widen_floats
from container.tables.number_notations import NULL, read_numbers, replaced, trimmed, units
from container.tables.table_file import Origin
from contracts.errors import ContractError, RowErrors, shown
from contracts.value_types import LARGEST_NUMBER, NUMBER_FORMATS, NumberFormat

# How the texts of a category column are read: number: 7.50 is 7.5; float32, float16: also at this precision, so that
# the Python float 8.100000381469727 is 8.1; span: 23:59:59 is 0 days 23:59:59; text: as they are spelled.
Kind = Literal["number", "float32", "float16", "span", "text"]

_INTEGRAL = r"^(-?(?:0|[1-9][0-9]*))\.0*$"
_NUMBER_FIX = "Write a number such as 12.5, or leave the cell empty."
_IF_DATES = "The column has dates: move it from tab_field_list to date_field_list."
_FINITE_FIX = "Write a finite number, or leave the cell empty for imputation."
_PLACES = r"(\.[0-9]*?)0+(Z?)$"
_WITHOUT_LEADING_ZEROS = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$"
_UNEVEN = r"[eE]|^-?0\.0000|\.[0-9]*0$"  # numbers of which Python writes some with an exponent, or with fewer digits
_OF_NUMBER = r"^-?[1-9]\.[0-9]{3,5}e\+0[0-2]$"  # see written in records.py
_TICKS = {"s": 0, "ms": 3, "us": 6, "ns": 9}  # digits after the point of a second
_LONGEST_NORMALIZED = 256  # bytes; normalizing takes quadratic time in a run of combining marks

# Texts that pandas, Python or JSON write for a value that is no text, in the form of Arrow and in the form of re.
_DATE, _CLOCK, _ZONE = "[0-9]{4}-[0-9]{2}-[0-9]{2}", "[0-9]{1,2}:[0-9]{2}:[0-9]{2}", "Z|[+-][0-9]{2}:?[0-9]{2}"
_SPELLINGS = {
    "word": "-0|[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]",
    "time": rf"({_DATE})[T ]({_CLOCK})(?:\.([0-9]+))?({_ZONE})?",
    "clock": rf"({_CLOCK})\.([0-9]+)",
    "span": rf"(-?[0-9]{{1,9}}) days?(?:,? \+?({_CLOCK})(?:\.([0-9]+))?)?",
    "iso_span": r"P(-?[0-9]{1,9})DT([0-9]{1,2})H([0-9]{1,2})M([0-9]{1,2})(?:\.([0-9]+))?S",
    "float": r"-?[0-9](?:\.[0-9]+)?e\+[0-9]{2}",
}
_CLOCK_ONLY = rf"^{_CLOCK}(?:\.[0-9]+)?$"  # the text of a Python timedelta of less than a day
_ANY_SPELLING = f"^(?:{'|'.join(_SPELLINGS.values())})$".replace(
    _SPELLINGS["time"],
    rf"{_DATE}(?:T{_CLOCK}.*| {_CLOCK}[.Z+-].*| 00:00:00)",  # others are keys
)
# Characters other than Latin, Cyrillic, Japanese, Chinese and Korean letters, punctuation and emoji, which NFC keeps.
_OTHER_FORMS = (
    r"[^\x{0}-\x{2ff}\x{400}-\x{482}\x{48a}-\x{58f}\x{2010}-\x{2060}"
    r"\x{3000}-\x{3029}\x{3041}-\x{3096}\x{309d}-\x{9fff}\x{ac00}-\x{d7a3}\x{1f000}-\x{1faff}]"
)
_PATTERNS = {name: re.compile(pattern) for name, pattern in _SPELLINGS.items()}


def contiguous(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return one array."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def keys(column: pa.Array | pa.ChunkedArray, kind: Kind = "text") -> pa.Array:
    """Return the key that identifies each label or category; null where the cell is empty.

    A value of any type has one key, and the texts that pandas and Python write for it have the same: 1, 1.0, "1",
    "1.0" and true "1"; false and 0 "0"; a midnight its date; a time with a zone its time in UTC; a span of time
    "1 days 02:00:00". Floats have the digits of their precision, as in Python (8.1, 1e-05), decimals no zeros at the
    end, neither has zeros after a whole number. "007" stays "007". Surrounding white space is removed, and letters
    with accents are composed (NFC) in texts of up to 256 bytes; null, NaN, "" and NULL are null. [R] string

    Args:
        kind: how texts are read that may be numbers.
    """
    column = contiguous(column)
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.string())
    # Arrow 25 cannot dictionary-encode float16; float32 represents each exactly.
    distinct = (column.cast(pa.float32()) if pa.types.is_float16(column.type) else column).dictionary_encode()
    values = distinct.dictionary.cast(column.type)
    text = _respelled(values) if is_text(values.type) else _typed(values)
    if kind in ("float16", "float32"):
        text = _at_precision(text, kind)
    elif kind == "number" and is_text(values.type):
        text = replaced(text, _WITHOUT_LEADING_ZEROS, lambda found: replaced(found, _UNEVEN, _each(_number)))
    elif kind == "span" and is_text(values.type):
        text = replaced(text, _CLOCK_ONLY, _each(lambda clock: _span(0, *clock.partition(".")[::2])))
    return text.take(distinct.indices)


def kind_of_type(kind: pa.DataType) -> Kind:
    """Return the kind of a category column with values of this type."""
    if pa.types.is_float16(kind):
        return "float16"
    if pa.types.is_float32(kind):
        return "float32"
    return "number" if is_number(kind) else "span" if pa.types.is_duration(kind) else "text"


def kind_of_texts(names: Collection[str]) -> Kind:
    """Return the kind of a category column whose values have no type, as in CSV, from their keys.

    They are numbers if all can be, some have zeros at their end or an exponent, and no two are the same number: 1.1
    and 1.10 are two versions of a program. They are spans of time if all are.
    """
    written = pa.array([name for name in names if name], pa.string())
    if len(written) and pc.all(pc.match_substring_regex(written, pattern=f"^{_SPELLINGS['span']}$")).as_py():
        return "span"
    if not pc.all(pc.match_substring_regex(written, pattern=_WITHOUT_LEADING_ZEROS)).as_py():
        return "text"
    read = keys(written, "number")
    return "number" if len(read.unique()) == len(written) and not read.equals(written) else "text"


def numbers(
    column: pa.Array | pa.ChunkedArray,
    name: str,
    *,
    origin: Origin,
    written: NumberFormat | None = None,
    unit: str | None = None,
    missing: Sequence[str] = (),
    if_not_numeric: str = "",
) -> np.ndarray:
    """Return a numeric column as float64, NaN where a value is missing. [R]

    A text is a number if it has ASCII digits with an optional sign, decimal point and exponent (12, -.5, +1e-3), or is
    true or false. Empty texts and those of MISSING_NUMBERS are missing. White space around and case have no effect.

    Args:
        written: notation of the texts, in addition to the one above.
        unit: the currency or the percent sign that texts may have; None: any.
        missing: texts in lower case that stand for no number, in addition to MISSING_NUMBERS.
        if_not_numeric: what the user can do if the column is not meant to be numeric, for the error.

    Raises:
        ContractError: a value that is not a number, has another unit, is infinite, or is too large for float32.
    """
    column = contiguous(column)
    kind = column.type
    if pa.types.is_null(kind) or not len(column):
        return np.full(len(column), np.nan)
    wrong = np.zeros(len(column), bool)
    if is_text(kind):
        values, wrong = read_numbers(column, written, missing=missing)
    elif is_number(kind):
        values = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    else:
        cause = f"{origin.file or 'records'}: column {name!r} is of type {kind}, which is not numeric"
        fix = _IF_DATES if pa.types.is_temporal(kind) else f"Write it as numbers. {if_not_numeric}".rstrip()
        raise ContractError.of_rows(dict.fromkeys(range(len(column)), cause), fix)
    errors = RowErrors()
    with errors:
        fix = _fix_of_number(column, wrong, name, if_not_numeric)
        refuse_values(column, wrong, name, "a number", fix, origin=origin)
    with errors:
        infinite = np.abs(values) > LARGEST_NUMBER  # inf too; NaN compares false
        refuse_values(column, infinite, name, "a finite 32-bit number", _FINITE_FIX, origin=origin)
    with errors:
        if is_text(kind) and unit is not None:
            _check_unit(column, values, name, unit, origin=origin)
    errors.raise_first()
    return values


def _check_unit(column: pa.Array, values: np.ndarray, name: str, unit: str, *, origin: Origin) -> None:
    """Raise ContractError where a number has another currency than train, or only one of both has a percent sign."""
    known = pc.is_in(units(trimmed(column)), pa.array(["", unit])).to_numpy(zero_copy_only=False)
    expected = (
        f"a number in {unit}, as in train" if unit else "a number without a currency or percent sign, as in train"
    )
    fix = f"Write the number in {unit}." if unit else "Write the number alone."
    refuse_values(column, np.isfinite(values) & ~known, name, expected, fix, origin=origin)


def texts(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """Return a text column as strings, None where a text is missing; booleans as true or false, others by their key."""
    column = contiguous(column)
    if is_text(column.type):
        column = replaced(column, _OF_NUMBER, _each(written_float))
        return pc.if_else(pc.equal(column, NULL), pa.scalar(None, column.type), column).to_pylist()
    return (column.cast(pa.string()) if pa.types.is_boolean(column.type) else keys(column)).to_pylist()


def written_float(text: str) -> str:
    """Return the digits of a JSON fraction (1.10, not 1.1); with an exponent, its key unless it is infinite."""
    if not ("e" in text or "E" in text) or not math.isfinite(number := float(text)):
        return text
    return _of_float(number)


def _typed(values: pa.Array) -> pa.Array:
    """Return the keys of values that are no texts."""
    kind = values.type
    if pa.types.is_floating(kind):
        return _floats(widen_floats(values).to_numpy(zero_copy_only=False))
    if pa.types.is_boolean(kind):
        values = pc.cast(values, pa.int8())
    if pa.types.is_decimal(kind):
        return _each(lambda value: _number(f"{value:f}"))(values)
    if pa.types.is_duration(kind):
        return _each(lambda count: _span_of(count, _TICKS[kind.unit]))(values.cast(pa.int64()))
    text = pc.cast(values, pa.string())
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        for pattern, key in ((_PLACES, r"\1\2"), (r"\.(Z?)$", r"\1"), (" 00:00:00$", "")):
            text = pc.replace_substring_regex(text, pattern=pattern, replacement=key)
    return text


def _respelled(values: pa.Array) -> pa.Array:
    """Return the keys of texts."""
    text = pc.utf8_trim_whitespace(pc.cast(values, pa.string()))
    text = _composed(pc.replace_substring_regex(text, pattern=_INTEGRAL, replacement=r"\1"))
    text = replaced(text, _ANY_SPELLING, _each(_spelled_value))
    return pc.if_else(pc.is_in(text, pa.array(["", NULL])), pa.scalar(None, pa.string()), text)


def _composed(text: pa.Array) -> pa.Array:
    others = pc.invert(pc.string_is_ascii(text))
    if not pc.any(others).as_py():
        return text
    short = pc.less_equal(pc.binary_length(text), _LONGEST_NORMALIZED)
    others = pc.and_(pc.and_(others, short), pc.match_substring_regex(text, pattern=_OTHER_FORMS))
    normalize = partial(unicodedata.normalize, "NFC")  # utf8_normalize of Arrow 25 decomposes for NFC
    return pc.replace_with_mask(text, others, _each(normalize)(text.filter(others)))


def _each(convert: Callable[[Any], str | None]) -> Callable[[pa.Array], pa.Array]:
    """Return a function that converts the distinct values of a column in Python."""
    return lambda values: pa.array(
        [None if cell is None else convert(cell) for cell in values.to_pylist()], pa.string()
    )


def _spelled_value(text: str) -> str | None:
    """Return the key of the value for which a text of _SPELLINGS was written."""
    name, groups = next(
        ((name, found.groups()) for name, pattern in _PATTERNS.items() if (found := pattern.fullmatch(text))), ("", ())
    )
    match name, groups:
        case "word", _:
            return "1" if text.lower() == "true" else "0"
        case "time", (date, clock, places, zone):
            return _time(date, clock, places, zone) or text
        case "clock", (clock, places):
            return clock + _fraction(places)
        case "span", (days, clock, places):
            return _span(int(days), clock or "0:00:00", places)
        case "iso_span", (days, *clock, places):
            return _span(int(days), ":".join(part.zfill(2) for part in clock), places)
        case "float", _:
            return written_float(text)
    return text


def _time(date: str, clock: str, places: str | None, zone: str | None) -> str | None:
    """Return the key of a time; None if there is no such time."""
    if zone:
        try:
            date, clock = str(datetime.fromisoformat(f"{date}T{clock}{zone}").astimezone(UTC))[:19].split()
        except (ValueError, OverflowError):
            return None
    clock += _fraction(places)
    return f"{date} {clock}Z" if zone else date if clock == "00:00:00" else f"{date} {clock}"


def _span_of(count: int, digits: int) -> str:
    seconds, part = divmod(count, 10**digits)
    days, seconds = divmod(seconds, 86400)
    return _span(days, f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}", f"{part:0{digits}}")


def _span(days: int, clock: str, places: str | None) -> str:
    """Return the key of a span of time, as pandas writes it: -1 days +23:59:59.5."""
    clock = clock.zfill(8) + _fraction(places)
    return f"{days} days" if clock == "00:00:00" else f"{days} days {'+' * (days < 0)}{clock}"


def _fraction(places: str | None) -> str:
    digits = (places or "").rstrip("0")
    return digits and f".{digits}"


def _number(text: str) -> str:
    """Return the key of a decimal number: that of the float with the same digits if one has an exponent, else all."""
    value, number = Decimal(text), float(text)
    if ("e" in text.lower() or abs(number) < 1e-4) and Decimal(repr(number)) == value:
        return _of_float(number)
    plain = f"{value:f}"
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return "0" if plain == "-0" else plain


def _at_precision(text: pa.Array, kind: Kind) -> pa.Array:
    """Return texts of which those that are numbers have the digits of a narrow float."""

    def narrowed(found: pa.Array) -> pa.Array:
        with np.errstate(over="ignore"):
            narrow = pa.array(found.cast(pa.float64()).to_numpy(zero_copy_only=False).astype(kind))
        written = _typed(narrow)
        return pc.if_else(pc.is_inf(narrow.cast(pa.float64())), found, written)

    return replaced(text, _WITHOUT_LEADING_ZEROS, narrowed)


def _of_float(number: float) -> str:
    return str(int(number)) if exact_integers(np.array(number)) else repr(number)


def _floats(values: np.ndarray) -> pa.Array:
    """Return the key of each float64; null for NaN. [R] -> [R] string"""
    whole = exact_integers(values)
    integers = pa.array(np.where(whole, values, 0).astype(np.int64)).cast(pa.string())
    size = np.abs(values)
    plain = whole | ((size >= 1e-4) & (size < 1e7))  # Arrow writes the latter as Python does, in a fifth of the time
    others = pa.array(list(map(repr, values[~plain].tolist())), pa.string())
    written = pc.replace_with_mask(pa.array(values).cast(pa.string()), pa.array(~plain), others)
    return pc.if_else(
        pa.array(np.isnan(values)), pa.scalar(None, pa.string()), pc.if_else(pa.array(whole), integers, written)
    )


def as_plain(column: pa.Array) -> pa.Array:
    """Return times as texts, for messages: Python has no time after the year 9999."""
    return column.cast(pa.string()) if pa.types.is_temporal(column.type) else column


def refuse_values(column: pa.Array, wrong: np.ndarray, name: str, expected: str, fix: str, *, origin: Origin) -> None:
    """Raise ContractError for the rows of a column that are marked as wrong. [R], [R] bool"""
    if wrong.any():
        cells = zip(np.flatnonzero(wrong).tolist(), as_plain(column.filter(pa.array(wrong))).to_pylist())
        causes = {row: f"{origin.row(row)}, column {name!r}: {shown(cell)} is not {expected}" for row, cell in cells}
        raise ContractError.of_rows(causes, fix)


def _fix_of_number(column: pa.Array, wrong: np.ndarray, name: str, otherwise: str) -> str:
    """Return what the user can do about the first text that is not a number."""
    if not wrong.any() or not is_text(column.type):
        return ""
    cell = column.filter(pa.array(wrong))[:1]
    for written in NUMBER_FORMATS:
        if not read_numbers(cell, written)[1][0]:
            setting = json.dumps({"number_format": {name: written}}, ensure_ascii=False)[1:-1]
            return f"Set {setting} to read such texts as numbers, or write 1234.5 without other characters."
    if re.match(rf"\s*({_DATE}|[0-9]{{1,2}}[/.][0-9]{{1,2}}[/.][0-9]{{2,4}})", cell[0].as_py()):
        return _IF_DATES
    return f"{_NUMBER_FIX} {otherwise}".rstrip()
