"""What the model looks at: permutation importance of columns and ablation of modalities, as figures."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from container.evaluation.metrics import classification_metrics

METRIC = "auroc"


@dataclass(frozen=True)
class Importance:
    """How much the metric falls without a column or a modality.

    Attributes:
        name: the column, or the modality in words.
        kind: text, numeric or categorical; `modality` for an ablation.
        drop: the metric with everything minus the metric without this; mean over the shuffles.
        spread: standard deviation over the shuffles; None for an ablation, which has no chance in it.
    """

    name: str
    kind: str
    drop: float
    spread: float | None = None


@dataclass(frozen=True)
class Explanation:
    """Importances on val records.

    Permutation importance (Breiman, 2001, Random Forests, section 10): a column's values are dealt anew to the records.
    Columns that say the same hide each other: each alone loses little.

    Attributes:
        metric: macro average over the classes for more than two.
        base: the metric with everything.
        records: val records that it was measured on, the classes as evenly represented as val allows.
        shuffles: of each column.
        columns, modalities: by falling drop.
        problem: why there is nothing; None where there is.
    """

    metric: str
    base: float | None
    records: int
    shuffles: int
    seconds: float
    columns: tuple[Importance, ...] = ()
    modalities: tuple[Importance, ...] = ()
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def score(labels: np.ndarray, probabilities: np.ndarray) -> tuple[float | None, str | None]:
    """The metric, or why it is undefined. [N], [N, K]"""
    found = classification_metrics(labels, probabilities, [METRIC])
    return found.values[METRIC], found.undefined.get(METRIC)


def most_important_first(found: Sequence[Importance]) -> tuple[Importance, ...]:
    return tuple(sorted(found, key=lambda entry: -entry.drop))


def even_sample(labels: np.ndarray, records: int, *, seed: int) -> np.ndarray:
    """Positions of up to `records` labelled records, the classes in turn as long as each lasts, so that the start of
    the sample is as even as the whole. [N] -> [at most records]"""
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.flatnonzero(labels >= 0))
    turn = np.empty(len(order), np.int64)
    for k in np.unique(labels[order]):
        of_class = labels[order] == k
        turn[of_class] = np.arange(of_class.sum())
    return order[np.argsort(turn, kind="stable")][:records]
