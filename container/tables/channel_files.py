"""Read a channel's CSV, TSV and Parquet files as a stream of slices."""

import gzip
import io
import os
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from container.tables.column_types import as_common, common_schema, plain_type, replace_surrogates
from container.tables.csv_blocks import CsvText
from container.tables.csv_files import csv_batches, csv_header
from contracts.errors import ContractError, first_line
from contracts.input_files import check_stand_in
from contracts.spelling import SIMILAR, as_named, did_you_mean

DataFormat = Literal["csv", "tsv", "parquet"]
SUFFIXES: dict[str, DataFormat] = {
    ".csv": "csv", ".csv.gz": "csv", ".tsv": "tsv", ".tsv.gz": "tsv", ".parquet": "parquet",
}  # fmt: skip
DELIMITERS = {"csv": ",", "tsv": "\t"}
GROUPED_BYTES = 4 << 20  # most bytes of a slice with the rows of several files
SLICE_BYTES = 16 << 20  # about the most bytes of a slice: several are in memory, in each process that prepares data

_READ_ROWS = 16384


@dataclass(frozen=True)
class Origin:
    """The source of a slice's rows, for messages.

    Attributes:
        file: the file of the first row, or None for records in memory.
        first_row: position of the slice's first row in that file, from 0.
        later_files: files that begin within the slice, each with the position of its first row in the slice.
    """

    file: Path | None = None
    first_row: int = 0
    later_files: tuple[tuple[int, Path], ...] = ()

    def row(self, index: int) -> str:
        """Return the name of row `index` of the slice for messages; rows count from 1, without the header."""
        file, number = self.file, self.first_row + int(index) + 1
        for start, later in self.later_files:
            if start <= index:
                file, number = later, int(index) - start + 1
        return f"{file}: row {number}" if file else f"record {number}"


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


def format_of(path: Path) -> DataFormat:
    """Return the format that a file's name indicates."""
    data_format = SUFFIXES.get(suffix_of(path))
    if data_format is None:
        raise ContractError(
            f"{path}: the file name does not show the format",
            f"Name data files so that they end with one of {', '.join(SUFFIXES)}.",
        )
    return data_format


def input_format(files: Sequence[Path]) -> DataFormat:
    """Return the format of all `files`; raise ContractError where they differ."""
    formats: dict[Path, DataFormat] = {path: format_of(path) for path in files}
    check_one_format(Path(os.path.commonpath([path.parent for path in files])), formats)
    return formats[files[0]]


def check_one_format(folder: Path, formats: Mapping[Path, str]) -> None:
    """Raise ContractError where the files below `folder` have several formats."""
    examples = {data_format: str(path.relative_to(folder)) for path, data_format in formats.items()}
    if len(examples) > 1:
        listed = ", ".join(f"{name} ({data_format})" for data_format, name in sorted(examples.items()))
        raise ContractError(f"{folder}: contains files of several formats: {listed}", "Keep the files of one format.")


def check_names(names: Sequence[str], place: Path | str) -> None:
    """Raise ContractError where a column name of the table in `place` occurs twice or has a lone surrogate."""
    counts = Counter(name for name in names)  # a list would be counted without letting other threads run
    for name, count in counts.items():
        if count > 1:
            raise ContractError(f"{place}: the column {name!r} occurs twice", "Give each column a different name.")
        if replace_surrogates(name) != name:
            raise ContractError(
                f"{place}: the column name {name!r} has a lone surrogate, which is not a character",
                "Write column names as Unicode text.",
            )


def column_names(path: Path) -> list[str]:
    """Return the columns of one file, in its order.

    Raises:
        ContractError: the file is empty or not of its name's format, or a column name occurs twice.
    """
    names = _parquet_file(path).schema_arrow.names if format_of(path) == "parquet" else text_header(path)
    check_names(names, path)
    return names


def cell_kinds(path: Path) -> dict[str, set[bool]]:
    """Return the columns of one file, each with the kinds of its cells: True is nested, False a single value.

    Raises:
        ContractError: see column_names.
    """
    names = column_names(path)
    if format_of(path) != "parquet":
        return {name: {False} for name in names}
    fields = _parquet_file(path).schema_arrow
    return {each.name: set() if pa.types.is_null(each.type) else {plain_type(each) is None} for each in fields}


def check_columns(files: Iterable[Path], columns: Sequence[str]) -> None:
    """Raise ContractError where a file lacks one of `columns`."""
    for path in files:
        check_present(columns, as_named(column_names(path), columns), str(path))


def check_present(columns: Sequence[str], present: Sequence[str], where: str) -> None:
    """Raise ContractError for the first of `columns` that is not among those `present`."""
    for column in columns:
        if column not in present:
            raise missing_column(column, present, where)


def missing_column(column: str, present: Sequence[str], where: str) -> ContractError:
    """Return the error for a column that is not among those `present`."""
    if len(present) == 1 and any(delimiter in present[0] for delimiter in ",;\t|"):
        return ContractError(
            f"{where}: column {column!r} is missing; the only column is {present[0]!r}",
            "Separate the columns by commas in CSV files and requests, by tabs in TSV files.",
        )
    return ContractError(
        f"{where}: column {column!r} is missing{did_you_mean(column, present, hint=SIMILAR)}",
        f"The columns there are {', '.join(map(repr, present))}. Add the column, or correct the setting that names it.",
    )


def iter_tables(
    files: Sequence[Path], columns: Sequence[str], *, rows_per_batch: int, numeric: Collection[str] = ()
) -> Iterator[TableSlice]:
    """Stream the rows of `files` in order, at most `rows_per_batch` at a time, fewer if they are long.

    CSV and TSV columns are strings, so that an id 007 is kept and the types do not depend on the first rows; an empty
    field is "". Parquet columns keep their types, widened where files differ.

    Args:
        numeric: the columns that are read as numbers. Where the types of their files differ, they become float64.

    Raises:
        ContractError: a missing column, a file that is not of its name's format, types that cannot be combined.
    """
    schema: pa.Schema | None = None
    if not files:
        return
    if input_format(files) == "parquet":
        schemas = ((path, _parquet_schema(path, columns)) for path in files)
        schema = common_schema(schemas, columns, numeric=numeric)
    else:
        check_columns(files, columns)

    def tables(path: Path) -> Iterator[pa.Table]:
        in_file = 0
        for batch in _parquet_batches(path, columns, rows_per_batch) if schema else text_batches(path, columns):
            table = pa.Table.from_batches([batch])
            if schema:
                row = Origin(path, in_file).row
                cells = [
                    as_common(
                        table[each.name],
                        table.schema.field(each.name),
                        each,
                        path,
                        row=row,
                        is_numeric=each.name in numeric,
                    )
                    for each in schema
                ]
                table = pa.table(cells, schema=schema)
            in_file += table.num_rows
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
    files: Iterable[Path], tables: Callable[[Path], Iterable[pa.Table]], *, rows_per_batch: int
) -> Iterator[TableSlice]:
    """Yield the tables of the files with their positions; short ones together, because each slice takes time.

    Args:
        tables: reads a file; all tables have one schema.
        rows_per_batch: most rows of tables that are yielded together.
    """
    first_row = 0
    group: list[tuple[pa.Table, Origin]] = []
    rows = size = 0
    for path in files:
        in_file = 0
        for table in tables(path):
            if group and (rows + table.num_rows > rows_per_batch or size + table.nbytes > GROUPED_BYTES):
                yield _grouped(group, first_row)
                first_row += rows
                group, rows, size = [], 0, 0
            group.append((table, Origin(path, in_file)))
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


def is_gzip(path: Path) -> bool:
    """Return whether a file's name says that it is gzipped."""
    return path.name.lower().endswith(".gz")


@contextmanager
def open_plain(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file for reading, decompressed where its name ends with .gz; raise ContractError where it is damaged."""
    with gzip.open(path) if is_gzip(path) else path.open("rb") as stream:
        try:
            yield stream
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ContractError(
                f"{path}: cannot be decompressed: {first_line(error)}", "Write the file again."
            ) from error


def suffix_of(path: Path) -> str:
    """Return the part of a file's name that indicates its format, such as .csv.gz."""
    return "".join(path.suffixes[-2 if is_gzip(path) else -1 :]).lower()


def _parquet_file(path: Path) -> pq.ParquetFile:
    try:
        # A small buffer for column chunks: a row group may be as large as the file.
        file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
        _ = file.schema_arrow.names  # which may not be UTF-8
        return file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        with suppress(OSError):
            check_stand_in(path)
        raise ContractError(
            f"{path}: cannot be read as Parquet: {first_line(error)}",
            "Write it again, or give the file name the suffix of its format.",
        ) from error


def _parquet_batches(path: Path, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    try:
        with _parquet_file(path) as file:
            names = file.schema_arrow.names
            in_file = dict(zip(as_named(names, columns), names))
            written = [in_file[name] for name in columns]
            for batch in file.iter_batches(batch_size=rows, columns=written, use_threads=False):
                yield batch if written == list(columns) else batch.select(written).rename_columns(list(columns))
    except (pa.ArrowException, OSError) as error:
        raise ContractError(f"{path}: damaged Parquet data: {first_line(error)}", "Write the file again.") from error


def _parquet_schema(path: Path, columns: Sequence[str]) -> pa.Schema:
    schema = _parquet_file(path).schema_arrow
    check_names(schema.names, path)
    names = as_named(schema.names, columns)
    check_present(columns, names, str(path))
    return pa.schema([each.with_name(name) for each, name in zip(schema, names)])


def text_header(path: Path) -> list[str]:
    """Return the fields of the first line of a CSV or TSV file.

    Raises:
        ContractError: the file is empty, cannot be read, or is not text.
    """
    try:
        check_stand_in(path)
        with _open_stream(path) as stream:
            return csv_header(stream, _csv_text(path, has_header=True))
    except OSError as error:
        raise _unreadable(path, error) from error


def text_batches(
    path: Path, columns: Sequence[str], *, header: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield columns of a CSV or TSV file as strings, a few MiB at a time, in the order of `columns`.

    Args:
        header: the names of all columns, for a file without a header line.

    Raises:
        ContractError: the file is damaged.
    """
    names = as_named(text_header(path) if header is None else header, columns)
    try:
        with _open_stream(path) as stream:
            yield from csv_batches(stream, _csv_text(path, names, has_header=header is None), columns=columns)
    except OSError as error:
        raise _unreadable(path, error) from error


def _open_stream(path: Path) -> pa.NativeFile:
    return pa.input_stream(str(path), compression="gzip" if is_gzip(path) else None)


def _csv_text(path: Path, columns: Sequence[str] = (), *, has_header: bool) -> CsvText:
    return CsvText(str(path), DELIMITERS[format_of(path)], has_header, tuple(columns))


def _unreadable(path: Path, error: OSError) -> ContractError:
    return ContractError(f"{path}: cannot be read: {first_line(error)}", "Write the file again.")
