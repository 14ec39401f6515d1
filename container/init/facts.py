"""Collect what decides the role of a column, from a sample of its cells."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.channel_files import Origin
from container.tables.column_types import is_number
from container.tables.dates import FORMATS as DATE_FORMATS
from container.tables.dates import read_dates
from container.tables.values import contiguous, keys, numbers, read_numbers
from contracts.errors import ContractError
from contracts.value_types import NUMBER_FORMATS, NumberFormat

_FIRST_CELLS = 100
_LONGEST = 40  # characters, on average, of the cells of a column that may have numbers or dates
_FEW_CELLS = 0.05  # of the cells that are read
_POSTAL_WORDS = frozenset(("zip", "zipcode", "postcode", "postal", "plz"))
_CODE_WORDS = _POSTAL_WORDS.union(
    ("id", "ids", "code", "codes", "phone", "fax", "key", "uuid", "guid", "sku", "isbn", "ean", "ssn", "iban", "hash")
)
_PERSON_WORDS = frozenset(
    (
        "user", "customer", "client", "patient", "account", "member", "author", "buyer", "seller", "student", "driver",
        "device", "session", "household",
    )
)  # fmt: skip
_UNSPACED = r"[\x{3040}-\x{30ff}\x{3400}-\x{9fff}\x{ac00}-\x{d7a3}]"  # scripts that write no blanks between words


@dataclass(frozen=True)
class ColumnFacts:
    """A column of the raw table.

    Attributes:
        rows: of the table.
        empty: share of cells in all rows without a text, and without a number (NA).
        sample: cells, null where empty. [S]
    """

    name: str
    rows: int
    empty: tuple[float, float]
    sample: pa.Array

    @property
    def missing(self) -> float:
        return self.empty[self.is_number]

    @cached_property
    def keys(self) -> pa.Array:
        """The value of each cell of the sample that is not empty. [P] string"""
        return keys(self.sample).drop_null()

    @cached_property
    def values(self) -> list[str]:
        """The distinct values, the most frequent first."""
        counts = pc.value_counts(self.keys)
        order = np.argsort(-counts.field("counts").to_numpy(), kind="stable")
        return counts.field("values").take(pa.array(order)).to_pylist()

    @property
    def distinct(self) -> int:
        return len(self.values)

    @property
    def repeats(self) -> float:
        """The share of the cells whose value an earlier cell has."""
        return 1 - self.distinct / max(len(self.keys), 1)

    @property
    def _steps(self) -> tuple[pa.Array, pa.Array]:
        """The first cells, which decide most columns in little time, and all."""
        return self.sample[:_FIRST_CELLS], self.sample

    @staticmethod
    def _reads(cells: pa.Array, written: str) -> bool:
        dates = read_dates(cells, written)
        zoned, read = int(dates.zoned.sum()), int((~np.isnan(dates.seconds)).sum())
        return not dates.unread.any() and zoned in (0, read)

    @cached_property
    def date_format(self) -> str | None:
        """The notation of the dates; None if the column has other texts."""
        readable = (each for each in DATE_FORMATS if all(self._reads(cells, each) for cells in self._steps))
        return next(readable, None)

    @cached_property
    def is_number(self) -> bool:
        return self.number_format is not None

    @cached_property
    def number_format(self) -> NumberFormat | str | None:
        """The notation of the numbers: "" for 1234.5; None if the column has other texts."""
        for written in ("", *NUMBER_FORMATS):
            try:
                read = [numbers(each, self.name, origin=Origin(), written=written or None) for each in self._steps]
            except ContractError:
                continue
            return written if np.isfinite(read[-1]).any() else None
        return None

    def read_as(self, role: Literal["number", "date"]) -> tuple[int, pa.Array]:
        """Return how many cells are numbers or dates, and those that are neither that nor missing. [U] string

        The notation is the one that reads most of a hundred cells.
        """

        def read(cells: pa.Array, written: Any) -> tuple[np.ndarray, np.ndarray]:
            if role == "number":
                return read_numbers(cells, written)
            dates = read_dates(cells, written)
            return ~np.isnan(dates.seconds), dates.unread

        if not len(self.keys):
            return 0, self.keys
        some = self.keys.take(np.unique(np.linspace(0, len(self.keys) - 1, _FIRST_CELLS).astype(int)))
        notations = (None, *NUMBER_FORMATS) if role == "number" else DATE_FORMATS
        best = max(notations, key=lambda written: np.count_nonzero(read(some, written)[0]))
        found, wrong = read(self.keys, best)
        return int(found.sum()), self.keys.filter(pa.array(wrong))

    def nearly(self) -> tuple[Literal["number", "date"], pa.Array] | None:
        """Return what all but a few cells are, and these cells; None if there is no such role."""
        if not len(self.keys) or self.characters.mean() > _LONGEST:
            return None
        for role in ("number", "date"):
            count, others = self.read_as(role)
            if 0 < len(others) <= _FEW_CELLS * count:
                return role, others
        return None

    @cached_property
    def numbers(self) -> np.ndarray:
        """The numbers of a column with a notation; NaN where one is missing. [S]"""
        return numbers(self.sample, self.name, origin=Origin(), written=self.number_format or None)  # pyright: ignore[reportArgumentType] - is_number

    @cached_property
    def seconds(self) -> np.ndarray:
        """The times of a column of dates; NaN where one is missing. [S]"""
        assert self.date_format is not None, "a column of dates"
        return read_dates(self.sample, self.date_format).seconds

    @property
    def is_whole(self) -> bool:
        values = self.numbers[np.isfinite(self.numbers)]
        return self.number_format == "" and bool((values == np.round(values)).all())

    @property
    def has_leading_zeros(self) -> bool:
        texts = pc.match_substring_regex(self.keys, pattern="^0[0-9]+$")
        return not is_number(self.sample.type) and bool(pc.any(texts).as_py())

    @property
    def is_dense(self) -> bool:
        """Whether the values are distinct whole numbers of about as many as there are rows, as a counter has."""
        values = self.numbers
        whole = self.is_whole and self.missing == 0 and not self.repeats
        return whole and values.max() - values.min() < 2 * self.rows

    @cached_property
    def words(self) -> float:
        """The mean number of words of a value; a word of a script without blanks has about two characters."""
        texts = pa.array(self.values[:5000], pa.string())
        blanks = pc.count_substring_regex(texts, pattern=r"\s+").to_numpy()
        unspaced = pc.count_substring_regex(texts, pattern=_UNSPACED).to_numpy()
        return float(np.mean(blanks + 1 + unspaced / 2)) if len(texts) else 0.0

    @property
    def characters(self) -> np.ndarray:
        """The characters of each cell that is not empty. [P]"""
        return pc.utf8_length(self.keys).to_numpy()

    @property
    def has_lists(self) -> bool:
        pattern = r"""^(\[\s*["'\[{\]0-9-].*|\{.*\})$"""  # not [bom]hello[eom]
        matching = pc.sum(pc.match_substring_regex(self.keys, pattern=pattern)).as_py() or 0
        return len(self.keys) > 0 and matching >= 0.9 * len(self.keys)

    @property
    def name_words(self) -> list[str]:
        """The words of the column's name, in lower case: CustomerID, customer_id and Customer Id are alike."""
        spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", self.name)
        return re.findall(r"[^\W_]+", spaced.lower())

    @property
    def is_named_code(self) -> bool:
        return not _CODE_WORDS.isdisjoint(self.name_words)

    @property
    def is_named_postal(self) -> bool:
        return not _POSTAL_WORDS.isdisjoint(self.name_words)

    @property
    def is_named_person(self) -> bool:
        return not _PERSON_WORDS.isdisjoint(self.name_words)

    @property
    def is_index(self) -> bool:
        """Whether the column is an index that pandas saved."""
        return bool(re.fullmatch(r"Unnamed: \d+|index|level_0|__index_level_\d+__|", self.name)) and self.is_dense

    def examples(self, count: int = 3) -> Sequence[str]:
        return self.values[:count]


def facts_of(sample: pa.Table, *, rows: int, missing: Mapping[str, Sequence[int]]) -> dict[str, ColumnFacts]:
    """Return the facts of each column.

    Args:
        rows: of the whole table.
        missing: cells of all rows without a text, and without a number, by column.
    """
    facts = {}
    for name in sample.column_names:
        as_text, as_number = (count / max(rows, 1) for count in missing[name])
        facts[name] = ColumnFacts(name, rows, (as_text, as_number), contiguous(sample[name]))
    return facts
