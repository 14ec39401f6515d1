"""Compare a model with a previous one on the same records."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from container.evaluation.curves import NORMAL_95, delong_variance, placements
from container.evaluation.metrics import classification_metrics, decided_classes
from contracts.metrics import METRICS


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
        auroc_interval: 95 % interval of the difference in AUROC; None for more than two classes, or equal orders.
        score_correlation: Spearman's, of class 1's probability; None for more than two classes, or constant scores.
        changed_decisions: records whose decided class changed.
        newly_flagged, no_longer_flagged: for two classes, the changed records by label; None for more.
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
    def verdict(self) -> str | None:
        """Return better, worse or no significant difference, by auroc_interval; None without one."""
        if self.auroc_interval is None:
            return None
        low, high = self.auroc_interval
        return "better" if low > 0 else "worse" if high < 0 else "no significant difference"


def compare(
    labels: np.ndarray,
    probabilities: np.ndarray,
    previous: np.ndarray,
    *,
    threshold: float | None,
    previous_threshold: float | None,
) -> Comparison:
    """Compare two models on labelled records.

    Args:
        labels: class ids. [N]
        probabilities, previous: [N, K] each
        threshold, previous_threshold: for two classes.
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
            name: None if value is None or (old := values_before[name]) is None else value - old
            for name, value in values.items()
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
    """Return the 95 % interval of the difference of two areas under the ROC curve over the same records.

    By DeLong's covariance. None with fewer than two positives or negatives, or without variance.
    """
    if min(is_positive.sum(), (~is_positive).sum()) < 2:
        return None
    new, old = placements(is_positive, scores), placements(is_positive, previous)
    variance = delong_variance(new[0] - old[0], new[1] - old[1])
    if variance <= 0:
        return None
    difference, margin = float(new[0].mean() - old[0].mean()), NORMAL_95 * math.sqrt(variance)
    return difference - margin, difference + margin
