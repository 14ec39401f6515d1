"""Write the model card for reviewers, in the JSON format of SageMaker model cards."""

import json

from pipeline.condition import ConditionOutcome
from pipeline.config import PipelineConfig

DOMAIN, TASK = "NATURAL_LANGUAGE_PROCESSING", "CLASSIFICATION"  # of every model package


def model_card(config: PipelineConfig, outcome: ConditionOutcome | None) -> str:
    """Return the card as JSON; the same arguments give the same bytes.

    Args:
        outcome: the outcome of the condition; None in a definition, whose executions have parameters.
    """
    registration, condition = config.registration, config.condition
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
    sections = {
        "model_overview": {"model_creator": registration.creator},
        "business_details": {"business_problem": registration.problem},
        "intended_uses": {"intended_uses": registration.intended_uses, "risk_rating": registration.risk_rating},
        "additional_information": {"caveats_and_recommendations": registration.caveats},
    }
    written = {section: {key: text for key, text in texts.items() if text} for section, texts in sections.items()}
    card = {section: texts for section, texts in written.items() if texts}
    return json.dumps({**card, "evaluation_details": [evaluation]}, sort_keys=True)
