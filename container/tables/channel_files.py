"""Read the files of a table, in any format, as a stream of slices."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from container.tables.column_types import as_common, common_schema
from container.tables.table_file import Origin, TableFile, format_of, open_file
from contracts.errors import ContractError

GROUPED_BYTES = 4 << 20  # most bytes of a slice with the rows of several files
SLICE_BYTES = 16 << 20  # about the most bytes of a slice: several are in memory, in each process that prepares data

_READ_ROWS = 16384


@dataclass(frozen=True)
class TableSlice:
    """Consecutive rows of one file, or of several short ones.

    Attributes:
        table: the requested columns. [R rows]
        first_row: position of the first row among the rows of all files, from 0.
        origin: the files of the rows.
    """

    table: pa.Table
    first_row: int
    origin: Origin


def input_format(files: Sequence[Path]) -> str:
    """Return the name of the format of all `files`; raise ContractError where they differ."""
    formats = {path: format_of(path).name for path in files}
    check_one_format(Path(os.path.commonpath([path.parent for path in files])), formats)
    return formats[files[0]]


def check_one_format(folder: Path, formats: Mapping[Path, str]) -> None:
    """Raise ContractError where the files below `folder` have several formats."""
    examples = {data_format: str(path.relative_to(folder)) for path, data_format in formats.items()}
    if len(examples) > 1:
        listed = ", ".join(f"{name} ({data_format})" for data_format, name in sorted(examples.items()))
        raise ContractError(f"{folder}: contains files of several formats: {listed}", "Keep the files of one format.")


def column_names(path: Path) -> list[str]:
    """Return the columns of one file, in its order; see TableFile.fields."""
    return open_file(path).fields().names


def check_columns(files: Iterable[Path], columns: Sequence[str]) -> None:
    """Raise ContractError where a file lacks one of `columns`."""
    for path in files:
        open_file(path).fields(columns)


def iter_tables(
    files: Sequence[Path], columns: Sequence[str], *, rows_per_batch: int, numeric: Collection[str] = ()
) -> Iterator[TableSlice]:
    """Stream the rows of a channel's files in order; see `stream`.

    Raises:
        ContractError: also if the files have several formats.
    """
    if files:
        input_format(files)
        yield from stream([open_file(path) for path in files], columns, rows_per_batch=rows_per_batch, numeric=numeric)


def stream(
    files: Sequence[TableFile],
    columns: Sequence[str],
    *,
    rows_per_batch: int,
    numeric: Collection[str] = (),
    missing_is_null: bool = False,
    alike: Sequence[TableFile] = (),
) -> Iterator[TableSlice]:
    """Stream the rows of `files` in order, at most `rows_per_batch` at a time, fewer if they are long.

    CSV and TSV columns are strings, so that an id 007 is kept and the types do not depend on the first rows; an empty
    field is "". Columns of other formats keep their types, widened where files differ.

    Args:
        numeric: the columns that are read as numbers. Where the types of their files differ, they become float64.
        missing_is_null: whether a column that a file lacks has no values there; otherwise that is an error.
        alike: all files of the table, whose common types the columns have; default: `files`.

    Raises:
        ContractError: a missing column, a file that is not of its name's format, types that cannot be combined.
    """
    if not files:  # another instance of a step has all of them
        return
    schemas = ((file.path, file.fields(columns, missing_is_null=missing_is_null)) for file in alike or files)
    schema = common_schema(schemas, numeric=numeric, mixed_is_text=files[0].converts)

    def tables(file: TableFile) -> Iterator[pa.Table]:
        for batch in file.read(schema, rows=rows_per_batch):
            cells = [
                as_common(column, field, file.path, is_numeric=field.name in numeric)
                for column, field in zip(batch.columns, schema)
            ]
            table = pa.Table.from_arrays(cells, schema=schema)
            rows = min(rows_per_batch, max(1, SLICE_BYTES * table.num_rows // max(1, table.nbytes)))
            for start in range(0, table.num_rows, rows):
                yield table.slice(start, rows)

    yield from number_slices(files, tables, rows_per_batch=rows_per_batch)


def read_head(
    files: Sequence[Path], columns: Sequence[str], count: int, *, numeric: Collection[str] = ()
) -> TableSlice:
    """Return the first `count` rows of `files`, or all if they have fewer; see iter_tables.

    Raises:
        ContractError: also if there is no row.
    """
    group: list[tuple[pa.Table, Origin]] = []
    wanted = count
    for part in iter_tables(files, columns, rows_per_batch=count, numeric=numeric):
        group.append((part.table.slice(0, wanted), part.origin))
        wanted -= part.table.num_rows
        if wanted <= 0:
            break
    if wanted == count:
        raise ContractError(f"{files[0]}: has no row", "Provide a table with rows.")
    return _grouped(group, 0)


def read_rows(files: Sequence[Path], columns: Sequence[str], rows: np.ndarray) -> pa.Table:
    """Return `columns` of the rows with these numbers, in their order; see iter_tables. [len(rows)]"""
    if not len(rows) or not columns:
        return pa.table({name: pa.nulls(0) for name in columns})
    order = np.argsort(rows)
    kept = []
    for part in iter_tables(files, columns, rows_per_batch=_READ_ROWS):
        begin, end = np.searchsorted(rows[order], (part.first_row, part.first_row + part.table.num_rows))
        kept.append(pa.table(part.table.take(rows[order[begin:end]] - part.first_row)))
    return pa.concat_tables(kept, promote_options="permissive").take(np.argsort(order))


def number_slices(
    files: Iterable[TableFile], tables: Callable[[TableFile], Iterable[pa.Table]], *, rows_per_batch: int
) -> Iterator[TableSlice]:
    """Yield the tables of the files with their positions; short ones together, because each slice takes time.

    Args:
        tables: reads a file; all tables have one schema.
        rows_per_batch: most rows of tables that are yielded together.
    """
    first_row = 0
    group: list[tuple[pa.Table, Origin]] = []
    rows = size = 0
    for file in files:
        in_file = 0
        for table in tables(file):
            if group and (rows + table.num_rows > rows_per_batch or size + table.nbytes > GROUPED_BYTES):
                yield _grouped(group, first_row)
                first_row += rows
                group, rows, size = [], 0, 0
            group.append((table, Origin(file.path, in_file)))
            in_file += table.num_rows
            rows += table.num_rows
            size += table.nbytes
    if group:
        yield _grouped(group, first_row)


def _grouped(group: Sequence[tuple[pa.Table, Origin]], first_row: int) -> TableSlice:
    (table, origin), *others = group
    if not others:
        return TableSlice(table, first_row, origin)
    later, position = [*origin.later_files], table.num_rows
    for other, where in others:
        if where.file is not None and where.file != origin.file and where.first_row == 0:
            later.append((position, where.file))
        later += [(position + start, file) for start, file in where.later_files]
        position += other.num_rows
    together = pa.concat_tables([table for table, _ in group]).combine_chunks()
    return TableSlice(together, first_row, replace(origin, later_files=tuple(later)))
