"""Fit bagged trees on binned columns: random forests and extremely randomized trees."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from container.companion.linear import FOLDS
from container.companion.nodes import Graph
from container.companion.trees import Bins

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

FOREST, EXTRA_TREES = "random forest", "extra trees"
_SETTINGS: dict[str, Any] = {"n_estimators": 100, "min_samples_leaf": 4, "max_features": 0.5}
_UNSURE = 0.01  # of the probability is the same for each class, because a forest may give one of 0


@dataclass(frozen=True)
class Forest:
    """Bagged trees over the bins of the columns.

    Sources: Breiman, 2001, Random Forests; Geurts et al., 2006, Extremely randomized trees.

    Attributes:
        model: fitted on the bins of all rows.
        held_out_logits: of each row, by trees of the other folds. [N, M]
    """

    model: "RandomForestClassifier | ExtraTreesClassifier"
    bins: Bins
    held_out_logits: np.ndarray

    def logits(self, columns: np.ndarray) -> np.ndarray:
        """[B, F] float32 -> [B, M]"""
        return _smoothed(np.asarray(self.model.predict_proba(self.bins(columns))))

    def add(self, graph: Graph, columns: str) -> str:
        """Add the nodes of `logits`, and return the name of the result."""
        probabilities = graph.trees(self.model, columns, self.bins.value_of)
        certain = graph.add("Mul", probabilities, graph.constant(1 - _UNSURE, np.float32))
        unsure = graph.constant(_UNSURE / self.held_out_logits.shape[1], np.float32)
        return graph.add("Log", graph.add("Add", certain, unsure))


def fit_forest(
    kind: str, columns: np.ndarray, labels: np.ndarray, *, weights: np.ndarray, folds: np.ndarray, seed: int
) -> Forest:
    """Fit on N rows; the arguments are those of fit_trees.

    Args:
        kind: FOREST or EXTRA_TREES.
    """
    bins = Bins.fit(columns)
    binned = bins(columns)
    held_out = np.zeros((len(labels), int(labels.max()) + 1))
    for fold in range(FOLDS):
        val = folds == fold
        model = _fit(kind, binned[~val], labels[~val], weights=weights[~val], seed=seed)
        held_out[np.ix_(np.flatnonzero(val), model.classes_)] = model.predict_proba(binned[val])
    return Forest(_fit(kind, binned, labels, weights=weights, seed=seed), bins, _smoothed(held_out))


def _fit(kind: str, binned: np.ndarray, labels: np.ndarray, *, weights: np.ndarray, seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

    chosen = {FOREST: RandomForestClassifier, EXTRA_TREES: ExtraTreesClassifier}[kind]
    model = chosen(**_SETTINGS, random_state=seed % 2**32).fit(binned, labels, sample_weight=weights)
    for tree in model.estimators_:  # between two bins, so that rounding to 32 bits moves no row
        thresholds = tree.tree_.threshold
        thresholds[:] = np.floor(thresholds) + 0.5
    return model


def _smoothed(probabilities: np.ndarray) -> np.ndarray:
    return np.log((1 - _UNSURE) * probabilities + _UNSURE / probabilities.shape[1])
