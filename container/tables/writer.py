"""Write a table piece by piece as CSV, TSV, JSON Lines or Parquet; the file appears when it is complete."""

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from container.tables.column_types import is_any_of, is_text
from container.tables.values import keys
from contracts.atomic_files import AtomicFile
from contracts.errors import ContractError, shown
from contracts.file_systems import megabytes, naming_full_disk
from contracts.spelling import counted
from contracts.table_formats import OF_SUFFIX, WRITTEN_SUFFIXES

ROWS_PER_GROUP = 65_536
BYTES_PER_GROUP = 16 << 20


def check_output(path: Path) -> None:
    """Raise ContractError where a file's name shows no format that can be written, or its folder is missing."""
    if path.suffix not in WRITTEN_SUFFIXES:
        raise ContractError(
            f"{path}: the file name does not show the format", f"End it with one of {', '.join(WRITTEN_SUFFIXES)}."
        )
    if not path.absolute().parent.is_dir():
        raise ContractError(f"{path.absolute().parent}: is not a folder", "Create it, or correct the path.")


class TableWriter:
    """A table file, complete at the end of a `with` block.

    Attributes:
        rows: number of rows written.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        """Open the file.

        Args:
            path: ends with the suffix of a format.

        Raises:
            ContractError: the format does not support the name or the type of a column.
        """
        self.path = Path(os.path.realpath(path))  # the file to which a link leads, not the link
        self.rows = 0
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._pending_bytes = self._bytes = 0
        table_format = OF_SUFFIX[path.suffix]
        file_format, self._is_text = table_format.name, bool(table_format.delimiter)
        self._check_text(pa.array(schema.names, pa.string()), "the header")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = AtomicFile(self.path)
        convert = _CONVERTED.get(file_format, _text_type)
        self._schema = pa.schema([each.with_type(convert(each.type)) for each in schema], metadata=schema.metadata)
        try:
            if file_format == "parquet":
                self._writer: pq.ParquetWriter | pa_csv.CSVWriter | _JsonLinesWriter = pq.ParquetWriter(
                    self._file.temporary, self._schema
                )
            elif self._is_text:
                options = pa_csv.WriteOptions(delimiter=table_format.delimiter, quoting_style="needed")
                self._writer = pa_csv.CSVWriter(self._file.temporary, self._schema, write_options=options)
            else:
                self._writer = _JsonLinesWriter(self._file.temporary)
        except pa.ArrowException as error:
            raise ContractError(
                f"{path.name}: the columns cannot be written as {file_format.upper()}: {error}",
                "Write the input with plain types, or set OUTPUT_FORMAT=PARQUET.",
            ) from error

    def write(self, table: pa.Table) -> None:
        """Append rows; small pieces are buffered. Raise ContractError where the format does not support a text."""
        if not table.num_rows:
            return
        self.rows += table.num_rows
        self._pending.append(table)
        self._pending_rows += table.num_rows
        self._pending_bytes += table.nbytes
        self._bytes += table.nbytes
        if self._pending_rows >= ROWS_PER_GROUP or self._pending_bytes >= BYTES_PER_GROUP:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
                with self._naming_full_disk():
                    self._writer.close()
                    self._file.commit()
        finally:
            with suppress(OSError):  # of what is not written yet, where the disk is full
                self._writer.close()
            self._file.discard()

    def _naming_full_disk(self) -> AbstractContextManager[None]:
        needs = f"Its first {counted(self.rows, 'row')} need about {megabytes(self._bytes)}."
        return naming_full_disk(self.path.absolute().parent, needs=needs)

    def _check_text(self, cells: pa.Array | pa.ChunkedArray, place: str) -> None:
        """Raise ContractError where a text cannot be read from CSV."""
        if not self._is_text or not is_text(cells.type):
            return
        has_nul = pc.match_substring(cells, pattern="\0")
        if pc.any(has_nul).as_py():
            raise ContractError(
                f"{self.path.name}: {place}: {shown(cells.filter(has_nul)[0].as_py())} contains a NUL byte",
                "Remove it from the input, or set OUTPUT_FORMAT=PARQUET.",
            )

    def _flush(self) -> None:
        if self._pending:
            table = pa.concat_tables(self._pending).combine_chunks()
            columns = [
                column if column.type == field.type else keys(column)
                for column, field in zip(table.columns, self._schema)
            ]
            for name, column in zip(table.column_names, columns):
                self._check_text(column, f"column {name!r}")
            with self._naming_full_disk():
                self._writer.write_table(pa.table(columns, schema=self._schema))
            self._pending = []
            self._pending_rows = self._pending_bytes = 0


def _text_type(kind: pa.DataType) -> pa.DataType:
    """Return `kind` if Arrow writes its values with their keys, else the type of the keys.

    Arrow writes NaN as nan, 1e10 as 1e+10, a decimal 0 as 0E-18, and times with zeros up to the precision of the type.
    """
    return pa.string() if is_any_of(kind, "floating decimal timestamp time duration") else kind


def _json_type(kind: pa.DataType) -> pa.DataType:
    return kind if pa.types.is_floating(kind) else _text_type(kind)


_CONVERTED: dict[str, Callable[[pa.DataType], pa.DataType]] = {"parquet": lambda kind: kind, "jsonl": _json_type}


class _JsonLinesWriter:
    """Write an object per row, without its null cells."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", errors="replace")

    def write_table(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            present = {name: value for name, value in row.items() if value is not None}
            self._file.write(json.dumps(present, ensure_ascii=False, default=str) + "\n")

    def close(self) -> None:
        self._file.close()
