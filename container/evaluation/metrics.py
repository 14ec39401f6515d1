"""Compute classification metrics; an undefined metric is None with a reason, never 0.0."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from container.evaluation.curves import Order, areas
from contracts.errors import ContractError
from contracts.metrics import AREAS, DECLARED
from contracts.monitored_metric import LOSS

__all__ = [
    "MetricValues",
    "check_defined",
    "classification_metrics",
    "decided_classes",
    "one_vs_rest",
]


@dataclass(frozen=True)
class MetricValues:
    """Metrics by name; None where undefined, with the reason in `undefined`."""

    values: dict[str, float | None]
    undefined: dict[str, str]


def classification_metrics(
    labels: np.ndarray,
    probabilities: np.ndarray,
    names: Sequence[str],
    *,
    class_labels: Sequence[int | str] | None = None,
    threshold: float | None = 0.5,
    weights: np.ndarray | None = None,
) -> MetricValues:
    """Return a value or a reason for each of the metrics `names`.

    Two classes: the score is the probability of class 1, and a record with at least `threshold` is of class 1;
    f1_score, precision and recall are those of class 1. More classes: the most probable class is predicted. All metrics
    but accuracy are averaged over the classes that occur, with equal weights (macro); auroc and average_precision are
    one-vs-rest. A class that occurs and is never predicted has precision 0.

    Args:
        labels: class ids; unlabelled records are negative and ignored. [N]
        probabilities: [N, K]
        class_labels: names of the classes in the reasons; None: their ids. [K]
        weights: of the records, not negative; None: 1. Records of weight 0 are ignored. [N]
    """
    weights = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    known = (labels >= 0) & (weights > 0)
    labels, probabilities, weights = labels[known], probabilities[known], weights[known]
    values: dict[str, float | None] = {}
    undefined: dict[str, str] = {}
    class_labels = range(probabilities.shape[1]) if class_labels is None else class_labels
    ranked = cache(lambda: _rank(labels, probabilities, weights))
    num_classes = probabilities.shape[1]
    decided = cache(lambda: of_decisions(labels, decided_classes(probabilities, threshold), weights, num_classes))
    for name in names:
        reason = _why_undefined(name, labels, probabilities, class_labels, threshold)
        if reason is None:
            values[name] = (ranked() if DECLARED[name].curve else decided())[name]
        else:
            values[name], undefined[name] = None, reason
    return MetricValues(values, undefined)


def check_defined(metric: str, classes: Mapping[str, int], *, setting: str) -> None:
    """Raise ContractError if a metric is undefined on val, even for a model without an error.

    Args:
        metric: as in the history of training, e.g. val/auroc.
        classes: labelled val records of each class, by label.
        setting: the hyperparameter that names the metric.
    """
    labels = np.repeat(np.arange(len(classes)), list(classes.values()))
    name = "accuracy" if metric == LOSS else metric.removeprefix("val/")  # both need one label
    right = np.eye(len(classes))[labels]
    reason = classification_metrics(labels, right, [name], class_labels=list(classes)).undefined.get(name)
    if reason is not None:
        raise ContractError(
            f"{setting}: {metric} is undefined on val: {reason}",
            "Add labelled records of the other classes to val, or choose another metric.",
        )


def one_vs_rest(labels: np.ndarray, probabilities: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Return (class id, whether each record is of it [N], score [N]): of two classes for class 1, else for every class
    that some but not all records have."""
    if probabilities.shape[1] == 2:
        return [(1, labels == 1, probabilities[:, 1])]
    present = [k for k in range(probabilities.shape[1]) if 0 < (labels == k).sum() < len(labels)]
    return [(k, labels == k, probabilities[:, k]) for k in present]


def _why_undefined(
    name: str, labels: np.ndarray, probabilities: np.ndarray, class_labels: Sequence[int | str], threshold: float | None
) -> str | None:
    if len(labels) == 0:
        return "no record has a label"
    not_finite = int((~np.isfinite(probabilities).all(axis=1)).sum())
    if not_finite:
        return f"{not_finite} of {len(labels)} labelled records have a probability that is not a number"
    classes = np.unique(labels)
    of_one_class = f"all {len(labels)} labelled records are of class {class_labels[int(classes[0])]}"
    if DECLARED[name].curve and len(classes) == 1:
        return of_one_class
    if probabilities.shape[1] > 2:
        return None
    assert threshold is not None
    # With two classes these are ratios over class 1 alone, and the denominator may be 0.
    positives, flagged = (labels == 1).any(), (probabilities[:, 1] >= threshold).any()
    if name == "recall" and not positives:
        return of_one_class
    if name == "precision" and not flagged:
        return f"no record reaches probability {threshold:.4g} of class {class_labels[1]}"
    if name == "f1_score" and not positives and not flagged:
        return f"{of_one_class}, and none is decided to be of class {class_labels[1]}"
    return None


def decided_classes(probabilities: np.ndarray, threshold: float | None) -> np.ndarray:
    """Return the predicted classes: of two, class 1 if it reaches `threshold`, else the most probable. [N, K] -> [N]"""
    if probabilities.shape[1] == 2:
        assert threshold is not None
        return (probabilities[:, 1] >= threshold).astype(np.int64)
    return probabilities.argmax(axis=1)


def _rank(labels: np.ndarray, probabilities: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Return the metrics of curves; for many classes, scikit-learn takes several times as long."""
    of_classes = [areas(Order(is_class, scores)(weights)) for _, is_class, scores in one_vs_rest(labels, probabilities)]
    return dict(zip(AREAS.values(), map(float, np.mean(of_classes, axis=0)), strict=True))  # as `areas` returns them


def of_decisions(labels: np.ndarray, decided: np.ndarray, weights: np.ndarray, num_classes: int) -> dict[str, float]:
    """Return the metrics of decisions, each by its `Metric.ratio`; a ratio over 0 is 0.

    Args:
        labels, decided: class ids. [N]
        weights: of the records, not negative, in sum positive. [N]
    """
    right = labels == decided
    counts = [
        np.bincount(ids, of, minlength=num_classes)
        for ids, of in ((labels[right], weights[right]), (labels, weights), (decided, weights))
    ]  # [K] each
    return of_counts(*counts)


def of_counts(hits: np.ndarray, records: np.ndarray, decided: np.ndarray) -> dict[str, float]:
    """Return the metrics of decisions from the arguments of `Metric.ratio`: of class 1 of two, else macro. [K] each"""
    classes = [1] if len(records) == 2 else np.flatnonzero(records)
    values = {}
    for name, metric in DECLARED.items():
        if metric.ratio is None:
            continue
        above, below = metric.ratio(hits, records, decided)
        if metric.pooled:
            values[name] = float(above.sum() / below.sum())
        else:
            ratios = np.divide(above, below, out=np.zeros(len(records)), where=below > 0)
            values[name] = float(ratios[classes].mean())
    return values
