"""Estimate the standard errors of metrics by resampling the records (Efron, 1979, Bootstrap Methods)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from container.decision.softmax import log_softmax
from container.evaluation.curves import NORMAL_95, Order, areas
from container.evaluation.metrics import of_decisions
from contracts.metrics import AREAS, COMPARED

SAMPLES = 100
_FEWEST_RECORDS = 5  # of a class, whose scores samples of fewer records hardly vary
MOST_ROWS = 50_000  # of a sample
_MOST_SCORES = 1_000_000  # rows times classes of a sample of paired differences
_FEWEST_SAMPLES = 20  # with every class; the standard deviation of so many is itself uncertain by a sixth


@dataclass(frozen=True)
class Estimate:
    """A metric and its standard error; None where it is undefined."""

    value: float | None
    standard_error: float | None = None


def estimate_metrics(
    labels: np.ndarray, logits: np.ndarray, *, seed: int, rarer: int | None = None
) -> dict[str, Estimate]:
    """Return log loss, AUROC, average precision, F1 and accuracy, each with its standard error.

    There is no standard error where few samples have every class.

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
        return dict.fromkeys(COMPARED, Estimate(None))
    rarer = int(counts.argmin()) if rarer is None else rarer
    classes = [rarer] if log_p.shape[1] == 2 else present.tolist()
    rng = np.random.default_rng(seed)
    chosen, stands_for = _strata(labels, rng, most=MOST_ROWS)
    of_all = _metrics(labels, log_p, classes)(np.ones(len(labels)))
    of_chosen = _metrics(labels[chosen], log_p[chosen], classes)
    errors = _standard_errors([of_chosen(weights) for weights in _samples(labels[chosen], stands_for, rng)])
    return {name: Estimate(value, errors.get(name)) for name, value in of_all.items()}


@dataclass(frozen=True)
class Scores:
    """What a model predicts for records.

    Attributes:
        probabilities: [N, K]
        decided: class ids. [N]
    """

    probabilities: np.ndarray
    decided: np.ndarray


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two models on the same records, with its 95 % interval; None if undefined."""

    value: float
    interval: tuple[float, float] | None

    @property
    def sign(self) -> int:
        """Return 1 or -1 if the interval lies on one side of 0, else 0."""
        if self.interval is None:
            return 0
        low, high = self.interval
        return int(low > 0) - int(high < 0)


def paired_differences(labels: np.ndarray, first: Scores, second: Scores, *, seed: int = 0) -> dict[str, Difference]:
    """Return log loss, AUROC, average precision, F1 and accuracy of `second` minus those of `first`.

    Each sample of the bootstrap contains the same records for both, so that what both find difficult cancels out. Two
    classes: all metrics are those of class 1. More: means over the classes that occur.

    Args:
        labels: class ids; unlabelled records are negative and ignored. [N]
    """
    known = labels >= 0
    for scores in (first, second):
        known &= np.isfinite(scores.probabilities).all(axis=1)
    labels = labels[known]
    present = np.unique(labels)
    if len(present) < 2:
        return {}
    num_classes = first.probabilities.shape[1]
    classes = [1] if num_classes == 2 else present.tolist()
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero(known)
    chosen, stands_for = _strata(labels, rng, most=min(MOST_ROWS, _MOST_SCORES // len(classes)))

    def difference(rows: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], dict[str, float]]:
        of_models = (
            (np.log(np.maximum(scores.probabilities[rows], np.finfo(np.float64).tiny)), scores.decided[rows])
            for scores in (first, second)
        )
        before, after = (_metrics(labels, log_p, classes, decided=decided) for log_p, decided in of_models)

        def of(weights: np.ndarray) -> dict[str, float]:
            new = after(weights)
            return {name: new[name] - old for name, old in before(weights).items()}

        return of

    values = difference(rows, labels)(np.ones(len(labels)))
    of_chosen = difference(rows[chosen], labels[chosen])
    errors = _standard_errors([of_chosen(weights) for weights in _samples(labels[chosen], stands_for, rng)])
    few = num_classes == 2 and np.bincount(labels).min() < _FEWEST_RECORDS
    certain = {"loss", "accuracy"} if few else set(errors)
    reach = {name: NORMAL_95 * error for name, error in errors.items() if error and name in certain}
    return {
        name: Difference(value, (value - reach[name], value + reach[name]) if name in reach else None)
        for name, value in values.items()
    }


def _samples(labels: np.ndarray, stands_for: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the weights of the records in each sample that has every class. [M]"""
    present = np.unique(labels)
    for _ in range(SAMPLES):
        times = np.bincount(rng.integers(0, len(labels), len(labels)), minlength=len(labels))
        # A row that stands for n rows has n times the weight, with the variance of a sum over n rows.
        weights = stands_for + np.sqrt(stands_for) * (times - 1)
        if all((weights[labels == k] > 0).any() for k in present):  # else a ranking is undefined
            yield weights


def _standard_errors(drawn: Sequence[Mapping[str, float]]) -> dict[str, float]:
    if len(drawn) < _FEWEST_SAMPLES:
        return {}
    return {name: float(np.std([each[name] for each in drawn])) for name in drawn[0]}


def _strata(labels: np.ndarray, rng: np.random.Generator, *, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose about `most` rows, an equal number of each class as far as it has them.

    Returns:
        positions [M], and how many rows of its class each stands for [M].
    """
    counts = np.bincount(labels)
    most = max(1, most // int(np.count_nonzero(counts)))
    of_classes = [np.flatnonzero(labels == k) for k in np.flatnonzero(counts)]
    chosen = [rows if len(rows) <= most else rng.choice(rows, most, replace=False) for rows in of_classes]
    shares = [np.full(len(some), len(rows) / len(some)) for some, rows in zip(chosen, of_classes, strict=True)]
    return np.concatenate(chosen), np.concatenate(shares)


def _metrics(
    labels: np.ndarray, log_p: np.ndarray, classes: list[int], *, decided: np.ndarray | None = None
) -> Callable[[np.ndarray], dict[str, float]]:
    """Return a function from the weights of the records to the metrics. [N], [N, K]"""
    orders = [Order(labels == k, log_p[:, k]) for k in classes]
    losses = -log_p[np.arange(len(labels)), labels]
    of_model = log_p.argmax(axis=1) if decided is None else decided

    def metrics(weights: np.ndarray) -> dict[str, float]:
        ranked = np.mean([areas(order(weights)) for order in orders], axis=0)
        values = {
            "loss": float(np.average(losses, weights=weights)),
            **dict(zip(AREAS.values(), map(float, ranked), strict=True)),
            **of_decisions(labels, of_model, weights, log_p.shape[1]),
        }
        return {name: values[name] for name in COMPARED}

    return metrics
