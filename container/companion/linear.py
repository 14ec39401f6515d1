"""Fit linear scores: logistic regression over the terms of the texts, and over the columns of a companion."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from container.companion.nodes import Graph

FOLDS = 5
_STRENGTH = 3.0  # C of scikit-learn's LogisticRegression, over terms
_COLUMNS_STRENGTH = 0.2  # over columns
_FARTHEST = 5.0  # standard deviations from the mean
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
    coefficients, bias = _regression(
        sparse.csr_matrix(sparse.hstack(terms)), labels, weights=weights, strength=_STRENGTH
    )
    ends = np.cumsum([matrix.get_shape()[1] for matrix in terms])[:-1]
    return LinearText(tuple(np.split(coefficients, ends)), bias)


def _regression(
    inputs: sparse.csr_matrix | np.ndarray, labels: np.ndarray, *, weights: np.ndarray, strength: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients [F, C] and the bias [C] of logistic regression."""
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    model = LogisticRegression(C=strength, max_iter=_ITERATIONS, tol=1e-3)
    with threadpool_limits(1, "blas"):  # the order of sums must not depend on the number of threads
        model.fit(inputs, labels, sample_weight=weights)
    return np.asarray(model.coef_).T, np.asarray(model.intercept_)


def out_of_fold(
    terms: Sequence[sparse.csr_matrix], labels: np.ndarray, *, weights: np.ndarray, folds: np.ndarray
) -> np.ndarray:
    """Return the scores of each record, of the regression on the other folds. [N, S]"""
    scores: np.ndarray | None = None
    for fold in range(FOLDS):
        held_out = folds == fold
        fitted = fit_linear([matrix[~held_out] for matrix in terms], labels[~held_out], weights=weights[~held_out])
        of_fold = fitted.scores([matrix[held_out] for matrix in terms])
        scores = np.empty((len(labels), of_fold.shape[1])) if scores is None else scores
        scores[held_out] = of_fold
    assert scores is not None
    return scores


def as_logits(scores: np.ndarray) -> np.ndarray:
    """Return the logits of M classes from C scores. [N, C] -> [N, M]"""
    return scores * np.array([-0.5, 0.5]) if scores.shape[1] == 1 else scores


@dataclass(frozen=True)
class TextPart:
    """The linear score of all texts as a part of a companion.

    Attributes:
        held_out_logits: of each training row, by regressions on the other folds. [N, M]
        start, end: its C columns.
    """

    held_out_logits: np.ndarray
    start: int
    end: int

    def logits(self, columns: np.ndarray) -> np.ndarray:
        """[B, F] float32 -> [B, M]"""
        return as_logits(columns[:, self.start : self.end])

    def add(self, graph: Graph, columns: str) -> str:
        """Add the nodes of `logits`, and return the name of the result."""
        scores = graph.slice(columns, self.start, self.end, axis=1)
        return graph.binary(scores) if self.end - self.start == 1 else scores


@dataclass(frozen=True)
class LinearColumns:
    """Logistic regression over the standardized columns of a companion, with limits for outliers.

    Attributes:
        mean, scale: of each column. [F] each
        weights: [F, C]
        bias: [C]
        held_out_logits: of each training row, by regressions on the other folds. [N, M]
    """

    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    held_out_logits: np.ndarray

    def logits(self, columns: np.ndarray) -> np.ndarray:
        """[B, F] float32 -> [B, M]"""
        return as_logits(_standardized(columns, self.mean, self.scale) @ self.weights + self.bias)

    def add(self, graph: Graph, columns: str) -> str:
        """Add the nodes of `logits`, and return the name of the result."""
        centered = graph.add("Sub", columns, graph.constant(self.mean, np.float32))
        scaled = graph.add("Div", centered, graph.constant(self.scale, np.float32))
        limits = (graph.constant(limit, np.float32) for limit in (-_FARTHEST, _FARTHEST))
        clipped = graph.add("Clip", scaled, *limits)
        weights, bias = (graph.constant(value, np.float32) for value in (self.weights, self.bias))
        score = graph.add("Gemm", clipped, weights, bias)  # not MatMul, which 8-bit variants round
        return graph.binary(score) if len(self.bias) == 1 else score


def fit_linear_columns(
    columns: np.ndarray, labels: np.ndarray, *, weights: np.ndarray, folds: np.ndarray
) -> LinearColumns:
    """Fit on N rows; the arguments are those of fit_trees."""
    mean, spread = columns.mean(axis=0, dtype=np.float64), columns.std(axis=0, dtype=np.float64)
    scale = np.where(spread > 0, spread, 1.0)
    inputs = _standardized(columns, mean, scale)
    held_out = np.empty((len(labels), int(labels.max()) + 1))
    for fold in range(FOLDS):
        val = folds == fold
        fitted, bias = _regression(inputs[~val], labels[~val], weights=weights[~val], strength=_COLUMNS_STRENGTH)
        held_out[val] = as_logits(inputs[val] @ fitted + bias)
    fitted, bias = _regression(inputs, labels, weights=weights, strength=_COLUMNS_STRENGTH)
    return LinearColumns(mean, scale, fitted, bias, held_out)


def _standardized(columns: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.clip((columns - mean) / scale, -_FARTHEST, _FARTHEST)
