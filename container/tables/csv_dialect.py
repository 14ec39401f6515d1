"""Find how a raw text file is written: its encoding, its delimiter, and whether a backslash escapes."""

import io
import re
from codecs import BOM_UTF8
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from container.tables.csv_blocks import Block, CsvText, line_ends
from container.tables.encodings import Recoded, fill, find_encoding
from container.tables.reading import Reading
from contracts.errors import ContractError

DELIMITERS = ",;\t|"
_HEAD_BYTES = 1 << 18
_SEP = re.compile(rb'"?sep=([^\r\n])"?\r?\n')  # how Excel names the delimiter
_NULL = re.compile(rb"(?:^|[\t\n])\\N(?:[\t\r\n]|$)")  # of MySQL, PostgreSQL and Hive


@dataclass(frozen=True)
class Dialect:
    """How a text file is written.

    Attributes:
        has_escapes: whether cells have backslash escapes and no quotes, as databases write them.
        skipped: bytes before the header.
    """

    encoding: str
    delimiter: str
    has_escapes: bool = False
    skipped: int = 0


def find_dialect(
    path: Path, open_file: Callable[[], AbstractContextManager[io.BufferedIOBase]], *, reading: Reading, usual: str
) -> tuple[Dialect, list[str]]:
    """Return the dialect of a file, and sentences about what its content left open.

    Args:
        usual: the delimiter of the format.

    Raises:
        ContractError: several encodings or delimiters fit.
    """
    encoding = find_encoding(path, open_file, named=reading.encoding)
    with open_file() as file:
        head = np.empty(_HEAD_BYTES, np.uint8)
        size = fill(file if encoding.name == "utf-8" else Recoded(file, encoding.name, place=str(path)), head)
    start = len(BOM_UTF8) if head[:size].tobytes().startswith(BOM_UTF8) else 0
    data = head[start:size]
    notes = [encoding.warning] if encoding.warning else []
    if named := _SEP.match(data[:16].tobytes()):
        return Dialect(encoding.name, named[1].decode(), skipped=start + named.end()), notes
    delimiter, rival = _delimiter(path, data, named=reading.delimiter, usual=usual, is_whole=size < _HEAD_BYTES)
    notes += [f"read with delimiter {delimiter!r}; {rival!r} divides every row as well: --delimiter {rival!r}"] * bool(
        rival
    )
    has_escapes = reading.escapes == "backslash"
    if reading.escapes is None:
        has_escapes = delimiter == "\t" and _NULL.search(data.data) is not None
    return Dialect(encoding.name, delimiter, has_escapes), notes


def _delimiter(path: Path, data: np.ndarray, *, named: str | None, usual: str, is_whole: bool) -> tuple[str, str]:
    """Return the delimiter that divides every row into as many cells as the header, else the one of most rows.

    With the usual one and another that divides the rows equally well, the second value is the other one, else "".

    Args:
        named: is taken if it divides the header.
    """
    shares: dict[str, tuple[float, int]] = {}
    for delimiter in dict.fromkeys([*filter(None, [named]), *DELIMITERS]):
        counts = _cells(data, delimiter, is_whole=is_whole)
        if len(counts) and counts[0] > 1:
            if delimiter == named:
                return delimiter, ""
            shares[delimiter] = (float(np.mean(counts == counts[0])), int(counts[0]))
    if not shares:
        return usual, ""
    ordered = sorted(shares, key=lambda each: (shares[each], each == usual), reverse=True)
    best, *others = ordered
    is_tie = bool(others) and shares[others[0]] == shares[best]
    if is_tie and usual not in (best, others[0]):
        raise ContractError(
            f"{path}: {best!r} and {others[0]!r} both divide every row into {shares[best][1]} cells",
            f"Name the delimiter, e.g. --delimiter {best!r}.",
        )
    return best, others[0] if is_tie else ""


def _cells(data: np.ndarray, delimiter: str, *, is_whole: bool) -> np.ndarray:
    """Return the number of cells of each complete row. [R]"""
    block = Block(data, CsvText("", delimiter, has_header=True), is_last=is_whole)
    ends = block.outside(line_ends(data))
    if is_whole:
        ends = np.append(ends, len(data))
    starts = np.concatenate([[-1], ends[:-1]]) + 1
    places = block.outside(np.flatnonzero(data == ord(delimiter)))
    counts = np.searchsorted(places, ends) - np.searchsorted(places, starts) + 1
    return counts[ends > starts]  # an empty line is no row
