"""Interpret a cell as a number, a category or label key, or a text, in the same way for files and records."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.channel_files import Origin
from container.tables.column_types import (
    NESTED_CELLS,
    decode,
    exact_integers,
    invalid_values,
    is_binary,
    is_number,
    is_text,
    plain_type,
    unknown_zone,
    widen_floats,
)
from contracts.errors import ContractError, RowErrors, shown
from contracts.numbers import LARGEST_NUMBER

MISSING_NUMBERS = ("", "na", "n/a", "null", "none", "nan")
_UNSIGNED = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_NUMBER = f"^[+-]?{_UNSIGNED}"
_INTEGRAL = r"^(-?(?:0|[1-9][0-9]*))\.0*$"
_NUMBER_FIX = "Write a number such as 12.5, or leave the cell empty."
_FINITE_FIX = "Write a finite number, or leave the cell empty for imputation."
_ZONE = r"(Z|[+-][0-9]{2}:?[0-9]{2})?$"
_FRACTION = r"(\.[0-9]*?)0+" + _ZONE


def plain_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return one contiguous array of decoded values."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return decode(column)


def check_single_values(column: pa.Array | pa.ChunkedArray, name: str, *, origin: Origin) -> None:
    """Raise ContractError where a column is not of single values, bytes are not UTF-8, or a time zone is unknown."""
    kind, plain = column.type, plain_type(column.type)
    if not len(column):
        return
    if plain is None:
        causes = {
            row: f"{origin.row(row)}: column {name!r} contains {held}, not a single value"
            for row, held in _held(column).items()
        }
        raise ContractError.of_rows(causes, "Give each column one text or number per record.")
    try:
        if is_binary(kind):
            decode(column)
    except pa.ArrowInvalid as error:
        rows = invalid_values(column, decode) or range(len(column))  # a dictionary may have values that no row has
        cause = f"column {name!r} is of type {kind} and is not UTF-8 text"
        causes = {row: f"{origin.row(row)}: {cause}" for row in rows}
        raise ContractError.of_rows(causes, "Write the column as strings.") from error
    if reason := unknown_zone(plain):
        cause = f"{origin.file or 'records'}: column {name!r} is of type {kind}: {reason}"
        raise ContractError.of_rows(dict.fromkeys(range(len(column)), cause), "Write the times in UTC.")


def _held(column: pa.Array | pa.ChunkedArray) -> dict[int, str]:
    """Return the description of each row that is not a single value, by position; rows with a value are first."""
    kind = column.type
    if kind == NESTED_CELLS:
        return {row: f"a {cell['kind']}" for row, cell in enumerate(column.to_pylist()) if cell}
    held = "a dict" if pa.types.is_struct(kind) or pa.types.is_map(kind) else "a list"
    held = held if pa.types.is_nested(kind) else f"the type {kind}"
    return dict.fromkeys(np.argsort(column.is_null(), kind="stable").tolist(), held)


def keys(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the key that identifies each label or category; null where the cell is empty.

    1, 1.0, "1", "1.0" and true have the key "1"; false and 0 have the key "0"; "007" stays "007". Surrounding white
    space is removed; null, NaN and "" are null. Other floats are written as Python and pandas write them, with the
    digits of their precision (8.1, 1e-05). Decimals have all digits and no exponent. Times have no trailing zeros in
    their fraction. [R] string
    """
    column = plain_array(column)
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.string())
    # Arrow 25 cannot dictionary-encode float16; float32 represents each exactly.
    distinct = (column.cast(pa.float32()) if pa.types.is_float16(column.type) else column).dictionary_encode()
    return _canonical(distinct.dictionary.cast(column.type)).take(distinct.indices)


def numbers(column: pa.Array | pa.ChunkedArray, name: str, *, origin: Origin, if_not_numeric: str = "") -> np.ndarray:
    """Return a numeric column as float64, NaN where a value is missing. [R]

    A text is a number if it has ASCII digits with an optional sign, decimal point and exponent (12, -.5, +1e-3), or is
    true or false. Empty texts and those of MISSING_NUMBERS are missing. White space around and case have no effect.

    Args:
        if_not_numeric: what the user can do if the column is not meant to be numeric, for the error.

    Raises:
        ContractError: a value that is not a number, is infinite, or is too large for float32.
    """
    column = plain_array(column)
    kind = column.type
    if pa.types.is_null(kind) or not len(column):
        return np.full(len(column), np.nan)
    wrong = np.zeros(len(column), bool)
    if is_text(kind):
        parsed, wrong = _parse(column)
    elif is_number(kind):
        parsed = pc.cast(column, pa.float64(), safe=False)
    else:
        cause = f"{origin.file or 'records'}: column {name!r} is of type {kind}, which is not numeric"
        fix = f"Write it as numbers. {if_not_numeric}".rstrip()
        raise ContractError.of_rows(dict.fromkeys(range(len(column)), cause), fix)
    values = parsed.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    infinite = np.abs(values) > LARGEST_NUMBER  # inf too; NaN compares false
    errors = RowErrors()
    with errors:
        _refuse(column, wrong, name, "a number", f"{_NUMBER_FIX} {if_not_numeric}".rstrip(), origin=origin)
    with errors:
        _refuse(column, infinite, name, "a finite 32-bit number", _FINITE_FIX, origin=origin)
    errors.raise_first()
    return values


def texts(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """Return a text column as strings, None where a text is missing; booleans as true or false, others by their key."""
    column = plain_array(column)
    if is_text(column.type):
        return column.to_pylist()
    return (column.cast(pa.string()) if pa.types.is_boolean(column.type) else keys(column)).to_pylist()


def written_float(text: str) -> str:
    """Return the digits of a JSON fraction (1.10, not 1.1); with an exponent, its key unless it is infinite."""
    if not ("e" in text or "E" in text) or not math.isfinite(number := float(text)):
        return text
    return str(int(number)) if exact_integers(np.array(number)) else repr(number)


def _canonical(values: pa.Array) -> pa.Array:
    if pa.types.is_floating(values.type):
        return _floats(widen_floats(values).to_numpy(zero_copy_only=False))
    if pa.types.is_boolean(values.type):
        values = pc.cast(values, pa.int8())
    if pa.types.is_decimal(values.type):  # Arrow writes 0 with 7 digits after the point as 0E-7
        values = pa.array([None if value is None else f"{value:f}" for value in values.to_pylist()], pa.string())
    if pa.types.is_timestamp(values.type) or pa.types.is_time(values.type):
        text = pc.replace_substring_regex(pc.cast(values, pa.string()), pattern=_FRACTION, replacement=r"\1\2")
        return pc.replace_substring_regex(text, pattern=r"\." + _ZONE, replacement=r"\1")
    text = pc.utf8_trim_whitespace(pc.cast(values, pa.string()))
    text = pc.replace_substring_regex(text, pattern=_INTEGRAL, replacement=r"\1")
    for pattern, key in ((r"^-0$", "0"), (r"(?i)^true$", "1"), (r"(?i)^false$", "0")):
        text = pc.replace_substring_regex(text, pattern=pattern, replacement=key)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


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


def _refuse(column: pa.Array, wrong: np.ndarray, name: str, expected: str, fix: str, *, origin: Origin) -> None:
    if wrong.any():
        cells = zip(np.flatnonzero(wrong).tolist(), column.filter(pa.array(wrong)).to_pylist())
        causes = {row: f"{origin.row(row)}, column {name!r}: {shown(cell)} is not {expected}" for row, cell in cells}
        raise ContractError.of_rows(causes, fix)


def _parse(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return texts as float64, and which of them are neither numbers nor missing; these are null. [R], [R] bool"""
    text = pc.utf8_trim_whitespace(pc.cast(column, pa.string()))
    if pc.all(pc.match_substring_regex(text, pattern=f"^-?{_UNSIGNED}")).as_py():  # usual, and needs one pass
        return pc.cast(text, pa.float64()), np.zeros(len(column), bool)
    missing = pc.is_in(pc.utf8_lower(text), value_set=pa.array(MISSING_NUMBERS))
    text = pc.if_else(missing, pa.scalar(None, pa.string()), text)
    for pattern, number in ((r"(?i)^true$", "1"), (r"(?i)^false$", "0")):
        text = pc.replace_substring_regex(text, pattern=pattern, replacement=number)
    wrong = pc.fill_null(pc.invert(pc.match_substring_regex(text, pattern=_NUMBER)), False)
    text = pc.if_else(wrong, pa.scalar(None, pa.string()), pc.utf8_ltrim(text, characters="+"))  # Arrow parses no plus
    return pc.cast(text, pa.float64()), wrong.to_numpy(zero_copy_only=False)
