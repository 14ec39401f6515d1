"""Columns of every Arrow type."""

import datetime
import decimal
import uuid
from random import Random
from typing import Any

import pyarrow as pa


def plain_array(cells: list[str | None]) -> pa.Array:
    """Return numbers where all cells are usual numbers, else strings."""
    given = [cell for cell in cells if cell is not None]
    for kind, convert in ((pa.int64(), int), (pa.float64(), float)):
        try:
            if given and all(len(cell) < 15 and convert(cell) is not None and str(cell)[:1] != "0" for cell in given):
                return pa.array([None if cell is None else convert(cell) for cell in cells], kind)
        except (ValueError, OverflowError):
            continue
    return pa.array([None if cell is None else cell.encode("utf-8", "replace").decode() for cell in cells], pa.string())


def changed(array: pa.Array, rng: Random, what: str, recipe: list[str]) -> pa.Array:
    """Return the column with another type: its own values where they fit, else values of that type."""
    kind = rng.choice(_KINDS)()
    recipe.append(f"{what} as {kind}")
    if rng.random() < 0.7:
        try:
            return array.cast(pa.string()).cast(kind) if not _is_nested(kind) else _wrapped(array, kind)
        except (pa.ArrowException, NotImplementedError):
            pass
    try:
        return pa.array([_value(kind, rng, number) for number in range(len(array))], kind)
    except (pa.ArrowException, NotImplementedError, TypeError, ValueError, OverflowError) as error:
        recipe.append(f"not possible: {type(error).__name__}")
        return array


def _is_nested(kind: pa.DataType) -> bool:
    return pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType)


def _wrapped(array: pa.Array, kind: pa.DataType) -> pa.Array:
    texts = array.cast(pa.string()).to_pylist()
    if pa.types.is_struct(kind):
        return pa.array([{"a": text} for text in texts], kind)
    if pa.types.is_map(kind):
        return pa.array([[("k", text)] for text in texts], kind)
    if isinstance(kind, pa.BaseExtensionType):
        raise NotImplementedError
    return pa.array([[text] for text in texts], kind)


_ZONES = (None, "UTC", "+05:30", "Europe/Berlin", "America/New_York")
_KINDS = (
    pa.string, pa.large_string, pa.string_view, pa.binary, pa.large_binary, pa.binary_view, lambda: pa.binary(3),
    pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64, pa.uint64, pa.float16, pa.float32,
    pa.float64, pa.bool_, pa.null, lambda: pa.decimal128(10, 2), lambda: pa.decimal128(38, 0),
    lambda: pa.decimal256(76, 10),
    lambda: pa.decimal32(5, 2), lambda: pa.decimal64(10, 5), pa.date32, pa.date64, lambda: pa.time32("s"),
    lambda: pa.time64("ns"), lambda: pa.timestamp("s"), lambda: pa.timestamp("ns", "UTC"),
    lambda: pa.timestamp("us", "Europe/Berlin"), lambda: pa.timestamp("ms", "+05:30"), lambda: pa.duration("ns"),
    lambda: pa.dictionary(pa.int32(), pa.string()), lambda: pa.dictionary(pa.int8(), pa.int64()),
    lambda: pa.dictionary(pa.int32(), pa.large_string()), lambda: pa.dictionary(pa.int32(), pa.binary()),
    lambda: pa.dictionary(pa.int32(), pa.float64()), lambda: pa.list_(pa.string()), lambda: pa.large_list(pa.string()),
    lambda: pa.list_(pa.string(), 1), lambda: pa.list_view(pa.string()), lambda: pa.struct([("a", pa.string())]),
    lambda: pa.map_(pa.string(), pa.string()), lambda: pa.list_(pa.list_(pa.string())), pa.uuid,
    pa.json_, pa.bool8, pa.month_day_nano_interval,
)  # fmt: skip


def _value(kind: pa.DataType, rng: Random, number: int) -> Any:
    if rng.random() < 0.05:
        return None
    if pa.types.is_dictionary(kind):
        return _value(kind.value_type, rng, number % 3)
    if pa.types.is_unsigned_integer(kind):
        return rng.choice((number, 2**kind.bit_width - 1 - number))
    if pa.types.is_integer(kind):
        return rng.choice((number, number, -(2 ** (kind.bit_width - 1)) + number))
    if pa.types.is_floating(kind):
        return rng.choice((float(number), 8.1, float("nan"), float("inf"), 1e30, 5e-324, -0.0))
    if pa.types.is_decimal(kind):
        return decimal.Decimal(number)
    if pa.types.is_boolean(kind) or kind == pa.bool8():
        return number % 2 == 1
    if pa.types.is_timestamp(kind):
        return datetime.datetime(
            rng.choice((1900, 2026, 2200)), 1, 1 + number % 28, tzinfo=datetime.UTC if kind.tz else None
        )
    if pa.types.is_date(kind):
        return datetime.date(rng.choice((1, 1970, 9999)), 1, 1 + number % 28)
    if pa.types.is_time(kind):
        return datetime.time(number % 24, 5)
    if pa.types.is_duration(kind):
        return datetime.timedelta(seconds=number)
    if isinstance(kind, pa.UuidType):
        return uuid.UUID(int=number).bytes
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return rng.choice((b"\xff\xfe", str(number).encode(), b""))
    if pa.types.is_fixed_size_binary(kind):
        return f"{number:03d}".encode()[:3]
    if pa.types.is_map(kind):
        return [("k", str(number))]
    if pa.types.is_struct(kind):
        return {"a": str(number)}
    if pa.types.is_nested(kind):
        inner = kind.value_type
        return [[str(number)]] if pa.types.is_nested(inner) else [str(number)]
    return str(number)
