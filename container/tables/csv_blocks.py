"""Check and parse blocks of CSV and TSV text (RFC 4180), so that no quote joins two records unnoticed."""

from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from container.tables.number_notations import NULL
from contracts.errors import ContractError

_TAIL_BYTES = 1 << 16
_PART_BYTES = 1 << 20
_LISTED_COLUMNS = 20
_SHOWN_CHARACTERS = 40
_DELIMITER_FIX = "Separate the cells by commas in CSV, by tabs in TSV."
_QUOTES_FIX = (
    "Begin and end a cell that contains quotes with a quote, and write each quote inside it as two quotes. "
    "Also look for a missing quote in the cells before and after it."
)


@dataclass(frozen=True)
class CsvText:
    """The properties of a text that parsing and messages need.

    Attributes:
        source: the text's name for messages.
        has_header: the first record names the columns.
        columns: the names of all columns, if they are known.
        has_quotes: quotes enclose cells; otherwise they are text.
    """

    source: str
    delimiter: str
    has_header: bool
    columns: tuple[str, ...] = ()
    has_quotes: bool = True

    def row(self, record: int) -> str:
        """Return the name of a record for messages, from its position; rows count from 1, without the header."""
        if self.has_header:
            return f"{self.source}: row {record}" if record else f"{self.source}: the header"
        return f"{self.source}: row {record + 1}"

    def cell(self, record: int, column: int) -> str:
        """Return the name of a cell for messages, from its positions."""
        name = repr(self.columns[column]) if column < len(self.columns) else column + 1
        return f"{self.row(record)}, column {name}"


class Block:
    """Consecutive bytes of a text; the first one begins a record.

    A quote opens a cell at its beginning and closes it at its end; two quotes inside a quoted cell are one of the text.
    A quote in an unquoted cell is text (5" pipe), except at the cell's end and beside another quote. There it more
    likely belongs to a quoted cell that has lost its first quote.

    Args:
        data: the bytes. [B] uint8
        is_last: no block follows.

    Attributes:
        end: the end of the last complete record, with its line end; 0 if there is none.
        first: position of the first record in the text.
    """

    def __init__(self, data: np.ndarray, text: CsvText, *, is_last: bool = True) -> None:
        self.data = data
        self.text = text
        self.is_last = is_last
        self.first = 0
        # Positions of the quotes that open and close in turn; a doubled quote closes and opens. [Q]
        self._quotes, self._misplaced = (
            _find_quotes(data, text.delimiter) if text.has_quotes else (np.empty(0, np.int64), None)
        )
        self.end = len(data) if is_last else self._last_end()

    def check(self) -> None:
        """Raise ContractError where a quote is misplaced, or a quoted cell does not end in the last block."""
        position = self._misplaced
        if position is not None and (self.is_last or position < len(self.data) - 1):  # the next byte is known
            self._quotes = self._quotes[self._quotes < position]
            if len(self._quotes) % 2 == 0:
                cause = "the cell does not begin with a quote, but ends with one or contains two in succession"
                raise ContractError(f"{self._cell_at(position)}: {cause}", _QUOTES_FIX)
            follows = bytes(self.data[position + 1 :][:4]).decode(errors="replace")[:1]
            cause = (
                f"the cell begins with a quote, and a later quote in it is followed by {follows!r}, not by a delimiter "
                "or a line end"
            )
            fix = f"{_DELIMITER_FIX} {_QUOTES_FIX}" if follows in ",;|\t" else _QUOTES_FIX
            raise ContractError(f"{self._cell_at(self._opening())}: {cause}", fix)
        if self.is_last and len(self._quotes) % 2:
            cause, fix = "the cell begins with a quote that is never closed", _QUOTES_FIX
            if self.end < len(self.data):  # the text goes on after the block
                cause += ", or the row is too long"
                fix += " If the row is so long, write the table as Parquet."
            raise ContractError(f"{self._cell_at(self._opening())}: {cause}", fix)

    def first_end(self) -> int:
        """Return the end of the first record, without its line end; 0 if the block does not contain it."""
        ends = self.outside(line_ends(self.data))
        return int(ends[0]) if ends.size else 0

    def count_columns(self) -> int:
        """Return the number of cells of a block that is one record, in a bounded amount of memory."""
        parts = ((start, self.data[start : start + _PART_BYTES]) for start in range(0, len(self.data), _PART_BYTES))
        delimiter = ord(self.text.delimiter)
        return 1 + sum(len(self.outside(start + np.flatnonzero(part == delimiter))) for start, part in parts)

    def parse(self, columns: Sequence[str] = (), *, end: int | None = None) -> pa.Table:
        r"""Return the complete records as strings, or those before `end`; `columns`, default all, are selected.

        A cell with \N is null.

        Empty lines are skipped if the text has several columns. With one column they are records with an empty cell.

        Raises:
            ContractError: a NUL byte, a row with another number of columns, a cell that is not UTF-8.
        """
        data = self.data[: self.end if end is None else end]
        if data.size and data.min() == 0:
            raise ContractError(
                f"{self._cell_at(int(data.argmin()))}: the cell contains a NUL byte",
                "Remove it; if the text is UTF-16, convert it to UTF-8.",
            )
        columns = columns or self.text.columns
        try:
            return self._read(data, columns, pa.string())
        except pa.ArrowInvalid:
            raise self._wrong_length(data, columns) or self._not_utf8(data, columns) from None

    def _read(
        self,
        data: np.ndarray,
        columns: Sequence[str],
        kind: pa.DataType,
        on_invalid: Callable[[pa_csv.InvalidRow], str] | None = None,
    ) -> pa.Table:
        if data[: len(BOM_UTF8)].tobytes() == BOM_UTF8:  # part of a cell; Arrow removes one
            data = np.concatenate([np.frombuffer(BOM_UTF8, np.uint8), data])
        # Memory of Arrow: a thread of Arrow frees it, which aborts the process if it has to wait for an ending Python.
        buffer = pa.allocate_buffer(len(data))
        np.frombuffer(buffer, np.uint8)[:] = data
        reader = pa_csv.open_csv(  # read_csv starts a thread for each call
            pa.BufferReader(buffer),
            read_options=pa_csv.ReadOptions(
                use_threads=False, block_size=len(data) + 1, column_names=list(self.text.columns)
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=self.text.delimiter,
                quote_char='"' if self.text.has_quotes else False,
                newlines_in_values=True,
                ignore_empty_lines=len(self.text.columns) > 1,
                invalid_row_handler=on_invalid,
            ),
            convert_options=pa_csv.ConvertOptions(
                include_columns=list(columns),
                column_types=dict.fromkeys(columns, kind),
                null_values=[NULL],
                strings_can_be_null=True,
            ),
        )
        return reader.read_all()

    def _wrong_length(self, data: np.ndarray, columns: Sequence[str]) -> ContractError | None:
        invalid: list[pa_csv.InvalidRow] = []

        def remember(row: pa_csv.InvalidRow) -> str:
            invalid.append(row)
            return "skip"

        readable = np.where(data < 128, data, ord("?")).astype(np.uint8)  # Arrow decodes the row for its handler
        self._read(readable, columns, pa.binary(), remember)
        if not invalid:
            return None
        columns = self.text.columns
        names = ", ".join(map(repr, columns[:_LISTED_COLUMNS]))
        more = ", ..." if len(columns) > _LISTED_COLUMNS else ""
        return ContractError.of_rows(
            {
                row.number - 1: f"{self.text.row(self.first + row.number - 1)}: has {row.actual_columns} columns "
                f"instead of {row.expected_columns}: {row.text[:_SHOWN_CHARACTERS]!r}"
                for row in invalid
            },
            f"Give every row these cells: {names}{more}. Enclose a cell that contains a "
            "delimiter or a line break in quotes.",
        )

    def _not_utf8(self, data: np.ndarray, columns: Sequence[str]) -> ContractError:
        table = self._read(data, columns, pa.binary())
        causes: dict[int, str] = {}
        for name in reversed(columns):  # the first column's cause is kept
            for row, cell in enumerate(table[name].to_pylist()):
                try:
                    (cell or b"").decode()
                except UnicodeDecodeError as error:
                    causes[row] = (
                        f"{self.text.cell(self.first + row, self.text.columns.index(name))}: byte "
                        f"0x{cell[error.start]:02X} after {cell[: error.start].decode()[-_SHOWN_CHARACTERS:]!r} is "
                        "not UTF-8"
                    )
        return ContractError.of_rows(dict(sorted(causes.items())), to_utf8("WINDOWS-1252"))

    def _last_end(self) -> int:
        for size in (_TAIL_BYTES, len(self.data)):
            start = max(len(self.data) - size, 0)
            ends = self.outside(start + line_ends(self.data[start:]))
            if ends.size and ends[-1] == len(self.data) - 1 and self.data[-1] == ord("\r"):
                ends = ends[:-1]  # \n may follow
            if ends.size:
                return int(ends[-1]) + 1
        return 0

    def outside(self, positions: np.ndarray) -> np.ndarray:
        """Return the positions that are not in a quoted cell. [P] -> [at most P]"""
        return positions[np.searchsorted(self._quotes, positions) % 2 == 0]

    def _opening(self) -> int:
        """Return the position of the last quote that opens a cell; those of doubled quotes follow one that closes."""
        opening = self._quotes[::2]
        closing = np.concatenate([[-2], self._quotes[1::2]])[: len(opening)]
        return int(opening[opening != closing + 1][-1])

    def _cell_at(self, position: int) -> str:
        """Return the name of the cell at a position for messages; raise ContractError for an invalid row before it."""
        ends = self.outside(line_ends(self.data[:position]))
        start = int(ends[-1]) + 1 if ends.size else 0
        delimiters = start + np.flatnonzero(self.data[start:position] == ord(self.text.delimiter))
        rows = self.parse(end=start).num_rows if start else 0
        return self.text.cell(self.first + rows, len(self.outside(delimiters)))


def first_cells(data: np.ndarray, text: CsvText) -> list[str]:
    """Return the cells of a text that is one record."""
    block = Block(data, text)
    block.check()
    numbers = tuple(str(number + 1) for number in range(block.count_columns()))
    return [column[0].as_py() for column in Block(data, replace(text, columns=numbers)).parse().columns]


def to_utf8(encoding: str) -> str:
    """Return the advice for a text in another encoding."""
    return (
        f"Convert the text to UTF-8, for example with `iconv -f {encoding} -t UTF-8 OLD > NEW`. "
        "In Excel, save as CSV UTF-8."
    )


def line_ends(data: np.ndarray) -> np.ndarray:
    return np.flatnonzero((data == ord("\n")) | (data == ord("\r")))


def _find_quotes(data: np.ndarray, delimiter: str) -> tuple[np.ndarray, int | None]:
    """Return the positions of the quotes at edges of cells and beside quotes, and of the first misplaced quote."""
    quotes = np.flatnonzero(data == ord('"'))
    if not quotes.size:
        return quotes, None
    at_edge = np.zeros(256, bool)  # whether a quote may stand beside a byte
    at_edge[[*b'\r\n"', ord(delimiter)]] = True
    last = len(data) - 1

    def opens(positions: np.ndarray) -> np.ndarray:
        return at_edge.take(data.take(positions - 1, mode="wrap")) | (positions == 0)

    def closes(positions: np.ndarray) -> np.ndarray:
        return at_edge.take(data.take(positions + 1, mode="clip")) | (positions == last)

    if opens(quotes[::2]).all() and closes(quotes[1::2]).all():  # the usual case, in half the time
        return quotes, None
    before, after = opens(quotes), closes(quotes)
    edge = before | after
    literal, quotes, before, after = quotes[~edge], quotes[edge], before[edge], after[edge]
    is_closing = np.arange(len(quotes)) % 2 == 1
    inside = literal[np.searchsorted(quotes, literal) % 2 == 1]
    misplaced = np.concatenate([inside, quotes[np.where(is_closing, ~after, ~before)]])
    return quotes, int(misplaced.min()) if misplaced.size else None
