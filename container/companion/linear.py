"""Fit a linear score of each text: logistic regression over its terms, out of fold for training rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

FOLDS = 5
_STRENGTH = 3.0  # C of scikit-learn's LogisticRegression
_ITERATIONS = 100


def num_columns(num_classes: int) -> int:
    """Return C, the number of scores that decide between classes, and of trees in a round of boosting."""
    return 1 if num_classes == 2 else num_classes


def count_scores(num_texts: int, *, columns: int) -> int:
    """Return S: C scores of each text and, with two texts, of their sum."""
    return columns * (num_texts + (num_texts > 1))


@dataclass(frozen=True)
class LinearText:
    """Multinomial logistic regression over the terms of all texts.

    Attributes:
        weights: of the terms of each text. [R, C] each
        bias: [C]
    """

    weights: tuple[np.ndarray, ...]
    bias: np.ndarray

    def scores(self, terms: Sequence[sparse.csr_matrix]) -> np.ndarray:
        """Return the score of each text, then with two texts their sum; the bias is part of the last. [N, S]"""
        parts = [matrix @ weights for matrix, weights in zip(terms, self.weights, strict=True)]
        if len(parts) > 1:
            parts.append(sum(parts))
        parts[-1] = parts[-1] + self.bias
        return np.concatenate(parts, axis=1)


def fit_linear(terms: Sequence[sparse.csr_matrix], labels: np.ndarray, *, weights: np.ndarray) -> LinearText:
    """Fit on N records of at least two classes.

    Args:
        terms: of each text. [N, R] each
        weights: of the records. [N]
    """
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    model = LogisticRegression(C=_STRENGTH, max_iter=_ITERATIONS, tol=1e-3)
    with threadpool_limits(1, "blas"):  # the order of sums must not depend on the number of threads
        model.fit(sparse.hstack(terms, format="csr"), labels, sample_weight=weights)
    ends = np.cumsum([matrix.get_shape()[1] for matrix in terms])[:-1]
    parts = np.split(np.asarray(model.coef_), ends, axis=1)
    return LinearText(tuple(part.T for part in parts), np.asarray(model.intercept_))


def out_of_fold(
    terms: Sequence[sparse.csr_matrix], labels: np.ndarray, *, weights: np.ndarray, folds: np.ndarray
) -> np.ndarray:
    """Return the scores of each record, of the regression on the other folds. [N, S]"""
    scores: np.ndarray | None = None
    for fold in range(FOLDS):
        held_out = folds == fold
        fitted = fit_linear([matrix[~held_out] for matrix in terms], labels[~held_out], weights=weights[~held_out])
        found = fitted.scores([matrix[held_out] for matrix in terms])
        scores = np.empty((len(labels), found.shape[1])) if scores is None else scores
        scores[held_out] = found
    assert scores is not None
    return scores
