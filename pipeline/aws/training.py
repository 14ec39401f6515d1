"""Build the SDK's step of the training: the job with its channels, instances and outputs, or a search of many jobs."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts.errors import ContractError, shown
from contracts.paths import DEFAULT_ROOT, JobPaths
from contracts.settings.control import METRICS
from contracts.step_contract import StepContract
from contracts.steps import PYTORCH_TRAINING
from contracts.tuning import Choices, Range
from contracts.tuning_space import is_whole
from pipeline.aws.jobs import (
    Build,
    cache,
    environment,
    has_volume,
    input_uris,
    job_retries,
    output_path,
    tagged,
    volume_key,
)
from pipeline.aws.parameters import (
    CHECKPOINT_KEY,
    HYPERPARAMETER_PREFIX,
    instance_count_parameter,
    instance_type_parameter,
    machine_of,
)
from pipeline.plan import StepPlan, TunerPlan

INSTANCE_GROUP = "INSTANCE_GROUP"  # the variable with the group that trains; container/hosts/topology.py reads it
_NUMBER = r"([0-9.eE+-]+|nan)"
_METRICS = {name: f"{name}={_NUMBER};" for name in ("train/loss", "val/loss", *(f"val/{each}" for each in METRICS))}
_MOST_CHOICES = 30  # ParameterValues in botocore's model of the service


def training_step(build: Build, plan: StepPlan) -> Any:
    """Return the training step; with a tuner, the step that runs many training jobs and takes the best."""
    from sagemaker.core.shapes import MetricDefinition, TensorBoardOutputConfig
    from sagemaker.mlops.workflow.steps import TrainingStep

    contract, aws = plan.contract, build.aws
    trainer = _trainer(build, plan)
    channels = _channels(build, plan)
    if build.plan.tuner is not None:
        return _tuning_step(build, contract, build.plan.tuner, trainer=trainer, channels=channels)
    trainer.with_metric_definitions([MetricDefinition(name=name, regex=regex) for name, regex in _METRICS.items()])
    if aws.training.tensorboard:  # the service refuses a LocalPath, and uses /opt/ml/output/tensorboard without one
        trainer.with_tensorboard_output_config(TensorBoardOutputConfig(s3_output_path=f"{build.home}/tensorboard"))
    return tagged(
        TrainingStep,
        aws,
        name=contract.name,
        description=contract.about,
        step_args=trainer.train(input_data_config=channels),
        cache_config=cache(aws),
        retry_policies=job_retries(aws),
    )


def _trainer(build: Build, plan: StepPlan) -> Any:
    """Return the training job without its channels."""
    from sagemaker.core.training.configs import CheckpointConfig, Networking, OutputDataConfig, StoppingCondition
    from sagemaker.core.workflow.functions import Join
    from sagemaker.train.model_trainer import ModelTrainer

    aws, machine = build.aws, machine_of(build.config, plan.contract.name)
    wait = {"max_wait_time_in_seconds": aws.spot.max_wait_seconds} if aws.spot.enabled else {}
    vpc = {"subnets": list(aws.subnets), "security_group_ids": list(aws.security_groups)} if aws.subnets else {}
    group = aws.training.training_group
    checkpoints = CheckpointConfig(
        s3_uri=Join(on="/", values=[f"{build.home}/checkpoints", build.parameters[CHECKPOINT_KEY]]),
        local_path=str(JobPaths(Path(DEFAULT_ROOT)).checkpoints),
    )
    return ModelTrainer(
        sagemaker_session=build.session,
        role=aws.role,
        base_job_name=build.config.name,
        training_image=aws.image,
        training_input_mode=aws.training.input_mode,
        compute=_compute(build),
        networking=Networking(
            enable_network_isolation=aws.network_isolation,
            enable_inter_container_traffic_encryption=aws.encrypt_traffic,
            **vpc,
        ),
        stopping_condition=StoppingCondition(max_runtime_in_seconds=machine.max_runtime_seconds, **wait),
        output_data_config=OutputDataConfig(
            s3_output_path=output_path(build),
            compression_type="GZIP",
            **({"kms_key_id": aws.kms_key} if aws.kms_key else {}),
        ),
        # Each trial of a tuner downloads the checkpoints of all trials before it: only for interruptions.
        checkpoint_config=None if build.plan.tuner is not None and not aws.spot.enabled else checkpoints,
        environment={**environment(build, plan), **({INSTANCE_GROUP: group} if group else {})},
        hyperparameters={
            name: build.parameters.get(f"{HYPERPARAMETER_PREFIX}{name}", value)
            for name, value in plan.sent(build.plan.hyperparameters).items()
        },
    )


def _compute(build: Build) -> Any:
    from sagemaker.core.shapes import InstanceGroup
    from sagemaker.core.training.configs import Compute

    aws, name = build.aws, PYTORCH_TRAINING.name
    machine = machine_of(build.config, name)
    types = [each.instance_type for each in aws.training.instance_groups.values()] or [machine.instance_type]
    key, trains = volume_key(aws, *types), aws.training.training_group
    if aws.kms_key and key is None and trains and has_volume(aws.training.instance_groups[trains].instance_type):
        raise ContractError(
            f"aws.kms_key: is for the volumes of the group {trains!r}, but another group has local storage, with which "
            "SageMaker refuses the key",
            "Use instance types with local storage in all groups of aws.training.instance_groups, or in none.",
        )
    groups = [
        InstanceGroup(instance_group_name=group, instance_type=each.instance_type, instance_count=each.instance_count)
        for group, each in aws.training.instance_groups.items()
    ]
    instances = {"instance_groups": groups} if groups else {
        "instance_type": build.parameters[instance_type_parameter(name)],
        "instance_count": build.parameters[instance_count_parameter(name)],
    }  # fmt: skip
    keep_alive = aws.training.keep_alive_seconds
    return Compute(
        **instances,
        volume_size_in_gb=machine.volume_gb,
        enable_managed_spot_training=aws.spot.enabled,
        **({"volume_kms_key_id": key} if key else {}),
        **({"keep_alive_period_in_seconds": keep_alive} if keep_alive else {}),
    )


def _channels(build: Build, plan: StepPlan) -> list[Any]:
    """Return the channels; of several instance groups, the one that trains alone receives them."""
    from sagemaker.core.shapes import Channel, DataSource, S3DataSource

    training = build.aws.training
    groups = {"instance_group_names": [training.training_group]} if training.training_group else {}
    channels = []
    for name, uri in input_uris(build, plan).items():
        source = S3DataSource(
            s3_data_type="S3Prefix",
            s3_uri=uri,
            s3_data_distribution_type="FullyReplicated",
            **groups,
        )
        data = DataSource(s3_data_source=source)
        channels.append(Channel(channel_name=name, data_source=data, input_mode=training.input_mode))
    return channels


def _tuning_step(build: Build, contract: StepContract, plan: TunerPlan, *, trainer: Any, channels: Any) -> Any:
    """Return the step that replaces the training step.

    Args:
        trainer: the training job, without the hyperparameters that the tuner chooses.
    """
    from sagemaker.core.shapes import RetryStrategy
    from sagemaker.mlops.workflow.steps import TuningStep

    aws, search = build.aws, build.config.tuning
    assert search is not None
    trainer.with_retry_strategy(RetryStrategy(maximum_retry_attempts=aws.retries.max_attempts))
    tuner = _tuner_class()(
        trainer,
        plan.metric.name,
        {name: _range(name, values) for name, values in plan.space.items()},
        metric_definitions=[{"Name": name, "Regex": regex} for name, regex in _METRICS.items()],
        strategy=search.strategy,
        objective_type="Minimize" if plan.metric.minimizes else "Maximize",
        max_jobs=search.trials,
        max_parallel_jobs=min(search.parallel or 1, search.trials),
        max_runtime_in_seconds=math.floor(search.max_hours * 3600) if search.max_hours is not None else None,
        early_stopping_type="Auto",
        base_tuning_job_name=build.config.name,
    )
    return tagged(
        TuningStep,
        aws,
        name=contract.name,
        description=contract.about,
        step_args=tuner.tune(inputs=channels),
        cache_config=cache(aws),
        retry_policies=job_retries(aws),
    )


def _tuner_class() -> Any:
    """Return the SDK's tuner with the settings of a training job that the one of SDK 3.27 leaves out."""
    from sagemaker.train.tuner import HyperparameterTuner

    class Tuner(HyperparameterTuner):
        def _build_training_job_definition(self, inputs: Any) -> Any:
            definition = super()._build_training_job_definition(inputs)
            trainer: Any = self.model_trainer
            # Without these: no KMS key of the volume, no instance groups, no warm pool.
            definition.resource_config = trainer.compute._to_resource_config()
            definition.enable_network_isolation = trainer.networking.enable_network_isolation
            definition.enable_inter_container_traffic_encryption = (
                trainer.networking.enable_inter_container_traffic_encryption
            )
            return definition

    return Tuner


def _range(name: str, values: Range | Choices) -> Any:
    """Return a setting's values as a range of the SDK; raise ContractError if SageMaker has no such range."""
    from sagemaker.core.parameter import CategoricalParameter, ContinuousParameter, IntegerParameter

    if not isinstance(values, Range):
        return CategoricalParameter(_choices(name, values))
    scale = "Logarithmic" if values.scale == "log" else "Linear"
    if is_whole(name):
        return IntegerParameter(int(values.low), int(values.high), scaling_type=scale)
    return ContinuousParameter(float(values.low), float(values.high), scaling_type=scale)


def _choices(name: str, values: Sequence[Any]) -> list[str]:
    fix = "Remove {} from the space, or set engine to container."
    for value in values:
        if isinstance(value, (list, dict)):
            kind = "a list" if isinstance(value, list) else "an object"
            raise ContractError(
                f"tuning.space.{name}: {shown(value)} is {kind}, but values of SageMaker's tuner are numbers and texts",
                fix.format(name),
            )
    if len(values) > _MOST_CHOICES:
        raise ContractError(
            f"tuning.space.{name}: has {len(values)} values; SageMaker's tuner accepts at most {_MOST_CHOICES}",
            "List fewer values, give a range, or set engine to container.",
        )
    return [value if isinstance(value, str) else json.dumps(value) for value in values]
