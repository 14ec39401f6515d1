"""Find out how the dates of a column of train are written, and collect the statistics of their parts."""

import json
import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from container.preprocessing.numeric_summary import NumericSummary
from container.tables.dates import DateReading, date_parts
from container.tables.notations import DateNotations
from container.tables.table_file import Origin
from container.tables.values import as_plain, contiguous
from contracts.errors import ContractError, shown
from contracts.tabular_inputs import DATE_PARTS, date_inputs
from contracts.value_types import DATE_FORMATS, EPOCHS, UTC_SUFFIX

logger = logging.getLogger(__name__)

_NAMED_ROWS = 3


class DateColumn:
    """A date column of train. Every notation that reads the rows so far is a candidate until another reads more rows.

    Args:
        written: the notation, of date_format; None: the first one of DATE_FORMATS that reads the rows.
        missing: as for `read_dates`.
    """

    def __init__(self, name: str, written: str | None = None, *, missing: Sequence[str] = ()) -> None:
        self.name = name
        self._reads_utc = written is not None and written.endswith(UTC_SUFFIX)
        # Numbers are epochs if a setting says so.
        known = [notation for notation in DATE_FORMATS if notation not in EPOCHS]
        candidates = known if written is None else [written.removesuffix(UTC_SUFFIX)]
        self._notations = DateNotations(candidates, missing=missing)
        self._parts = {notation: [NumericSummary() for _ in DATE_PARTS] for notation in candidates}
        self._unread: dict[str, list[str]] = {notation: [] for notation in candidates}

    def add(self, column: pa.Array | pa.ChunkedArray, kept: np.ndarray, *, origin: Origin) -> None:
        """Count a slice; the statistics are of the `kept` rows. [R], [R] bool"""
        cells = contiguous(column)
        for notation, dates in self._notations.add(cells).items():
            unread = self._unread[notation]
            for row in np.flatnonzero(dates.unread)[: _NAMED_ROWS - len(unread)].tolist():
                unread.append(f"{origin.row(row)}: {shown(as_plain(cells.slice(row, 1))[0].as_py())}")
            for summary, values in zip(self._parts[notation], date_parts(dates.seconds[kept]), strict=True):
                summary.add(values)

    def finish(self, *, where: str) -> tuple[DateReading, dict[str, NumericSummary]]:
        """Return how the dates are read, and the statistics of their parts by name.

        Raises:
            ContractError: no row has a date, some values are no dates, or times with and without a zone.
        """
        chosen = self._notations.decide()
        counts, parts = self._notations.counts[chosen], self._parts[chosen]
        days = parts[DATE_PARTS.index("days")]
        place = f"{where}, column {self.name!r}"
        if counts.unread:
            total = counts.unread + counts.read
            raise ContractError(
                f"{place}: {counts.unread} of {total} values ({counts.unread / total:.1%}) are no dates, e.g. "
                + "; ".join(self._unread[chosen]),
                "Write dates as 2026-11-27 or 2026-11-27T10:00:00, all in one notation; name the words for missing "
                "dates in null_values; or remove the column from date_field_list.",
            )
        if not days.count:
            raise ContractError(f"{place}: no row has a date", "Remove the column from date_field_list.")
        if counts.zoned not in (0, counts.read) and not self._reads_utc:
            raise ContractError(
                f"{place}: {counts.zoned} times have a time zone, and {counts.read - counts.zoned} have none",
                f"Write every time with a time zone, or none. {self._setting(chosen + UTC_SUFFIX)} reads those without "
                "one as UTC.",
            )
        if self._notations.is_ambiguous:
            first = {"%d": "day", "%m": "month", "%y": "year"}[chosen[:2]]
            others = " or ".join(map(self._setting, self._notations.rivals(chosen)))
            logger.warning(
                f"{place}: dates such as 01/02/2026 have the {first} first, as no day is above 12. If that is wrong, "
                f"set {others}."
            )
        if "%y" in chosen:
            logger.warning(
                "%s: years of two digits are from 1969 to 2068: 40 is 2040. If that is wrong, write four digits.", place
            )
        missing, rows = days.missing, days.missing + days.count
        first, last = (np.datetime64(int(day // 1), "D") for day in (days.minimum, days.maximum))
        zone = " in UTC" if counts.zoned else ""
        logger.info("%s: dates%s from %s to %s; %d of %d are missing.", place, zone, first, last, missing, rows)
        has_zone = None if self._reads_utc else bool(counts.zoned)
        return DateReading(chosen, has_zone), dict(zip(date_inputs(self.name), parts))

    def _setting(self, written: str) -> str:
        return json.dumps({"date_format": {self.name: written}}, ensure_ascii=False)[1:-1]
