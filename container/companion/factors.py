"""Fit the factors with which the logits of several models are summed."""

import numpy as np
from scipy.optimize import minimize

from container.decision.softmax import log_softmax

_LARGEST = 100.0


def fit_factors(parts: np.ndarray, labels: np.ndarray, *, weights: np.ndarray) -> np.ndarray:
    """Return the non-negative factors with the lowest log loss, a convex problem. [P, N, K] -> [P]

    As in fit_temperature, Laplace smoothing keeps the factors finite for records without an error.
    """
    num_records, num_classes = parts.shape[1:]
    unsure = 1 / (num_records + 2)
    target = np.full((num_records, num_classes), unsure / (num_classes - 1))  # [N, K]
    target[np.arange(num_records), labels] = 1 - unsure

    def loss(factors: np.ndarray) -> tuple[float, np.ndarray]:
        log_p = log_softmax(np.tensordot(factors, parts, 1))
        slopes = (parts * (np.exp(log_p) - target) * weights[:, None]).sum(axis=(1, 2)) / num_records
        return -float(((target * log_p).sum(axis=1) * weights).mean()), slopes

    start = np.full(len(parts), 1 / len(parts))
    return minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(0, _LARGEST)] * len(parts)).x


def losses_of(parts: np.ndarray, labels: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return the log loss of each record. [P, N, K], [N], [P] -> [N]"""
    return -log_softmax(np.tensordot(factors, parts, 1))[np.arange(len(labels)), labels]
