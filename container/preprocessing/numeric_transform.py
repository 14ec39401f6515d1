"""Fit the scaling of the tabular inputs on train; the model applies it, so every export contains it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from container.preprocessing.numeric_summary import NumericSummary, weighted_quantiles
from contracts.value_types import Number

Kind = Literal["standard", "quantile", "none"]
NUM_QUANTILES = 101
_EPS = float(np.finfo(np.float32).eps)
_FEWEST_STEPS = 1024  # of float32 in a standard deviation


@dataclass(frozen=True)
class NumericTransformParameters:
    """Scaling of K tabular inputs, in the order of feature_columns.txt, and the bins of their embedding.

    standard: y = (x - mean) / scale; 0 where scale is 0.

    quantile: with the Q ascending quantiles q_0..q_{Q-1} of a column at probabilities i / (Q - 1),
        u(x) = 1 / (Q - 1) * sum over i < Q - 1 of t_i(x), where
        t_i(x) = clamp((x - q_i) / (q_{i+1} - q_i), 0, 1)   if q_{i+1} > q_i
        t_i(x) = (1 + sign(x - q_i)) / 2                     if q_{i+1} = q_i
        y = sqrt(3) * (2 u - 1)
    u is the empirical distribution function, linear between quantiles; at a value that several quantiles share it is
    the middle of the step. y has mean about 0, standard deviation about 1 and stays in [-sqrt(3), sqrt(3)].

    With standard and quantile, an input that has one value in train is 0 for every value: nothing is learned of it.

    none: y = x.

    All parameters are exact in float32, like x, so that x can equal a shared quantile.

    Attributes:
        mean, scale: [K] with standard, else empty; scale is 0 where an input is constant.
        quantiles: [K][Q] with quantile, else empty.
        bins: with numeric_embedding=piecewise_linear, ascending bin edges of each unscaled input: its distinct
            quantiles, at most one more than numeric_embedding_bins; else empty. [K][at least 1]
    """

    kind: Kind
    mean: tuple[Number, ...] = ()
    scale: tuple[Number, ...] = ()
    quantiles: tuple[tuple[Number, ...], ...] = ()
    bins: tuple[tuple[Number, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        scaling = {"kind": self.kind, "mean": self.mean, "scale": self.scale, "quantiles": self.quantiles}
        return {**scaling, "bins": self.bins} if self.bins else scaling


@dataclass(frozen=True)
class InputDistribution:
    """Distribution of a tabular input over train: D distinct values, ascending, their counts, mean and deviation."""

    values: np.ndarray
    counts: np.ndarray
    mean: float
    std: float

    @classmethod
    def of_numbers(cls, summary: NumericSummary, *, fill: float, subtracted: float = 0.0) -> Self:
        """Return the distribution of a numeric column after imputation, less `subtracted`."""
        values, counts = summary.distribution.items()
        if summary.missing:
            position = int(np.searchsorted(values, fill))
            values, counts = np.insert(values, position, fill), np.insert(counts, position, summary.missing)
        mean, std = summary.filled(fill)
        return cls(values - subtracted, counts, mean - subtracted, std)

    @classmethod
    def of_indicator(cls, summary: NumericSummary) -> Self:
        """Return the distribution of a numeric column's indicator: 1 where the number is missing, else 0."""
        counts = np.array([summary.count, summary.missing])
        share = summary.missing / counts.sum()
        return cls(np.array([0.0, 1.0]), counts, share, float(np.sqrt(share * (1 - share))))

    @classmethod
    def of_risks(cls, values: np.ndarray, counts: np.ndarray) -> Self:
        """Return the distribution of a risk value by category and fold, with its row counts. [D], [D]"""
        present = counts > 0
        values, counts = values[present], counts[present]
        order = np.argsort(values, kind="stable")
        values, counts = values[order], counts[order]
        mean = float(np.average(values, weights=counts))
        return cls(values, counts, mean, float(np.sqrt(np.average((values - mean) ** 2, weights=counts))))


def fit_subtracted(summary: NumericSummary) -> float:
    """Return what must be subtracted from a column's numbers before they become float32, e.g. from times; mostly 0.

    Without it, numbers that are far from 0 and close to each other would become equal.
    """
    largest = max(abs(summary.minimum), abs(summary.maximum))
    return summary.median if 0 < summary.std < largest * _EPS * _FEWEST_STEPS else 0.0


def fit_numeric_transform(
    kind: Kind, inputs: Sequence[InputDistribution], *, num_bins: int = 0
) -> NumericTransformParameters:
    """Return the parameters of `kind` for the tabular inputs, in their order.

    Args:
        num_bins: largest number of bins of an input's embedding; 0 without bins.
    """
    bins = (np.unique(edges) for edges in _quantiles(inputs, num_bins + 1)) if num_bins else ()
    return replace(_fit_scaling(kind, inputs), bins=tuple(tuple(edges.tolist()) for edges in bins))


def _quantiles(inputs: Sequence[InputDistribution], count: int) -> list[np.ndarray]:
    probabilities = np.linspace(0, 1, count)
    return [_float32(weighted_quantiles(column.values, column.counts, probabilities)) for column in inputs]


def _fit_scaling(kind: Kind, inputs: Sequence[InputDistribution]) -> NumericTransformParameters:
    if kind == "standard":
        means = _float32(np.array([column.mean for column in inputs]))
        # A deviation below the rounding of float32 counts as constant.
        floor = np.abs(means) * _EPS
        scales = _float32(np.array([column.std for column in inputs]))
        scales = np.where(scales > floor, scales, 0.0)
        return NumericTransformParameters(kind, mean=tuple(means.tolist()), scale=tuple(scales.tolist()))
    if kind == "quantile":
        columns = _quantiles(inputs, NUM_QUANTILES)
        return NumericTransformParameters(kind, quantiles=tuple(tuple(column.tolist()) for column in columns))
    return NumericTransformParameters(kind)


def _float32(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(np.float64)
