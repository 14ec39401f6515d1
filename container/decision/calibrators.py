"""Calibrators: logits in, logarithms of calibrated probabilities out; applied alike in training, ONNX and serving."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from contracts.errors import ContractError


class Calibrator(Protocol):
    """Turns logits [N, K] into log probabilities [N, K], float64."""

    def log_probabilities(self, logits: np.ndarray) -> np.ndarray: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Temperature:
    """softmax(logits / temperature) (Guo et al., 2017, On Calibration of Modern Neural Networks); 1 = as they are."""

    temperature: float = 1.0

    def log_probabilities(self, logits: np.ndarray) -> np.ndarray:
        return log_softmax(logits.astype(np.float64) / self.temperature)

    def to_json(self) -> dict[str, Any]:
        return {"temperature": self.temperature}


@dataclass(frozen=True)
class RisingLine:
    """Straight lines between knots, level beyond the outermost.

    Attributes:
        x: log-odds of a class by the softmax, ascending. [M], M >= 1
        y: its probability, ascending. [M]
    """

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __call__(self, log_odds: np.ndarray) -> np.ndarray:
        return np.interp(log_odds, self.x, self.y)


@dataclass(frozen=True)
class Isotonic:
    """Each class's probability bent by a line that never falls; more than two classes: one against the rest, then
    scaled to a sum of 1 (Zadrozny & Elkan, 2002, Transforming Classifier Scores into Multiclass Probability Estimates).

    Attributes:
        lines: class 1's alone for two classes, else one per class.
    """

    lines: tuple[RisingLine, ...]

    def log_probabilities(self, logits: np.ndarray) -> np.ndarray:
        odds = log_odds(logits)  # [N, K]
        if len(self.lines) == 1:
            positive = self.lines[0](odds[:, 1])
            bent = np.stack([1 - positive, positive], axis=1)
        else:
            bent = np.stack([line(odds[:, k]) for k, line in enumerate(self.lines)], axis=1)
        return np.log(bent) - np.log(bent.sum(axis=1, keepdims=True))

    def to_json(self) -> dict[str, Any]:
        return {"lines": [{"log_odds": list(line.x), "probability": list(line.y)} for line in self.lines]}


def read_calibrator(method: str, found: Mapping[str, Any], *, source: str) -> Calibrator:
    """What `to_json` wrote, by the method's name."""
    if method in ("none", "temperature"):
        return Temperature(found["temperature"])
    if method == "isotonic":
        return Isotonic(
            tuple(RisingLine(tuple(line["log_odds"]), tuple(line["probability"])) for line in found["lines"])
        )
    raise ContractError(
        f"{source}: calibration method {method!r} is not known", "Use the version of this project that wrote it."
    )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the softmax. [N, K] float64 -> [N, K]"""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def log_odds(logits: np.ndarray) -> np.ndarray:
    """log(p / (1 - p)) of each class's softmax p: its logit against the others together. [N, K] -> [N, K] float64"""
    logits = logits.astype(np.float64)
    num_classes = logits.shape[1]
    others = np.where(np.eye(num_classes, dtype=bool), -np.inf, logits[:, None, :])  # [N, K, K]
    largest = others.max(axis=2, keepdims=True)
    return logits - (largest + np.log(np.exp(others - largest).sum(axis=2, keepdims=True)))[..., 0]
