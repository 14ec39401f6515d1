"""Compare a model with a previous one on the same records."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from container.evaluation.metrics import METRICS, classification_metrics, decided_classes

_NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Swap:
    """Records that one model flags and the other does not."""

    positives: int
    negatives: int


@dataclass(frozen=True)
class Comparison:
    """Two models on the labelled records that both scored.

    Attributes:
        values, previous: metrics by name, None where undefined.
        differences: value minus previous; None where either is undefined.
        auroc_interval: 95 % interval of the difference in AUROC; None for more than two classes, or where the two order
            the records alike.
        score_correlation: Spearman's, of class 1's probability; None for more than two classes, or constant scores.
        newly_flagged, no_longer_flagged: two classes: whose decision changed; None for more.
        changed_decisions: records whose decided class changed.
    """

    records: int
    values: dict[str, float | None]
    previous: dict[str, float | None]
    differences: dict[str, float | None]
    auroc_interval: tuple[float, float] | None
    score_correlation: float | None
    changed_decisions: int
    newly_flagged: Swap | None
    no_longer_flagged: Swap | None

    @property
    def verdict(self) -> str:
        """better, worse, or what sampling may explain: by AUROC."""
        if self.auroc_interval is None:
            return "not told apart"
        low, high = self.auroc_interval
        return "better" if low > 0 else "worse" if high < 0 else "not told apart"


def compare(
    labels: np.ndarray,
    probabilities: np.ndarray,
    previous: np.ndarray,
    *,
    threshold: float | None,
    previous_threshold: float | None,
) -> Comparison:
    """Compare on records that all have a label.

    Args:
        labels: class ids. [N]
        probabilities, previous: [N, K] each
        threshold, previous_threshold: of two classes.
    """
    values = classification_metrics(labels, probabilities, METRICS, threshold=threshold).values
    values_before = classification_metrics(labels, previous, METRICS, threshold=previous_threshold).values
    decided, decided_before = decided_classes(probabilities, threshold), decided_classes(previous, previous_threshold)
    changed = decided != decided_before
    binary = probabilities.shape[1] == 2
    scores, scores_before = probabilities[:, -1], previous[:, -1]
    interval, correlation, newly, no_longer = None, None, None, None
    if binary:
        interval = auroc_difference_interval(labels == 1, scores, scores_before)
        if np.ptp(scores) > 0 and np.ptp(scores_before) > 0:
            correlation = float(np.asarray(stats.spearmanr(scores, scores_before))[0])
        newly, no_longer = (
            Swap(int((labels[mask] == 1).sum()), int((labels[mask] == 0).sum()))
            for mask in (changed & (decided == 1), changed & (decided == 0))
        )
    return Comparison(
        records=len(labels),
        values=values,
        previous=values_before,
        differences={
            name: None if value is None or old is None else value - old
            for name, value, old in ((name, values[name], values_before[name]) for name in METRICS)
        },
        auroc_interval=interval,
        score_correlation=correlation,
        changed_decisions=int(changed.sum()),
        newly_flagged=newly,
        no_longer_flagged=no_longer,
    )


def auroc_difference_interval(
    is_positive: np.ndarray, scores: np.ndarray, previous: np.ndarray
) -> tuple[float, float] | None:
    """95 % interval of the difference of two areas under the ROC curve over the same records.

    DeLong's covariance (DeLong et al., 1988, Biometrics 44), by midranks (Sun & Xu, 2014, IEEE Signal Processing
    Letters 21). None with fewer than two records of a kind, or without variance.
    """
    if min(is_positive.sum(), (~is_positive).sum()) < 2:
        return None
    (of_positives, of_negatives), (before_positives, before_negatives) = (
        _placements(is_positive, each) for each in (scores, previous)
    )
    difference = float(of_positives.mean() - before_positives.mean())
    variance = float(
        np.var(of_positives - before_positives, ddof=1) / len(of_positives)
        + np.var(of_negatives - before_negatives, ddof=1) / len(of_negatives)
    )
    if variance <= 0:
        return None
    reach = _NORMAL_95 * math.sqrt(variance)
    return difference - reach, difference + reach


def _placements(is_positive: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each positive, the share of the negatives below it [P]; of each negative, of the positives above it [M]."""
    ranks = stats.rankdata(scores)
    positives, negatives = int(is_positive.sum()), int((~is_positive).sum())
    of_positives = (ranks[is_positive] - stats.rankdata(scores[is_positive])) / negatives
    of_negatives = 1 - (ranks[~is_positive] - stats.rankdata(scores[~is_positive])) / positives
    return of_positives, of_negatives
