"""Count the columns of raw records, in bounded memory, as the preparation of train counts them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.preprocessing.distributions import Categories, steady_numbers
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.numeric_summary import NumericSummary
from container.preprocessing.risk_tables import MISSING
from container.tables.dates import date_columns
from container.tables.records import check_single_values
from container.tables.table_file import Origin
from container.tables.values import as_plain, contiguous
from contracts.errors import ContractError

DISTINCT_NUMBERS = 1 << 14
_EXAMPLES = 5

Result = TypeVar("Result")


class RecordProfile:
    """The statistics of the records so far.

    Args:
        known: the categories of each column of train; None: count all categories.

    Attributes:
        columns: rows that have a value, by column of the records.
        unreadable: cells that are neither missing nor a number or date, by column; examples: the first of them.
        unseen: rows with a category that train lacks, by column.
    """

    def __init__(self, fitted: FittedPreprocessing, known: Mapping[str, Categories] | None = None) -> None:
        self.rows = 0
        self.columns: Counter[str] = Counter()
        self.unreadable: Counter[str] = Counter()
        self.unseen: Counter[str] = Counter()
        self.examples: dict[str, dict[str, None]] = {}
        self._fitted = fitted
        limit = {} if known is None else {"limit": DISTINCT_NUMBERS}
        self.numbers = {name: NumericSummary(**limit) for name in steady_numbers(fitted)}
        self.categories: dict[str, Counter[str]] = {name: Counter() for name in fitted.categorical_columns}
        self._known = known and {
            name: pa.array([*{*known[name].counts, *fitted.risk_tables[name].risk, MISSING}], pa.string())
            for name in fitted.categorical_columns
            if name in known
        }

    def add(self, table: pa.Table, origin: Origin) -> pa.Table:
        """Count rows; return the model's columns, null where a column is absent or a cell is unreadable."""
        fitted, rows = self._fitted, table.num_rows
        self.rows += rows
        for name, column in zip(table.column_names, table.columns):
            self.columns[name] += rows - column.null_count
        for name in fitted.feature_inputs:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(rows))
            table, _ = self._read(table, name, partial(check_single_values, name=name, origin=origin))
        for name in fitted.raw_numbers:
            table, values = self._read(table, name, partial(fitted.numbers_of, name=name, origin=origin))
            self.numbers[name].add(values)
        for name in fitted.dates:
            table, parts = self._read(table, name, partial(self._parts, name, origin))
            for part, values in parts.items():
                if part in self.numbers:
                    self.numbers[part].add(values.to_numpy(zero_copy_only=False).astype(np.float64))
        for name, counts in self.categories.items():
            table, keys = self._read(table, name, partial(fitted.categories, name=name))
            self._count(name, keys, counts)
        return table.select(list(fitted.feature_inputs))

    def _parts(self, name: str, origin: Origin, column: pa.ChunkedArray) -> dict[str, pa.Array]:
        readings = {name: self._fitted.dates[name]}
        return date_columns(pa.table({name: column}), readings, origin=origin, missing=self._fitted.null_values)

    def _read(self, table: pa.Table, name: str, read: Callable[[pa.ChunkedArray], Result]) -> tuple[pa.Table, Result]:
        """Return the table with null for each unreadable cell of a column, and what `read` returns for the column."""
        while True:
            try:
                return table, read(table[name])
            except ContractError as error:
                wrong = np.zeros(table.num_rows, bool)
                wrong[list(error.row_causes)] = True
                if not wrong.any():
                    raise
                cells = table[name]
                examples = as_plain(contiguous(cells.filter(pa.array(wrong)).slice(0, _EXAMPLES))).to_pylist()
                self._show(name, map(str, examples))
                self.unreadable[name] += int(wrong.sum())
                nulls = pa.nulls(table.num_rows) if wrong.all() else pc.if_else(pa.array(wrong), None, cells)
                table = table.set_column(table.column_names.index(name), name, nulls)

    def _count(self, name: str, keys: pa.Array, counts: Counter[str]) -> None:
        known = (self._known or {}).get(name)
        if known is not None:
            unknown = pc.invert(pc.is_in(keys, value_set=known))
            if number := pc.sum(unknown).as_py():
                self.unseen[name] += number
                self._show(name, keys.filter(unknown).unique().slice(0, _EXAMPLES).to_pylist())
                keys = keys.filter(pc.invert(unknown))
        found = pc.value_counts(keys)
        counts.update(dict(zip(found.field("values").to_pylist(), found.field("counts").to_pylist())))

    def _show(self, name: str, values: Iterable[str]) -> None:
        shown = self.examples.setdefault(name, {})
        if len(shown) < _EXAMPLES:
            shown.update(dict.fromkeys(values))
