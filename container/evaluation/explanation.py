"""Define feature importance: permutation importance of columns and ablation of modalities."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from container.evaluation.metrics import classification_metrics

METRIC = "auroc"


@dataclass(frozen=True)
class Importance:
    """The decrease of the metric without a column or a modality.

    Attributes:
        name: the column, or a description of the modality.
        kind: text, numeric, date or categorical; `modality` for an ablation.
        drop: the metric with all inputs minus the metric without this input; mean over the shuffles.
        spread: standard deviation over the shuffles; None for an ablation, which is deterministic.
    """

    name: str
    kind: str
    drop: float
    spread: float | None = None


@dataclass(frozen=True)
class Explanation:
    """Feature importance on val records.

    Permutation importance (Breiman, 2001, Random Forests, section 10) shuffles a column's values between the records.
    Columns with the same information hide each other's importance.

    Attributes:
        metric: macro average over the classes for more than two.
        base: the metric with all inputs.
        records: number of val records used, sampled to balance the classes.
        shuffles: number of shuffles of each column.
        columns, modalities: the largest drop first.
        problem: why importance was not measured; None otherwise.
    """

    metric: str
    base: float | None
    records: int
    shuffles: int
    seconds: float
    columns: tuple[Importance, ...] = ()
    modalities: tuple[Importance, ...] = ()
    problem: str | None = None


def score(
    labels: np.ndarray, probabilities: np.ndarray, class_labels: Sequence[int | str]
) -> tuple[float | None, str | None]:
    """Return the metric, or the reason why it is undefined. [N], [N, K], [K]"""
    computed = classification_metrics(labels, probabilities, [METRIC], class_labels=class_labels)
    return computed.values[METRIC], computed.undefined.get(METRIC)


def most_important_first(importances: Sequence[Importance]) -> tuple[Importance, ...]:
    return tuple(sorted(importances, key=lambda entry: -entry.drop))


def even_sample(labels: np.ndarray, records: int, *, seed: int) -> np.ndarray:
    """Sample the positions of up to `records` labelled records, taking the classes in turn.

    Every prefix of the sample is as balanced as the data allows. [N] -> [at most records]
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.flatnonzero(labels >= 0))
    turn = np.empty(len(order), np.int64)
    for k in np.unique(labels[order]):
        of_class = labels[order] == k
        turn[of_class] = np.arange(of_class.sum())
    return order[np.argsort(turn, kind="stable")][:records]
