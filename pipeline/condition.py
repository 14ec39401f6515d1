"""Check the condition of registration, and give the reason of its outcome."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import ContractError
from contracts.steps import CHAMPION, EVALUATION, VERSION
from pipeline.config import Condition

VALUE_PATH = "decision.value"  # in evaluation.json
LEAD_PATH = f"decision.{CHAMPION}.lead"


@dataclass(frozen=True)
class ConditionOutcome:
    """The outcome of the condition for one model.

    Attributes:
        value: the metric; None where it is undefined.
        champion: the comparison with the registered model: container/steps/metrics/champion.py, Lead.
    """

    condition: Condition
    value: float | None
    champion: Mapping[str, Any]

    @property
    def holds(self) -> bool:
        """Return whether the model is registered; an undefined metric reaches no limit."""
        if self.value is None:
            return False
        sign = 1 if self.condition.higher_is_better else -1
        return sign * self.value >= sign * self.condition.threshold and self.champion["lead"] >= 0

    def sentence(self) -> str:
        """Return the condition, the metric's value and the comparison in one sentence."""
        condition, found = self.condition, self.champion
        value = "undefined" if self.value is None else f"{self.value:.6g}"
        limit = f"{condition.word} {condition.threshold:.6g} ({condition.threshold_key})"
        if found["value"] is not None:
            limit += f" and as good as the {condition.beat} registered model, which has {found['value']:.6g} on the "
            limit += f"same {found['records']} records"
        if found["standard_error"]:
            limit += f" (difference {found['difference']:+.6g}, standard error {found['standard_error']:.2g}"
            limit += f", required {condition.margin_standard_errors:g} standard errors)"
        if self.holds:
            return f"{condition.metric} is {value}; required: {limit}."
        return f"The model was not registered: {condition.metric} is {value}, but must be {limit}."


def check_condition(condition: Condition, metrics: Path) -> ConditionOutcome:
    """Compare the metrics in a metrics_output folder with the condition."""
    decision = decision_of((metrics / EVALUATION).read_text(encoding="utf-8"), where=str(metrics / EVALUATION))
    value = decision["value"]
    return ConditionOutcome(condition, None if value is None else float(value), decision[CHAMPION])


def decision_of(evaluation: str, *, where: str) -> dict[str, Any]:
    """Return what decides in the text of an evaluation.json: the metric's value, and the comparison of CHAMPION.

    Raises:
        ContractError: one is missing.
    """
    try:
        decision = json.loads(evaluation)["decision"]
        _ = float(decision["value"] or 0), float(decision[CHAMPION]["lead"])
        return decision
    except (ValueError, KeyError, TypeError):
        raise ContractError(
            f"{where}: has no number {VALUE_PATH}", "Run ModelMetricsComputation of this version."
        ) from None


def version_facts(metrics: Path) -> dict[str, str]:
    """Return what describes a version, from a metrics_output folder."""
    return json.loads((metrics / EVALUATION).read_text(encoding="utf-8"))[VERSION]
