"""Convert columns of any Arrow type to the types that cells have, which files of one table have in common."""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from contracts.errors import ContractError, first_line

_SINGLE_VALUES = "null boolean integer floating decimal string large_string date time timestamp duration"
_OF_STORAGE = ("arrow.json", "arrow.bool8", "arrow.opaque")  # extension types whose values are those of their storage
_INTEGER_DIGITS = 20  # of the largest uint64
_MOST_DIGITS = 76  # of a decimal256
# The type of a column without single values: what each cell contains, or null for a single value.
NESTED_CELLS = pa.struct([("kind", pa.string())])


def is_any_of(kind: pa.DataType, names: str) -> bool:
    """Return whether a function `is_NAME` of pyarrow.types accepts the type."""
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names.split())


def plain_type(field: pa.Field) -> pa.DataType | None:
    """Return the type in which `decode` returns the values of a field; None if they are not single values."""
    kind, name = field.type, _extension(field)
    if name and name not in _OF_STORAGE:
        return None
    if inner := _inner_type(kind):
        return plain_type(pa.field("", inner))
    if pa.types.is_string_view(kind) or _is_list_of_words(kind):
        return pa.string()
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):  # Arrow 25 cannot dictionary-encode them
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, "UTC")
    return kind if is_any_of(kind, _SINGLE_VALUES) else None


def decode(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """Return a column of single values without dictionaries, extension types and local time zones.

    A list of texts, whole numbers or booleans is their text, a list without values null.

    Args:
        field: of the column's table; its metadata name an extension type of which Arrow has no class.
    """
    kind = plain_type(field)
    assert kind is not None, "the caller checks plain_type"
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([decode(chunk, field) for chunk in column.chunks], kind)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if _is_list_of_words(column.type):
        return pa.array(map(joined, column.to_pylist()), pa.string())
    if pa.types.is_dictionary(column.type):
        cells = unpacked(column.dictionary).take(column.indices)
        return decode(cells, pa.field("", cells.type))
    return column if column.type == kind else column.cast(kind)


def joined(value: Any) -> Any:
    """Return a list of texts, whole numbers or booleans as one text, None if it has none; other values unchanged."""
    if not isinstance(value, list) or not all(each is None or isinstance(each, str | int) for each in value):
        return value
    texts = (str(each).lower() if isinstance(each, bool) else str(each) for each in value if each is not None)
    return replace_surrogates(", ".join(texts)) or None


def flat_table(table: pa.Table, *, kept: Collection[str] = ()) -> pa.Table:
    """Return a table with a column for each field of a struct: user.plan for user {plan}; those `kept` stay."""

    def has_fields(field: pa.Field) -> bool:
        return pa.types.is_struct(field.type) and field.type != NESTED_CELLS and field.name not in kept

    while any(map(has_fields, table.schema)):
        fields: list[tuple[pa.Field, pa.ChunkedArray]] = []
        for field, column in zip(table.schema, table.columns):
            if has_fields(field):
                inner = [each.with_name(f"{field.name}.{each.name}") for each in field.type]
                fields += zip(inner, pa.table([column], names=[""]).flatten().columns)
            else:
                fields.append((field, column))
        table = pa.Table.from_arrays([column for _, column in fields], schema=pa.schema([field for field, _ in fields]))
    return table


def _is_list_of_words(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    holds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean, pa.types.is_integer)
    return any(is_kind(kind.value_type) for is_kind in holds)


def _extension(field: pa.Field) -> str:
    """Return the name of a field's extension type; "" without one."""
    if isinstance(field.type, pa.BaseExtensionType):
        return field.type.extension_name
    return (field.metadata or {}).get(b"ARROW:extension:name", b"").decode()


def shown_type(field: pa.Field) -> str:
    """Return the name of a field's type for messages."""
    name = _extension(field)
    return f"{field.type} of the extension type {name}" if name else str(field.type)


def _inner_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a dictionary's values or of an extension type's storage."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else None


def refused_cells(field: pa.Field, count: int) -> pa.Array:
    """Return a column of NESTED_CELLS for one that has no single values."""
    kind = field.type
    held = "a dict" if pa.types.is_struct(kind) or pa.types.is_map(kind) else "a list"
    held = held if pa.types.is_nested(kind) else f"the type {shown_type(field)}"
    return pa.array([{"kind": held}] * count, NESTED_CELLS)


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


def common_schema(
    schemas: Iterable[tuple[Path, pa.Schema]], *, numeric: Collection[str], mixed_is_text: bool = False
) -> pa.Schema:
    """Return the types in which the columns of every file can be read.

    Args:
        schemas: of each file; all have the same columns.
        numeric: the columns that are read as numbers: their types may differ in the digits that they keep.
        mixed_is_text: whether types that cannot be combined become text, which the reader then writes.

    Raises:
        ContractError: nested columns, or types that cannot be combined.
    """
    common: dict[str, tuple[pa.DataType, Path]] = {}
    known: set[tuple[pa.DataType, ...]] = set()
    for path, schema in schemas:
        kinds = tuple(
            pa.string() if field.type == NESTED_CELLS else _single_type(field, path)  # reading names the cell
            for field in schema
        )
        if kinds in known:
            continue
        known.add(kinds)
        for name, kind in zip(schema.names, kinds):
            before, first = common.get(name, (kind, path))
            try:
                common[name] = _common_type(before, kind, is_numeric=name in numeric), first
            except pa.ArrowException as error:
                if mixed_is_text:
                    common[name] = pa.string(), first
                    continue
                raise ContractError(
                    f"{path}: column {name!r} is {kind}, but {before} in {first}",
                    "Write the column with one type in every file.",
                ) from error
    return pa.schema([(name, kind) for name, (kind, _) in common.items()])


def _single_type(field: pa.Field, path: Path) -> pa.DataType:
    kind = plain_type(field)
    if kind is None:
        raise ContractError(
            f"{path}: column {field.name!r} is of type {shown_type(field)}, which is not a type of single values",
            "Write one text or number per row, or change the setting that names the column.",
        )
    return kind


def _common_type(first: pa.DataType, second: pa.DataType, *, is_numeric: bool) -> pa.DataType:
    if first == second:
        return first
    if is_numeric and is_number(first) and is_number(second):
        return pa.float64()
    kinds = (first, second)
    if any(map(pa.types.is_decimal, kinds)) and any(map(pa.types.is_floating, kinds)):
        raise pa.ArrowTypeError("a float does not keep every digit of a decimal")
    schemas = [pa.schema([("", kind)]) for kind in kinds]
    merged = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    if pa.types.is_decimal(merged) and (pa.types.is_integer(first) or pa.types.is_integer(second)):
        # Arrow 25 gives such a decimal one digit less than its own cast of the integers needs.
        digits = max(merged.precision, min(_INTEGER_DIGITS + merged.scale, _MOST_DIGITS))
        return (pa.decimal128 if digits <= 38 else pa.decimal256)(digits, merged.scale)
    return merged


def checked_cells(column: pa.Array, field: pa.Field, *, row: Callable[[int], str]) -> pa.Array:
    """Return a file's column of single values, decoded; raise ContractError for text that is not UTF-8.

    Args:
        row: returns the name of a row of the column for messages.
    """

    def checked(cells: pa.Array) -> pa.Array:
        cells = decode(cells, field.with_type(cells.type))
        if is_text(cells.type):
            cells.validate(full=True)  # Arrow reads texts that are not UTF-8
        return cells

    try:
        return checked(column)
    except pa.ArrowException as error:
        wrong = next(iter(invalid_values(column, checked)), 0)  # a dictionary may have values that no row has
        raise ContractError(
            f"{row(wrong)}: column {field.name!r} is {column.type} and is not UTF-8 text",
            "Write the column as UTF-8 text.",
        ) from error


def as_common(column: pa.Array, field: pa.Field, path: Path, *, is_numeric: bool) -> pa.Array:
    """Return a column of a file in the common type of all files.

    Raises:
        ContractError: unless the column is numeric, values whose digits the type lacks.
    """
    if column.type == field.type:
        return column
    try:
        if pa.types.is_floating(column.type) and pa.types.is_floating(field.type):
            return widen_floats(column).cast(field.type)
        return column.cast(field.type, safe=not is_numeric)
    except pa.ArrowException as error:
        raise ContractError(
            f"{path}: column {field.name!r} is {column.type} and cannot be read as {field.type}, "
            f"the common type of all files: {first_line(error)}",
            "Write the column with one type in every file. Text keeps every digit of an id or a category.",
        ) from error


def label_column(labels: Sequence[int | str | None], class_labels: Sequence[int | str]) -> pa.Array:
    """Return labels as a column of whole numbers if all classes are, else of texts; None is null."""
    if all(isinstance(label, int) for label in class_labels):
        return pa.array(labels, pa.int64())
    return pa.array([None if label is None else str(label) for label in labels], pa.string())


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type that `plain_type` returns is text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def replace_surrogates(text: str) -> str:
    """Return text that UTF-8 can encode: surrogate pairs become their character, lone surrogates U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
