"""Build the SageMaker pipeline's definition, without AWS calls; the same configuration gives the same bytes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from contracts.errors import ContractError
from contracts.fingerprint import Fingerprint
from contracts.steps import BATCH_SCORE, MODEL_METRICS, PYTORCH_TRAINING, REGISTRATION
from pipeline.aws.jobs import CONDITION_FILE, Build, processing_step
from pipeline.aws.limits import check_limits
from pipeline.aws.parameters import (
    HYPERPARAMETER_PREFIX,
    INPUT_PREFIX,
    THRESHOLD,
    TO_BEAT,
    ParameterSpec,
    instance_count_parameter,
    machine_of,
    parameter_specs,
    sdk_parameters,
)
from pipeline.aws.serving import deploy_steps, registration_step, transform_step
from pipeline.aws.session import offline_session, sagemaker_sdk
from pipeline.aws.training import training_step
from pipeline.checks import check_encoders_without_network
from pipeline.condition import VALUE_PATH, unreachable
from pipeline.config import PipelineConfig
from pipeline.config_aws import LONGEST_PROCESSING, Aws, Machine
from pipeline.graph import CONDITION, FAIL, SEVERAL_INSTANCES, upstream
from pipeline.plan import Plan, make_plan

_STEPS = {
    "processing": processing_step,
    "training": training_step,
    "registration": registration_step,
    "transform": transform_step,
}


def aws_plan(config: PipelineConfig) -> tuple[Aws, Plan]:
    """Check the configuration for AWS, and return its section `aws` and the plan.

    Raises:
        ContractError: there is no section `aws`, or the configuration contradicts itself.
    """
    if config.aws is None:
        raise ContractError("aws: is missing", "Add the section aws: region, role, image and bucket at least.")
    plan = make_plan(config, config.aws.inputs, section="aws.inputs", tuner=True)
    if plan.tuner is not None and config.aws.training.tensorboard:
        raise ContractError(
            "aws.training.tensorboard: is true, but training jobs of SageMaker's tuner cannot upload curves",
            "Set it to false, or tuning.engine to container.",
        )
    _check_machines(config.aws, plan)
    if config.aws.network_isolation and "mlflow_tracking_uri" in plan.hyperparameters:
        raise ContractError(
            "mlflow_tracking_uri: is a hyperparameter, but the training job has no network (aws.network_isolation)",
            "Set it in the section mlflow, without sent_by: a step sends the results.",
        )
    training = machine_of(config, PYTORCH_TRAINING.name)
    if config.aws.training.instance_groups:
        why = "aws.training.instance_groups is set too"
        _require_default(training, PYTORCH_TRAINING.name, "instance_type", "instance_count", why=why)
    runtime = training.max_runtime_seconds
    if config.aws.spot.enabled and config.aws.spot.max_wait_seconds < runtime:
        raise ContractError(
            f"aws.spot.max_wait_seconds: is {config.aws.spot.max_wait_seconds}, less than training's limit {runtime}",
            "Increase it, or reduce aws.steps.PyTorchTraining.max_runtime_seconds.",
        )
    return config.aws, plan


def _check_machines(aws: Aws, plan: Plan) -> None:
    """Raise ContractError for instances of a step that it cannot have."""
    processing = {step.contract.name for step in plan.steps if step.contract.kind == "processing"}
    on_instances = [step.contract.name for step in plan.steps if step.contract is not REGISTRATION]
    for name, machine in aws.steps.items():
        if name not in on_instances:
            raise ContractError(
                f"aws.steps.{name}: is not a step that runs on instances", f"Use one of: {', '.join(on_instances)}."
            )
        if name == BATCH_SCORE.name:
            _require_default(machine, name, "volume_gb", "max_runtime_seconds", why="a batch transform has none")
        if name in processing and machine.max_runtime_seconds > LONGEST_PROCESSING:
            raise ContractError(
                f"aws.steps.{name}.max_runtime_seconds: is {machine.max_runtime_seconds}, but a processing job runs "
                f"{LONGEST_PROCESSING} s (5 days) at most",
                f"Set it to {LONGEST_PROCESSING} or less.",
            )
        if name not in SEVERAL_INSTANCES and machine.instance_count != 1:
            raise ContractError(
                f"aws.steps.{name}.instance_count: is {machine.instance_count}, but this step runs on one instance",
                f"Only {' and '.join(SEVERAL_INSTANCES)} can run on several instances.",
            )


def _require_default(machine: Machine, step: str, *fields: str, why: str) -> None:
    for field in fields:
        if getattr(machine, field) != Machine.model_fields[field].default:
            raise ContractError(f"aws.steps.{step}.{field}: is set, and {why}", "Remove it.")


def specs_of(config: PipelineConfig) -> dict[str, ParameterSpec]:
    """Return the pipeline's parameters by name."""
    _, plan = aws_plan(config)
    return parameter_specs(config, plan, checkpoint_key=checkpoint_key(config, plan, {}, data={}))


def definition(config: PipelineConfig) -> str:
    """Return the definition as indented JSON with sorted keys and a final line feed.

    Raises:
        ContractError: the configuration or a value is refused.
    """
    return json.dumps(json.loads(checked_definition(config)), indent=2, sort_keys=True) + "\n"


def checked_definition(config: PipelineConfig, overrides: Mapping[str, Any] | None = None) -> str:
    """Return the definition as it is sent.

    Args:
        overrides: parameters given to an execution.

    Raises:
        ContractError: the configuration is refused, or a value is beyond the service's limits.
    """
    aws, plan = aws_plan(config)
    if aws.network_isolation:
        check_encoders_without_network(plan.encoders, aws.inputs)
    with sagemaker_sdk(aws.region):
        session = offline_session(aws.region, aws.bucket)
        text = build_pipeline(config, session).definition()
    model = session.sagemaker_client.meta.service_model
    check_limits(config, plan, text, specs=specs_of(config), overrides=overrides or {}, service=model)
    return text


def build_pipeline(config: PipelineConfig, session: Any) -> Any:
    """Return the SDK's Pipeline."""
    aws, plan = aws_plan(config)
    with sagemaker_sdk(aws.region):
        return _build(config, plan, session)


def _build(config: PipelineConfig, plan: Plan, session: Any) -> Any:
    from sagemaker.mlops.workflow.condition_step import ConditionStep
    from sagemaker.mlops.workflow.fail_step import FailStep
    from sagemaker.mlops.workflow.pipeline import Pipeline

    parameters = sdk_parameters(specs_of(config))
    build = Build(config, plan, session, parameters, {})
    for step in plan.steps:
        build.steps[step.contract.name] = _STEPS[step.contract.kind](build, step)
    if build.aws.deploy is not None:
        build.steps.update(deploy_steps(build, build.aws.deploy))
    before = [step.name for step in plan.before_condition if step.name in build.steps]
    decide = ConditionStep(
        name=CONDITION,
        description="Whether the model is registered.",
        conditions=_conditions(build),
        if_steps=[step for name, step in build.steps.items() if name not in before],
        else_steps=[FailStep(name=FAIL, description="Why it is not.", error_message=_reason(build))],
    )
    return Pipeline(
        name=config.name,
        parameters=list(parameters.values()),
        pipeline_experiment_config=None,
        steps=[*(build.steps[name] for name in before), decide],
        sagemaker_session=session,
    )


def checkpoint_key(
    config: PipelineConfig, plan: Plan, overrides: Mapping[str, object], *, data: Mapping[str, Sequence[str]]
) -> str:
    """Return the name of a training's checkpoint folder, a digest of its settings, image and data.

    The folder is part of the step cache's key, so it must not change with each execution. A training refuses the
    checkpoints of another training, so the folder must change with settings, image and data.

    Args:
        overrides: parameters given to an execution.
        data: identifies each input's data in addition to its URI, e.g. by entity tags.
    """
    assert config.aws is not None
    trained_from = [plan.step(contract) for contract in upstream(PYTORCH_TRAINING)]
    inputs = [name for step in trained_from for name in step.outside]
    parts = {
        "image": config.aws.image,
        "hyperparameters": dict(plan.hyperparameters),
        **({"tuning": config.tuning.model_dump(mode="json")} if config.tuning is not None and plan.tuner else {}),
        "steps": {step.contract.name: [dict(step.environment), dict(step.outside)] for step in trained_from},
        "instances": {  # each writes files of its own, so their number decides the order of the rows
            name: str(overrides.get(instance_count_parameter(name), machine_of(config, name).instance_count))
            for name in (step.contract.name for step in trained_from if step.contract.kind == "processing")
        },
        "overrides": {
            # Other parameters, such as instance types, do not change the training: a job can resume with new values.
            name: str(value)
            for name, value in sorted(overrides.items())
            if name.startswith(HYPERPARAMETER_PREFIX) or name.removeprefix(INPUT_PREFIX) in inputs
        },
        "data": sorted(each for name in inputs for each in data.get(name, ())),
    }
    return Fingerprint.of(parts).digest(16)


def _conditions(build: Build) -> list[Any]:
    from sagemaker.core.workflow.conditions import ConditionGreaterThanOrEqualTo, ConditionLessThanOrEqualTo

    higher = build.config.condition.higher_is_better
    compare = ConditionGreaterThanOrEqualTo if higher else ConditionLessThanOrEqualTo
    limits = [build.parameters[name] for name in (THRESHOLD, TO_BEAT) if name in build.parameters]
    return [compare(left=_measured(), right=limit) for limit in limits]


def _measured() -> Any:
    from sagemaker.core.workflow.functions import JsonGet

    return JsonGet(step_name=MODEL_METRICS.name, property_file=CONDITION_FILE, json_path=VALUE_PATH)


def _reason(build: Build) -> Any:
    from sagemaker.core.workflow.functions import Join

    condition = build.config.condition
    parts = [
        f"The model was not registered: {condition.metric} is ",
        _measured(),
        f", but must be {condition.word} ",
        build.parameters[THRESHOLD],
        f" ({THRESHOLD})",
    ]
    if TO_BEAT in build.parameters:
        unset = f"{unreachable(condition):g} means that {TO_BEAT} was not set; set it, or use python -m pipeline start"
        parts += [f" and {condition.word} ", build.parameters[TO_BEAT]]
        parts.append(f" ({TO_BEAT}: the {condition.beat} registered model; {unset})")
    parts.append(f". {MODEL_METRICS.name}'s metrics_summary.txt has the details.")
    return Join(on="", values=parts)
