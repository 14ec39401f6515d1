"""Writes the model card for reviewers, in the JSON format of SageMaker model cards."""

import json
from collections.abc import Mapping

from pipeline.config import PipelineConfig
from pipeline.decision import ConditionOutcome


def model_card(
    config: PipelineConfig, hyperparameters: Mapping[str, str], *, image: str | None, decision: ConditionOutcome | None
) -> str:
    """Return the card as JSON; the same arguments give the same bytes.

    Args:
        image: the image that trained and serves; None for a local run.
        decision: the outcome of the condition, where it is known when the card is written.
    """
    own = config.registration
    card = {
        "model_overview": {"model_creator": own.creator},
        "business_details": {"business_problem": own.problem},
        "intended_uses": {
            "intended_uses": own.intended_uses,
            "risk_rating": own.risk_rating,
        },
        "training_details": {
            "objective_function": {"notes": "Weighted cross-entropy over the global batch."},
            "training_observations": f"Model class {hyperparameters['model_class']}, "
            f"best weights by {hyperparameters.get('early_stop_metric', 'val/f1_score')}.",
            "training_job_details": {
                "user_provided_hyper_parameters": [
                    {"name": name, "value": value} for name, value in sorted(hyperparameters.items())
                ],
                "training_environment": {"container_image": [image] if image else []},
            },
        },
        "evaluation_details": [_evaluation(config, decision)],
        "additional_information": {"caveats_and_recommendations": own.caveats},
    }
    return json.dumps(_without_empty(card), sort_keys=True)


def _evaluation(config: PipelineConfig, decision: ConditionOutcome | None) -> dict[str, object]:
    condition = config.condition
    word = "at least" if condition.higher_is_better else "at most"
    asked = f"{condition.metric} {word} {condition.threshold:g}"
    if condition.beat != "nothing":
        asked += f", and as good as the {condition.beat} registered model (margin {condition.margin:g})"
    evaluation: dict[str, object] = {
        "name": "Condition of registration",
        "evaluation_observation": f"Required: {asked}.",
    }
    if decision is not None and decision.value is not None:
        measured = {"name": condition.metric, "type": "number", "value": decision.value}
        evaluation["metric_groups"] = [{"name": "decision", "metric_data": [measured]}]
    return evaluation


def _without_empty(value: object) -> object:
    if isinstance(value, dict):
        kept = {key: _without_empty(part) for key, part in value.items()}
        return {key: part for key, part in kept.items() if part not in ("", {}, [], None)}
    return [_without_empty(part) for part in value] if isinstance(value, list) else value
