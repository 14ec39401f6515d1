"""Compute ROC and precision-recall curves, confusion counts at thresholds, and confidence intervals.

One sort per class (`rank`) is enough, so that a million records take a fraction of a second.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np

CURVE_POINTS = 300
NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Ranking:
    """Counts at every distinct threshold, from the highest; the first flags nothing.

    Attributes:
        thresholds: a record is flagged when its score is at least this; inf, then descending. [T]
        true_positives: positives flagged, or their total weight. [T]
        false_positives: negatives flagged, or their total weight. [T]
    """

    thresholds: np.ndarray
    true_positives: np.ndarray
    false_positives: np.ndarray

    @property
    def positives(self) -> float:
        return self.true_positives[-1].item()

    @property
    def negatives(self) -> float:
        return self.false_positives[-1].item()


@dataclass(frozen=True)
class Curve:
    """Points of a curve, in drawing order."""

    x: np.ndarray  # [P]
    y: np.ndarray  # [P]


@dataclass(frozen=True)
class Confusion:
    """Two-class decisions at a threshold; a ratio over 0 is None."""

    threshold: float
    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int

    @property
    def flagged(self) -> int:
        return self.true_positives + self.false_positives

    @property
    def flagged_share(self) -> float | None:
        return ratio(self.flagged, self.flagged + self.false_negatives + self.true_negatives)

    @property
    def precision(self) -> float | None:
        return ratio(self.true_positives, self.flagged)

    @property
    def recall(self) -> float | None:
        return ratio(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f1_score(self) -> float | None:
        return ratio(2 * self.true_positives, 2 * self.true_positives + self.false_positives + self.false_negatives)

    def to_dict(self) -> dict[str, float | int | None]:
        derived = ("precision", "recall", "f1_score", "flagged_share")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


def rank(is_class: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> Ranking:
    """Rank records by score, with one sort. Both classes must occur.

    Args:
        is_class: whether a record is a positive. [N] bool
        scores: [N]
        weights: of the records, above 0; None: count them. [N]
    """
    from sklearn.metrics import roc_curve  # as in metrics.py

    positives = int(is_class.sum())
    assert 0 < positives < len(is_class), "a ranking needs records of both classes"
    rates = roc_curve(is_class, scores, sample_weight=weights, drop_intermediate=False)
    false_rate, true_rate, thresholds = rates
    if weights is not None:
        return Ranking(thresholds, true_rate * weights[is_class].sum(), false_rate * weights[~is_class].sum())
    true_positives, false_positives = np.rint(true_rate * positives), np.rint(false_rate * (len(is_class) - positives))
    return Ranking(thresholds, true_positives.astype(np.int64), false_positives.astype(np.int64))


def roc(ranking: Ranking) -> Curve:
    """Return the ROC curve from (0, 0) to (1, 1). x: false positive rate; y: true positive rate."""
    return Curve(ranking.false_positives / ranking.negatives, ranking.true_positives / ranking.positives)


def precision_recall(ranking: Ranking) -> Curve:
    """Return the precision-recall curve. x: recall; y: precision. It starts at recall 0 with the highest score's."""
    precision = ranking.true_positives[1:] / (ranking.true_positives[1:] + ranking.false_positives[1:])
    recall = ranking.true_positives[1:] / ranking.positives
    return Curve(np.concatenate([[0.0], recall]), np.concatenate([precision[:1], precision]))


def auroc(ranking: Ranking) -> float:
    curve = roc(ranking)
    return float(np.trapezoid(curve.y, curve.x))


def average_precision(ranking: Ranking) -> float:
    curve = precision_recall(ranking)
    return float((np.diff(curve.x) * curve.y[1:]).sum())


def thin(curve: Curve, points: int = CURVE_POINTS) -> Curve:
    """Keep at most `points` points, spread evenly along the curve's length, and both ends."""
    if len(curve.x) <= points:
        return curve
    length = np.concatenate([[0.0], np.hypot(np.diff(curve.x), np.diff(curve.y)).cumsum()])
    at = np.searchsorted(length, np.linspace(0.0, length[-1], points))
    at[0], at[-1] = 0, len(curve.x) - 1
    at = np.unique(at)
    return Curve(curve.x[at], curve.y[at])


def mean_curve(curves: list[Curve], points: int = CURVE_POINTS, *, steps: bool) -> Curve:
    """Average y over `curves` at each x of [0, 1], from their mean start.

    Args:
        steps: between two points, take the y of the right one, as `average_precision` does, instead of a straight line.
    """
    grid = np.linspace(0.0, 1.0, points)
    mean = np.mean([_at(curve, grid, steps=steps) for curve in curves], axis=0)
    start = np.mean([curve.y[0] for curve in curves])
    return Curve(np.concatenate([[0.0], grid]), np.concatenate([[start], mean]))


def _at(curve: Curve, x: np.ndarray, *, steps: bool) -> np.ndarray:
    if steps:
        return curve.y[np.searchsorted(curve.x, x).clip(max=len(curve.y) - 1)]
    return np.interp(x, curve.x, curve.y)


def best_f1_threshold(ranking: Ranking) -> float:
    """Return the threshold with the highest F1."""
    f1 = 2 * ranking.true_positives / (ranking.positives + ranking.true_positives + ranking.false_positives)
    return threshold_below(ranking, int(f1.argmax()))


def threshold_below(ranking: Ranking, index: int) -> float:
    """Return a threshold with the decisions of `ranking.thresholds[index]`, robust to rounding.

    It lies halfway to the next lower score; after the last score, halfway to 0.
    """
    upper, lower = ranking.thresholds[index], np.append(ranking.thresholds, 0.0)[index + 1]
    if index == 0:  # flags nothing: above every score, and above 1, to which scores below 1 are rounded in 32 bits
        return float(np.nextafter(max(1.0, lower), 2.0))
    middle = (upper + lower) / 2
    return float(middle if middle > lower else upper)  # adjacent floats have no middle


def confusion_at(threshold: float, *, positive_scores: np.ndarray, negative_scores: np.ndarray) -> Confusion:
    """Count decisions at `threshold`; a score equal to the threshold is flagged.

    Args:
        positive_scores: scores of the positives, ascending. [P]
        negative_scores: scores of the negatives, ascending. [M]
    """
    missed = int(np.searchsorted(positive_scores, threshold))
    passed = int(np.searchsorted(negative_scores, threshold))
    return Confusion(threshold, len(positive_scores) - missed, len(negative_scores) - passed, missed, passed)


def auroc_interval(ranking: Ranking) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the AUROC for the sampling of records.

    DeLong's variance (DeLong et al., 1988, Biometrics 44), symmetric on the logit scale. None with fewer than two
    records of a class, or where the variance is 0.
    """
    positives, negatives = ranking.positives, ranking.negatives
    if min(positives, negatives) < 2:
        return None
    new_positives, new_negatives = np.diff(ranking.true_positives), np.diff(ranking.false_positives)
    of_positives = (negatives - ranking.false_positives[1:] + new_negatives / 2) / negatives
    of_negatives = (ranking.true_positives[:-1] + new_positives / 2) / positives
    area = float(np.average(of_positives, weights=new_positives))
    variance = _variance(of_positives, new_positives) / positives + _variance(of_negatives, new_negatives) / negatives
    if not (0 < area < 1 and variance > 0):
        return None
    reach = NORMAL_95 * math.sqrt(variance) / (area * (1 - area))
    center = math.log(area / (1 - area))
    return 1 / (1 + math.exp(-(center - reach))), 1 / (1 + math.exp(-(center + reach)))


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share (Wilson, 1927); trials > 0."""
    share, z2 = successes / trials, NORMAL_95**2
    center = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    reach = NORMAL_95 * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return max(0.0, center - reach), min(1.0, center + reach)


def _variance(values: np.ndarray, counts: np.ndarray) -> float:
    """Return the sample variance of `values`, each occurring `counts` times."""
    mean = np.average(values, weights=counts)
    return float((counts * (values - mean) ** 2).sum() / (counts.sum() - 1))


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole, or None if `whole` is 0."""
    return part / whole if whole else None
