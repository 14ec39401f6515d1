"""Collect what decides the role of a column, from a sample of its cells."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.steps.preprocess.column_sample import ColumnNotations, ColumnSample
from container.tables.column_types import is_number, is_text
from container.tables.dates import read_dates
from container.tables.number_notations import read_numbers
from container.tables.values import contiguous

_LONGEST = 40  # characters, on average, of the cells of a column that may have numbers or dates
_MOST_WORDS = 0.4  # share of the cells of a column that may have numbers or dates
# Words of the names of columns, by what they say of the cells.
NAMES: dict[str, list[str]] = json.loads(Path(__file__).with_name("names.json").read_text("utf-8"))
_GROUPED = r"^[0-9]{1,3}([ .'\x{a0}\x{202f}][0-9]{3})+$|^[0-9]{2,3}( [0-9]{2,3})+$"  # commas group amounts alone
_EXPONENT = "^[0-9]{2,}[eE][0-9]+$"
_FEWEST_CODES = 20  # distinct values
_CODE_DIGITS = 5
FEW = 50  # distinct values that a category may have in any table
FEWEST = 20  # cells from which it is no coincidence that all have something in common
UNIQUE = 0.05  # share of repeated values up to which a code says nothing about other rows
_FORMS = {
    "e-mail addresses": r"^[^@\s]+@[^@\s]+\.[^@\s.]+$",
    "URLs": r"^(?i)(?:https?://|ftp://|www\.)\S+$",
    "IP addresses": r"^(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9a-fA-F:.]*:[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*)$",
    "phone numbers": r"^\+?[0-9 ()./-]{6,24}$",
    "postal codes": r"^[\pL\pN][\pL\pN -]{2,9}$",
}
_MOST, _SEVERAL = 0.95, 0.01  # shares of the cells
_TAGS = "html|head|body|style|script|p|div|br|span|a|b|i|em|strong|ul|ol|li|table|tr|td|h[1-6]|img|font"
_HTML = rf"(?i)</?(?:{_TAGS})\b[^<>]*>|&(?:nbsp|amp|lt|gt|quot|#[0-9]+);"
_EMOJI = r"[\x{1f000}-\x{1faff}\x{2600}-\x{27bf}\x{2b50}\x{2764}]"
_PERSON = r"^\p{Lu}[\pL'-]+(?: \p{Lu}\.)? \p{Lu}[\pL'-]+$"
_UNSPACED = r"[\x{3040}-\x{30ff}\x{3400}-\x{9fff}\x{ac00}-\x{d7a3}]"  # scripts that write no blanks between words


@dataclass(frozen=True)
class ColumnFacts(ColumnSample):
    """A column of the raw table.

    Attributes:
        rows: of the table.
        empty: share of cells in all rows without a text, and without a number (NA).
    """

    rows: int = 0
    empty: tuple[float, float] = (0.0, 0.0)

    @property
    def missing(self) -> float:
        """The share of the missing cells; words such as NA are missing among numbers and dates."""
        if self.is_number or self.date_format is not None:
            return (self.notations.numbers if self.is_number else self.notations.dates).missing_share
        return self.empty[0]

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest number."""
        values = self.numbers[np.isfinite(self.numbers)]
        return float(values.min()), float(values.max())

    @property
    def moments(self) -> tuple[float, float]:
        """The mean and the standard deviation of the numbers."""
        values = self.numbers[np.isfinite(self.numbers)]
        return float(values.mean()), float(values.std())

    def nearly(self) -> tuple[Literal["number", "date"], int, Counter[str]] | None:
        """Return what most cells are, how many are not, and their words; None if there is no such role."""
        if not len(self.keys) or self.characters.mean() > _LONGEST:
            return None
        for role in ("number", "date"):
            count, others, words = self.read_as(role)
            if 0 < others <= _MOST_WORDS * (count + others):
                return role, others, words
        return None

    @cached_property
    def seconds(self) -> np.ndarray:
        """The times of a column of dates; NaN where one is missing. [S]"""
        assert self.date_format is not None, "a column of dates"
        return read_dates(self.sample, self.date_format, missing=self.notations.missing).seconds

    @property
    def is_whole(self) -> bool:
        if self.number_format != "":
            return False
        values = self.numbers[np.isfinite(self.numbers)]
        return bool((values == np.round(values)).all())

    @property
    def has_leading_zeros(self) -> bool:
        texts = pc.match_substring_regex(self.keys, pattern="^[+-]?0[0-9]")
        return not is_number(self.sample.type) and bool(pc.any(texts).as_py())

    def has_value(self, cells: pa.ChunkedArray) -> bool:
        """Return whether any of the column's cells has a number or a date."""
        if self.date_format is not None:
            values = read_dates(cells, self.date_format, missing=self.notations.missing).seconds
        elif is_text(cells.type):
            values = read_numbers(contiguous(cells), self.number_format, missing=self.notations.missing).values
        else:
            values = contiguous(cells).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return bool(np.isfinite(values).any())

    @property
    def code_reason(self) -> str:
        """Why the numbers are codes: their zeros, their form, or the name of the column; "" for amounts."""
        if is_number(self.sample.type):
            named = self.is_whole and self.is_named_code and not self.is_named_amount
            return "named like a code" if named else ""
        if self.has_leading_zeros:
            return "leading zeros"
        if self._matching(_EXPONENT):
            return "digits around an E"
        if self._is_grouped_code:
            return "the same number of digits in each"
        if self._is_version:
            return "written like versions"
        whole = self.is_whole or self._matching(_GROUPED) == 1
        is_named = self.is_named_code if whole else self.is_named("code", "phone", "postal", last=True)
        return "named like a code" if is_named and not self.is_named_amount else ""

    def _matching(self, pattern: str) -> float:
        """Return the share of the cells that have a pattern."""
        found = pc.sum(pc.match_substring_regex(self.keys, pattern=pattern)).as_py() or 0
        return found / max(len(self.keys), 1)

    @property
    def _is_grouped_code(self) -> bool:
        """Whether all cells are groups with the same number of digits, and as many end with 0 as by chance."""
        if self.distinct < _FEWEST_CODES or self._matching(_GROUPED) < 1:
            return False
        digits = pc.replace_substring_regex(self.keys, pattern="[^0-9]", replacement="")
        lengths = pc.utf8_length(digits)
        is_even = pc.min(lengths).as_py() == pc.max(lengths).as_py() >= _CODE_DIGITS
        return is_even and pc.mean(pc.cast(pc.ends_with(digits, "0"), pa.int8())).as_py() < 0.5

    @property
    def _is_version(self) -> bool:
        """Whether zeros at the end distinguish few values: 1.10 beside 1.9, or 1.1."""
        texts = pa.array(self.values, pa.string())
        if self.number_format or self.repeats < 0.5 or self._matching(r"^[0-9]+\.[0-9]*[1-9]0$") == 0:
            return False
        places = pc.utf8_length(pc.replace_substring_regex(texts, pattern=r"^[^.]*\.?", replacement=""))
        return len(pc.unique(pc.filter(places, pc.greater(places, 0)))) > 1

    @property
    def is_dense(self) -> bool:
        """Whether the values are distinct whole numbers of about as many as there are rows, as a counter has."""
        whole = self.is_whole and self.missing == 0 and not self.repeats
        return whole and self.bounds[1] - self.bounds[0] < 2 * self.rows

    @cached_property
    def words(self) -> float:
        """The mean number of words of a value; a word of a script without blanks has about two characters."""
        texts = pa.array(self.values[:5000], pa.string())
        blanks = pc.count_substring_regex(texts, pattern=r"\s+").to_numpy()
        unspaced = pc.count_substring_regex(texts, pattern=_UNSPACED).to_numpy()
        return float(np.mean(blanks + 1 + unspaced / 2)) if len(texts) else 0.0

    @property
    def written_as_values(self) -> bool:
        """Whether nearly all cells have the form of a number with separators, or of a date."""
        return self._most(r"^[-+]?[0-9]+(?:[.,/:-][0-9]+)+$") or self.nearly() is not None

    @property
    def has_lists(self) -> bool:
        pattern = r"""^(\[\s*["'\[{\]0-9-].*|\{.*\})$"""  # not [bom]hello[eom]
        return self._matching(pattern) >= 0.9

    def _most(self, pattern: str) -> bool:
        return self._matching(pattern) >= _MOST

    @property
    def has_html(self) -> bool:
        """Whether several cells have tags or entities of HTML."""
        return self._matching(_HTML) >= _SEVERAL

    @property
    def has_emoji(self) -> bool:
        return self._matching(_EMOJI) > 0

    @cached_property
    def form(self) -> str | None:
        """What nearly all cells are of _FORMS; phone numbers and postal codes only if the name says so."""
        named = {"phone numbers": self.is_named("phone"), "postal codes": self.is_named("postal")}
        return next((form for form, each in _FORMS.items() if named.get(form, True) and self._most(each)), None)

    @property
    def has_persons(self) -> bool:
        """Whether the cells are names of persons, such as Ada Lovelace."""
        return self.name_words[-1:] == ["name"] and len(self.name_words) <= 2 and self._most(_PERSON)

    def is_named(self, *kinds: str, last: bool = False) -> bool:
        """Whether the name, or its last word, has a word of these kinds of NAMES."""
        words = self.name_words[-1:] if last else self.name_words
        return any(word in NAMES[kind] for word in words for kind in kinds)

    @property
    def is_named_code(self) -> bool:
        return self.is_named("code", "phone", "postal") or any(word.endswith("nr") for word in self.name_words)

    @property
    def is_named_amount(self) -> bool:
        """Whether the last word of the name is one of an amount; a phone number is none."""
        return self.is_named("amount", last=True) and not (self.name_words[-1] == "number" and self.is_named_code)

    @property
    def is_index(self) -> bool:
        """Whether the column is an index that pandas saved."""
        if self.name == "index":
            return self.is_dense
        has_name = not re.fullmatch(r"Unnamed: \d+|level_0|__index_level_\d+__|", self.name)
        return not has_name and self.is_whole and not self.missing and self.repeats <= UNIQUE

    def examples(self, count: int = 3) -> Sequence[str]:
        return self.values[:count]


def facts_of(
    sample: pa.Table,
    *,
    rows: int,
    missing: Mapping[str, Sequence[int]],
    notations: Mapping[str, ColumnNotations] | None = None,
) -> dict[str, ColumnFacts]:
    """Return the facts of each column.

    Args:
        rows: of the whole table.
        missing: cells of all rows without a text, and without a number, by column.
        notations: of all rows, by column; None: those of the sample.
    """
    facts = {}
    for name in sample.column_names:
        as_text, as_number = (count / max(rows, 1) for count in missing[name])
        given = None if notations is None else notations[name]
        facts[name] = ColumnFacts(name, contiguous(sample[name]), given, rows=rows, empty=(as_text, as_number))
    comma, day_first = _customs([each.notations for each in facts.values()])
    return {name: replace(each, decimal_comma=comma, day_first=day_first) for name, each in facts.items()}


def _customs(columns: Sequence[ColumnNotations]) -> tuple[bool | None, bool | None]:
    """Return whether the numbers of a table have a decimal comma, and its dates the day before the month.

    Most of the columns that show it decide; where none does, the dates decide about the comma, and the other way round.
    """
    shown = (
        Counter(column.numbers.decimal_comma for column in columns),
        Counter(column.dates.day_first for column in columns),
    )
    comma, day_first = (votes[True] > votes[False] if votes[True] != votes[False] else None for votes in shown)
    return (day_first or None if comma is None else comma), (comma or None if day_first is None else day_first)
