"""Find the common types of the columns of several Parquet files, and convert columns to them."""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from container.tables.column_types import (
    decode,
    invalid_values,
    is_number,
    is_text,
    plain_type,
    shown_type,
    widen_floats,
)
from contracts.errors import ContractError, first_line

_INTEGER_DIGITS = 20  # of the largest uint64
_MOST_DIGITS = 76  # of a decimal256


def common_schema(
    schemas: Iterable[tuple[Path, pa.Schema]], columns: Sequence[str], *, numeric: Collection[str]
) -> pa.Schema:
    """Return the types in which every file's `columns` can be read.

    Args:
        schemas: of each file.
        numeric: the columns that are read as numbers: their types may differ in the digits that they keep.

    Raises:
        ContractError: nested columns, or types that cannot be combined.
    """
    common: dict[str, tuple[pa.DataType, Path]] = {}
    known: set[tuple[pa.DataType, ...]] = set()
    for path, schema in schemas:
        kinds = tuple(_single_type(schema.field(name), path) for name in columns)
        if kinds in known:
            continue
        known.add(kinds)
        for name, kind in zip(columns, kinds):
            before, first = common.get(name, (kind, path))
            try:
                common[name] = _common_type(before, kind, is_numeric=name in numeric), first
            except pa.ArrowException as error:
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
    schemas = [pa.schema([("", kind)]) for kind in (first, second)]
    merged = pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    if pa.types.is_decimal(merged) and (pa.types.is_integer(first) or pa.types.is_integer(second)):
        # Arrow 25 gives such a decimal one digit less than its own cast of the integers needs.
        digits = max(merged.precision, min(_INTEGER_DIGITS + merged.scale, _MOST_DIGITS))
        return (pa.decimal128 if digits <= 38 else pa.decimal256)(digits, merged.scale)
    return merged


def as_common(
    column: pa.ChunkedArray,
    raw: pa.Field,
    field: pa.Field,
    path: Path,
    *,
    row: Callable[[int], str],
    is_numeric: bool,
) -> pa.ChunkedArray:
    """Return a column of a file in the common type of all files.

    Args:
        raw: the column's field in the file.
        row: returns the name of a row of the column for messages.

    Raises:
        ContractError: text that is not UTF-8, or, unless the column is numeric, values whose digits the type lacks.
    """

    def decoded(cells: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        cells = decode(cells, raw.with_type(cells.type))
        if is_text(cells.type):
            cells.validate(full=True)  # Arrow reads texts that are not UTF-8
        return cells

    try:
        column = decoded(column)
        if pa.types.is_floating(column.type) and pa.types.is_floating(field.type):
            return column if column.type == field.type else pa.chunked_array([widen_floats(column).cast(field.type)])
        return column.cast(field.type, safe=not is_numeric)
    except pa.ArrowException as error:
        kind = plain_type(raw)
        if kind is not None and is_text(kind):
            wrong = next(iter(invalid_values(column, decoded)), None)  # a dictionary may have values that no row has
            place = path if wrong is None else row(wrong)
            raise ContractError(
                f"{place}: column {field.name!r} is {column.type} and is not UTF-8 text",
                "Write the column as UTF-8 text.",
            ) from error
        raise ContractError(
            f"{path}: column {field.name!r} is {column.type} and cannot be read as {field.type}, "
            f"the common type of all files: {first_line(error)}",
            "Write the column with one type in every file. Text keeps every digit of an id or a category.",
        ) from error
