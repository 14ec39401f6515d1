"""The softmax of logits in float64. Serving needs it too, and is installed without scipy."""

from collections.abc import Sequence

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities. [N, K] -> [N, K] float64"""
    exp = np.exp(_shifted(logits))
    return exp / exp.sum(axis=1, keepdims=True)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return logarithms of probabilities. [N, K] -> [N, K] float64"""
    shifted = _shifted(logits)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def log_mean_probabilities(logits: Sequence[np.ndarray]) -> np.ndarray:
    """Return logarithms of the mean of several networks' probabilities. n x [N, K] -> [N, K] float64"""
    return np.logaddexp.reduce([log_softmax(each) for each in logits]) - np.log(len(logits))


def _shifted(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return logits - logits.max(axis=1, keepdims=True)
