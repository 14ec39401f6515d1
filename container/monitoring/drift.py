"""Compare two distributions: a distance, the population stability index, and a p-value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

from container.monitoring.baseline import SampledTexts
from container.preprocessing.distributions import Distribution

_GROUPS = 10  # of the population stability index
_FEWEST = 5.0  # expected records of a cell of a chi-squared test
_FOLDS = 5
_SHOWN_TOKENS = 8


@dataclass(frozen=True)
class Difference:
    """The difference between then and now.

    Attributes:
        distance: 0 for the same, at most 1: of Kolmogorov-Smirnov, or half the sum of the differences of shares.
        p_value: of the hypothesis that there is no difference.
        psi: the population stability index, where it is defined.
    """

    distance: float
    p_value: float
    psi: float | None = None


def numbers_difference(then: Distribution, now: Distribution) -> Difference:
    """Compare numbers over the same bins by the test of Kolmogorov and Smirnov, whose p-value is an upper bound."""
    counts = np.array([then.counts, now.counts], np.float64)
    totals = counts.sum(axis=1)
    if not totals.all():
        return Difference(0.0, 1.0)
    shares = np.cumsum(counts, axis=1) / totals[:, None]
    distance = float(np.abs(shares[0] - shares[1]).max())
    p_value = float(special.kolmogorov(np.sqrt(totals[0] * totals[1] / totals.sum()) * distance))
    group = np.minimum((shares[0] - counts[0] / totals[0] / 2) * _GROUPS, _GROUPS - 1).astype(np.int64)
    grouped = np.array([np.bincount(group, row, minlength=_GROUPS) for row in counts])
    return Difference(distance, p_value, _psi(grouped[:, grouped[0] > 0]))


def counts_difference(
    then: Sequence[float], now: Sequence[float], *, others: tuple[float, float] = (0, 0)
) -> Difference:
    """Compare the counts of the same categories by a chi-squared test; rare categories are one, with the `others`."""
    counts = np.array([then, now], np.float64)
    totals = counts.sum(axis=1) + others
    if not totals.all():
        return Difference(0.0, 1.0)
    rare = (totals[:, None] * counts.sum(axis=0) / totals.sum()).min(axis=0) < _FEWEST
    cells = np.column_stack([counts[:, ~rare], counts[:, rare].sum(axis=1) + others])
    cells = cells[:, cells.sum(axis=0) > 0]
    expected = totals[:, None] * cells.sum(axis=0) / totals.sum()
    statistic = ((cells - expected) ** 2 / expected).sum()
    distance = float(np.abs(np.diff(cells / totals[:, None], axis=0)).sum() / 2)
    p_value = float(stats.chi2.sf(statistic, cells.shape[1] - 1)) if cells.shape[1] > 1 else 1.0
    return Difference(distance, p_value, _psi(cells))


def share_difference(then: tuple[float, int], now: tuple[float, int]) -> Difference:
    """Compare two shares (part, whole) by a chi-squared test, or Fisher's exact one where few records are expected."""
    if not (then[1] and now[1]):
        return Difference(0.0, 1.0)
    cells = np.array([[part, whole - part] for part, whole in (then, now)])
    distance = abs(then[0] / then[1] - now[0] / now[1])
    expected = cells.sum(axis=1)[:, None] * cells.sum(axis=0) / cells.sum()
    if expected.min() >= _FEWEST:
        return Difference(distance, counts_difference(*cells).p_value)
    exact: Any = stats.fisher_exact(cells.round().astype(np.int64))
    return Difference(distance, float(exact.pvalue))


def outcome_difference(then: Mapping[int, tuple[int, float]], now: Mapping[int, tuple[int, float]]) -> Difference:
    """Compare the share of an outcome in each band: the mean change, and the sum of the chi-squared tests of the bands.

    Args:
        then, now: by band, its records and the share of them that have the outcome.
    """
    bands = [(then[band], now[band]) for band in now if band in then]
    total = sum(count for _, (count, _) in bands)
    statistic, change, degrees = 0.0, 0.0, 0
    for (n, p), (m, q) in bands:
        pooled = (n * p + m * q) / (n + m)
        change += m / total * abs(q - p)
        if min(n, m) * min(pooled, 1 - pooled) >= _FEWEST / 2:
            statistic += (p - q) ** 2 / (pooled * (1 - pooled) * (1 / n + 1 / m))
            degrees += 1
    return Difference(change, float(stats.chi2.sf(statistic, degrees)) if degrees else 1.0)


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Return p-values for as many tests (Holm, 1979): with a limit on them, one false alarm in all is that unlikely."""
    order = np.argsort(p_values)
    scaled = np.array(p_values)[order] * np.arange(len(order), 0, -1)
    found = np.empty(len(order))
    found[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return found.tolist()


@dataclass(frozen=True)
class Told:
    """How well a classifier tells the texts of two samples apart.

    Attributes:
        difference: its distance is the AUROC minus 0.5, on records that the classifier has not seen.
        tokens: ids of the tokens that most indicate the new texts.
    """

    auroc: float
    difference: Difference
    tokens: Sequence[int]


def tell_apart(then: SampledTexts, now: SampledTexts) -> Told:
    """Train a classifier on which tokens a text has, and measure it by cross-validation."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    counts = np.array([*then.distinct, *now.distinct])
    ids = np.concatenate([then.ids(), now.ids()])
    is_new = np.repeat([False, True], [len(then.distinct), len(now.distinct)])
    if min(is_new.sum(), (~is_new).sum()) < 2 * _FOLDS or not len(ids):
        return Told(0.5, Difference(0.0, 1.0), ())
    distinct, columns = np.unique(ids, return_inverse=True)
    weights = np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts)
    features = csr_matrix((weights, columns, np.cumsum([0, *counts])), shape=(len(counts), len(distinct)))
    fold = np.random.default_rng(0).permutation(len(counts)) % _FOLDS
    areas, variances, weight = [], [], np.zeros(len(distinct))
    for k in range(_FOLDS):
        held = fold == k
        model = LogisticRegression(solver="liblinear", class_weight="balanced").fit(features[~held], is_new[~held])
        scores = model.decision_function(features[held])
        new, old = scores[is_new[held]], scores[~is_new[held]]
        if len(new) and len(old):
            areas.append(stats.mannwhitneyu(new, old).statistic / (len(new) * len(old)))
            variances.append((len(new) + len(old) + 1) / (12 * len(new) * len(old)))
        weight += model.coef_[0]
    auroc = float(np.mean(areas))
    error = np.sqrt(np.sum(variances)) / len(areas)
    difference = Difference(max(0.0, auroc - 0.5), float(stats.norm.sf((auroc - 0.5) / error)))
    return Told(auroc, difference, distinct[np.argsort(-weight)[:_SHOWN_TOKENS]].tolist())


def _psi(counts: np.ndarray) -> float:
    """Return the population stability index of two rows of counts; half a record is added to each cell."""
    shares = (counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True)
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())
