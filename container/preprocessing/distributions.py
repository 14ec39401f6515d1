"""Summarize the columns of train as distributions with a bounded size, with which later data is compared."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import Field

from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.numeric_summary import NumericSummary
from container.preprocessing.risk_tables import MISSING
from container.preprocessing.scan import SplitStatistics
from container.preprocessing.split_file import WrittenSplit
from container.tables.table_file import open_file
from contracts.tabular_inputs import DATE_PARTS, date_inputs
from contracts.value_types import Number

MOST_EDGES = 512
MOST_CATEGORIES = 10_000
_STEADY_PARTS = ("weekday", "hour")  # of a date; its other parts grow with time

Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Distribution:
    """The distribution of numbers over bins; bin i ends with edges[i], which is part of it.

    Attributes:
        edges: ascending. [B]
        counts: by bin, the last one above all edges. [B + 1]
    """

    edges: tuple[Number, ...]
    counts: tuple[Count, ...]
    missing: Count = 0

    @classmethod
    def of(cls, summary: NumericSummary, *, missing: int | None = None) -> Self:
        """Return bins of about equal counts; one per value if there are few values."""
        values, counts = summary.distribution.items()
        missing = summary.missing if missing is None else missing
        if len(values) > MOST_EDGES:
            ranks = np.cumsum(counts)
            ends = np.unique(np.searchsorted(ranks, np.linspace(0, ranks[-1], MOST_EDGES + 1)[1:]))
            counts, values = np.diff(ranks[ends], prepend=0), values[ends]
        return cls(tuple(values.tolist()), (*counts.tolist(), 0), missing)

    def like(self, summary: NumericSummary) -> "Distribution":
        """Return the distribution of other numbers over the same bins."""
        values, counts = summary.distribution.items()
        bins = np.searchsorted(self.edges, values)
        counts = np.bincount(bins, counts, minlength=len(self.counts)).astype(np.int64)
        return Distribution(self.edges, tuple(counts.tolist()), summary.missing)

    @cached_property
    def total(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True)
class Categories:
    """The rows of each category of a column.

    Attributes:
        counts: of the most frequent categories; "" is a missing one.
        others: rows of the other categories of train.
        once: categories with one row: the share of such rows is about that of unknown categories in new data
            (Good, 1953).
    """

    counts: Mapping[str, Count]
    others: Count = 0
    once: Count = 0

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Self:
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        kept = dict(ordered[:MOST_CATEGORIES])
        once = sum(count == 1 for count in counts.values())
        return cls(kept, sum(counts.values()) - sum(kept.values()), once)

    @property
    def total(self) -> int:
        return sum(self.counts.values()) + self.others

    @property
    def missing(self) -> int:
        return self.counts.get(MISSING, 0)


@dataclass(frozen=True)
class TableDistributions:
    """The rows of train.

    Attributes:
        columns: all columns of the files.
        labels: rows of each class.
        numbers: by numeric column, and by part of a date that does not grow with time.
        categories: by categorical column.
    """

    rows: Count
    columns: tuple[str, ...]
    labels: Mapping[str, Count]
    numbers: Mapping[str, Distribution]
    categories: Mapping[str, Categories]

    @classmethod
    def of(
        cls, statistics: SplitStatistics, written: WrittenSplit, fitted: FittedPreprocessing, *, files: Sequence[Path]
    ) -> Self:
        """Return what the passes over train have counted."""
        keys = fitted.labels.keys.to_pylist()
        order = [statistics.labels.index.get(key, -1) for key in keys]
        counted = {name: counts.sorted(order) for name, counts in statistics.categories.items()}
        return cls(
            rows=written.counts.rows,
            columns=columns_of(files),
            labels=labelled(fitted.class_labels, [statistics.labels.counts.get(key, 0) for key in keys]),
            numbers={name: Distribution.of(statistics.numeric[name]) for name in steady_numbers(fitted)},
            categories={
                name: Categories.of(dict(zip(names, counts.sum((1, 2)).tolist())))
                for name, (names, counts) in counted.items()
            },
        )


def columns_of(files: Iterable[Path]) -> tuple[str, ...]:
    """Return the columns of all files."""
    return tuple(dict.fromkeys(name for path in files for name in open_file(path).fields().names))


def labelled(class_labels: Sequence[int | str], counts: Iterable[int]) -> dict[str, int]:
    """Return counts of the classes by their labels as texts."""
    return dict(zip(map(str, class_labels), counts))


def steady_numbers(fitted: FittedPreprocessing) -> list[str]:
    """Return the numeric columns, and the parts of dates that do not grow with time."""
    parts = [
        part for date in fitted.dates for name, part in zip(DATE_PARTS, date_inputs(date)) if name in _STEADY_PARTS
    ]
    return [*fitted.raw_numbers, *parts]
