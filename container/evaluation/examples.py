"""Choose records for the report: the most confident errors, and the values of categories with enough records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from container.evaluation.data_findings import FEW_RECORDS
from container.evaluation.predictions import SplitPredictions
from container.evaluation.slices import OTHERS, Slice, slices
from contracts.spelling import shorten

_ERRORS, _COLUMNS, _VALUES, _CHARACTERS = 10, 8, 10, 240


@dataclass(frozen=True)
class ConfidentError:
    """A record with a wrong decision, and the probability of the decided class."""

    id: Any
    label: int | str
    decided: int | str
    probability: float
    text: str


@dataclass(frozen=True)
class Examples:
    """Records of a split.

    Attributes:
        errors: the most confident first.
        values: metrics of each value of a column, by column; those that differ most first.
    """

    split: str
    errors: Sequence[ConfidentError]
    values: Mapping[str, Sequence[Slice]]


def most_confident_errors(labels: np.ndarray, decided: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return the positions of at most 10 records, the most confident first.

    Args:
        labels: class ids, negative if unlabelled. [N]
        decided: class ids. [N]
        probabilities: [N, K]
    """
    wrong = np.flatnonzero((labels >= 0) & (labels != decided))
    return wrong[np.argsort(-probabilities[wrong, decided[wrong]], kind="stable")[:_ERRORS]]


def shortened(texts: Mapping[str, str | None]) -> str:
    """Return the beginning of a record's texts in one line, with their columns if there are several."""
    known = {name: " ".join(text.split()) for name, text in texts.items() if text}
    most = _CHARACTERS // max(1, len(known))
    cut = {name: shorten(text, most) for name, text in known.items()}
    return " · ".join(text if len(texts) == 1 else f"{name}: {text}" for name, text in cut.items())


def metrics_of_values(
    columns: Mapping[str, list[str | None]],
    predictions: SplitPredictions,
    *,
    threshold: float,
    class_labels: Sequence[int | str],
) -> dict[str, Sequence[Slice]]:
    """Return the metrics of each value of the columns with 2 to 10 values that have 30 labelled records or more.

    Args:
        columns: the category of each record. [N] each
    """

    def measured() -> Iterator[tuple[float, str, list[Slice]]]:
        for name, categories in columns.items():
            of_column = slices(
                categories,
                predictions.labels,
                predictions.probabilities,
                min_rows=FEW_RECORDS,
                threshold=threshold,
                class_labels=class_labels,
            )
            of_values = [each for each in of_column if each.group != OTHERS]
            if 2 <= len(of_values) <= _VALUES:
                accuracies = [each.metrics.values["accuracy"] or 0.0 for each in of_values]
                yield min(accuracies) - max(accuracies), name, of_column

    chosen = sorted(measured(), key=lambda each: each[0])[:_COLUMNS]
    return {name: of_column for _, name, of_column in chosen}
