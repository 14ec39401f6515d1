"""Estimate the standard errors of metrics by resampling the records (Efron, 1979, Bootstrap Methods)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from container.decision.softmax import log_softmax
from container.evaluation.ranking import Ranking

SAMPLES = 100
MOST_ROWS = 50_000  # of a sample
_FEWEST_SAMPLES = 20  # with every class; the standard deviation of so many is itself uncertain by a sixth


@dataclass(frozen=True)
class Estimate:
    """A metric and its standard error; None where it is undefined."""

    value: float | None
    standard_error: float | None = None


def estimate_metrics(
    labels: np.ndarray, logits: np.ndarray, *, seed: int, rarer: int | None = None
) -> dict[str, Estimate]:
    """Return log loss, AUROC, average precision and F1 with standard errors; none where few samples have every class.

    Two classes: average precision is that of the rarer class, and F1 that of class 1 at 0.5. More: means over the
    classes that occur, and the most probable class is predicted.

    Args:
        labels: class ids; unlabelled records are negative and ignored. [N]
        logits: [N, K]
        rarer: of two classes, the rarer one; None = in `labels`.
    """
    known = (labels >= 0) & np.isfinite(logits).all(axis=1)
    labels, log_p = labels[known], log_softmax(logits[known])
    counts = np.bincount(labels, minlength=log_p.shape[1])
    present = np.flatnonzero(counts)
    if len(present) < 2:
        return dict.fromkeys(("loss", "auroc", "average_precision", "f1_score"), Estimate(None))
    rarer = int(counts.argmin()) if rarer is None else rarer
    classes = [rarer] if log_p.shape[1] == 2 else present.tolist()
    rng = np.random.default_rng(seed)
    chosen, stands_for = _strata(labels, rng)
    of_all = _metrics(labels, log_p, classes)(np.ones(len(labels)))
    of_chosen, drawn = _metrics(labels[chosen], log_p[chosen], classes), list[dict[str, float]]()
    for _ in range(SAMPLES):
        times = np.bincount(rng.integers(0, len(chosen), len(chosen)), minlength=len(chosen))
        # A row that stands for n rows has n times the weight, with the variance of a sum over n rows.
        weights = stands_for + np.sqrt(stands_for) * (times - 1)
        if all((weights[labels[chosen] == k] > 0).any() for k in present):  # else a ranking is undefined
            drawn.append(of_chosen(weights))
    defined = len(drawn) >= _FEWEST_SAMPLES
    errors = {name: float(np.std([each[name] for each in drawn])) if defined else None for name in of_all}
    return {name: Estimate(value, errors[name]) for name, value in of_all.items()}


def _strata(labels: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Choose about MOST_ROWS rows, an equal number of each class as far as it has them.

    Returns:
        positions [M], and how many rows of its class each stands for [M].
    """
    counts = np.bincount(labels)
    most = MOST_ROWS // np.count_nonzero(counts)
    of_classes = [np.flatnonzero(labels == k) for k in np.flatnonzero(counts)]
    chosen = [rows if len(rows) <= most else rng.choice(rows, most, replace=False) for rows in of_classes]
    shares = [np.full(len(some), len(rows) / len(some)) for some, rows in zip(chosen, of_classes, strict=True)]
    return np.concatenate(chosen), np.concatenate(shares)


def _metrics(labels: np.ndarray, log_p: np.ndarray, classes: list[int]) -> Callable[[np.ndarray], dict[str, float]]:
    """Return a function from the weights of the records to the metrics. [N], [N, K]"""
    rankings = [Ranking(labels == k, log_p[:, k]) for k in classes]
    losses, decided = -log_p[np.arange(len(labels)), labels], log_p.argmax(axis=1)
    scored = [1] if log_p.shape[1] == 2 else classes

    def metrics(weights: np.ndarray) -> dict[str, float]:
        aurocs, precisions = zip(*(ranking(weights) for ranking in rankings))
        return {
            "loss": float(np.average(losses, weights=weights)),
            "auroc": float(np.mean(aurocs)),
            "average_precision": float(np.mean(precisions)),
            "f1_score": float(np.mean([_f1(labels == k, decided == k, weights) for k in scored])),
        }

    return metrics


def _f1(of_class: np.ndarray, decided: np.ndarray, weights: np.ndarray) -> float:
    both = weights[of_class].sum() + weights[decided].sum()
    return float(2 * weights[of_class & decided].sum() / both) if both else 0.0
