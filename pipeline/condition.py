"""Check the condition of registration, and give the reason of its outcome."""

import json
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import ContractError
from contracts.steps import EVALUATION
from pipeline.config import Condition

VALUE_PATH = "decision.value"  # in evaluation.json
_UNREACHABLE = 1e30


@dataclass(frozen=True)
class Requirement:
    """One limit of the condition, and where it comes from."""

    limit: float
    because: str


@dataclass(frozen=True)
class ConditionOutcome:
    """The outcome of the condition for one model.

    Attributes:
        value: the metric; None where it is undefined.
        missed: the requirements that it does not meet; none: the model is registered.
    """

    condition: Condition
    value: float | None
    requirements: tuple[Requirement, ...]
    missed: tuple[Requirement, ...]

    @property
    def holds(self) -> bool:
        return not self.missed

    def sentence(self) -> str:
        """Return the condition and the metric's value in one sentence."""
        metric, value = self.condition.metric, "undefined" if self.value is None else f"{self.value:.6g}"
        limits = " and ".join(f"{self.condition.word} {each.limit:.6g} ({each.because})" for each in self.requirements)
        if self.holds:
            return f"{metric} is {value}; required: {limits}."
        return f"The model was not registered: {metric} is {value}, but must be {limits}."


def limit_to_beat(condition: Condition, registered: float) -> float:
    """Return the registered model's metric, moved by the margin."""
    return registered + (condition.margin if condition.higher_is_better else -condition.margin)


def unreachable(condition: Condition) -> float:
    """Return a limit that no model meets, far from every metric and from every loss."""
    return _UNREACHABLE if condition.higher_is_better else -_UNREACHABLE


def check_condition(condition: Condition, value: float | None, registered: float | None) -> ConditionOutcome:
    """Compare a metric with the condition; an undefined metric meets no requirement.

    Args:
        registered: the metric of the registered model that must be beaten; None where there is none.
    """
    threshold = Requirement(condition.threshold, f"condition.{'minimum' if condition.higher_is_better else 'maximum'}")
    requirements = (threshold,)
    if condition.beat != "nothing" and registered is not None:
        because = f"the {condition.beat} registered model"
        requirements = (threshold, Requirement(limit_to_beat(condition, registered), because))

    def met(limit: float) -> bool:
        if value is None:
            return False
        return value >= limit if condition.higher_is_better else value <= limit

    return ConditionOutcome(condition, value, requirements, tuple(each for each in requirements if not met(each.limit)))


def measured_value(evaluation: str, *, where: str) -> float | None:
    """Return the metric of the condition in the text of an evaluation.json.

    Raises:
        ContractError: the metric is missing.
    """
    try:
        content = json.loads(evaluation)
        for key in VALUE_PATH.split("."):
            content = content[key]
        return None if content is None else float(content)
    except (ValueError, KeyError, TypeError):
        raise ContractError(
            f"{where}: has no number {VALUE_PATH}", "Run ModelMetricsComputation of this version."
        ) from None


def read_measured_value(metrics: Path) -> float | None:
    """Return the metric of the condition in a metrics_output folder."""
    path = metrics / EVALUATION
    return measured_value(path.read_text(encoding="utf-8"), where=str(path))
