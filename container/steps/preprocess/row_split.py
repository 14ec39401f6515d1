"""Assign rows to splits: by a hash of the row, by the hash within a label, by time, or whole groups.

The 64-bit hash depends on the row's content alone, so that a row gets the same split in every file and on every host:
pandas.util.hash_array of the value's key (container/tables/values.py). This is SipHash-2-4 (Aumasson & Bernstein, 2012)
of the key's UTF-8 with the seed's 16 decimal digits as hash key, then SplitMix64's finaliser (Steele et al., 2014).
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array, hash_pandas_object

from container.tables.values import keys
from contracts.spelling import counted

TRAIN, VAL, TEST = 0, 1, 2
LEFT_OUT = -1
OLDER_ROWS = "%s rows are left out: by %s, they are older than the split of their %s."


@dataclass(frozen=True)
class Shares:
    """Shares of train and test in all rows; val has the others."""

    train: float
    test: float

    @classmethod
    def of(cls, *, train_ratio: float, test_val_ratio: float) -> "Shares":
        return cls(train_ratio, (1 - train_ratio) * test_val_ratio)

    @property
    def used(self) -> np.ndarray:
        """Return whether train, val and test have a share. [3] bool"""
        return np.array([True, 1 - self.train - self.test > 1e-9, self.test > 0])

    def counts(self, rows: int) -> np.ndarray:
        """Return the rows of train, val and test; train gets the first row. [3]"""
        train = max(round(rows * self.train), min(rows, 1))
        test = min(round(rows * self.test), rows - train)
        return np.array([train, rows - train - test, test])

    def in_turn(self, sizes: np.ndarray, order: tuple[int, int, int]) -> np.ndarray:
        """Return the split of each of the units: the first ones have order[0], the next order[1]. [U] int8

        Every split that has a share gets a unit if there are enough.

        Args:
            sizes: rows of each unit. [U]
            order: TRAIN first.
        """
        units, ends = len(sizes), np.cumsum(sizes)
        starts = np.searchsorted(ends, np.cumsum(self.counts(int(sizes.sum()))[list(order)])[:2], side="right")
        _, needed, last = self.used[list(order)].tolist()
        first = min(max(int(starts[0]), 1), max(units - needed - last, 1), units)
        second = min(max(int(starts[1]), first + needed), max(units - last, first))
        return np.repeat(np.array(order, np.int8), [first, second - first, units - second])


@dataclass(frozen=True)
class HashSplit:
    """By the hash alone, independent of other rows. In the order of hashes, rows are train, then test, then val."""

    shares: Shares

    def assign(self, hashes: np.ndarray, strata: np.ndarray, times: np.ndarray | None) -> np.ndarray:  # noqa: ARG002
        """Return TRAIN, VAL or TEST for each row, as the other rules do. [R] int8

        Args:
            hashes: of ids, groups or rows. [R] uint64
            strata: index of each row's label. [R] int64
            times: [R] float64; None without a time column.
        """
        return _in_order(unit_interval(hashes), self.shares.train, self.shares.train + self.shares.test)


@dataclass(frozen=True)
class StratifiedSplit:
    """By the hash within each label, with exact shares; other rows can change a row's split.

    Shares are rounded up or down for each label, so that those of all rows are as close as possible.

    Attributes:
        train_ends: for each stratum, the lowest hash after train. [S] uint64
        test_ends: for each stratum, the lowest hash after test. [S] uint64
    """

    train_ends: np.ndarray
    test_ends: np.ndarray

    @classmethod
    def fit(cls, shares: Shares, hashes: np.ndarray, strata: np.ndarray) -> "StratifiedSplit":
        """Fit to the hashes and strata of all rows. [N] uint64, [N] int64"""
        ends, missing_train, missing_test = [], 0.0, 0.0  # rows that the shares of earlier strata lack
        for stratum in range(int(strata.max(initial=-1)) + 1):
            ordered = np.sort(hashes[strata == stratum])
            rows = len(ordered)
            missing_train, missing_test = missing_train + rows * shares.train, missing_test + rows * shares.test
            train = max(_near(missing_train, rows * shares.train), min(rows, 1))
            test = min(_near(missing_test, rows * shares.test), rows - train)
            missing_train, missing_test = missing_train - train, missing_test - test
            ends.append([_end(ordered, train), _end(ordered, train + test)])
        train_ends, test_ends = np.array(ends, np.uint64).reshape(-1, 2).T
        return cls(train_ends, test_ends)

    def assign(self, hashes: np.ndarray, strata: np.ndarray, times: np.ndarray | None) -> np.ndarray:  # noqa: ARG002
        return _in_order(hashes, self.train_ends[strata], self.test_ends[strata])


@dataclass(frozen=True)
class TimeSplit:
    """By time: the oldest rows are train, then val, then test. Rows with the same time stay together.

    Attributes:
        train_end, val_end: the earliest time after train, and after val.
        together: the units that are not divided, for the message about a split without rows.
    """

    train_end: float
    val_end: float
    together: str = ""

    @classmethod
    def fit(cls, shares: Shares, times: np.ndarray) -> "TimeSplit":
        """Fit to the times of all rows; no split is empty if there are enough different times. [N] float64"""
        distinct, rows = np.unique(times, return_counts=True)
        codes = shares.in_turn(rows, (TRAIN, VAL, TEST))
        train_end, val_end = (float(np.min(distinct[codes >= code], initial=np.inf)) for code in (VAL, TEST))
        return cls(train_end, val_end, counted(len(distinct), "different time"))

    def assign(self, hashes: np.ndarray, strata: np.ndarray, times: np.ndarray | None) -> np.ndarray:  # noqa: ARG002
        assert times is not None, "the reader parses times"
        codes = _in_order(times, self.train_end, self.val_end)
        return np.array([TRAIN, VAL, TEST], np.int8)[np.array([0, 2, 1])[codes]]


@dataclass(frozen=True)
class GroupSplit:
    """Whole groups, in the order of their hashes or by time. No split is empty if there are enough groups.

    Where groups are so few or uneven that the order of hashes would miss a share by more than half, the largest groups
    are assigned first. By time, a group is as old as its newest row, and the newest groups are test. Its rows from the
    time of an older split are left out, so that no row of a split is older than the rows of the split before it.

    Attributes:
        groups: hashes, sorted. [G] uint64
        codes: TRAIN, VAL or TEST of each group. [G] int8
        together: as in TimeSplit.
        begins: the time at which train, val and test begin; None if the groups are not split by time.
    """

    groups: np.ndarray
    codes: np.ndarray
    together: str
    begins: tuple[float, float, float] | None = None

    @classmethod
    def fit(cls, shares: Shares, hashes: np.ndarray, times: np.ndarray | None = None) -> "GroupSplit":
        """Fit to the groups, and the times, of all rows. [N] uint64, [N] float64"""
        groups, of_row, rows = np.unique(hashes, return_inverse=True, return_counts=True)
        together = counted(len(groups), "group")
        if times is not None:
            newest = np.full(len(groups), -np.inf)
            np.maximum.at(newest, of_row, times)
            rule = TimeSplit.fit(shares, newest[of_row])
            together += f", whose newest rows have {counted(len(np.unique(newest)), 'different time')}"
            return cls(groups, rule.assign(groups, groups, newest), together, (-np.inf, rule.train_end, rule.val_end))
        wanted = np.maximum(shares.counts(len(hashes)), shares.used)
        codes = shares.in_turn(rows, (TRAIN, TEST, VAL))
        if (2 * np.abs(np.bincount(codes, rows, minlength=3) - wanted) > wanted).any():
            codes = _largest_first(rows, wanted)
        return cls(groups, codes, together)

    def assign(self, hashes: np.ndarray, strata: np.ndarray, times: np.ndarray | None) -> np.ndarray:  # noqa: ARG002
        """Return TRAIN, VAL, TEST or LEFT_OUT for each row. [R] int8"""
        codes = self.codes[np.searchsorted(self.groups, hashes)]
        if self.begins is None:
            return codes
        assert times is not None, "the reader parses times"
        return np.where(times < np.array(self.begins)[codes], LEFT_OUT, codes).astype(np.int8)


RowSplit = HashSplit | StratifiedSplit | TimeSplit | GroupSplit


def _in_order(values: np.ndarray, train_end: np.ndarray | float, test_end: np.ndarray | float) -> np.ndarray:
    """Return TRAIN below the first end, TEST below the second, else VAL. [R] int8"""
    return np.where(values < train_end, TRAIN, np.where(values < test_end, TEST, VAL)).astype(np.int8)


def _largest_first(sizes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the split of each group, from the largest: the one that lacks most rows, and one without rows in time.

    Args:
        sizes: rows of each group, in the order of their hashes. [G]
        wanted: rows of each split. [3]
    """
    codes, missing = np.zeros(len(sizes), np.int8), wanted.astype(float)
    for left, group in zip(range(len(sizes), 0, -1), np.argsort(-sizes, kind="stable")):
        empty = (missing == wanted) & (wanted > 0)
        code = int(np.argmax(np.where(empty | (empty.sum() < left), missing, -np.inf)))
        codes[group], missing[code] = code, missing[code] - sizes[group]
    return codes


def _near(wanted: float, share: float) -> int:
    """Return the whole number next to `share` that is nearest to `wanted`."""
    return min(max(round(wanted), math.floor(share)), math.ceil(share))


def _end(ordered: np.ndarray, count: int) -> np.uint64:
    """Return the lowest value after the first `count`."""
    return ordered[count] if count < len(ordered) else np.uint64(np.iinfo(np.uint64).max)


def key_hashes(column: pa.Array | pa.ChunkedArray, *, seed: int) -> np.ndarray:
    """Return the hash of each cell: equal for 1, 1.0 and "1"; a missing cell has the empty text's. [R] uint64"""
    settings = {"hash_key": f"{seed:016d}", "categorize": False}
    return hash_array(_texts(column), **settings)  # pyright: ignore[reportCallIssue] - pandas.util loads it without a type


def row_hashes(table: pa.Table, *, seed: int) -> np.ndarray:
    """Return the hash of each whole row, independent of the order of columns. [R] uint64"""
    assert table.num_columns, "a row has cells"
    cells = {name: _texts(table[name]) for name in sorted(table.column_names)}
    frame = pd.DataFrame(cells, dtype=object)
    settings = {"hash_key": f"{seed:016d}", "categorize": False}
    return hash_pandas_object(frame, index=False, **settings).to_numpy()  # pyright: ignore[reportCallIssue] - pandas.util loads it without a type


def unit_interval(hashes: np.ndarray) -> np.ndarray:
    """Return hashes as uniform numbers in [0, 1). [R] float64"""
    return (hashes >> np.uint64(11)) * 2.0**-53


def _texts(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return pc.fill_null(keys(column), "").to_numpy(zero_copy_only=False)
