"""Assign rows to splits: by a hash of the row, by the hash within a label, or by time.

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

TRAIN, VAL, TEST = 0, 1, 2


@dataclass(frozen=True)
class Shares:
    """Shares of train and test in all rows; val has the others."""

    train: float
    test: float

    @classmethod
    def of(cls, *, train_ratio: float, test_val_ratio: float) -> "Shares":
        return cls(train_ratio, (1 - train_ratio) * test_val_ratio)

    def counts(self, rows: int) -> tuple[int, int]:
        """Return the rows of train and of test; train gets the first row."""
        train = max(round(rows * self.train), min(rows, 1))
        return train, min(round(rows * self.test), rows - train)


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
    """

    train_end: float
    val_end: float

    @classmethod
    def fit(cls, shares: Shares, times: np.ndarray) -> "TimeSplit":
        """Fit to the times of all rows. [N] float64"""
        train, test = shares.counts(len(times))
        if not len(times):
            return cls(np.inf, np.inf)
        ends = {min(train, len(times) - 1), min(len(times) - test, len(times) - 1)}
        ordered = np.partition(times, sorted(ends))
        return cls(ordered[train] if train < len(times) else np.inf, ordered[len(times) - test] if test else np.inf)

    def assign(self, hashes: np.ndarray, strata: np.ndarray, times: np.ndarray | None) -> np.ndarray:  # noqa: ARG002
        assert times is not None, "the reader parses times"
        codes = _in_order(times, self.train_end, self.val_end)
        return np.array([TRAIN, VAL, TEST], np.int8)[np.array([0, 2, 1])[codes]]


RowSplit = HashSplit | StratifiedSplit | TimeSplit


def _in_order(values: np.ndarray, train_end: np.ndarray | float, test_end: np.ndarray | float) -> np.ndarray:
    """Return TRAIN below the first end, TEST below the second, else VAL. [R] int8"""
    return np.where(values < train_end, TRAIN, np.where(values < test_end, TEST, VAL)).astype(np.int8)


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
