"""Classification metrics by scikit-learn; what is undefined is None with a reason, never 0.0."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn import metrics as sk

from contracts.hyperparameters import METRICS

__all__ = ["METRICS", "MetricValues", "classification_metrics", "one_vs_rest"]


@dataclass(frozen=True)
class MetricValues:
    """Metrics by name; None where undefined, and then the reason in `undefined`."""

    values: dict[str, float | None]
    undefined: dict[str, str]


def classification_metrics(
    labels: np.ndarray,
    probabilities: np.ndarray,
    names: Sequence[str],
    *,
    class_labels: Sequence[int | str] | None = None,
) -> MetricValues:
    """The metrics `names` of predicted probabilities.

    Two classes: the score is the probability of class 1; f1_score, precision and recall are those of class 1 at
    probability 0.5. More classes: auroc and average_precision are one-vs-rest and, like f1_score, precision and recall
    of the most probable class, averaged over the classes that occur, each counting the same (macro); a class that
    occurs and is never decided has precision 0 there.

    Args:
        labels: class ids; negative = unlabelled, left out. [N]
        probabilities: [N, K]
        names: of METRICS.
        class_labels: what the reasons call the classes; their ids where it is None. [K]

    Returns:
        A value or a reason for each name.
    """
    known = labels >= 0
    labels, probabilities = labels[known], probabilities[known]
    values: dict[str, float | None] = {}
    undefined: dict[str, str] = {}
    called = range(probabilities.shape[1]) if class_labels is None else class_labels
    for name in names:
        reason = _why_undefined(name, labels, probabilities, called)
        if reason is None:
            values[name] = _COMPUTE[name](labels, probabilities)
        else:
            values[name], undefined[name] = None, reason
    return MetricValues(values, undefined)


def one_vs_rest(labels: np.ndarray, probabilities: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """(class id, is it this class [N], score [N]) for class 1 of two, else for every class that occurs and is not
    alone."""
    if probabilities.shape[1] == 2:
        return [(1, labels == 1, probabilities[:, 1])]
    present = [k for k in range(probabilities.shape[1]) if 0 < (labels == k).sum() < len(labels)]
    return [(k, labels == k, probabilities[:, k]) for k in present]


def _why_undefined(
    name: str, labels: np.ndarray, probabilities: np.ndarray, class_labels: Sequence[int | str]
) -> str | None:
    if len(labels) == 0:
        return "no record has a label"
    classes = np.unique(labels)
    of_one_class = f"all {len(labels)} labelled records are of class {class_labels[int(classes[0])]}"
    if name in ("auroc", "average_precision") and len(classes) == 1:
        return of_one_class
    if probabilities.shape[1] > 2:
        return None
    # With two classes these are ratios over class 1 alone, and the whole may be nothing.
    positives, flagged = (labels == 1).any(), (probabilities[:, 1] >= 0.5).any()
    if name == "recall" and not positives:
        return of_one_class
    if name == "precision" and not flagged:
        return f"no record reaches probability 0.5 of class {class_labels[1]}"
    if name == "f1_score" and not positives and not flagged:
        return f"{of_one_class}, and none is decided to be of class {class_labels[1]}"
    return None


def _macro(score: Callable[[np.ndarray, np.ndarray], float]) -> Callable[[np.ndarray, np.ndarray], float]:
    def compute(labels: np.ndarray, probabilities: np.ndarray) -> float:
        return float(np.mean([score(is_class, scores) for _, is_class, scores in one_vs_rest(labels, probabilities)]))

    return compute


def _decided(score: Callable[..., float]) -> Callable[[np.ndarray, np.ndarray], float]:
    def compute(labels: np.ndarray, probabilities: np.ndarray) -> float:
        if probabilities.shape[1] == 2:
            return float(score(labels, probabilities[:, 1] >= 0.5))
        predicted = probabilities.argmax(axis=1)
        return float(score(labels, predicted, labels=np.unique(labels), average="macro", zero_division=0))

    return compute


def _accuracy(labels: np.ndarray, probabilities: np.ndarray) -> float:
    predicted = probabilities[:, 1] >= 0.5 if probabilities.shape[1] == 2 else probabilities.argmax(axis=1)
    return float((predicted == labels).mean())


_COMPUTE: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "auroc": _macro(sk.roc_auc_score),
    "average_precision": _macro(sk.average_precision_score),
    "f1_score": _decided(sk.f1_score),
    "precision": _decided(sk.precision_score),
    "recall": _decided(sk.recall_score),
    "accuracy": _accuracy,
}
assert tuple(_COMPUTE) == METRICS
