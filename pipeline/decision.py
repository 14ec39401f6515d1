"""Decides whether a model is registered, and says why not."""

import json
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import ContractError
from contracts.steps import EVALUATION
from pipeline.config import Condition

VALUE_PATH = "decision.value"  # in evaluation.json


@dataclass(frozen=True)
class Requirement:
    """One side of the condition.

    Attributes:
        limit: what the metric is compared with.
        because: where the limit comes from, for a person.
    """

    limit: float
    because: str


@dataclass(frozen=True)
class ConditionOutcome:
    """The outcome of the condition for one model.

    Attributes:
        value: the metric; None where it is undefined.
        missed: the requirements that it does not meet; none: the model is registered.
    """

    metric: str
    value: float | None
    higher_is_better: bool
    requirements: tuple[Requirement, ...]
    missed: tuple[Requirement, ...]

    @property
    def holds(self) -> bool:
        return not self.missed

    def sentence(self) -> str:
        """Return the condition and the metric's value in one sentence."""
        word = "at least" if self.higher_is_better else "at most"
        value = "undefined" if self.value is None else f"{self.value:.6g}"
        asked = " and ".join(f"{word} {each.limit:.6g} ({each.because})" for each in self.requirements)
        if self.holds:
            return f"{self.metric} is {value}; required: {asked}."
        return f"The model was not registered: {self.metric} is {value}, but must be {asked}."


def requirements(condition: Condition, registered: float | None) -> tuple[Requirement, ...]:
    """Return the requirements that the metric must meet.

    Args:
        registered: the metric of the registered model that must be beaten; None where there is none.
    """
    threshold = Requirement(condition.threshold, f"condition.{'minimum' if condition.higher_is_better else 'maximum'}")
    if condition.beat == "nothing" or registered is None:
        return (threshold,)
    return threshold, Requirement(limit_to_beat(condition, registered), f"the {condition.beat} registered model")


def limit_to_beat(condition: Condition, registered: float) -> float:
    """Return the registered model's metric, moved by the margin."""
    return registered + (condition.margin if condition.higher_is_better else -condition.margin)


def decide(condition: Condition, value: float | None, registered: float | None) -> ConditionOutcome:
    """Compare a metric with the condition; an undefined metric meets no requirement."""
    needed = requirements(condition, registered)

    def met(requirement: Requirement) -> bool:
        if value is None:
            return False
        return value >= requirement.limit if condition.higher_is_better else value <= requirement.limit

    return ConditionOutcome(
        condition.metric, value, condition.higher_is_better, needed, tuple(each for each in needed if not met(each))
    )


def decision_value(evaluation: str, *, where: str) -> float | None:
    """Return the metric of the condition, as evaluation.json has it.

    Raises:
        ContractError: it is not there.
    """
    found = json.loads(evaluation)
    for key in VALUE_PATH.split("."):
        if not isinstance(found, dict) or key not in found:
            raise ContractError(f"{where}: has no {VALUE_PATH}", "Run ModelMetricsComputation of this version.")
        found = found[key]
    return None if found is None else float(found)


def read_decision_value(metrics: Path) -> float | None:
    """Return the same from a metrics_output folder."""
    path = metrics / EVALUATION
    return decision_value(path.read_text(encoding="utf-8"), where=str(path))
