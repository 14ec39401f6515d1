"""The softmax of logits in float64. Serving needs it too, and is installed without scipy."""

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities. [N, K] -> [N, K] float64"""
    exp = np.exp(_shifted(logits))
    return exp / exp.sum(axis=1, keepdims=True)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return logarithms of probabilities. [N, K] -> [N, K] float64"""
    shifted = _shifted(logits)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _shifted(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return logits - logits.max(axis=1, keepdims=True)
