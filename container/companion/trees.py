"""Fit boosted trees on the table and the scores of the texts, with a number of rounds chosen on held-out rows."""

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier

_SETTINGS: dict[str, Any] = {
    "learning_rate": 0.05,
    "max_leaf_nodes": 5,
    "min_samples_leaf": 20,
    "l2_regularization": 1.0,
}
_MOST_TREES = 4000  # over all classes
_MOST_ROUNDS = 500
_PATIENCE = 20  # rounds without a better loss on the held-out rows


@dataclass(frozen=True)
class FittedTrees:
    """Boosted trees.

    Attributes:
        model: fitted on all rows.
        rounds: the number with the lowest loss on held-out rows, mean over the folds.
        out_of_fold: probabilities of each row, by trees of the other folds; NaN if its fold was not held out. [N, K]
    """

    model: "HistGradientBoostingClassifier"
    rounds: int
    out_of_fold: np.ndarray


def fit_trees(
    features: np.ndarray, labels: np.ndarray, *, weights: np.ndarray, folds: np.ndarray, held_out: int, seed: int
) -> FittedTrees:
    """Fit on N rows of K classes.

    Args:
        features: [N, F] float32
        labels: 0..K-1, each in the rows of every fold's complement. [N]
        weights: of the rows. [N]
        folds: fold of each row. [N]
        held_out: number of folds that are held out, one after the other, to choose the number of rounds.
    """
    num_classes = int(labels.max()) + 1
    most = min(_MOST_ROUNDS, _MOST_TREES // (1 if num_classes == 2 else num_classes))
    predicted, rounds = np.full((len(labels), num_classes), np.nan), []
    for fold in range(held_out):
        val = folds == fold
        model = _boosting(seed, max_iter=most, early_stopping=True, n_iter_no_change=_PATIENCE)
        model.fit(
            features[~val], labels[~val], sample_weight=weights[~val],
            X_val=features[val], y_val=labels[val], sample_weight_val=weights[val],
        )  # fmt: skip
        best = max(1, int(np.argmax(model.validation_score_)))
        predicted[val] = next(islice(model.staged_predict_proba(features[val]), best - 1, None))
        rounds.append(best)
    chosen = round(float(np.mean(rounds)))
    model = _boosting(seed, max_iter=chosen, early_stopping=False)
    model.fit(features, labels, sample_weight=weights)
    return FittedTrees(model, chosen, predicted)


def _boosting(seed: int, **settings: Any) -> "HistGradientBoostingClassifier":
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(**_SETTINGS, **settings, random_state=seed % 2**32)
