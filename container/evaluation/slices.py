"""Compute metrics for each group of records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from container.evaluation.curves import auroc_interval
from container.evaluation.metrics import MetricValues, classification_metrics
from contracts.metrics import METRICS

OTHERS = "(others)"
MISSING = "(missing)"
MOST_GROUPS = 30


@dataclass(frozen=True)
class Slice:
    """A group's records.

    Attributes:
        positive_share: labelled records of class 1; None for more than two classes, or without a label.
        mean_score: mean probability of class 1 over the labelled records; likewise.
        auroc_interval: 95 % interval; None where AUROC is undefined.
    """

    group: str
    rows: int
    labelled: int
    positive_share: float | None
    mean_score: float | None
    metrics: MetricValues
    auroc_interval: tuple[float, float] | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "rows": self.rows,
            "labelled": self.labelled,
            "positive_share": self.positive_share,
            "mean_score": self.mean_score,
            **self.metrics.values,
            "auroc_interval_95": None if self.auroc_interval is None else list(self.auroc_interval),
            "undefined": self.metrics.undefined,
        }


def slices(
    groups: list[str | None],
    labels: np.ndarray,
    probabilities: np.ndarray,
    *,
    min_rows: int,
    threshold: float | None,
    class_labels: Sequence[int | str],
) -> list[Slice]:
    """Return the largest groups first. Those below `min_rows` labelled records, or beyond MOST_GROUPS, form one group.

    Args:
        groups: of each record, or None. [N]
        labels: class ids, negative if unlabelled. [N]
        probabilities: [N, K]
    """
    # An array of texts would be as wide as the longest one.
    named = np.array([MISSING if group is None else group for group in groups], object)
    names, codes = np.unique(named, return_inverse=True)
    labelled = np.bincount(codes[labels >= 0], minlength=len(names))
    order = np.argsort(-labelled, kind="stable")
    separate = [int(code) for code in order[:MOST_GROUPS] if labelled[code] >= min_rows]
    pooled = ~np.isin(codes, separate)
    members = [(str(names[code]), codes == code) for code in separate]
    if pooled.any():
        members.append((OTHERS, pooled))
    return [
        _slice(name, labels[mask], probabilities[mask], threshold=threshold, class_labels=class_labels)
        for name, mask in members
    ]


def _slice(
    group: str,
    labels: np.ndarray,
    probabilities: np.ndarray,
    *,
    threshold: float | None,
    class_labels: Sequence[int | str],
) -> Slice:
    known, binary = labels >= 0, probabilities.shape[1] == 2
    positives = labels[known] == 1
    interval = None
    if binary and 0 < positives.sum() < len(positives):
        interval = auroc_interval(positives, probabilities[known, 1])
    return Slice(
        group=group,
        rows=len(labels),
        labelled=int(known.sum()),
        positive_share=float(positives.mean()) if binary and known.any() else None,
        mean_score=float(probabilities[known, 1].mean()) if binary and known.any() else None,
        metrics=classification_metrics(labels, probabilities, METRICS, class_labels=class_labels, threshold=threshold),
        auroc_interval=interval,
    )
