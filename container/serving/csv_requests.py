"""Read a CSV body in parts: find its columns, then its records or its lines."""

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from container.serving.errors import bad_request, check_limit
from container.serving.parts import MAX_COLUMNS, PART_BYTES, PART_RECORDS, Part, check_columns, grouped
from container.tables.csv_blocks import Block, CsvText, first_cells
from container.tables.csv_files import text_start
from container.tables.table_file import check_names
from contracts.errors import ContractError, invalid_rows, shown
from contracts.serving import ServingSettings
from contracts.spelling import as_named

_HEADER_BYTES = 1 << 16
_OTHER_DELIMITER = re.compile(r"[;\t|]")
_LINE = re.compile(rb"([^\n]*+)(?:\n|\Z)")
_BLANK_LINES = re.compile(rb"(?:[ \t\v\f\r]*+\n)*+")
_BY_LINES = (
    "A batch transform with SplitType=Line cuts a CSV at every line break, also in quotes. "
    "Send texts with line breaks as JSON Lines."
)


def csv_parts(body: bytes, columns: Sequence[str], *, header: bool | None, limits: ServingSettings) -> Iterator[Part]:
    """Yield the records of a CSV body.

    The first row is a header if more than half of the expected columns are among its cells, or if `header` says so. The
    columns of SERVING_CSV_COLUMNS are expected, by default `columns`; without a header, the cells are theirs. If
    invalid records are reported, every line is a record, except blank lines beside several columns; otherwise a quoted
    cell may contain line breaks.

    Args:
        columns: the columns that the model needs, in its order.
        header: the parameter of the Content-Type.

    Raises:
        RequestError, ContractError: no record, a missing or repeated column, a wrong number of cells, a wrong quote.
    """
    by_lines = limits.serving_invalid_records == "report"
    names, start, has_header = _columns(body, columns, header=header, limits=limits)
    check_columns(columns, names)
    text = CsvText("the request", ",", has_header, tuple(names))
    if not by_lines:
        yield from _records(np.frombuffer(body, np.uint8)[start:], text, columns)
        return

    def read(lines: Sequence[bytes], first: int) -> pa.Table:
        return _read_lines(lines, text, columns, first=first)

    filled = (line for line in _lines(body, start) if len(names) == 1 or (line and not line.isspace()))
    for rows, first in grouped((line, len(line)) for line in filled):
        yield Part(rows, first, read, blank=b"," * (len(names) - 1))


def _columns(
    body: bytes, columns: Sequence[str], *, header: bool | None, limits: ServingSettings
) -> tuple[Sequence[str], int, bool]:
    """Return the names of the cells, where the records begin, and whether the text has a header."""
    text = CsvText("the request", ",", header is True)
    data = np.frombuffer(body, np.uint8)
    by_lines, declared = limits.serving_invalid_records == "report", limits.serving_csv_columns
    expected = declared or tuple(columns)
    first = text_start(data, text, skip_empty=True)
    if by_lines and (blank := _BLANK_LINES.match(body, first)):
        first = blank.end()
    if first == len(data):
        raise bad_request("the request is empty", "Send at least one record.")
    line = _first_line(data[first:], text, by_lines=by_lines)
    check_limit(Block(line, text).count_columns(), "columns", MAX_COLUMNS)
    try:
        _check(Block(line, text))
        if by_lines:
            _check_line(line.tobytes(), text, first=0)
        cells = as_named(first_cells(line, text), expected)
    except ContractError:
        damaged = [cell.strip('"') for cell in line.tobytes().decode(errors="replace").split(",")]
        if header or not by_lines or (header is None and _is_header(damaged, expected)):
            raise
        cells = []
    if header or (header is None and _is_header(cells, expected)):
        check_names(cells, "the request")
        if declared is not None and tuple(cells) != declared:
            listed = ", ".join(map(repr, declared))
            cause = f"the header has the columns {', '.join(map(repr, cells))}, but SERVING_CSV_COLUMNS is {listed}"
            raise bad_request(cause, "Send the columns of SERVING_CSV_COLUMNS, or change the setting.")
        end = first + len(line)
        return cells, end + (2 if body[end : end + 2] == b"\r\n" else 1), True
    if len(cells) != len(expected) and not by_lines:
        raise _wrong_number(cells, expected)
    # With one column, empty lines are records.
    return expected, text_start(data, text, skip_empty=len(expected) > 1 and not by_lines), False


def _is_header(cells: Sequence[str], expected: Sequence[str]) -> bool:
    known = {*cells, *(cell.strip() for cell in cells)}  # a header with blanks around a name is no record
    return 2 * sum(name in known for name in expected) > len(expected)


def _first_line(data: np.ndarray, text: CsvText, *, by_lines: bool) -> np.ndarray:
    """Return the bytes of the first record, or of the first line, without the line end."""
    if by_lines:
        return data[: len(next(_lines(data.data, 0)))]
    size = _HEADER_BYTES
    while not (end := Block(data[:size], text).first_end()) and size < len(data):
        size *= 2
    return data[: end or len(data)]


def _lines(body: bytes | memoryview, start: int) -> Iterator[bytes]:
    r"""Yield the lines as a batch transform cuts a file, at \n only, without the \r of \r\n."""
    for found in _LINE.finditer(body, start):
        if found.start() < len(body):
            yield found[1].removesuffix(b"\r")


def _check(block: Block) -> None:
    try:
        block.check()
    except ContractError as error:
        raise bad_request(error.cause, f"{error.fix} {_BY_LINES}") from error


def _wrong_number(cells: Sequence[str], names: Sequence[str]) -> ContractError:
    fields = f"{len(cells)} fields" if len(cells) > 1 else f"1 field, {shown(cells[0])},"
    other = _OTHER_DELIMITER.search(cells[0]) if len(cells) == 1 else None
    delimiter = f"commas, not by {other[0]!r}" if other else "commas"
    return bad_request(
        f"line 1 has {fields} and is no header; without a header, {len(names)} are needed",
        f"Separate fields by {delimiter}. Send a header line, or exactly these fields in this order: "
        f"{', '.join(map(repr, names))}. The setting SERVING_CSV_COLUMNS declares other columns.",
    )


def _records(data: np.ndarray, text: CsvText, columns: Sequence[str]) -> Iterator[Part]:
    start, first, size = 0, 0, PART_BYTES
    while start < len(data):
        window = data[start : start + size]
        is_last = start + size >= len(data)
        block = Block(window, text, is_last=is_last)
        block.first = first + bool(text.has_header)
        if not block.end:  # a record is longer than the window
            size *= 2
            continue
        _check(block)
        table = block.parse(columns)
        for begin in range(0, table.num_rows, PART_RECORDS):
            yield Part(table.slice(begin, PART_RECORDS), first + begin)
        first += table.num_rows
        start, size = start + block.end, PART_BYTES


def _read_lines(lines: Sequence[bytes], text: CsvText, columns: Sequence[str], *, first: int) -> pa.Table:
    block = Block(np.frombuffer(b"\n".join(lines) + b"\n", np.uint8), text)
    block.first = first + bool(text.has_header)
    try:
        block.check()
        table = block.parse(columns)
    except ContractError:
        _check_lines(lines, text, first=block.first)
        raise  # each line is a row of the block
    if table.num_rows != len(lines) or any(b"\r" in line for line in lines):  # a line break in or outside quotes
        _check_lines(lines, text, first=block.first)
    return table


def _check_lines(lines: Sequence[bytes], text: CsvText, *, first: int) -> None:
    """Raise ContractError if lines are invalid on their own."""
    causes = invalid_rows(enumerate(lines), lambda line: _check_line(line[1], text, first=first + line[0]))
    if causes:
        raise ContractError.of_rows(causes, _BY_LINES)


def _check_line(line: bytes, text: CsvText, *, first: int) -> None:
    """Raise ContractError if a line has misplaced or unclosed quotes, several rows, or NUL bytes."""
    block = Block(np.frombuffer(line + b"\n", np.uint8), text)
    block.first = first
    block.check()
    if block.first_end() < len(line):
        raise ContractError(f"{text.row(first)}: has a carriage return outside quotes", "Enclose the cell in quotes.")
    if b"\0" in line:
        block.parse()
