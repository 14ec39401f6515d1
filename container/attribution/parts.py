"""Divide a record into parts: columns, or the messages, sentences or words of its texts."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any, Literal, get_args

import pyarrow as pa

from container.errors import RecordTooLongError
from container.preprocessing.fitted import FittedPreprocessing
from container.tables.table_file import Origin
from container.tables.values import texts
from container.text.cleaning import DIALOGUE_MARKER, split_dialogue
from contracts.errors import ContractError
from contracts.text_fields import TextField

Level = Literal["column", "text", "word"]
LEVELS: tuple[Level, ...] = get_args(Level)
MOST_PIECES = 256  # of a record's texts: about a thousand passes of the encoders

_SENTENCE_END = re.compile(r"""(?:[.!?…]++["'”’)\]]*+(?=\s)|[。！？]++["”’」』）]*+|\n)\s*+""")
_WORD_END = re.compile(r"(?<=\S)\s++")


@dataclass(frozen=True)
class Question:
    """The reasons that a caller asks for.

    Attributes:
        level: the parts. column: columns; text: texts are divided into messages if they have any, else into sentences;
            word: texts are divided into words.
        top: keep the parts with the largest contributions; None = all.
        permutations: to sample for more than 10 parts, an even number; None = by the cost.
    """

    level: Level = "column"
    top: int | None = None
    permutations: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.level, str) or self.level not in LEVELS:
            raise ContractError(f"level: {self.level!r} is not known", f"Use one of: {', '.join(LEVELS)}.")
        for name, least, step in (("top", 1, 1), ("permutations", 4, 2)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and value >= least and value % step == 0):
                even = "an even" if step == 2 else "a whole"
                raise ContractError(f"{name}: is {value!r}", f"Use {even} number of at least {least}, or leave it out.")


@dataclass(frozen=True)
class Part:
    """A column, or a piece of a text.

    Attributes:
        name: the column; with pieces also the number of the piece, from 0.
        value: of the column, or the text of the piece.
        column: the column.
        text: what the column's text loses without this part; None if it is not of a text, or is missing.
    """

    name: str
    value: Any
    column: str
    text: str | None = None


def parts_of(table: pa.Table, row: int, fitted: FittedPreprocessing, level: Level) -> list[Part]:
    """Return the parts of a record in the order of the model's columns; a missing text is one part."""
    parts = []
    for field in fitted.text_fields:
        for column in field.columns:
            (text,) = texts(table[column].slice(row, 1))
            pieces = _pieces(text, field, level) if text and not text.isspace() else []
            if level == "column" or not pieces:
                parts.append(Part(column, text, column, pieces[0] if pieces else None))
            else:
                shown = (" ".join(_messages(piece, field)).strip() for piece in pieces)
                parts += [
                    Part(f"{column}[{i}]", value, column, piece)
                    for i, (value, piece) in enumerate(zip(shown, pieces, strict=True))
                ]
    for column in fitted.tabular_places:
        value = _plain(table[column][row].as_py())
        is_number = column in fitted.raw_numbers and column not in fitted.number_format
        parts.append(Part(column, _number(value) if is_number and isinstance(value, str) else value, column))
    return parts


def check_pieces(table: pa.Table, fitted: FittedPreprocessing, level: Level, *, origin: Origin) -> None:
    """Raise RecordTooLongError if the texts of a record have too many pieces; counts no further than necessary."""
    pattern, causes = _ENDS[level], {}
    if pattern is None:
        return
    known = {field.name for field in table.schema if not pa.types.is_nested(field.type)}  # others are refused later
    columns = [column for column in fitted.text_columns if column in known]
    for row in range(table.num_rows):
        found = (texts(table[column].slice(row, 1))[0] or "" for column in columns)
        ends = chain.from_iterable(map(pattern.finditer, found))
        if next(islice(ends, MOST_PIECES, None), None) is not None:
            causes[row] = (
                f"{origin.row(row)}: its texts have more than {MOST_PIECES} parts at level {level!r}; at most "
                f"{MOST_PIECES} are explained"
            )
    if causes:
        raise RecordTooLongError.of_rows(causes, "Send shorter texts, or ask for another level.")


_ENDS: dict[Level, re.Pattern[str] | None] = {"column": None, "text": _SENTENCE_END, "word": _WORD_END}


def _pieces(text: str, field: TextField, level: Level) -> list[str]:
    """Divide a text: the pieces are not blank, and together they are the text."""
    pattern = _ENDS[level]
    if pattern is None:
        return [text]
    if level == "text" and len(_messages(text, field)) > 1:
        pattern = DIALOGUE_MARKER
    return _tiles(text, [end.end() for end in pattern.finditer(text)], lambda piece: any(_messages(piece, field)))


def _tiles(text: str, cuts: Sequence[int], has_content: Callable[[str], bool]) -> list[str]:
    """Cut a text; a piece without content joins the one before it, at the beginning the one after it."""
    pieces: list[str] = []
    for begin, end in pairwise([0, *cuts, len(text)]):
        piece = text[begin:end]
        if pieces and (not has_content(pieces[-1]) or not has_content(piece)):
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces


def _messages(text: str, field: TextField) -> list[str]:
    """Return the messages of a text, without their markers; the text itself if it has none."""
    found = split_dialogue(text) if "dialogue_splitter" in field.steps else [text]
    return [message for message in found if not message.isspace() and message]


def _number(text: str) -> Any:
    """Return the number of a text, which a request's numbers are; else the text."""
    try:
        value = float(text)
    except ValueError:
        return text
    return _plain(int(value) if value.is_integer() else value)


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and not math.isinf(value):
        return None if math.isnan(value) else value
    return str(value)
