"""Fit boosted trees on features of the table and the texts; held-out rows choose their size and number of rounds."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from container.companion.linear import FOLDS, num_columns
from container.companion.nodes import Graph
from container.cores import threads_for

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier

_SETTINGS: dict[str, Any] = {"min_samples_leaf": 20, "l2_regularization": 1.0}
LEAVES = (5, 15)  # of a tree: few for the sum of many weak features, more for combinations of columns
_TINY = 1e-12
_MOST_TREES = 4000  # over all classes
_MOST_ROUNDS, _FEWEST_ROUNDS = 500, 20
_MOST_VALUES = 6_000_000_000  # rows * features * trees of a fit, which determine its time
_SLOWEST, _FASTEST = 0.05, 0.2  # learning rates
_USUAL_ROUNDS = 80  # with fewer, the rate rises
_PATIENCE = 20  # rounds without a better loss on the held-out rows
_MOST_BINS = 255  # of HistGradientBoostingClassifier


@dataclass(frozen=True)
class Bins:
    """Divide each feature at thresholds: x is in bin i if thresholds[i - 1] < x <= thresholds[i].

    scikit-learn would find bins anew in each fit, with a sort for each of 254 percentiles if rows have weights.

    Attributes:
        thresholds: of each feature, increasing. [at most 254] float32 each
    """

    thresholds: tuple[np.ndarray, ...]

    @classmethod
    def fit(cls, features: np.ndarray) -> "Bins":
        """Divide between distinct values, or at percentiles if there are more than 255. [N, F]"""
        return cls(tuple(map(_thresholds, features.T)))

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Return the bin of each value. [N, F] -> [N, F] uint8"""
        binned = np.empty(features.shape, np.uint8)
        for f, thresholds in enumerate(self.thresholds):
            binned[:, f] = np.searchsorted(thresholds, features[:, f])
        return binned

    def value_of(self, feature: int, boundary: float) -> float:
        """Return t so that x <= t if and only if the bin of x is at most `boundary`."""
        return float(self.thresholds[feature][int(boundary)])


def _thresholds(values: np.ndarray) -> np.ndarray:
    distinct = np.unique(values).astype(np.float64)
    if len(distinct) <= _MOST_BINS:
        found = (distinct[1:] + distinct[:-1]) / 2
    else:
        found = np.percentile(values, np.linspace(0, 100, _MOST_BINS + 1)[1:-1], method="averaged_inverted_cdf")
    return np.unique(found.astype(np.float32))


def schedule(num_rows: int, *, num_features: int, num_classes: int) -> tuple[int, float]:
    """Return the number of rounds that the time of a fit allows, and the learning rate for them."""
    trees = num_columns(num_classes)
    affordable = _MOST_VALUES // (num_rows * num_features * trees)
    most = max(_FEWEST_ROUNDS, min(_MOST_ROUNDS, _MOST_TREES // trees, affordable))
    return most, min(_FASTEST, _SLOWEST * max(1.0, _USUAL_ROUNDS / most))


def most_rows(*, num_features: int, num_classes: int) -> int:
    """Return the number of rows with which a fit has at least the fewest rounds."""
    return _MOST_VALUES // (_FEWEST_ROUNDS * num_features * num_columns(num_classes))


@dataclass(frozen=True)
class HeldOut:
    """What trees with `leaves` leaves predict for held-out rows.

    Attributes:
        rounds: the number with the lowest loss on held-out rows, mean over the folds.
        out_of_fold: probabilities of each row, by trees of the other folds. [N, K]
    """

    leaves: int
    rounds: int
    out_of_fold: np.ndarray

    def losses(self, labels: np.ndarray) -> np.ndarray:
        """Return the log loss of each row. [N] -> [N]"""
        return -np.log(np.maximum(self.out_of_fold[np.arange(len(labels)), labels], _TINY))


@dataclass(frozen=True)
class FittedTrees:
    """Boosted trees.

    Attributes:
        model: fitted on the bins of all rows.
        bins: of the features.
        held_out: of trees of this size.
    """

    model: "HistGradientBoostingClassifier"
    bins: Bins
    held_out: HeldOut

    @property
    def held_out_logits(self) -> np.ndarray:
        return _logits(self.held_out.out_of_fold)

    def logits(self, columns: np.ndarray) -> np.ndarray:
        """[B, F] float32 -> [B, M]"""
        return _logits(self.model.predict_proba(self.bins(columns)))

    def add(self, graph: Graph, columns: str) -> str:
        """Add the nodes of `logits`, and return the name of the result."""
        raw = graph.trees(self.model, columns, self.bins.value_of, raw_scores=True)
        if self.held_out.out_of_fold.shape[1] > 2:
            return graph.add("LogSoftmax", raw, axis=1)
        return graph.binary(graph.slice(raw, 1, 2, axis=1))  # only the second is the score: the first has two meanings


def _logits(probabilities: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(probabilities, _TINY))


def fit_trees(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    weights: np.ndarray,
    folds: np.ndarray,
    seed: int,
    sizes: Sequence[int] = LEAVES,
) -> FittedTrees:
    """Fit on N rows of K classes; each fold is held out once, to choose the size of the trees and the rounds.

    Args:
        features: [N, F] float32
        labels: 0..K-1, each in the rows of every fold's complement. [N]
        weights: of the rows. [N]
        folds: fold of each row. [N]
        sizes: numbers of leaves to choose from.
    """
    num_classes = int(labels.max()) + 1
    bins = Bins.fit(features)
    binned = bins(features)
    most_rounds, rate = schedule(len(labels), num_features=features.shape[1], num_classes=num_classes)
    boosting = partial(_boosting, learning_rate=rate, random_state=seed % 2**32)
    with threads_for(features.size):
        tried = [
            _hold_out(
                partial(boosting, max_leaf_nodes=leaves),
                binned,
                labels,
                leaves=leaves,
                most_rounds=most_rounds,
                weights=weights,
                folds=folds,
            )
            for leaves in sizes
        ]
        best = min(tried, key=lambda size: float((weights * size.losses(labels)).mean()))
        model = boosting(max_leaf_nodes=best.leaves, max_iter=best.rounds, early_stopping=False)
        model.fit(binned, labels, sample_weight=weights)
    return FittedTrees(model, bins, best)


def _hold_out(
    boosting: Callable[..., "HistGradientBoostingClassifier"],
    binned: np.ndarray,
    labels: np.ndarray,
    *,
    leaves: int,
    most_rounds: int,
    weights: np.ndarray,
    folds: np.ndarray,
) -> HeldOut:
    models = []
    for fold in range(FOLDS):
        val = folds == fold
        model = boosting(max_iter=most_rounds, early_stopping=True, n_iter_no_change=_PATIENCE)
        held_out = {"X_val": binned[val], "y_val": labels[val], "sample_weight_val": weights[val]}
        model.fit(binned[~val], labels[~val], sample_weight=weights[~val], **held_out)
        models.append(model)
    rounds = round(float(np.mean([max(1, int(np.argmax(model.validation_score_))) for model in models])))
    predicted = np.empty((len(labels), int(labels.max()) + 1))
    for fold, model in enumerate(models):  # the same rounds in each fold: a fold's own best would flatter the trees
        staged = islice(model.staged_predict_proba(binned[folds == fold]), rounds)
        predicted[folds == fold] = deque(staged, maxlen=1).pop()  # keeps one round in memory
    return HeldOut(leaves, rounds, predicted)


def _boosting(**settings: Any) -> "HistGradientBoostingClassifier":
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(**_SETTINGS, **settings)
