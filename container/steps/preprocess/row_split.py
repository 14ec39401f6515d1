"""Which split a row belongs to: by its hash, by its hash within its label, or by its time."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from container.steps.preprocess.row_hash import unit_interval

TRAIN, VAL, TEST = 0, 1, 2


@dataclass(frozen=True)
class Shares:
    """Shares of the rows.

    Attributes:
        train: of all rows.
        test: of all rows; val has the others.
    """

    train: float
    test: float

    @classmethod
    def of(cls, *, train_ratio: float, test_val_ratio: float) -> "Shares":
        return cls(train_ratio, (1 - train_ratio) * test_val_ratio)

    def counts(self, rows: int) -> tuple[int, int]:
        """Rows of train and of test; of few rows, train has one before the others have any."""
        train = max(round(rows * self.train), min(rows, 1))
        return train, min(round(rows * self.test), rows - train)


class RowSplit(Protocol):
    """Gives each row its split."""

    def assign(self, hashes: np.ndarray, strata: np.ndarray, times: np.ndarray | None) -> np.ndarray:
        """TRAIN, VAL or TEST.

        Args:
            hashes: of ids, groups or rows. [R] uint64
            strata: index of each row's label. [R] int64
            times: [R] float64, or None where no time was asked for.

        Returns:
            [R] int8
        """
        ...


@dataclass(frozen=True)
class HashSplit:
    """By the hash alone: a row keeps its split whatever other rows there are, and on whichever machine it is read.

    In the order of their hashes, rows are train, then test, then val.
    """

    shares: Shares

    def assign(self, hashes: np.ndarray, strata: np.ndarray, times: np.ndarray | None) -> np.ndarray:  # noqa: ARG002
        place = unit_interval(hashes)
        return _in_order(place, self.shares.train, self.shares.train + self.shares.test)


@dataclass(frozen=True)
class StratifiedSplit:
    """By the hash, with the shares kept exactly within each label; which rows there are decides.

    Attributes:
        train_ends: of each stratum, the lowest hash that is no longer train. [S] uint64
        test_ends: likewise of test. [S] uint64
    """

    train_ends: np.ndarray
    test_ends: np.ndarray

    @classmethod
    def fit(cls, shares: Shares, hashes: np.ndarray, strata: np.ndarray) -> "StratifiedSplit":
        """From all rows. [N] uint64, [N] int64"""
        ends = []
        for stratum in range(int(strata.max(initial=-1)) + 1):
            ordered = np.sort(hashes[strata == stratum])
            train, test = shares.counts(len(ordered))
            ends.append([_end(ordered, train), _end(ordered, train + test)])
        found = np.array(ends, np.uint64).reshape(-1, 2)
        return cls(found[:, 0], found[:, 1])

    def assign(self, hashes: np.ndarray, strata: np.ndarray, times: np.ndarray | None) -> np.ndarray:  # noqa: ARG002
        return _in_order(hashes, self.train_ends[strata], self.test_ends[strata])


@dataclass(frozen=True)
class TimeSplit:
    """By the time: the oldest rows are train, then val, the newest test. Rows of one time stay together.

    Attributes:
        train_end: the earliest time that is no longer train.
        val_end: likewise of val.
    """

    train_end: float
    val_end: float

    @classmethod
    def fit(cls, shares: Shares, times: np.ndarray) -> "TimeSplit":
        """From all rows' times. [N] float64"""
        train, test = shares.counts(len(times))
        if not len(times):
            return cls(np.inf, np.inf)
        places = [min(train, len(times) - 1), min(len(times) - test, len(times) - 1)]
        ordered = np.partition(times, sorted(set(places)))
        return cls(ordered[train] if train < len(times) else np.inf, ordered[len(times) - test] if test else np.inf)

    def assign(self, hashes: np.ndarray, strata: np.ndarray, times: np.ndarray | None) -> np.ndarray:  # noqa: ARG002
        assert times is not None, "times were asked for"
        codes = _in_order(times, self.train_end, self.val_end)
        return np.array([TRAIN, VAL, TEST], np.int8)[np.array([0, 2, 1])[codes]]


def concatenated(parts: Iterable[np.ndarray], dtype: type) -> np.ndarray:
    """The parts end to end; empty where there are none."""
    return np.concatenate([np.empty(0, dtype), *parts])


def _in_order(values: np.ndarray, train_end: np.ndarray | float, test_end: np.ndarray | float) -> np.ndarray:
    """TRAIN below the first end, TEST below the second, else VAL. [R] int8"""
    return np.where(values < train_end, TRAIN, np.where(values < test_end, TEST, VAL)).astype(np.int8)


def _end(ordered: np.ndarray, count: int) -> np.uint64:
    """The lowest value that is not among the first `count`."""
    return ordered[count] if count < len(ordered) else np.uint64(np.iinfo(np.uint64).max)
