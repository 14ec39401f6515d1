"""Parse a column of times, or of increasing numbers, as numbers in the same order."""

import logging

import numpy as np
import pyarrow as pa

from container.tables.column_types import is_number, is_text
from container.tables.notations import DateNotations
from container.tables.number_notations import read_numbers
from container.tables.table_file import Origin
from container.tables.values import as_plain, contiguous
from contracts.errors import ContractError
from contracts.value_types import DATE_FORMATS, EPOCHS, LARGEST_NUMBER, UTC_SUFFIX

logger = logging.getLogger(__name__)

_NUMBER = ("number", False)


class TimeColumn:
    """Parse cells in one notation: numbers, or dates as date_field_list reads them. All rows decide which one.

    Args:
        written: the notation of the dates, with UTC_SUFFIX if times without a zone are in UTC; None: any.
    """

    def __init__(self, name: str, written: str | None = None) -> None:
        self.name = name
        self._reads_utc = written is not None and written.endswith(UTC_SUFFIX)
        known = [each for each in DATE_FORMATS if each not in EPOCHS]  # numbers have the order of the epochs
        self._dates = DateNotations(known if written is None else [written.removesuffix(UTC_SUFFIX)])
        self._parsed: dict[tuple[str, bool], list[np.ndarray]] | None = None  # by notation, and whether with a zone

    def parse(
        self, column: pa.Array | pa.ChunkedArray, kept: np.ndarray | slice = slice(None), *, origin: Origin
    ) -> np.ndarray:
        """Return numbers unchanged, and times as seconds, in the first notation that reads all rows so far. [R] float64

        Args:
            kept: the rows to return.

        Raises:
            ContractError: a cell that is empty, infinite or in another notation than earlier ones.
        """
        cells = contiguous(column)
        read = self._candidates(cells)
        if self._parsed is not None:
            read = {candidate: values for candidate, values in read.items() if candidate in self._parsed}
        complete = {candidate: values for candidate, values in read.items() if not np.isnan(values).any()}
        if not complete:
            raise self._refused(cells, read, origin)
        before = self._parsed or {}
        self._parsed = {candidate: [*before.get(candidate, []), values[kept]] for candidate, values in complete.items()}
        return next(iter(complete.values()))[kept]

    def finish(self) -> np.ndarray:
        """Return the times of all kept rows so far; later rows have the same notation. [N] float64"""
        parsed = self._parsed or {_NUMBER: []}
        chosen = next((each for each in parsed if each[0] == self._dates.decide()), next(iter(parsed)))
        if len(parsed) > 1 and self._dates.is_ambiguous:
            logger.warning(
                f"column {self.name!r}: all dates fit {' and '.join(each for each, _ in parsed)}; the rows are split "
                f"by {chosen[0]}."
            )
        self._parsed = {chosen: []}
        return np.concatenate([np.empty(0), *parsed[chosen]])

    def _candidates(self, cells: pa.Array) -> dict[tuple[str, bool], np.ndarray]:
        """Return what each notation reads, NaN where it reads nothing."""
        candidates: dict[tuple[str, bool], np.ndarray] = {}
        if is_number(cells.type):
            values = cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            return {_NUMBER: np.where(np.abs(values) <= LARGEST_NUMBER, values, np.nan)}
        if is_text(cells.type):
            values = read_numbers(cells, None).values
            candidates[_NUMBER] = np.where(np.abs(values) <= LARGEST_NUMBER, values, np.nan)
            if not np.isnan(candidates[_NUMBER]).any():
                return candidates
        for name, dates in self._dates.add(cells).items():
            if self._reads_utc:
                candidates[name, False] = dates.seconds
            else:
                candidates |= {
                    (name, zone): np.where(dates.zoned == zone, dates.seconds, np.nan) for zone in (False, True)
                }
        return candidates

    def _refused(self, cells: pa.Array, found: dict[tuple[str, bool], np.ndarray], origin: Origin) -> ContractError:
        wrong = np.all([np.isnan(values) for values in found.values()], axis=0) if found else np.ones(len(cells), bool)
        if not wrong.any():
            return ContractError(
                f"{origin.row(0)} and after, column {self.name!r}: mixes numbers, dates and times with a zone",
                "Write all cells of the column in the same form.",
            )
        row = int(wrong.argmax())
        kinds = {name == "number" for name, _ in self._parsed or found}
        what = "a number or a date" if len(kinds) > 1 else "a number" if kinds == {True} else "a date as in other rows"
        value = as_plain(cells.slice(row, 1))[0].as_py()
        return ContractError(
            f"{origin.row(row)}, column {self.name!r}: {value!r} is not {what}",
            "Write every row as 2026-01-31 or 2026-01-31T23:59:59, or in another notation of dates; all with a zone or "
            "all without. Or write numbers.",
        )
