"""Write the model card for reviewers, in the JSON format of SageMaker model cards."""

import json
from collections.abc import Collection, Mapping

from contracts.errors import shortened
from pipeline.condition import ConditionOutcome
from pipeline.config import PipelineConfig
from pipeline.plan import MOST_VALUES

DOMAIN, TASK = "NATURAL_LANGUAGE_PROCESSING", "CLASSIFICATION"  # of every model package


def model_card(
    config: PipelineConfig,
    hyperparameters: Mapping[str, str],
    *,
    searched: Collection[str] = (),
    image: str | None,
    outcome: ConditionOutcome | None,
) -> str:
    """Return the card as JSON; the same arguments give the same bytes.

    Args:
        searched: the hyperparameters that SageMaker's tuner chooses; those of a search in the job are in its `tuning`.
        image: the image for training and serving; None for a local run.
        outcome: the outcome of the condition; None in a definition, whose executions have parameters.
    """
    registration = config.registration
    search = json.loads(hyperparameters.get("tuning", "null")) or {}
    searched = {*searched, *(search.get("space") or ())}
    given = {name: value for name, value in hyperparameters.items() if name not in searched}
    known = {"loss": "cross_entropy", "early_stop_metric": _default_metric(given), **given}
    known |= dict.fromkeys(searched, "of the best trial")
    known["early_stop_metric"] = search.get("metric") or known["early_stop_metric"]
    parameters = "" if outcome else " Parameters of an execution take precedence."
    card = {
        "model_overview": {"model_creator": registration.creator},
        "business_details": {"business_problem": registration.problem},
        "intended_uses": {"intended_uses": registration.intended_uses, "risk_rating": registration.risk_rating},
        "training_details": {
            "objective_function": {"notes": f"Loss {known['loss']}, weighted by class, over the global batch."},
            "training_observations": f"Model class {known['model_class']}, "
            f"best weights by {known['early_stop_metric']}.{parameters}",
            "training_job_details": {
                "user_provided_hyper_parameters": [
                    {"name": name, "value": shortened(" ".join(value.split()))}
                    for name, value in sorted(given.items())
                    if value.strip()
                ][:MOST_VALUES],
                "training_environment": {"container_image": [image] if image else []},
            },
        },
        "evaluation_details": [_evaluation(config, outcome)],
        "additional_information": {"caveats_and_recommendations": registration.caveats},
    }
    return json.dumps(_without_empty(card), sort_keys=True)


def _default_metric(hyperparameters: Mapping[str, str]) -> str:
    default = "val/f1_score"
    preset = hyperparameters.get("preset", "defaults")
    return default if preset in ("defaults", "documents") else f"the early_stop_metric of preset {preset}"


def _evaluation(config: PipelineConfig, outcome: ConditionOutcome | None) -> dict[str, object]:
    condition = config.condition
    required = f"{condition.metric} {condition.word} {condition.threshold:g}"
    if condition.beat != "nothing":
        required += f", and as good as the {condition.beat} registered model (margin {condition.margin:g})"
    evaluation: dict[str, object] = {
        "name": "Condition of registration",
        "evaluation_observation": f"Required{'' if outcome else ', without parameters of the execution'}: {required}.",
    }
    if outcome is not None and outcome.value is not None:
        measured = {"name": condition.metric, "type": "number", "value": outcome.value}
        evaluation["metric_groups"] = [{"name": "decision", "metric_data": [measured]}]
    return evaluation


def _without_empty(value: object) -> object:
    if isinstance(value, dict):
        kept = {key: _without_empty(part) for key, part in value.items()}
        return {key: part for key, part in kept.items() if part not in ("", {}, [], None)}
    return [_without_empty(part) for part in value] if isinstance(value, list) else value
