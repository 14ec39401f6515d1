"""Estimate the standard errors of metrics by resampling the records (Efron, 1979, Bootstrap Methods)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from container.decision.softmax import log_softmax

SAMPLES = 100


@dataclass(frozen=True)
class Estimate:
    """A metric and its standard error; None where it is undefined."""

    value: float | None
    standard_error: float | None = None


def estimate_metrics(labels: np.ndarray, logits: np.ndarray, *, seed: int) -> dict[str, Estimate]:
    """Return log loss, AUROC, average precision and F1 with standard errors.

    Two classes: average precision is that of the rarer class, and F1 that of class 1 at 0.5. More: means over the
    classes that occur, and the most probable class is predicted.

    Args:
        labels: class ids; unlabelled records are negative and ignored. [N]
        logits: [N, K]
    """
    known = (labels >= 0) & np.isfinite(logits).all(axis=1)
    labels, log_p = labels[known], log_softmax(logits[known])
    counts = np.bincount(labels, minlength=log_p.shape[1])
    present = np.flatnonzero(counts)
    if len(present) < 2:
        return dict.fromkeys(("loss", "auroc", "average_precision", "f1_score"), Estimate(None))
    classes = [int(counts.argmin())] if log_p.shape[1] == 2 else present.tolist()
    rankings = [_Ranking(labels == k, log_p[:, k]) for k in classes]
    losses, decided = -log_p[np.arange(len(labels)), labels], log_p.argmax(axis=1)
    scored = [1] if log_p.shape[1] == 2 else classes
    metrics: dict[str, Callable[[np.ndarray], float]] = {
        "loss": lambda weights: float(np.average(losses, weights=weights)),
        "auroc": lambda weights: float(np.mean([ranking.auroc(weights) for ranking in rankings])),
        "average_precision": lambda weights: float(np.mean([each.average_precision(weights) for each in rankings])),
        "f1_score": lambda weights: float(np.mean([_f1(labels == k, decided == k, weights) for k in scored])),
    }
    rng = np.random.default_rng(seed)
    drawn: dict[str, list[float]] = {name: [] for name in metrics}
    for _ in range(SAMPLES):
        weights = np.bincount(rng.integers(0, len(labels), len(labels)), minlength=len(labels)).astype(float)
        if all((weights[labels == k] > 0).any() for k in present):  # else a ranking is undefined
            for name, metric in metrics.items():
                drawn[name].append(metric(weights))
    once = np.ones(len(labels))
    return {
        name: Estimate(metric(once), float(np.std(drawn[name])) if drawn[name] else None)
        for name, metric in metrics.items()
    }


def _f1(of_class: np.ndarray, decided: np.ndarray, weights: np.ndarray) -> float:
    both = weights[of_class].sum() + weights[decided].sum()
    return float(2 * weights[of_class & decided].sum() / both) if both else 0.0


class _Ranking:
    """Records of a class and of the others, sorted by score once for all samples."""

    def __init__(self, of_class: np.ndarray, scores: np.ndarray) -> None:
        self._order = np.argsort(-scores, kind="stable")
        descending = scores[self._order]
        self._starts = np.flatnonzero(np.append(True, descending[1:] != descending[:-1]))  # of equal scores
        self._of_class = of_class[self._order]

    def _flagged(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weight of the class and of the others at each distinct score, from the highest."""
        weights = weights[self._order]
        return (
            np.add.reduceat(weights * self._of_class, self._starts),
            np.add.reduceat(weights * ~self._of_class, self._starts),
        )

    def auroc(self, weights: np.ndarray) -> float:
        hits, others = self._flagged(weights)
        below = others.sum() - others.cumsum()
        return float((hits * (below + others / 2)).sum() / (hits.sum() * others.sum()))

    def average_precision(self, weights: np.ndarray) -> float:
        hits, others = self._flagged(weights)
        flagged = (hits + others).cumsum()
        precision = np.divide(hits.cumsum(), flagged, out=np.zeros_like(flagged), where=flagged > 0)
        return float((hits * precision).sum() / hits.sum())
