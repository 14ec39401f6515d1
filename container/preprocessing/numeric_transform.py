"""Fits the scaling of the tabular inputs on train; the model applies it, so that it is part of every export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from container.preprocessing.numeric_summary import NumericSummary, weighted_quantiles

Kind = Literal["standard", "quantile", "none"]
NUM_QUANTILES = 101


@dataclass(frozen=True)
class NumericTransformParameters:
    """Scaling of K tabular inputs, in the order of feature_columns.txt, and the bins of their embedding.

    standard: y = (x - mean) / scale.

    quantile: with the Q ascending quantiles q_0..q_{Q-1} of a column at probabilities i / (Q - 1),
        u(x) = 1 / (Q - 1) * sum over i < Q - 1 of t_i(x), where
        t_i(x) = clamp((x - q_i) / (q_{i+1} - q_i), 0, 1)   if q_{i+1} > q_i
        t_i(x) = (1 + sign(x - q_i)) / 2                     if q_{i+1} = q_i
        y = sqrt(3) * (2 u - 1)
    u is the empirical distribution function, linear between quantiles, half way up at a value that many rows share,
    and 0 or 1 outside; y has mean about 0, standard deviation about 1 and never leaves [-sqrt(3), sqrt(3)].

    none: y = x.

    All parameters are exactly representable as float32, so that x, which is float32, meets a shared value exactly.

    Attributes:
        mean, scale: [K] with standard, else empty; scale is 1 where a column is constant.
        quantiles: [K][Q] with quantile, else empty.
        bins: with numeric_embedding=piecewise_linear, ascending edges of each input's bins, before scaling: its
            distinct quantiles, at most one more than numeric_embedding_bins; else empty. [K][at least 1]
    """

    kind: Kind
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    quantiles: tuple[tuple[float, ...], ...] = ()
    bins: tuple[tuple[float, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        scaling = {"kind": self.kind, "mean": self.mean, "scale": self.scale, "quantiles": self.quantiles}
        return {**scaling, "bins": self.bins} if self.bins else scaling

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        quantiles, bins = (tuple(tuple(column) for column in found.get(name, ())) for name in ("quantiles", "bins"))
        return cls(found["kind"], tuple(found["mean"]), tuple(found["scale"]), quantiles, bins)


@dataclass(frozen=True)
class InputDistribution:
    """One tabular input over train: D distinct values, ascending, with counts, and its moments."""

    values: np.ndarray
    counts: np.ndarray
    mean: float
    std: float

    @classmethod
    def of_numbers(cls, summary: NumericSummary, fill: float) -> Self:
        """A numeric column after imputation."""
        values, counts = summary.distribution.items()
        if summary.missing:
            place = int(np.searchsorted(values, fill))
            values, counts = np.insert(values, place, fill), np.insert(counts, place, summary.missing)
        return cls(values, counts, *summary.filled(fill))

    @classmethod
    def of_risks(cls, values: np.ndarray, counts: np.ndarray) -> Self:
        """A risk value of each category (and fold), given how many rows have it. [D], [D]"""
        present = counts > 0
        values, counts = values[present], counts[present]
        order = np.argsort(values, kind="stable")
        values, counts = values[order], counts[order]
        mean = float(np.average(values, weights=counts))
        return cls(values, counts, mean, float(np.sqrt(np.average((values - mean) ** 2, weights=counts))))


def fit_numeric_transform(
    kind: Kind, inputs: Sequence[InputDistribution], *, num_bins: int = 0
) -> NumericTransformParameters:
    """Parameters of `kind` for the tabular inputs, in their order.

    Args:
        num_bins: most bins of an input's embedding; 0 = it has none.
    """
    return replace(_fit_scaling(kind, inputs), bins=_fit_bins(inputs, num_bins) if num_bins else ())


def _fit_bins(inputs: Sequence[InputDistribution], num_bins: int) -> tuple[tuple[float, ...], ...]:
    probabilities = np.linspace(0, 1, num_bins + 1)
    columns = (_float32(weighted_quantiles(column.values, column.counts, probabilities)) for column in inputs)
    return tuple(tuple(np.unique(column).tolist()) for column in columns)


def _fit_scaling(kind: Kind, inputs: Sequence[InputDistribution]) -> NumericTransformParameters:
    if kind == "standard":
        means = _float32(np.array([column.mean for column in inputs]))
        # A spread that float32 cannot tell from rounding is no spread.
        floor = np.abs(means) * float(np.finfo(np.float32).eps)
        scales = _float32(np.array([column.std for column in inputs]))
        scales = np.where((scales > floor) & (scales > 0), scales, 1.0)
        return NumericTransformParameters(kind, mean=tuple(means.tolist()), scale=tuple(scales.tolist()))
    if kind == "quantile":
        probabilities = np.linspace(0, 1, NUM_QUANTILES)
        columns = [_float32(weighted_quantiles(column.values, column.counts, probabilities)) for column in inputs]
        return NumericTransformParameters(kind, quantiles=tuple(tuple(column.tolist()) for column in columns))
    return NumericTransformParameters(kind)


def _float32(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(np.float64)
