"""Read JSON files, an array of objects or a sequence of objects, as a stream of string columns, as from CSV."""

import codecs
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from container.tables.channel_files import check_names, open_plain
from container.tables.column_types import replace_surrogates
from container.tables.values import written_float
from contracts.errors import ContractError, first_line, shown
from contracts.json_text import InterruptibleDecoder, JsonDecoder

HEAD_ROWS = 1000  # rows that name the columns
BLOCK_BYTES = 1 << 20
ROW_BYTES = 4 << 20
_SHOWN_BYTES = 40
_BETWEEN = " \t\r\n,"
# Numbers keep their digits: as categories, 1.10 and 1.1 differ. NaN is a missing value.
_PARSERS: dict[str, Callable[[str], Any]] = {
    "parse_float": written_float,
    "parse_int": str,
    "parse_constant": lambda name: None if name == "NaN" else name,
}
_ROW_DECODER = JsonDecoder(**_PARSERS)
REQUEST_DECODER = InterruptibleDecoder(**_PARSERS)


def json_cell_kinds(path: Path) -> dict[str, set[bool]]:
    """Return the keys of the first HEAD_ROWS rows in order of appearance, each with the kinds of its cells.

    The kind of a list or an object is True, that of a single value False; null has none.
    """
    kinds: dict[str, set[bool]] = {}
    for number, row in enumerate(_rows(path)):
        if number == HEAD_ROWS:
            break
        for name, value in row.items():
            of_column = kinds.setdefault(name, set())
            if value is not None:
                of_column.add(isinstance(value, list | dict))
    check_names(list(kinds), path)
    return kinds


def json_batches(
    path: Path, columns: Sequence[str], known: Sequence[str], *, rows_per_batch: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows as string columns; an absent key is null.

    Args:
        known: every key that a row may have.

    Raises:
        ContractError: damaged JSON, a row that is not an object, an unknown key, a nested cell.
    """
    schema = pa.schema([(name, pa.string()) for name in columns])
    allowed = set(known)
    pending: list[dict[str, Any]] = []
    first = 1
    for number, row in enumerate(_rows(path), start=1):
        if not row.keys() <= allowed:
            extra = next(key for key in row if key not in allowed)
            raise ContractError(
                f"{path}: row {number} has the key {extra!r}, which is not a column of the table",
                f"The columns are {', '.join(map(repr, known))}. Name every column in the signature, or in one of "
                f"the first {HEAD_ROWS} rows.",
            )
        pending.append(row)
        if len(pending) == rows_per_batch:
            yield _batch(pending, schema, path, first)
            pending, first = [], number + 1
    if pending:
        yield _batch(pending, schema, path, first)


def _batch(rows: Sequence[dict[str, Any]], schema: pa.Schema, path: Path, first: int) -> pa.RecordBatch:
    arrays = []
    for name in schema.names:
        values = [row.get(name) for row in rows]
        try:
            arrays.append(pa.array(values, pa.string()))
        except (pa.ArrowException, UnicodeEncodeError):  # some are not strings, or have lone surrogates
            cells = [_cell(value, name, path, number) for number, value in enumerate(values, start=first)]
            arrays.append(pa.array(cells, pa.string()))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cell(value: Any, name: str, path: Path, number: int) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    raise ContractError(
        f"{path}: row {number}, column {name!r} contains a {type(value).__name__}, not a single value",
        "Give the column one text or number per row, or remove it from every row.",
    )


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    number = 0
    with open_plain(path) as stream:
        try:
            for row in _Objects(stream, path):
                number += 1
                yield row
        except UnicodeDecodeError as error:
            before = error.object[: error.start][-_SHOWN_BYTES:].decode(errors="ignore")
            raise ContractError(
                f"{path}: after row {number}: byte 0x{error.object[error.start]:02X} after {before!r} is not UTF-8",
                "Write the file again, in UTF-8.",
            ) from None
        except OSError as error:
            raise ContractError(f"{path}: cannot be read: {first_line(error)}", "Write the file again.") from error


class _Objects:
    """Decode the rows of a file, block by block."""

    def __init__(self, stream: io.BufferedIOBase, path: Path) -> None:
        self._text = codecs.getreader("utf-8-sig")(stream, "surrogatepass")  # as escaped surrogates
        self._path = path
        self._buffer, self._at, self._number = "", 0, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        in_array = self._next() == "["
        self._at += in_array
        one_per_line = not in_array  # until a line is not an object
        while found := self._next():
            if in_array and found == "]":
                self._at += 1
                if self._next():
                    raise self._error("text follows the end of the array", "Write an array, or an object per line.")
                return
            end = self._buffer.rfind("\n", self._at)
            if one_per_line and end > self._at:
                rows = _objects_of_lines(self._buffer[self._at : end])
                one_per_line = rows is not None
                if rows is not None:
                    self._number, self._at = self._number + len(rows), end
                    yield from rows
                    continue
            yield self._row()
        if in_array:
            raise self._error(f"the array has no end after row {self._number}", "Write the file again.")

    def _next(self) -> str:
        """Return the next character that is not between rows; "" at the end of the file."""
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in _BETWEEN:
                self._at += 1
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            self._buffer, self._at = self._text.read(BLOCK_BYTES), 0
            if not self._buffer:
                if self._text.bytebuffer:
                    raise self._error(f"ends inside a character, after row {self._number}", "Write the file again.")
                return ""

    def _row(self) -> dict[str, Any]:
        """Decode one row, of at most ROW_BYTES."""
        number = self._number + 1
        while True:
            try:
                row, self._at = _ROW_DECODER.raw_decode(self._buffer, self._at)
                break
            except json.JSONDecodeError as error:
                more = self._text.read(BLOCK_BYTES) if len(self._buffer) - self._at < ROW_BYTES else ""
                if not more:
                    raise self._error(
                        f"row {number} is not JSON, or exceeds {ROW_BYTES >> 20} MiB: {error.msg}",
                        "Write an array of objects, or one object per line.",
                    ) from None
                self._buffer, self._at = self._buffer[self._at :] + more, 0
            except ValueError as error:
                raise self._error(
                    f"row {number}: {error}", "Write one flat object per row, with each column once."
                ) from None
        self._number = number
        if not isinstance(row, dict):
            raise self._error(f"row {number}: {shown(row)} is not an object", "Write each row as {column: value}.")
        return row

    def _error(self, cause: str, fix: str) -> ContractError:
        return ContractError(f"{self._path}: {cause}", fix)


def _objects_of_lines(text: str) -> list[dict[str, Any]] | None:
    """Decode lines of one object each in one call; return None where a line is not an object."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not all(line.lstrip().startswith("{") for line in lines):  # a comma may then join two lines to one object
        return None
    try:
        rows = _ROW_DECODER.decode("[" + ",\n".join(lines) + "]")  # \n is invalid in a string
    except ValueError:  # decoding row by row raises the error
        return None
    return rows if len(rows) == len(lines) and all(isinstance(row, dict) for row in rows) else None
