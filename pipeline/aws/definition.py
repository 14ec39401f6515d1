"""Build the SageMaker pipeline's definition, without AWS calls; the same configuration gives the same bytes."""

import json
from collections.abc import Mapping
from typing import Any

from contracts.steps import CHAMPION, MODEL_METRICS
from pipeline.aws.feasibility import check_instances, check_places
from pipeline.aws.jobs import CONDITION_FILE, Build, processing_step
from pipeline.aws.limits import check_limits
from pipeline.aws.parameters import INPUT_PREFIX, THRESHOLD, AwsPlan, sdk_parameters
from pipeline.aws.resolve import aws_plan
from pipeline.aws.serving import deploy_steps, registration_step, transform_step
from pipeline.aws.session import offline_session, sagemaker_sdk
from pipeline.aws.training import training_step
from pipeline.checks import check_encoders_without_network
from pipeline.condition import LEAD_PATH, VALUE_PATH
from pipeline.config import PipelineConfig
from pipeline.graph import CONDITION, FAIL

_STEPS = {
    "processing": processing_step,
    "training": training_step,
    "registration": registration_step,
    "transform": transform_step,
}


def definition(config: PipelineConfig) -> str:
    """Return the definition as indented JSON with sorted keys and a final line feed.

    Raises:
        ContractError: the configuration or a value is refused.
    """
    return json.dumps(json.loads(checked_definition(aws_plan(config))), indent=2, sort_keys=True) + "\n"


def checked_definition(resolved: AwsPlan, overrides: Mapping[str, Any] | None = None) -> str:
    """Return the definition as it is sent.

    Args:
        overrides: parameters given to an execution.

    Raises:
        ContractError: the configuration is refused, or a value is beyond the service's limits.
    """
    aws = resolved.aws
    check_places(resolved)
    check_instances(resolved, overrides or {})
    if aws.network_isolation and not resolved.plan.watches:
        check_encoders_without_network(resolved.plan.encoders, aws.inputs)
    with sagemaker_sdk(aws.region):
        session = offline_session(aws.region, aws.bucket)
        text = build_pipeline(resolved, session).definition()
    check_limits(resolved, text, overrides=overrides or {}, service=session.sagemaker_client.meta.service_model)
    return text


def build_pipeline(resolved: AwsPlan, session: Any) -> Any:
    """Return the SDK's Pipeline; the caller is within `sagemaker_sdk`."""
    from sagemaker.mlops.workflow.condition_step import ConditionStep
    from sagemaker.mlops.workflow.fail_step import FailStep

    config, plan = resolved.config, resolved.plan
    parameters = sdk_parameters(resolved.specs)
    build = Build(config, resolved.aws, plan, session, parameters, {})
    for step in plan.steps:
        build.steps[step.contract.name] = _STEPS[step.contract.kind](build, step)
    if config.deploys_itself and build.aws.deploy is not None and not plan.watches:
        build.steps.update(deploy_steps(build, build.aws.deploy))
    if plan.watches:
        return _pipeline(build, list(build.steps.values()))
    before = [step.name for step in plan.before_condition if step.name in build.steps]
    decide = ConditionStep(
        name=CONDITION,
        description="Whether the model is registered.",
        conditions=_conditions(build),
        if_steps=[step for name, step in build.steps.items() if name not in before],
        else_steps=[FailStep(name=FAIL, description="Why it is not.", error_message=_reason(build))],
    )
    return _pipeline(build, [*(build.steps[name] for name in before), decide])


def _pipeline(build: Build, steps: list[Any]) -> Any:
    from sagemaker.mlops.workflow.pipeline import Pipeline

    return Pipeline(
        name=build.config.name,
        parameters=list(build.parameters.values()),
        # The SDK's default: an experiment with the name of the pipeline. `upsert` may leave it out.
        **({} if build.aws.experiments else {"pipeline_experiment_config": None}),
        steps=steps,
        sagemaker_session=build.session,
    )


def _conditions(build: Build) -> list[Any]:
    from sagemaker.core.workflow.conditions import ConditionGreaterThanOrEqualTo, ConditionLessThanOrEqualTo

    higher = build.config.condition.higher_is_better
    compare = ConditionGreaterThanOrEqualTo if higher else ConditionLessThanOrEqualTo
    threshold = compare(left=_measured(VALUE_PATH), right=build.parameters[THRESHOLD])
    if build.config.condition.beat == "nothing":
        return [threshold]
    return [threshold, ConditionGreaterThanOrEqualTo(left=_measured(LEAD_PATH), right=0.0)]


def _measured(path: str) -> Any:
    from sagemaker.core.workflow.functions import JsonGet

    return JsonGet(step_name=MODEL_METRICS.name, property_file=CONDITION_FILE, json_path=path)


def _reason(build: Build) -> Any:
    from sagemaker.core.workflow.functions import Join

    condition = build.config.condition
    parts = [
        f"The model was not registered: {condition.metric} is ",
        _measured(VALUE_PATH),
        f", but must be {condition.word} ",
        build.parameters[THRESHOLD],
        f" ({THRESHOLD})",
    ]
    if condition.beat != "nothing":
        parts += [
            f", and its lead over the {condition.beat} registered model at least 0, but it is ",
            _measured(LEAD_PATH),
        ]
        parts.append(f" (-1e+30: {INPUT_PREFIX}{CHAMPION} was not set; set it, or use python -m pipeline start)")
    parts.append(f". {MODEL_METRICS.name}'s metrics_summary.txt has the details.")
    return Join(on="", values=parts)
