"""Read CSV and TSV text from a file or a request."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.csv_blocks import Block, CsvText, first_cells, to_utf8
from container.tables.csv_dialect import Dialect, find_dialect
from container.tables.encodings import Recoded, Stream, fill, wide_encoding
from container.tables.reading import Reading
from container.tables.table_file import TableFile, is_gzip, open_plain, plain_suffix
from contracts.errors import ContractError, first_line
from contracts.input_files import check_stand_in
from contracts.table_formats import OF_SUFFIX

BLOCK_BYTES = 4 << 20  # the largest row
_HEADER_BYTES = 1 << 16
_BINARY = {b"PAR1": "Parquet", b"\x1f\x8b": "gzip", b"PK\x03\x04": "Excel or ZIP"}
_FILLED = re.compile(rb"[^\r\n]")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class File(TableFile):
    """A CSV or TSV file.

    Args:
        header: the names of all columns, if the file begins with a row.
    """

    def __init__(
        self,
        path: Path,
        *,
        reading: Reading | None = None,
        scratch: Path | None = None,
        header: Sequence[str] | None = None,
    ) -> None:
        super().__init__(path, reading=reading, scratch=scratch)
        self._given = header

    @cached_property
    def _dialect(self) -> Dialect:
        usual = OF_SUFFIX[plain_suffix(self.path)].delimiter
        if self.reading is None:
            return Dialect("utf-8", usual)
        dialect, notes = find_dialect(self.path, lambda: open_plain(self.path), reading=self.reading, usual=usual)
        facts = [f"encoding {dialect.encoding}"] if dialect.encoding != "utf-8" else []
        facts += [f"delimiter {dialect.delimiter!r}"] if dialect.delimiter != usual else []
        facts += ["backslash escapes, no quotes"] if dialect.has_escapes else []
        self.notes += [*([f"read with {', '.join(facts)}"] if facts else []), *notes]
        is_found = not dialect.encoding.startswith("utf-8")
        escapes = "backslash" if dialect.has_escapes else self.reading.escapes
        self.found = Reading(dialect.delimiter, dialect.encoding if is_found else None, escapes=escapes)
        return dialect

    @cached_property
    def first_record(self) -> list[str]:
        """The cells of the first line."""
        try:
            check_stand_in(self.path)
            with self._open() as stream:
                return csv_header(stream, self._text())
        except OSError as error:
            raise self._unreadable(error) from error

    def schema(self) -> pa.Schema:
        return pa.schema([(name, pa.string()) for name in self._given or self.first_record])

    def batches(self, schema: pa.Schema, *, rows: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - blocks of bytes
        try:
            with self._open() as stream:
                for batch in csv_batches(stream, self._text(self.schema().names), columns=schema.names):
                    yield _unescaped(batch) if self._dialect.has_escapes else batch
        except OSError as error:
            raise self._unreadable(error) from error

    def rows_at_once(self, most: int) -> int:
        return 8 * most  # a block has a bounded size

    def count_rows(self) -> int | None:
        if is_gzip(self.path):
            return None
        with self.path.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) - 1

    def _text(self, columns: Sequence[str] = ()) -> CsvText:
        dialect, has_header = self._dialect, self._given is None
        return CsvText(str(self.path), dialect.delimiter, has_header, tuple(columns), not dialect.has_escapes)

    @contextmanager
    def _open(self) -> Iterator[Stream]:
        dialect = self._dialect
        with ExitStack() as files:
            if dialect.encoding == "utf-8":
                compression = "gzip" if is_gzip(self.path) else None
                stream = files.enter_context(pa.input_stream(str(self.path), compression=compression))
            else:
                stream = files.enter_context(open_plain(self.path))
                stream = Recoded(stream, dialect.encoding, place=str(self.path))
            stream.readinto(memoryview(bytearray(dialect.skipped)))
            yield stream

    def _unreadable(self, error: OSError) -> ContractError:
        return ContractError(f"{self.path}: cannot be read: {first_line(error)}", "Write the file again.")


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _unescaped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return cells without the backslashes before characters that a database escapes."""
    columns = []
    for column in batch.columns:
        found = pc.fill_null(pc.match_substring(column, "\\"), False)
        texts = [_ESCAPED.sub(lambda m: _ESCAPES.get(m[1], m[1]), text) for text in column.filter(found).to_pylist()]
        columns.append(pc.replace_with_mask(column, found, pa.array(texts, column.type)))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def csv_header(stream: Stream, text: CsvText) -> list[str]:
    """Return the cells of the first line that is not empty.

    Raises:
        ContractError: the text is empty, is not UTF-8, or the line has a misplaced quote.
    """
    buffer = np.empty(BLOCK_BYTES, np.uint8)
    size = end = 0
    is_last = False
    data = buffer[:0]
    while not (end or is_last):
        wanted = min(max(size, _HEADER_BYTES), BLOCK_BYTES - size)
        count = fill(stream, buffer[size : size + wanted])
        size, is_last = size + count, count < wanted or size + count == BLOCK_BYTES
        data = buffer[:size]
        data = data[text_start(data, text, skip_empty=True) :]
        end = Block(data, text).first_end()
    if not data.size:
        raise ContractError(f"{text.source}: the file is empty", "Begin the table with a line of column names.")
    cells = first_cells(data[: end or len(data)], text)
    if not end and size == BLOCK_BYTES:
        raise _too_long(text, 0)
    return cells


def csv_batches(stream: Stream, text: CsvText, *, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of a text as strings, a few MiB at a time, without the header.

    Raises:
        ContractError: a misplaced or unclosed quote, or a row that is too long, has other columns or is not UTF-8.
    """
    yield from _ahead(_parsed(stream, text, columns))


def _parsed(stream: Stream, text: CsvText, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    first = 0
    for block in _blocks(stream, text):
        block.first = first
        block.check()
        if block.end:
            table = block.parse(columns)
            yield from table.slice(1 if text.has_header and first == 0 else 0).to_batches()
            first += table.num_rows
        if block.is_last and block.end < len(block.data):
            raise _too_long(text, first)


def _too_long(text: CsvText, record: int) -> ContractError:
    cause = f"{text.row(record)}: exceeds {BLOCK_BYTES >> 20} MiB"
    return ContractError(cause, "Write a table with such rows as Parquet.")


def text_start(data: np.ndarray, text: CsvText, *, skip_empty: bool) -> int:
    """Return the position after the byte order mark, and after empty lines with `skip_empty`."""
    head = data[:1024].tobytes()
    for magic, name in _BINARY.items():
        if head.startswith(magic):
            cause = f"{text.source}: contains {name} data, not text"
            raise ContractError(cause, "Use the file name or the media type of that format.")
    encoding = wide_encoding(head)
    if encoding:
        raise ContractError(f"{text.source}: the text is {encoding.upper()}, not UTF-8", to_utf8(encoding.upper()))
    start = len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0
    if skip_empty:
        filled = _FILLED.search(data.data, start)
        return filled.start() if filled else len(data)
    return start


def _blocks(stream: Stream, text: CsvText) -> Iterator[Block]:
    """Yield the text in blocks, each with the incomplete record of the previous one, up to a record that is too long.

    A block is valid until the second next one is requested.
    """
    current, other = (np.empty(2 * BLOCK_BYTES, np.uint8) for _ in range(2))
    rest = current[:0]
    at_start = True
    while True:
        size = fill(stream, current[BLOCK_BYTES:])
        current[BLOCK_BYTES - len(rest) : BLOCK_BYTES] = rest
        data = current[BLOCK_BYTES - len(rest) : BLOCK_BYTES + size]
        if at_start:
            data = data[text_start(data, text, skip_empty=text.has_header) :]
            at_start = not data.size
        block = Block(data, text, is_last=size < BLOCK_BYTES)
        rest = data[block.end :]
        block.is_last |= len(rest) > BLOCK_BYTES
        yield block
        if block.is_last:
            return
        current, other = other, current


def _ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches, while a thread reads the next one."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = pool.submit(next, batches, None)
            yield batch
