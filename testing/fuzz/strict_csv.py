"""Count the rows of a CSV by RFC 4180, independently of the readers that the product uses."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class StrictTable:
    """A parsed text.

    Attributes:
        rows: the fields of each line, header included, without empty lines.
        malformed: a quote inside an unquoted field, text after a closing quote, or a quote that is never closed.
    """

    rows: list[list[str]]
    malformed: bool

    def column(self, name: str) -> list[str] | None:
        """Return the cells of a column, None if rows have different lengths or the name is not in the header once."""
        if not self.rows or self.rows[0].count(name) != 1:
            return None
        if any(len(row) != len(self.rows[0]) for row in self.rows):
            return None
        place = self.rows[0].index(name)
        return [row[place] for row in self.rows[1:]]


def parse(text: str, delimiter: str) -> StrictTable:
    """Parse the text."""
    rows: list[list[str]] = []
    row: list[str] = []
    malformed, i, end = False, 0, len(text)
    while i < end:
        if text[i] == '"':
            field, i, closed = _quoted(text, i + 1)
            malformed |= not closed
            if i < end and text[i] not in (delimiter, "\r", "\n"):
                malformed = True
                rest = _unquoted_end(text, i, delimiter)
                field, i = field + text[i:rest], rest
        else:
            stop = _unquoted_end(text, i, delimiter)
            field, i = text[i:stop], stop
            malformed |= '"' in field
            if not row and not field and i < end and text[i] != delimiter:  # an empty line
                i = _after_line_end(text, i)
                continue
        row.append(field)
        if i < end and text[i] == delimiter:
            i += 1
            if i == end or text[i] in "\r\n":
                row.append("")
            else:
                continue
        rows.append(row)
        row = []
        i = _after_line_end(text, i)
    return StrictTable(rows, malformed)


def _quoted(text: str, start: int) -> tuple[str, int, bool]:
    parts = []
    while True:
        stop = text.find('"', start)
        if stop < 0:
            return "".join([*parts, text[start:]]), len(text), False
        parts.append(text[start:stop])
        if text[stop + 1 : stop + 2] != '"':
            return "".join(parts), stop + 1, True
        parts.append('"')
        start = stop + 2


def _unquoted_end(text: str, start: int, delimiter: str) -> int:
    found = re.compile(f"[{re.escape(delimiter)}\r\n]").search(text, start)
    return found.start() if found else len(text)


def _after_line_end(text: str, i: int) -> int:
    return i + 2 if text[i : i + 2] == "\r\n" else i + 1
