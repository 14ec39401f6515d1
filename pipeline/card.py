"""Write the model card for reviewers, in the JSON format of SageMaker model cards."""

import json

from contracts.hyperparameters import Hyperparameters
from contracts.model_classes import FROM_SCRATCH
from pipeline.condition import ConditionOutcome
from pipeline.config import PipelineConfig
from pipeline.plan import Plan, texts

DOMAIN, TASK = "NATURAL_LANGUAGE_PROCESSING", "CLASSIFICATION"  # of every model package
GENERATED = "generated"  # in the place of the key of the data, of rows without an input
_LONGEST = 255  # characters of a value in a model card


def model_card(config: PipelineConfig, plan: Plan, outcome: ConditionOutcome | None, *, image: str | None) -> str:
    """Return the card as JSON; the same arguments give the same bytes.

    Args:
        image: of the jobs; None: processes.
        outcome: the outcome of the condition; None in a definition, whose executions have parameters.
    """
    registration, condition = config.registration, config.condition
    required = f"{condition.metric} {condition.word} {condition.threshold:g}"
    if condition.beat != "nothing":
        required += f", and as good as the {condition.beat} registered model on the same records "
        required += f"(margin: {condition.margin_standard_errors:g} standard errors)"
    evaluation: dict[str, object] = {
        "name": "Condition of registration",
        "evaluation_observation": f"Required{'' if outcome else ', without parameters of the execution'}: {required}.",
    }
    if outcome is not None and outcome.value is not None:
        measured = {"name": condition.metric, "type": "number", "value": outcome.value}
        evaluation["metric_groups"] = [{"name": "decision", "metric_data": [measured]}]
    sections = {
        "model_overview": {"model_creator": registration.creator},
        "business_details": {"business_problem": registration.problem},
        "intended_uses": {"intended_uses": registration.intended_uses, "risk_rating": registration.risk_rating},
    }
    written = {section: {key: text for key, text in texts.items() if text} for section, texts in sections.items()}
    card = {section: texts for section, texts in written.items() if texts}
    job: dict[str, object] = {"hyper_parameters": _changed(plan)}
    if image is not None:
        job["training_environment"] = {"container_image": [image]}
    further = {"caveats_and_recommendations": registration.caveats} if registration.caveats else {}
    card |= {
        "training_details": {"training_job_details": job},
        "additional_information": {**further, "custom_details": _encoders(plan, registration.encoder_license)},
        "evaluation_details": [evaluation],
    }
    return json.dumps(card, sort_keys=True)


def _changed(plan: Plan) -> list[dict[str, str]]:
    """Return the settings that differ from their defaults; a long value is cut."""
    defaults = texts({name: field.default for name, field in Hyperparameters.model_fields.items()}, default=str)
    changed = {name: text for name, text in plan.hyperparameters.items() if text != defaults.get(name)}
    return [{"name": name, "value": " ".join(text.split())[:_LONGEST]} for name, text in sorted(changed.items())]


def _encoders(plan: Plan, stated: str) -> dict[str, str]:
    """Return the encoders and their license."""
    pretrained = [name for name in plan.encoders if name != FROM_SCRATCH]
    license_of = stated or "not stated: set registration.encoder_license"
    return {
        "encoder": ", ".join(dict.fromkeys(plan.encoders))[:_LONGEST] or "none",
        "encoder_license": license_of if pretrained else "none: no encoder is pretrained",
    }
