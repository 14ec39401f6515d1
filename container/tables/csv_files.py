"""Read CSV and TSV text from a file or a request."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import pyarrow as pa

from container.tables.csv_blocks import Block, CsvText, first_cells, to_utf8
from contracts.errors import ContractError

BLOCK_BYTES = 4 << 20  # the largest row
_HEADER_BYTES = 1 << 16
_BINARY = {b"PAR1": "Parquet", b"\x1f\x8b": "gzip", b"PK\x03\x04": "Excel or ZIP"}
_FILLED = re.compile(rb"[^\r\n]")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Stream(Protocol):
    """A file that is open for reading."""

    def readinto(self, buffer: memoryview, /) -> int: ...


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
        count = _fill(stream, buffer[size : size + wanted])
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
    first = 0
    for block in _ahead(_blocks(stream, text)):
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
    encoding = _wide_encoding(head)
    if encoding:
        raise ContractError(f"{text.source}: the text is {encoding}, not UTF-8", to_utf8(encoding))
    start = len(_BYTE_ORDER_MARK) if head.startswith(_BYTE_ORDER_MARK) else 0
    if skip_empty:
        filled = _FILLED.search(data.data, start)
        return filled.start() if filled else len(data)
    return start


def _wide_encoding(head: bytes) -> str | None:
    """Return the name of an encoding with several bytes per character, from its mark or from the zeros of ASCII."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "UTF-32" if head[2:4] == b"\0\0" else "UTF-16"
    even, odd = head[::2], head[1::2]
    for name, zeros, others in (("UTF-16LE", odd, even), ("UTF-16BE", even, odd)):
        if zeros.count(0) * 2 > len(zeros) and not others.count(0):
            return name
    return None


def _blocks(stream: Stream, text: CsvText) -> Iterator[Block]:
    """Yield the text in blocks, each with the incomplete record of the previous one, up to a record that is too long.

    A block is valid until the second next one is requested.
    """
    current, other = (np.empty(2 * BLOCK_BYTES, np.uint8) for _ in range(2))
    rest = current[:0]
    at_start = True
    while True:
        size = _fill(stream, current[BLOCK_BYTES:])
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


def _ahead(blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield blocks, while a thread reads the next one."""
    block = next(blocks)
    with ThreadPoolExecutor(1) as pool:
        while not block.is_last:
            following = pool.submit(next, blocks)
            yield block
            block = following.result()
        yield block


def _fill(stream: Stream, buffer: np.ndarray) -> int:
    """Read until the buffer is full or the stream ends; return the number of bytes."""
    size = 0
    while size < len(buffer) and (count := stream.readinto(buffer[size:].data)):
        size += count
    return size
