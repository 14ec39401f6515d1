"""Define a file of a table, which the reader of its format opens: its columns with their types, and its rows."""

import gzip
import io
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pyarrow as pa

from container.tables.column_types import plain_type, replace_surrogates
from container.tables.reading import Reading
from contracts.errors import ContractError, first_line
from contracts.spelling import SIMILAR, as_named, did_you_mean
from contracts.table_formats import CHANNEL_SUFFIXES, OF_SUFFIX, TableFormat


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


class TableFile(ABC):
    """A file with rows of a table; each format has a subclass `File`.

    Attributes:
        path: of the file, for messages.
        notes: what the user should know about how the content was read; complete when the schema is known.
        found: how the content was read.
        converts: whether the reader makes columns of the types that the caller needs.
    """

    converts = False

    def __init__(self, path: Path, *, reading: Reading | None = None, scratch: Path | None = None) -> None:
        """Define the file.

        Args:
            reading: how a raw file is read; None for a file that this project wrote, or that must be as it writes them.
            scratch: a folder for temporary files.
        """
        self.path, self.reading, self.scratch = path, reading, scratch
        self.notes: list[str] = []
        self.found = Reading()

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the columns with their types, in the file's order.

        Raises:
            ContractError: the file is empty or not of its name's format.
        """

    @abstractmethod
    def batches(self, schema: pa.Schema, *, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the file's schema, about `rows` at a time.

        Args:
            schema: the types that the caller needs, for a reader that converts.
        """

    def fields(self, columns: Sequence[str] | None = None, *, missing_is_null: bool = False) -> pa.Schema:
        """Return the columns with their types, by default all; names have the Unicode form of `columns`.

        Raises:
            ContractError: also if a name occurs twice, or one of `columns` is missing without `missing_is_null`.
        """
        schema = self.schema()
        check_names(schema.names, self.path)
        if columns is None:
            return schema
        names = as_named(schema.names, columns)
        if not missing_is_null:
            check_present(columns, names, str(self.path))
        of_name = dict(zip(names, schema))
        return pa.schema([of_name[name].with_name(name) if name in of_name else (name, pa.null()) for name in columns])

    def read(self, schema: pa.Schema, *, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the columns of `schema`, about `rows` at a time; null where the file lacks one."""
        names = self.schema().names
        in_file = dict(zip(as_named(names, schema.names), names))
        wanted = pa.schema([field.with_name(in_file[field.name]) for field in schema if field.name in in_file])
        for batch in self.batches(wanted, rows=rows):
            cells = iter(batch.columns)
            columns = [next(cells) if name in in_file else pa.nulls(len(batch)) for name in schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema.names)

    def rows_at_once(self, most: int) -> int:
        """Return how many rows to read at a time, so that they have a bounded size."""
        return most // 4

    def count_rows(self) -> int | None:
        """Return about how many rows the file has; None if only reading the values tells."""
        return None


def format_of(path: Path) -> TableFormat:
    """Return the format that a file's name indicates; raise ContractError if it indicates none of a channel."""
    if suffix_of(path) not in CHANNEL_SUFFIXES:
        raise ContractError(
            f"{path}: the file name does not show the format",
            f"Name data files so that they end with one of {', '.join(CHANNEL_SUFFIXES)}.",
        )
    return OF_SUFFIX[plain_suffix(path)]


def open_file(path: Path, *, reading: Reading | None = None, scratch: Path | None = None) -> TableFile:
    """Return the file, which its name's format reads; see TableFile."""
    reader = import_module(f"container.tables.{OF_SUFFIX[plain_suffix(path)].reader}")
    return reader.File(path, reading=reading, scratch=scratch)


def nested_columns(schema: pa.Schema) -> dict[str, set[bool]]:
    """Return the columns, each with the kinds of its cells: True has several values, False a single one; null none."""
    return {field.name: set() if pa.types.is_null(field.type) else {plain_type(field) is None} for field in schema}


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


def check_present(columns: Iterable[str], present: Sequence[str], where: str) -> None:
    """Raise ContractError for the first of `columns` that is not among those `present`."""
    known = set(present)
    for column in columns:
        if column not in known:
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


def is_gzip(path: Path) -> bool:
    """Return whether a file's name says that it is gzipped."""
    return path.name.lower().endswith(".gz")


def plain_suffix(path: Path) -> str:
    """Return the part of a file's name that indicates its format, such as .csv, without .gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def suffix_of(path: Path) -> str:
    """Return the end of a file's name, such as .csv.gz."""
    return "".join(path.suffixes[-2 if is_gzip(path) else -1 :]).lower()


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
