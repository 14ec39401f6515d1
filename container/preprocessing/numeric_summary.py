"""Statistics of a numeric column, which depend neither on the order of its values nor on its division into batches."""

import math
from fractions import Fraction

import numpy as np

DISTINCT_LIMIT = 1 << 18
PENDING_LIMIT = 1 << 17
_UNIT = 1126  # every float64 is a multiple of 2**-1126: the smallest is 2**-1074 and has 53 bits
_LOW_BITS = 27


def exact_sum(values: np.ndarray) -> Fraction:
    """Return the sum of finite float64 values without rounding. [R]"""
    if not len(values):
        return Fraction(0)
    mantissa, exponent = np.frexp(values)
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    shift = exponent.astype(np.int64) + (_UNIT - 53)
    lowest = int(shift.min())
    # Two halves, so that float64 bincounts of up to 2**26 rows stay exact.
    high = np.bincount(shift - lowest, weights=whole >> _LOW_BITS)
    low = np.bincount(shift - lowest, weights=whole & ((1 << _LOW_BITS) - 1))
    units = 0
    for step in np.flatnonzero((high != 0) | (low != 0)):
        units += ((int(high[step]) << _LOW_BITS) + int(low[step])) << (lowest + int(step))
    return Fraction(units, 1 << _UNIT)


class ValueDistribution:
    """Sorted distinct values with their counts.

    They are exact up to `limit` distinct values. Beyond, the last `dropped_bits` bits of each value are dropped, as few
    as the limit allows: values have a relative error below 2**(dropped_bits - 52), counts none. The result does not
    depend on how the data were divided into batches.
    """

    def __init__(self, *, limit: int = DISTINCT_LIMIT) -> None:
        self.limit = limit
        self.dropped_bits = 0
        self._values = np.empty(0)
        self._counts = np.empty(0, np.int64)
        self._pending: list[np.ndarray] = []
        self._num_pending = 0

    def add(self, values: np.ndarray) -> None:
        """Count finite values. [R]"""
        self._pending.append(values + 0.0)  # -0.0 and 0.0 are one value
        self._num_pending += len(values)
        if self._num_pending > PENDING_LIMIT:
            self._settle()

    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the values, ascending [D], and their counts [D]."""
        self._settle()
        return self._values, self._counts

    def _settle(self) -> None:
        if self._pending:
            new = np.concatenate(self._pending)
            self._pending, self._num_pending = [], 0
            ones = np.ones(len(new), np.int64)
            self._group(np.concatenate([self._values, new]), np.concatenate([self._counts, ones]))

    def _group(self, values: np.ndarray, counts: np.ndarray) -> None:
        order = np.argsort(values, kind="stable")
        values, counts = values[order], counts[order]
        while True:
            values = _drop_bits(values, self.dropped_bits)
            starts = np.flatnonzero(np.diff(values, prepend=np.nan) != 0) if len(values) else np.empty(0, np.int64)
            values, counts = values[starts], np.add.reduceat(counts, starts) if len(starts) else counts[:0]
            if len(values) <= self.limit:
                break
            self.dropped_bits += 1
        self._values, self._counts = values, counts


def _drop_bits(values: np.ndarray, bits: int) -> np.ndarray:
    if not bits:
        return values
    return (np.ascontiguousarray(values).view(np.int64) & ~np.int64((1 << bits) - 1)).view(np.float64) + 0.0


class NumericSummary:
    """Count, missing, mean, spread, extremes and distribution of one numeric column."""

    def __init__(self, *, limit: int = DISTINCT_LIMIT) -> None:
        self.count = 0
        self.missing = 0
        self.minimum = math.inf
        self.maximum = -math.inf
        self.distribution = ValueDistribution(limit=limit)
        self._sum = Fraction(0)
        self._squares = Fraction(0)

    def add(self, values: np.ndarray) -> None:
        """Add a batch of float64 values; NaN is missing. [R]"""
        present = values[~np.isnan(values)]
        self.missing += len(values) - len(present)
        self.count += len(present)
        if not len(present):
            return
        self.minimum = min(self.minimum, float(present.min()))
        self.maximum = max(self.maximum, float(present.max()))
        self._sum += exact_sum(present)
        self._squares += sum(map(exact_sum, _exact_square(present)))
        self.distribution.add(present)

    @property
    def mean(self) -> float:
        """Return the mean of the values; NaN without any."""
        return float(self._sum / self.count) if self.count else math.nan

    @property
    def std(self) -> float:
        """Return the population standard deviation; NaN without any value."""
        return self.filled(0.0, rows=0)[1]

    def filled(self, value: float, *, rows: int | None = None) -> tuple[float, float]:
        """Return mean and population standard deviation with `value` in place of `rows` missing ones (default: all)."""
        rows = self.missing if rows is None else rows
        total = self.count + rows
        if not total:
            return math.nan, math.nan
        fill = Fraction(value)
        mean = (self._sum + rows * fill) / total
        variance = (self._squares + rows * fill * fill) / total - mean * mean
        return float(mean), math.sqrt(max(0, variance))

    @property
    def median(self) -> float:
        values, counts = self.distribution.items()
        return float(weighted_quantiles(values, counts, np.array([0.5]))[0]) if self.count else math.nan

    @property
    def mode(self) -> float:
        """Return the most frequent value; the smallest of several."""
        values, counts = self.distribution.items()
        return float(values[np.argmax(counts)]) if self.count else math.nan

    def to_dict(self) -> dict[str, float | int | None]:
        """Return the statistics for the data summary; None without any value."""
        described = dict(mean=self.mean, std=self.std, median=self.median, min=self.minimum, max=self.maximum)
        values = {name: value if self.count else None for name, value in described.items()}
        return {"count": self.count, "missing": self.missing, **values}


def _exact_square(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x*x as float64 and its rounding error (Dekker 1971). [R] -> [R], [R]"""
    scaled = 134217729.0 * values
    high = scaled - (scaled - values)
    low = values - high
    square = values * values
    return square, ((high * high - square) + 2 * high * low) + low * low


def weighted_quantiles(values: np.ndarray, counts: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return quantiles of values with repetition counts, linear between order statistics, as in NumPy.

    Args:
        values: ascending, at least one. [D] counts: [D]. probabilities: in 0..1. [Q]

    Returns:
        [Q] float64.
    """
    last_rank = np.cumsum(counts)
    position = probabilities * (last_rank[-1] - 1)
    below = np.floor(position)
    lower = values[np.searchsorted(last_rank, below, side="right")]
    upper = values[np.searchsorted(last_rank, np.minimum(below + 1, last_rank[-1] - 1), side="right")]
    return lower + (upper - lower) * (position - below)
