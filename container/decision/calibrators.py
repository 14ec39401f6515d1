"""Turn logits into logarithms of calibrated probabilities, in the same way in training, ONNX and serving."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import Field

from container.decision.softmax import log_softmax
from contracts.value_types import Number


@dataclass(frozen=True)
class Temperature:
    """softmax(logits / temperature) (Guo et al., 2017, On Calibration of Modern Neural Networks); 1 = unchanged."""

    temperature: float = 1.0

    def log_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """[N, K] -> [N, K] float64"""
        return log_softmax(logits.astype(np.float64) / self.temperature)


@dataclass(frozen=True)
class RisingLine:
    """Interpolate linearly between knots, with log-odds on both axes; constant beyond the outermost knots.

    A prior correction shifts such a line without changing its slope. A line of probabilities would become steep near
    0 and 1 and amplify a logit's rounding error.

    Attributes:
        log_odds: of a class by the softmax, ascending. [M], M >= 1
        probability: of the class, ascending, between 0 and 1. [M]
    """

    log_odds: tuple[Number, ...]
    probability: tuple[Annotated[float, Field(gt=0, lt=1)], ...]

    def __post_init__(self) -> None:
        if not len(self.log_odds) == len(self.probability) > 0:
            raise ValueError(f"{len(self.log_odds)} log_odds and {len(self.probability)} values of probability")
        for name in ("log_odds", "probability"):
            if any(after < before for before, after in pairwise(getattr(self, name))):
                raise ValueError(f"{name} is not ascending")

    @property
    def heights(self) -> np.ndarray:
        """Return log-odds of `probability`. [M]"""
        return np.log(self.probability) - np.log1p(np.negative(self.probability))

    def __call__(self, log_odds: np.ndarray) -> np.ndarray:
        """Return calibrated log-odds from log-odds of the softmax, of any shape."""
        return np.interp(log_odds, self.log_odds, self.heights)


@dataclass(frozen=True)
class Isotonic:
    """Calibrate each class with an ascending line; with more than two classes, one against the rest, scaled to sum 1.

    Source: Zadrozny & Elkan, 2002, Transforming Classifier Scores into Multiclass Probability Estimates.

    Attributes:
        lines: class 1's line for two classes, else one per class.
    """

    lines: tuple[RisingLine, ...]

    def log_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """[N, K] -> [N, K] float64"""
        odds = log_odds(logits)  # [N, K]
        if len(self.lines) == 1:
            calibrated = self.lines[0](odds[:, 1])
            return log_softmax(np.stack([np.zeros_like(calibrated), calibrated], axis=1))
        calibrated = np.stack([line(odds[:, k]) for k, line in enumerate(self.lines)], axis=1)
        return log_softmax(-np.logaddexp(0, -calibrated))  # logarithms of the probabilities, scaled to a sum of 1


Calibrator = Temperature | Isotonic


def log_odds(logits: np.ndarray) -> np.ndarray:
    """Return log(p / (1 - p)) of each class's softmax p: its logit against all others. [N, K] -> [N, K] float64"""
    logits = logits.astype(np.float64)
    rows, first = np.arange(len(logits)), logits.argmax(axis=1)
    # Of the others of all classes but the largest, the largest one is among them: the difference is at least 1.
    relative = np.exp(logits - logits[rows, first][:, None])
    rest = relative.sum(axis=1, keepdims=True) - relative
    rest[rows, first] = 1  # replaced
    others = logits[rows, first][:, None] + np.log(np.maximum(rest, 1))
    below = logits.copy()
    below[rows, first] = -np.inf
    second = below.max(axis=1)
    others[rows, first] = second + np.log(np.exp(below - second[:, None]).sum(axis=1))
    return logits - others
