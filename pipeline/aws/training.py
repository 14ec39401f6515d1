"""Build the SDK's step of the training: the job with its channels, instances and outputs, or a search of many jobs."""

from pathlib import Path
from typing import Any

from contracts.errors import ContractError
from contracts.paths import DEFAULT_ROOT, JobPaths
from contracts.settings.control import METRICS
from contracts.steps import PYTORCH_TRAINING
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
from pipeline.aws.tuning import tuning_step
from pipeline.config_aws import Channel as ChannelSettings
from pipeline.plan import StepPlan

INSTANCE_GROUP = "INSTANCE_GROUP"  # the variable with the group that trains; container/hosts/topology.py reads it
_NUMBER = r"([0-9.eE+-]+|nan)"
_METRICS = {name: f"{name}={_NUMBER};" for name in ("train/loss", "val/loss", *(f"val/{each}" for each in METRICS))}


def training_step(build: Build, plan: StepPlan) -> Any:
    """Return the training step; with a tuner, the step that runs many training jobs and takes the best."""
    from sagemaker.core.shapes import MetricDefinition, TensorBoardOutputConfig
    from sagemaker.mlops.workflow.steps import TrainingStep

    contract, aws = plan.contract, build.aws
    trainer = _trainer(build, plan)
    channels = _channels(build, plan)
    if build.plan.tuner is not None:
        return tuning_step(build, contract, build.plan.tuner, trainer=trainer, metrics=_METRICS, channels=channels)
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
    settings: dict[str, ChannelSettings] = {**training.channels}
    for name, uri in input_uris(build, plan).items():
        of_channel = settings.get(name, ChannelSettings())
        source = S3DataSource(
            s3_data_type="S3Prefix",
            s3_uri=uri,
            s3_data_distribution_type="FullyReplicated",
            **groups,
        )
        data = DataSource(s3_data_source=source)
        mode = of_channel.input_mode or training.input_mode
        channels.append(Channel(channel_name=name, data_source=data, input_mode=mode))
    return channels
