"""Check the condition of registration, and give the reason of its outcome."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import ContractError
from contracts.steps import EVALUATION, VERSION
from pipeline.config import Condition

VALUE_PATH = "decision.value"  # in evaluation.json
_UNREACHABLE = 1e30


@dataclass(frozen=True)
class ConditionOutcome:
    """The outcome of the condition for one model.

    Attributes:
        value: the metric; None where it is undefined.
        limits: what it must reach, by the origin of the limit.
    """

    condition: Condition
    value: float | None
    limits: Mapping[str, float]

    @property
    def holds(self) -> bool:
        """Return whether the model is registered; an undefined metric reaches no limit."""
        if self.value is None:
            return False
        sign = 1 if self.condition.higher_is_better else -1
        return all(sign * self.value >= sign * limit for limit in self.limits.values())

    def sentence(self) -> str:
        """Return the condition and the metric's value in one sentence."""
        metric, value = self.condition.metric, "undefined" if self.value is None else f"{self.value:.6g}"
        limits = " and ".join(f"{self.condition.word} {each:.6g} ({origin})" for origin, each in self.limits.items())
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
    """Compare a metric with the condition.

    Args:
        registered: the metric of the registered model that must be beaten; None where there is none.
    """
    limits = {f"condition.{'minimum' if condition.higher_is_better else 'maximum'}": condition.threshold}
    if condition.beat != "nothing" and registered is not None:
        limits[f"the {condition.beat} registered model"] = limit_to_beat(condition, registered)
    return ConditionOutcome(condition, value, limits)


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


def version_facts(metrics: Path) -> dict[str, str]:
    """Return what describes a version, from a metrics_output folder."""
    return json.loads((metrics / EVALUATION).read_text(encoding="utf-8"))[VERSION]


def read_measured_value(metrics: Path) -> float | None:
    """Return the metric of the condition in a metrics_output folder."""
    path = metrics / EVALUATION
    return measured_value(path.read_text(encoding="utf-8"), where=str(path))
