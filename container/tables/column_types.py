"""Convert columns of any Arrow type to the types that cells have, and texts to those that UTF-8 can encode."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from contracts.errors import first_line

_SINGLE_VALUES = (
    pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal,
    pa.types.is_string, pa.types.is_large_string, pa.types.is_date, pa.types.is_time,
    pa.types.is_timestamp, pa.types.is_duration,
)  # fmt: skip
# The type of a column in which caller's records have lists or dicts: the name of the kind, null for a single value.
NESTED_CELLS = pa.struct([("kind", pa.string())])


def plain_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type in which `decode` returns values of type `kind`; None if they are not single values."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if is_binary(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):  # Arrow 25 cannot dictionary-encode them
        return pa.decimal128(kind.precision, kind.scale)
    return kind if any(holds(kind) for holds in _SINGLE_VALUES) else None


def decode(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the values of a column of single values, without dictionaries, extension types and bytes; UUIDs as text.

    Raises:
        pa.ArrowInvalid: bytes that are not UTF-8.
    """
    kind = plain_type(column.type)
    if kind == column.type:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([decode(chunk) for chunk in column.chunks], kind)
    if isinstance(column.type, pa.UuidType):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())
    if isinstance(column.type, pa.BaseExtensionType):
        return decode(column.storage)
    if pa.types.is_dictionary(column.type):
        return decode(column.dictionary).take(column.indices)
    return column.cast(kind)


def unknown_zone(kind: pa.DataType) -> str:
    """Return Arrow's message for a type that `plain_type` returns if it has an unknown time zone, else ""."""
    try:
        if pa.types.is_timestamp(kind):
            pa.array([0], kind).cast(pa.string())
    except pa.ArrowInvalid as error:
        return first_line(error)
    return ""


def unpacked(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column without dictionaries, which its rows share, and views, of which Arrow 25 cannot take rows."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return unpacked(column.cast(kind.value_type))
    if pa.types.is_string_view(kind):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_binary_view(kind) else column


def invalid_values(
    column: pa.Array | pa.ChunkedArray, check: Callable[[pa.Array | pa.ChunkedArray], object]
) -> dict[int, str]:
    """Return the message of each row for which `check` raises ArrowInvalid, by position."""
    column, messages = unpacked(column), {}
    for row in range(len(column)):
        try:
            check(column.slice(row, 1))
        except pa.ArrowInvalid as error:
            messages[row] = first_line(error)
    return messages


def widen_floats(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return floats of any width as float64 with the same digits: whole numbers exact, a narrow 8.1 as 8.1."""
    narrow = column.to_numpy(zero_copy_only=False)
    values = narrow.astype(np.float64)
    if column.type != pa.float64():
        values = np.where(exact_integers(values), values, narrow.astype(str).astype(np.float64))
    return pa.array(values, mask=column.is_null().to_numpy(zero_copy_only=False))


def exact_integers(values: np.ndarray) -> np.ndarray:
    """Return which float64 values are whole numbers that int64 represents exactly. [R] -> [R] bool"""
    return np.isfinite(values) & (values == np.round(values)) & (np.abs(values) <= 2.0**62)


def is_number(kind: pa.DataType) -> bool:
    """Return whether the values of a type that `plain_type` returns are numbers; true is 1."""
    holds = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(is_kind(kind) for is_kind in holds)


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type that `plain_type` returns is text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_binary(kind: pa.DataType) -> bool:
    """Return whether a type is bytes in any layout, also in a dictionary or an extension type."""
    if pa.types.is_dictionary(kind):
        return is_binary(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return is_binary(kind.storage_type)
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def replace_surrogates(text: str) -> str:
    """Return text that UTF-8 can encode: surrogate pairs become their character, lone surrogates U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
