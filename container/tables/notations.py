"""Find out how the numbers or the dates of a column are written, from all of its rows."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.column_types import is_text
from container.tables.dates import Dates, date_parts, read_dates
from container.tables.number_notations import Numbers, read_numbers, trimmed, units_of
from container.tables.values import contiguous, keys
from contracts.tabular_inputs import DATE_PARTS
from contracts.value_types import DATE_FORMATS, LARGEST_NUMBER, NUMBER_FORMATS

PLAIN = ""  # the notation of numbers that are written as 1234.5
_SCREENED = 100  # cells that show which notations are possible
_SLACK = 20  # cells that a notation may read less than another one, besides 1 %, and still be the better one later
_MOST_WORDS = 1000  # distinct words that are counted
_FEWEST_WORDS = 20  # of the screened cells that show that a slice has no numbers or dates
_HOPELESS = 2  # skipped slices after which a column has no numbers or dates
_FEWEST_STEPS = 3  # between rows that show how dates are written
_SORTED = 0.99  # share of the steps between rows that have one direction in a sorted column


class Counts:
    """The cells that a notation reads.

    Attributes:
        words: the cells that it does not read.
        digest: of the values; equal for two notations that read the same values.
        firsts: dates on the first of a month. ups, downs: steps between rows.
    """

    def __init__(self) -> None:
        self.read = self.unread = self.zoned = self.firsts = self.ups = self.downs = self.digest = 0
        self.words: Counter[str] = Counter()

    def add(self, cells: pa.Array, found: Numbers | Dates) -> None:
        self.read += int(np.count_nonzero(~np.isnan(found.values)))
        self.unread += int(np.count_nonzero(found.unread))
        self.digest = hash((self.digest, found.values.tobytes()))
        if found.unread.any():
            for word in pc.value_counts(keys(cells.filter(pa.array(found.unread)))).to_pylist():
                if word["values"] in self.words or len(self.words) < _MOST_WORDS:
                    self.words[word["values"]] += word["counts"]

    def add_steps(self, dates: Dates) -> None:
        self.zoned += int(np.count_nonzero(dates.zoned))
        seconds = dates.seconds[~np.isnan(dates.seconds)]
        self.firsts += int(np.count_nonzero(date_parts(seconds)[DATE_PARTS.index("day")] == 1))
        steps = np.diff(seconds)
        self.ups += int(np.count_nonzero(steps > 0))
        self.downs += int(np.count_nonzero(steps < 0))

    @property
    def order(self) -> float:
        """The share of the steps that have one direction."""
        return max(self.ups, self.downs) / max(self.ups + self.downs, 1)


class _Notations:
    """Count what each candidate reads; one that reads fewer cells than another one is dropped.

    Attributes:
        cells: all, also the missing ones.
        skipped: those with a value, of slices in which none of a hundred cells is read.

    Args:
        candidates: notations in the order of preference.
        missing: texts in lower case that stand for no value, in addition to the usual ones.
    """

    def __init__(self, candidates: Iterable[str], *, missing: Sequence[str] = ()) -> None:
        self.counts = {each: Counts() for each in candidates}
        self.missing = missing
        self.cells = self.skipped = self._skips = 0

    def _read(self, cells: pa.Array) -> dict[str, Any]:
        """Return what each candidate reads."""
        raise NotImplementedError

    def _note(self, cells: pa.Array, found: dict[str, Any]) -> None:
        """Count further facts of a slice."""

    def add(self, column: pa.Array | pa.ChunkedArray, *, may_skip: bool = False) -> dict[str, Any]:
        """Count the cells of a slice, and return what the remaining candidates read; {} for a slice that is skipped."""
        cells = contiguous(column)
        self.cells += len(cells)
        if may_skip:  # then no caller needs a value for each row
            is_filled = pc.not_equal(cells, "") if is_text(cells.type) else cells.is_valid()
            filled = pc.sum(is_filled).as_py() or 0
            if self._never_reads or (filled > _SCREENED and self._is_hopeless(cells.filter(is_filled))):
                self.skipped += filled
                self._skips += 1
                return {}
            cells = cells.filter(is_filled)
        found = self._read(cells)
        for name, reading in found.items():
            self.counts[name].add(cells, reading)
        self._note(cells, found)
        fewest = min(reading.unread for reading in self.counts.values())
        slack = {name: max(_SLACK, reading.read // 100) for name, reading in self.counts.items()}
        self.counts = {name: reading for name, reading in self.counts.items() if reading.unread <= fewest + slack[name]}
        return {name: found[name] for name in self.counts}

    @property
    def _never_reads(self) -> bool:
        return self._skips >= _HOPELESS and not any(each.read for each in self.counts.values())

    def _is_hopeless(self, cells: pa.Array) -> bool:
        """Return whether no candidate reads any of a hundred cells; drop those that read half as many as another."""
        screened = self._read(cells.take(pa.array(np.linspace(0, len(cells) - 1, _SCREENED).astype(int))))
        read = {name: int(np.count_nonzero(~np.isnan(each.values))) for name, each in screened.items()}
        most = max(read.values())
        self.counts = {name: each for name, each in self.counts.items() if 2 * read[name] >= most}
        return not most and min(int(each.unread.sum()) for each in screened.values()) > _FEWEST_WORDS

    @property
    def equal(self) -> list[str]:
        """The notations that read most cells, in the order of preference."""
        fewest = min(each.unread for each in self.counts.values())
        return [name for name, each in self.counts.items() if each.unread == fewest]

    def rivals(self, chosen: str) -> list[str]:
        """Return the notations that read as many cells as the chosen one, but other values."""
        return [each for each in self.equal if self.counts[each].digest != self.counts[chosen].digest]

    def unread(self, chosen: str) -> int:
        """Return the number of cells that a notation does not read, and that are not missing."""
        return self.counts[chosen].unread + self.skipped

    def reads_all(self, chosen: str) -> bool:
        """Return whether a notation reads each cell that is not missing, and one at least."""
        return not self.unread(chosen) and self.counts[chosen].read > 0

    @property
    def missing_share(self) -> float:
        """The share of the cells without a value."""
        return 1 - (self.counts[self.equal[0]].read + self.unread(self.equal[0])) / max(self.cells, 1)


class NumberNotations(_Notations):
    """The notations of a column of numbers: PLAIN and NUMBER_FORMATS.

    Attributes:
        units: how many numbers have each currency, "%" or "" (none), in a column that is not plain.
    """

    def __init__(self, candidates: Iterable[str] = (PLAIN, *NUMBER_FORMATS), *, missing: Sequence[str] = ()) -> None:
        super().__init__(candidates, missing=missing)
        self.units: Counter[str] = Counter()
        self._is_strict = len(self.counts) > 1

    def _read(self, cells: pa.Array) -> dict[str, Numbers]:
        if not is_text(cells.type):
            values = cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
            self.counts = {PLAIN: self.counts.get(PLAIN, Counts())}  # numbers are themselves
            return {PLAIN: _finite(Numbers(values, np.zeros(len(values), bool)))}
        read_as = partial(read_numbers, missing=self.missing, strict=self._is_strict)
        if PLAIN not in self.counts:
            return {written: _finite(read_as(cells, written)) for written in self.counts}
        plain = _finite(read_as(cells, None))
        read = {PLAIN: plain}
        for written in NUMBER_FORMATS:
            if written not in self.counts:
                continue
            other = plain.unread  # the notations read plain numbers in the same way, except for points of thousands
            if written == "1.234,5":
                other = other | pc.fill_null(pc.match_substring(trimmed(cells), "."), False).to_numpy(False)
            values, unread = plain.values.copy(), plain.unread.copy()
            if other.any():
                values[other], unread[other] = _finite(read_as(cells.filter(pa.array(other)), written))
            read[written] = Numbers(values, unread)
        return {name: read[name] for name in self.counts}

    def _note(self, cells: pa.Array, found: dict[str, Numbers]) -> None:
        if PLAIN not in self.equal:
            self.units.update(units_of(cells, found[self.equal[0]].values))

    def decide(self, *, decimal_comma: bool | None = None) -> str:
        """Return the notation that reads most cells.

        Args:
            decimal_comma: what other columns of the table have, for cells that several notations read.
        """
        first, comma = self.equal[0], "1.234,5"
        is_open = first != PLAIN or comma in self.rivals(first)  # whole numbers are plain in every table
        return comma if decimal_comma and comma in self.equal and is_open else first

    @property
    def decimal_comma(self) -> bool | None:
        """Whether the numbers have a decimal comma; None if they do not show it."""
        if not self.reads_all(self.equal[0]) or self.rivals(self.equal[0]):
            return None
        if "1.234,5" not in self.equal:
            return False
        return None if len(self.equal) > 1 else True


def _finite(numbers: Numbers) -> Numbers:
    """Return numbers of which those that float32 cannot represent are unread."""
    large = np.abs(numbers.values) > LARGEST_NUMBER
    return Numbers(np.where(large, np.nan, numbers.values), numbers.unread | large) if large.any() else numbers


class DateNotations(_Notations):
    """The notations of a column of dates: DATE_FORMATS."""

    def __init__(self, candidates: Iterable[str] = DATE_FORMATS, *, missing: Sequence[str] = ()) -> None:
        super().__init__(candidates, missing=missing)

    def _read(self, cells: pa.Array) -> dict[str, Dates]:
        return {name: read_dates(cells, name, missing=self.missing) for name in self.counts}

    def _note(self, cells: pa.Array, found: dict[str, Dates]) -> None:  # noqa: ARG002 - the dates suffice
        for name, dates in found.items():
            self.counts[name].add_steps(dates)

    def decide(self, *, day_first: bool | None = None) -> str:
        """Return the notation that reads most cells; of several, the one in which rows are firsts of months or sorted.

        Args:
            day_first: what other columns of the table have, for cells that several notations read.
        """
        if shown := self._shown_by_rows:
            return shown
        if day_first is None:
            return self.equal[0]
        return next((each for each in self.equal if each.startswith("%d") == day_first), self.equal[0])

    @property
    def _shown_by_rows(self) -> str | None:
        """The one of several notations in which all rows are firsts of months, or in which alone they are sorted."""
        counts = {name: self.counts[name] for name in self.equal}
        firsts = [name for name, count in counts.items() if count.firsts == count.read]
        if len(firsts) == 1 and counts[firsts[0]].ups + counts[firsts[0]].downs >= _FEWEST_STEPS:
            return firsts[0]
        ordered = [name for name, count in counts.items() if count.order > _SORTED]
        enough = all(count.ups + count.downs >= 3 * _FEWEST_STEPS for count in counts.values())
        return ordered[0] if len(ordered) == 1 and enough else None

    @property
    def is_ambiguous(self) -> bool:
        """Whether several notations read the cells as other dates, and the rows show nothing."""
        return bool(self.rivals(self.equal[0])) and self._shown_by_rows is None

    @property
    def day_first(self) -> bool | None:
        """Whether the day is before the month; None if the dates do not show it."""
        if self.is_ambiguous or not self.reads_all(self.equal[0]):
            return None
        return {"%d": True, "%m": False}.get(self.decide()[:2])
