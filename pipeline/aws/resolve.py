"""Resolve a configuration for AWS: check it as a whole, before anything is built or sent."""

from dataclasses import replace

from contracts.errors import ContractError
from contracts.steps import (
    BATCH_SCORE,
    CHAMPION,
    MODEL_METRICS,
    MONITOR,
    NOT_LOOKED_UP,
    PYTORCH_TRAINING,
    REGISTRATION,
)
from pipeline.aws.parameters import CAPTURES, AwsPlan
from pipeline.aws.serving import VARIANT, endpoint_name
from pipeline.aws.session import partition_of
from pipeline.config import PipelineConfig
from pipeline.config_aws import LONGEST_PROCESSING, Aws, Machine
from pipeline.graph import SEVERAL_INSTANCES
from pipeline.plan import Plan, make_plan


def aws_plan(config: PipelineConfig) -> AwsPlan:
    """Check the configuration for AWS, and return it with what follows from it, without the step Monitoring.

    Raises:
        ContractError: there is no section `aws`, or the configuration contradicts itself.
    """
    whole = _whole_plan(config)
    steps = tuple(step for step in whole.plan.steps if step.contract is not MONITOR)
    return replace(whole, plan=replace(whole.plan, steps=steps))


def _whole_plan(config: PipelineConfig) -> AwsPlan:
    if config.aws is None:
        raise ContractError("aws: is missing", "Add the section aws: region, role, image and bucket at least.")
    partition_of(config.aws.region)
    plan = make_plan(config, {**config.aws.inputs, **monitored_inputs(config)}, section="aws.inputs", tuner=True)
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
    resolved = AwsPlan(config, config.aws, plan)
    training = resolved.machine(PYTORCH_TRAINING.name)
    if config.aws.training.instance_groups:
        why = "aws.training.instance_groups is set too"
        _require_default(training, PYTORCH_TRAINING.name, "instance_type", "instance_count", why=why)
    runtime = training.max_runtime_seconds
    if config.aws.spot.enabled and config.aws.spot.max_wait_seconds < runtime:
        raise ContractError(
            f"aws.spot.max_wait_seconds: is {config.aws.spot.max_wait_seconds}, less than training's limit {runtime}",
            "Increase it, or reduce aws.steps.PyTorchTraining.max_runtime_seconds.",
        )
    return resolved if config.condition.beat == "nothing" else _with_champion(resolved)


def _with_champion(resolved: AwsPlan) -> AwsPlan:
    """Add the input with the registered model, which `start` sets: an execution without it registers nothing."""
    uri = marker_folder(resolved, NOT_LOOKED_UP)
    steps = [
        replace(step, outside={**step.outside, CHAMPION: uri}) if step.contract is MODEL_METRICS else step
        for step in resolved.plan.steps
    ]
    return replace(resolved, plan=replace(resolved.plan, steps=tuple(steps)))


def marker_folder(resolved: AwsPlan, name: str) -> str:
    """Return the S3 folder of the file NO_CHAMPION or NOT_LOOKED_UP, which `upsert` writes."""
    return f"{resolved.home}/settings/{name}/"


def monitor_plan(config: PipelineConfig) -> AwsPlan:
    """Return the plan of the pipeline NAME-monitor, which has the step Monitoring alone.

    Raises:
        ContractError: as `aws_plan`, or there is no section `monitor`.
    """
    if config.monitor is None:
        raise ContractError("monitor: is missing", "Add the section monitor.")
    whole = _whole_plan(config)
    step = whole.plan.step(MONITOR)
    resolved = replace(whole, config=config.model_copy(update={"name": f"{config.name}-monitor"}))
    inputs = {**step.outside, "history": monitor_folder(resolved), "model_input": f"{whole.home}/no-model-chosen/"}
    # A violation is a failed execution; CloudWatch takes the metrics from the log.
    own = {"FAIL_ON_VIOLATION": "true", "CLOUDWATCH_PIPELINE": resolved.config.name}
    step = replace(step, outside=inputs, environment={**own, **step.environment})
    return replace(resolved, plan=replace(whole.plan, steps=(step,)))


def monitor_folder(resolved: AwsPlan) -> str:
    """Return the S3 folder of the outputs of Monitoring, which each run replaces; its history goes on."""
    return f"{resolved.home}/{MONITOR.name}/"


def monitored_inputs(config: PipelineConfig) -> dict[str, str]:
    """Return the S3 folders of the external inputs of Monitoring, by logical name."""
    if config.monitor is None or config.aws is None:
        return {}
    aws, monitor = config.aws, config.monitor
    captures = aws.deploy is not None and aws.deploy.real_time is not None and aws.deploy.real_time.capture_percent
    served = (
        f"{config.name}/{CAPTURES}/{endpoint_name(config, aws.deploy)}/{VARIANT}" if captures and aws.deploy else ""
    )
    default = f"s3://{aws.bucket}/{aws.prefix}/{served}/" if served else None
    places = {"records": monitor.captured or default, "labels": monitor.labels}
    if places["records"] is None:
        raise ContractError(
            "monitor.captured: is missing, and aws.deploy.real_time.capture_percent is 0",
            "Set one of them: the monitor reads captured requests.",
        )
    return {name: uri for name, uri in places.items() if uri is not None}


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
