"""Find out how the dates of a column of train are written, and collect the statistics of their parts."""

import logging

import numpy as np
import pyarrow as pa

from container.preprocessing.numeric_summary import NumericSummary
from container.tables.channel_files import Origin
from container.tables.dates import FORMATS, DateReading, date_parts, read_dates
from container.tables.values import as_plain, contiguous
from contracts.errors import ContractError, shown
from contracts.tabular_inputs import DATE_PARTS, date_inputs

logger = logging.getLogger(__name__)

_NAMED_ROWS = 3


class _Candidate:
    """The statistics of a column if its dates have this format."""

    def __init__(self, date_format: str) -> None:
        self.format = date_format
        self.unread = self.zoned = self.read = 0
        self.first_unread: list[str] = []
        self.parts = [NumericSummary() for _ in DATE_PARTS]

    @property
    def days(self) -> NumericSummary:
        return self.parts[DATE_PARTS.index("days")]

    def add(self, column: pa.Array, kept: np.ndarray, *, origin: Origin) -> None:
        dates = read_dates(column, self.format)
        self.unread += int(np.count_nonzero(dates.unread))
        self.zoned += int(np.count_nonzero(dates.zoned))
        self.read += int(np.count_nonzero(~np.isnan(dates.seconds)))
        for row in np.flatnonzero(dates.unread)[: _NAMED_ROWS - len(self.first_unread)].tolist():
            self.first_unread.append(f"{origin.row(row)}: {shown(as_plain(column.slice(row, 1))[0].as_py())}")
        for summary, values in zip(self.parts, date_parts(dates.seconds[kept]), strict=True):
            summary.add(values)


class DateColumn:
    """A date column of train. Every format that reads the rows so far is a candidate until another reads more rows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._candidates = [_Candidate(each) for each in FORMATS]

    def add(self, column: pa.Array | pa.ChunkedArray, kept: np.ndarray, *, origin: Origin) -> None:
        """Count a slice; the statistics are of the `kept` rows. [R], [R] bool"""
        for candidate in self._candidates:
            candidate.add(contiguous(column), kept, origin=origin)
        fewest = min(candidate.unread for candidate in self._candidates)
        self._candidates = [candidate for candidate in self._candidates if candidate.unread == fewest]

    def finish(self, *, where: str) -> tuple[DateReading, dict[str, NumericSummary]]:
        """Return how the dates are read, and the statistics of their parts by name.

        Raises:
            ContractError: no row has a date, some values are no dates, or times with and without a zone.
        """
        chosen, *others = self._candidates
        place = f"{where}, column {self.name!r}"
        if chosen.unread:
            total = chosen.unread + chosen.read
            raise ContractError(
                f"{place}: {chosen.unread} of {total} values ({chosen.unread / total:.1%}) are no dates, e.g. "
                + "; ".join(chosen.first_unread),
                "Write dates as 2026-11-27 or 2026-11-27T10:00:00, all in one notation, or remove the column from "
                "date_field_list.",
            )
        if not chosen.days.count:
            raise ContractError(f"{place}: no row has a date", "Remove the column from date_field_list.")
        if chosen.zoned not in (0, chosen.read):
            raise ContractError(
                f"{place}: {chosen.zoned} times have a time zone, and {chosen.read - chosen.zoned} have none",
                "Write every time with a time zone, or none.",
            )
        if chosen.format.startswith("%m/") and any(other.format.startswith("%d/") for other in others):
            logger.warning(
                "%s: dates such as 01/02/2026 have the month first, as no day is above 12. If the day is first, write "
                "them as 2026-02-01.", place,
            )  # fmt: skip
        if chosen.format.endswith("%y"):
            logger.warning(
                "%s: years of two digits are from 1969 to 2068: 40 is 2040. If that is wrong, write four digits.", place
            )
        missing, rows = chosen.days.missing, chosen.days.missing + chosen.days.count
        first, last = (np.datetime64(int(day // 1), "D") for day in (chosen.days.minimum, chosen.days.maximum))
        zone = " in UTC" if chosen.zoned else ""
        logger.info("%s: dates%s from %s to %s; %d of %d are missing.", place, zone, first, last, missing, rows)
        return DateReading(chosen.format, bool(chosen.zoned)), dict(zip(date_inputs(self.name), chosen.parts))
