"""Describe a column: its values in a sample, and how its numbers or dates are written in all rows."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.column_types import is_number, is_text
from container.tables.dates import read_dates
from container.tables.notations import DateNotations, NumberNotations
from container.tables.table_file import Origin
from container.tables.values import keys, numbers
from contracts.value_types import DATE_FORMATS, EPOCHS, UTC_SUFFIX, NumberFormat

_TIME_WORDS = frozenset(
    ("time", "date", "datetime", "timestamp", "ts", "epoch", "unix", "created", "updated", "modified", "at", "since")
)
_EPOCHS = (946_684_800.0, 2_208_988_800.0)  # the years 2000 to 2039, in seconds


class ColumnNotations:
    """How the cells of a column are written, as numbers and as dates.

    Args:
        missing: words in lower case for a missing number or date, besides the usual ones.
        number_format, date_format: the notation that the user chose; None: all are candidates.
        is_date: whether the user says that the column has dates, which may be epochs.
    """

    def __init__(
        self,
        missing: Sequence[str] = (),
        *,
        number_format: str | None = None,
        date_format: str | None = None,
        is_date: bool = False,
    ) -> None:
        self.missing = missing
        self.is_date = is_date or date_format is not None
        self.is_chosen = number_format is not None or date_format is not None
        self.reads_utc = bool(date_format) and date_format.endswith(UTC_SUFFIX)
        dates = DATE_FORMATS if date_format is None else [date_format.removesuffix(UTC_SUFFIX)]
        self.dates = DateNotations(dates, missing=missing)
        self.numbers = NumberNotations(missing=missing)
        if number_format is not None:
            self.numbers = NumberNotations([number_format], missing=missing)

    def add(self, column: pa.Array | pa.ChunkedArray) -> None:
        """Count the cells of a slice."""
        kind = column.type
        if is_text(kind) or is_number(kind):
            self.numbers.add(column, may_skip=True)
        if not (pa.types.is_null(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            self.dates.add(column, may_skip=True)


@dataclass(frozen=True)
class ColumnSample:
    """What the cells of a column are.

    Attributes:
        sample: cells, null where empty. [S]
        given: the notations in all rows; None: those of the sample.
        decimal_comma, day_first: what other columns of the table show, for cells that several notations read.
    """

    name: str
    sample: pa.Array
    given: ColumnNotations | None = None
    decimal_comma: bool | None = None
    day_first: bool | None = None

    @cached_property
    def notations(self) -> ColumnNotations:
        if self.given is not None:
            return self.given
        notations = ColumnNotations()
        notations.add(self.sample)
        return notations

    @cached_property
    def keys(self) -> pa.Array:
        """The value of each cell of the sample that is not empty. [P] string"""
        return keys(self.sample).drop_null()

    @cached_property
    def counts(self) -> dict[str, int]:
        """The distinct values with the number of their cells, the most frequent first."""
        found = pc.value_counts(self.keys)
        order = pa.array(np.argsort(-found.field("counts").to_numpy(), kind="stable"))
        return dict(zip(found.field("values").take(order).to_pylist(), found.field("counts").take(order).to_pylist()))

    @cached_property
    def values(self) -> list[str]:
        """The distinct values, the most frequent first."""
        return list(self.counts)

    @property
    def distinct(self) -> int:
        return len(self.values)

    @property
    def repeats(self) -> float:
        """The share of the cells whose value an earlier cell has."""
        return 1 - self.distinct / max(len(self.keys), 1)

    @property
    def characters(self) -> np.ndarray:
        """The characters of each cell that is not empty. [P]"""
        return pc.utf8_length(self.keys).to_numpy()

    @property
    def name_words(self) -> list[str]:
        """The words of the column's name, in lower case: CustomerID, customer_id and Customer Id2 are alike."""
        spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", self.name)
        return re.findall(r"[^\W\d_]+|\d+", spaced.lower())

    @cached_property
    def number_format(self) -> str | None:
        """The notation of the numbers: PLAIN for 1234.5; None if the column has other cells, or several currencies."""
        found = self.notations.numbers
        written = found.decide(decimal_comma=self.decimal_comma)
        return written if found.reads_all(written) and len(found.units.keys() - {""}) < 2 else None

    @cached_property
    def is_number(self) -> bool:
        return self.number_format is not None

    @cached_property
    def date_format(self) -> str | None:
        """The notation of the dates; None if the column has other cells, or only some times have a zone.

        Numbers are dates if all are written as yyyymmdd, or if they are epochs of 2000 to 2039 and named like times.
        """
        found = self.notations.dates
        written = found.decide(day_first=self.day_first)
        counts = found.counts[written]
        if not found.reads_all(written) or (counts.zoned not in (0, counts.read) and not self.notations.reads_utc):
            return None
        if written in EPOCHS and not self.notations.is_date:
            seconds = read_dates(self.sample, written, missing=self.notations.missing).seconds
            first, last = _EPOCHS
            is_time = bool(np.nanmin(seconds) >= first and np.nanmax(seconds) < last)
            return written if is_time and not _TIME_WORDS.isdisjoint(self.name_words) else None
        return written

    def read_as(self, role: Literal["number", "date"]) -> tuple[int, int, Counter[str]]:
        """Return how many cells are numbers or dates, how many are neither that nor missing, and words of these."""
        found = self.notations.numbers if role == "number" else self.notations.dates
        best = found.equal[0]
        return found.counts[best].read, found.unread(best), found.counts[best].words

    @cached_property
    def numbers(self) -> np.ndarray:
        """The numbers of a column with a notation; NaN where one is missing. [S]"""
        written: NumberFormat | None = self.number_format or None  # pyright: ignore[reportAssignmentType] - is_number
        return numbers(self.sample, self.name, origin=Origin(), written=written, missing=self.notations.missing)
