"""Compute ROC and precision-recall curves, confusion counts at thresholds, and confidence intervals.

One sort per class (`rank`) is enough, so that a million records take a fraction of a second.
"""

import math
from collections.abc import Sequence
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


class Order:
    """Records of a class and of the others, sorted by score once for several weightings of the records.

    Args:
        is_class: whether each record is of the class; some are and some are not. [N] bool
        scores: higher for records that are more probably of the class; equal scores are ties. [N]
    """

    def __init__(self, is_class: np.ndarray, scores: np.ndarray) -> None:
        assert 0 < is_class.sum() < len(is_class), "a ranking needs records of both classes"
        self._order = np.argsort(-scores, kind="stable")
        descending = scores[self._order]
        self._starts = np.flatnonzero(np.append(True, descending[1:] != descending[:-1]))  # of equal scores
        self._thresholds = np.append(np.inf, descending[self._starts])
        self._is_class = is_class[self._order]

    def __call__(self, weights: np.ndarray | None = None) -> Ranking:
        """Rank by weights that are not negative; None: count the records. [N]"""
        weights = np.ones(len(self._order), np.int64) if weights is None else weights[self._order]
        true, false = (np.add.reduceat(weights * chosen, self._starts) for chosen in (self._is_class, ~self._is_class))
        return Ranking(self._thresholds, np.append(0, true.cumsum()), np.append(0, false.cumsum()))


def rank(is_class: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> Ranking:
    """Rank records by score; arguments as for Order."""
    return Order(is_class, scores)(weights)


def roc(ranking: Ranking) -> Curve:
    """Return the ROC curve from (0, 0) to (1, 1). x: false positive rate; y: true positive rate."""
    return Curve(ranking.false_positives / ranking.negatives, ranking.true_positives / ranking.positives)


def precision_recall(ranking: Ranking) -> Curve:
    """Return the precision-recall curve. x: recall; y: precision. It starts at recall 0 with the highest score's."""
    flagged = ranking.true_positives[1:] + ranking.false_positives[1:]
    precision = np.divide(ranking.true_positives[1:], flagged, out=np.zeros(len(flagged)), where=flagged > 0)
    recall = ranking.true_positives[1:] / ranking.positives
    return Curve(np.concatenate([[0.0], recall]), np.concatenate([precision[:1], precision]))


def areas(ranking: Ranking) -> tuple[float, float]:
    """Return AUROC and average precision."""
    curve, steps = roc(ranking), precision_recall(ranking)
    return float(np.trapezoid(curve.y, curve.x)), float((np.diff(steps.x) * steps.y[1:]).sum())


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


def auroc_interval(is_class: np.ndarray, scores: np.ndarray) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the AUROC for the sampling of records.

    DeLong's variance (DeLong et al., 1988, Biometrics 44), symmetric on the logit scale. None with fewer than two
    records of a class, or where the variance is 0.
    """
    if min(is_class.sum(), (~is_class).sum()) < 2:
        return None
    of_positives, of_negatives = placements(is_class, scores)
    area, variance = float(of_positives.mean()), delong_variance(of_positives, of_negatives)
    if not (0 < area < 1 and variance > 0):
        return None
    reach = NORMAL_95 * math.sqrt(variance) / (area * (1 - area))
    center = math.log(area / (1 - area))
    return 1 / (1 + math.exp(-(center - reach))), 1 / (1 + math.exp(-(center + reach)))


def moved_auroc_interval(area: float, counts: Sequence[int] | np.ndarray) -> tuple[float, float]:
    """Return a 95 % interval of the mean AUROC of classes that also suits a perfect ranking, which no sample varies.

    As in the interval of Agresti and Coull (1998) for a share, the AUROC is moved towards 0.5 by four records, and is
    the centre. The errors of K classes have a correlation of about 1 / (K - 1), because their scores add up to 1.

    Args:
        counts: records of each class, at least two of which have some. [K]
    """
    total = int(sum(counts))
    occur = [int(count) for count in counts if count]
    compared = occur if len(occur) > 2 else occur[:1]  # two classes have one AUROC
    pairs = [sorted((count, total - count)) for count in compared]
    rows = sum(fewer for fewer, _ in pairs)
    moved = (area * rows + 2) / (rows + 4)
    widths = [expected_auroc_width(moved, fewer + 4 / len(pairs), more) for fewer, more in pairs]
    reach = math.sqrt(sum(width**2 for width in widths) / (len(pairs) * max(len(pairs) - 1, 1))) / 2
    return max(0.0, min(moved - reach, area)), min(1.0, max(moved + reach, area))


def expected_auroc_width(area: float, rows: float, others: float) -> float:
    """Return the width of the 95 % interval of an AUROC A with m records of a class and n others, at most 1.

    Its variance is (A (1 - A) + (m - 1) (A / (2 - A) - A^2) + (n - 1) (2 A^2 / (1 + A) - A^2)) / (m n) (Hanley and
    McNeil, 1982, The meaning and use of the area under a ROC curve).
    """
    of_rows, of_others = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
    variance = (area * (1 - area) + (rows - 1) * of_rows + (others - 1) * of_others) / (rows * others)
    return min(1.0, 2 * NORMAL_95 * math.sqrt(variance))


def placements(is_class: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each positive's share of negatives below it [P], and each negative's share of positives above it [M].

    By midranks (Sun & Xu, 2014, IEEE Signal Processing Letters 21).
    """
    from scipy.stats import rankdata  # takes long to import, and the first step of a job need not wait for it

    ranks, positives = rankdata(scores), int(is_class.sum())
    of_positives = (ranks[is_class] - rankdata(scores[is_class])) / (len(scores) - positives)
    return of_positives, 1 - (ranks[~is_class] - rankdata(scores[~is_class])) / positives


def delong_variance(of_positives: np.ndarray, of_negatives: np.ndarray) -> float:
    """Return the variance of an area from its placements, or of a difference of areas from theirs."""
    return float(np.var(of_positives, ddof=1) / len(of_positives) + np.var(of_negatives, ddof=1) / len(of_negatives))


def wilson_interval(successes: float, trials: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a share (Wilson, 1927); trials > 0."""
    share, z2 = successes / trials, NORMAL_95**2
    center = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    reach = NORMAL_95 * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return max(0.0, center - reach), min(1.0, center + reach)


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole, or None if `whole` is 0."""
    return part / whole if whole else None
