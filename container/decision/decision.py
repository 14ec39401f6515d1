"""Turn a trained model's logits into probabilities and a decided class, as decision.json defines."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field

from container.decision.calibrators import Calibrator, Isotonic, RisingLine, Temperature, log_softmax
from contracts import artifacts
from contracts.input_files import read_as
from contracts.value_types import Number

FORMAT_VERSION = 2
_UNCHANGED = Temperature()
Share = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True)
class PriorShift:
    """Correct the probabilities of two classes if class 1 has another share in use than they assume.

    p'(k | x) is proportional to p(k | x) * target(k) / source(k) (Saerens, Latinne & Decaestecker, 2002, Adjusting the
    Outputs of a Classifier to New a Priori Probabilities, equation 2.4).

    Attributes:
        source_share: share of class 1 that the probabilities assume.
        target_share: its share where the model is used.
    """

    source_share: Share
    target_share: Share

    @property
    def ratios(self) -> tuple[float, float]:
        """Return the factors of class 0's and class 1's probability, before both are scaled to a sum of 1."""
        return (1 - self.target_share) / (1 - self.source_share), self.target_share / self.source_share

    def __str__(self) -> str:
        return f"the share of class 1 is corrected from {self.source_share:.4g} to {self.target_share:.4g}"


@dataclass(frozen=True)
class ClassRatios:
    """Undo the class weights of the training loss as far as the probabilities of rare classes are too high.

    Attributes:
        ratios: factor of the probability of each class, before all are scaled to a sum of 1. [K]
    """

    ratios: tuple[Annotated[Number, Field(gt=0)], ...]

    def __str__(self) -> str:
        return "the effect of class_weights is removed from the probabilities"


@dataclass(frozen=True)
class Threshold:
    """Decide between two classes: class 1 if its probability is at least `value`.

    Attributes:
        target: `given`, or the target for which it was chosen on val.
        met: whether it reaches the target on val.
        gain: of auto_f1 and auto_accuracy: the increase over 0.5 on rows that did not choose it, and its 95 % interval.
        reached: decisions at `value` by split: counts, precision, recall, F1.
    """

    value: Number = 0.5
    target: str = "given"
    met: bool = True
    gain: tuple[Number, Number, Number] | None = None
    reached: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Scaling:
    method: Literal["none", "temperature"]
    fitted_on: int
    temperature: Annotated[Number, Field(gt=0)]


@dataclass(frozen=True)
class _Lines:
    method: Literal["isotonic"]
    fitted_on: int
    lines: Annotated[tuple[RisingLine, ...], Field(min_length=1)]


@dataclass(frozen=True)
class _File:
    """The content of decision.json."""

    format_version: Literal[2]
    calibration: Annotated[_Scaling | _Lines, Field(discriminator="method")]
    prior: PriorShift | ClassRatios | None
    threshold: Threshold | None


@dataclass(frozen=True)
class Decision:
    """Apply calibration, then prior correction, then the threshold.

    Attributes:
        method: none, temperature or isotonic.
        prior: a correction of the shares of the classes.
        fitted_on: number of labelled val records that the calibrator was fitted on; 0 without one.
        threshold: None for more than two classes, where the most probable one is decided.
    """

    method: str = "none"
    calibrator: Calibrator = _UNCHANGED
    fitted_on: int = 0
    prior: PriorShift | ClassRatios | None = None
    threshold: Threshold | None = None

    @property
    def changes_probabilities(self) -> bool:
        return self.method != "none" or self.prior is not None

    def log_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return logarithms of the served probabilities. [N, K] -> [N, K] float64"""
        calibrated = self.calibrator.log_probabilities(logits)
        return calibrated if self.prior is None else log_softmax(calibrated + np.log(self.prior.ratios))

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return the served probabilities. [N, K] -> [N, K] float64"""
        return np.exp(self.log_probabilities(logits))

    def decide(self, probabilities: np.ndarray) -> np.ndarray:
        """Return ids of the decided classes. [N, K] -> [N] int64"""
        if self.threshold is None:
            return probabilities.argmax(axis=1)
        return (probabilities[:, 1] >= self.threshold.value).astype(np.int64)

    def to_json(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "calibration": {"method": self.method, "fitted_on": self.fitted_on, **asdict(self.calibrator)},
            "prior": None if self.prior is None else asdict(self.prior),
            "threshold": None if self.threshold is None else asdict(self.threshold),
        }

    def save(self, folder: Path) -> None:
        """Write decision.json into `folder`."""
        text = json.dumps(self.to_json(), indent=1, allow_nan=False)
        (folder / artifacts.DECISION).write_text(text + "\n", "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ContractError: the file is missing, is not JSON, or does not have the declared content.
        """
        content = read_as(folder / artifacts.DECISION, _File, artifacts.MODEL_FIX)
        fit = content.calibration
        return cls(
            method=fit.method,
            calibrator=Isotonic(fit.lines) if isinstance(fit, _Lines) else Temperature(fit.temperature),
            fitted_on=fit.fitted_on,
            prior=content.prior,
            threshold=content.threshold,
        )
