"""Determine the weight of each class in the loss: as given, or from the label counts of train."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from container.preprocessing.labels import Label
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from contracts.presets import class_totals
from contracts.settings.training import BALANCED

logger = logging.getLogger(__name__)


def resolve_class_weights(
    hp: Hyperparameters, class_labels: Sequence[Label], summary: Mapping[str, Any]
) -> list[float]:
    """Return the weight of each class, in the order of `class_labels`. [K]

    "balanced" is rows / (K * rows of the class), with weight_name their weights: each class has the same total weight
    (King and Zeng 2001).

    Args:
        summary: PreparedData.summary.

    Raises:
        ContractError: class_weights is balanced and a class has no training row.
    """
    if hp.class_weights is None:
        return [1.0] * hp.num_classes
    if hp.class_weights != BALANCED:
        return list(hp.class_weights)
    counts = class_totals(summary["splits"]["train"])
    rows = [counts[str(label)] for label in class_labels]
    if 0 in rows:
        raise ContractError(
            f"class_weights: is {BALANCED!r}, but no training row has the label {class_labels[rows.index(0)]!r}",
            "List one weight per class, or take the label out of multiclass_categories.",
        )
    weights = [sum(rows) / (len(rows) * count) for count in rows]
    described = ", ".join(
        f"{label!r} {weight:.4g} ({count:g} rows)" for label, weight, count in zip(class_labels, weights, rows)
    )
    logger.info("balanced class_weights: %s", described)
    return weights
