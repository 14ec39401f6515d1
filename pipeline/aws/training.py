"""Build the SDK's step of the training: the job with its channels, instances and outputs, or a search of many jobs."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts.errors import ContractError, shown
from contracts.metrics import METRICS
from contracts.paths import DEFAULT_ROOT, JobPaths
from contracts.steps import PYTORCH_TRAINING
from contracts.tuning import Choices, Range
from contracts.tuning_space import is_whole
from pipeline.aws.jobs import (
    Build,
    environment,
    given,
    has_volume,
    input_uris,
    instances,
    job_retries,
    key,
    output_path,
    step,
    volume_key,
)
from pipeline.aws.parameters import CHECKPOINT_KEY, HYPERPARAMETER_PREFIX, data_key_parameter
from pipeline.graph import ORDER, upstream
from pipeline.plan import StepPlan, TunerPlan

INSTANCE_GROUP = "INSTANCE_GROUP"  # the variable with the group that trains; container/job/hosts/topology.py reads it
_NUMBER = r"([0-9.eE+-]+|nan)"
_METRICS = {name: f"{name}={_NUMBER};" for name in ("train/loss", "val/loss", *(f"val/{each}" for each in METRICS))}


def training_step(build: Build, plan: StepPlan) -> Any:
    """Return the training step; with a tuner, the step that runs many training jobs and takes the best."""
    contract, tuner, job = plan.contract, build.plan.tuner, _job(build, plan)
    shared = {"about": contract.about, "cached": True, "retry_policies": job_retries(build.aws)}
    if tuner is not None:
        return step(build, "Tuning", contract.name, request=_search(build, tuner, job=job), **shared)
    if build.aws.training.tensorboard:  # the service refuses a LocalPath, and uses /opt/ml/output/tensorboard without
        job["TensorBoardOutputConfig"] = {"S3OutputPath": f"{build.home}/tensorboard"}
    return step(build, "Training", contract.name, request={**job, "Tags": build.tags}, **shared)


def _job(build: Build, plan: StepPlan) -> dict[str, Any]:
    """Return the request of the training job, without tags."""
    from sagemaker.core.workflow.functions import Join

    aws, machine, group = build.aws, build.machine(plan.contract.name), build.aws.training.training_group
    wait = {"MaxWaitTimeInSeconds": aws.spot.max_wait_seconds} if aws.spot.enabled else {}
    keys = [data_key_parameter(contract.name) for contract in ORDER if contract in upstream(PYTORCH_TRAINING)]
    keys = [CHECKPOINT_KEY, *(name for name in keys if name in build.parameters)]
    folder = Join(on="-", values=[build.parameters[name] for name in keys])
    checkpoints = {
        "S3Uri": Join(on="/", values=[f"{build.home}/checkpoints", folder]),
        "LocalPath": str(JobPaths(Path(DEFAULT_ROOT)).checkpoints),
    }
    sent = plan.sent(build.plan.hyperparameters)
    request = {
        "AlgorithmSpecification": {
            "TrainingImage": aws.image,
            "TrainingInputMode": aws.training.input_mode,
            "MetricDefinitions": [{"Name": name, "Regex": regex} for name, regex in _METRICS.items()],
        },
        "RoleArn": aws.role,
        "HyperParameters": {
            name: build.parameters.get(f"{HYPERPARAMETER_PREFIX}{name}", value) for name, value in sent.items()
        },
        "Environment": {**environment(build, plan), **({INSTANCE_GROUP: group} if group else {})},
        "InputDataConfig": _channels(build, plan),
        "OutputDataConfig": {
            "S3OutputPath": output_path(build),
            "CompressionType": "GZIP",
            **key("KmsKeyId", aws.kms_key),
        },
        # Each trial of a tuner downloads the checkpoints of all trials before it: only for interruptions.
        "CheckpointConfig": None if build.plan.tuner is not None and not aws.spot.enabled else checkpoints,
        "ResourceConfig": _resources(build),
        "StoppingCondition": {"MaxRuntimeInSeconds": machine.max_runtime_seconds, **wait},
        "VpcConfig": build.vpc,
        "EnableNetworkIsolation": aws.network_isolation,
        "EnableInterContainerTrafficEncryption": aws.encrypt_traffic,
        "EnableManagedSpotTraining": aws.spot.enabled,
    }
    return given(request)


def _resources(build: Build) -> dict[str, Any]:
    aws, name = build.aws, PYTORCH_TRAINING.name
    machine, groups, trains = build.machine(name), aws.training.instance_groups, aws.training.training_group
    types = [group.instance_type for group in groups.values()] or [machine.instance_type]
    volume, keep_alive = volume_key(aws, *types), aws.training.keep_alive_seconds
    if aws.kms_key and volume is None and trains and has_volume(groups[trains].instance_type):
        raise ContractError(
            f"aws.kms_key: is for the volumes of the group {trains!r}, but another group has local storage, with which "
            "SageMaker refuses the key",
            "Use instance types with local storage in all groups of aws.training.instance_groups, or in none.",
        )
    listed = [
        {"InstanceGroupName": name, "InstanceType": group.instance_type, "InstanceCount": group.instance_count}
        for name, group in groups.items()
    ]
    return {
        **({"InstanceGroups": listed} if listed else instances(build, name)),
        "VolumeSizeInGB": machine.volume_gb,
        **key("VolumeKmsKeyId", volume),
        **({"KeepAlivePeriodInSeconds": keep_alive} if keep_alive else {}),
    }


def _channels(build: Build, plan: StepPlan) -> list[Any]:
    """Return the channels; of several instance groups, the one that trains alone receives them."""
    training = build.aws.training
    groups = {"InstanceGroupNames": [training.training_group]} if training.training_group else {}
    source = {"S3DataType": "S3Prefix", "S3DataDistributionType": "FullyReplicated", **groups}
    return [
        {
            "ChannelName": name,
            "DataSource": {"S3DataSource": {**source, "S3Uri": uri}},
            "InputMode": training.input_mode,
        }
        for name, uri in input_uris(build, plan).items()
    ]


def _search(build: Build, plan: TunerPlan, *, job: dict[str, Any]) -> dict[str, Any]:
    """Return the request that replaces the training job.

    Args:
        job: the request of the training job, without the hyperparameters that the tuner chooses.
    """
    search = build.config.tuning
    assert search is not None
    ranges: dict[str, list[Any]] = {}
    for name, values in plan.space.items():
        kind, content = _range(name, values)
        ranges.setdefault(f"{kind}ParameterRanges", []).append({"Name": name, **content})
    limit = {"MaxRuntimeInSeconds": math.floor(search.max_hours * 3600)} if search.max_hours is not None else {}
    static = {"StaticHyperParameters" if name == "HyperParameters" else name: value for name, value in job.items()}
    return {
        "HyperParameterTuningJobConfig": {
            "Strategy": search.strategy,
            "HyperParameterTuningJobObjective": {
                "Type": "Minimize" if plan.metric.minimizes else "Maximize",
                "MetricName": plan.metric.name,
            },
            "ResourceLimits": {
                "MaxNumberOfTrainingJobs": search.trials,
                "MaxParallelTrainingJobs": min(search.parallel or 1, search.trials),
                **limit,
            },
            "ParameterRanges": ranges,
            "TrainingJobEarlyStoppingType": "Auto",
        },
        "TrainingJobDefinition": {
            **static,
            "RetryStrategy": {"MaximumRetryAttempts": build.aws.retries.max_attempts},
        },
        "Tags": build.tags,
    }


def _range(name: str, values: Range | Choices) -> tuple[str, dict[str, Any]]:
    """Return the kind and the limits of a setting's range; raise ContractError if SageMaker has no such range."""
    if not isinstance(values, Range):
        return "Categorical", {"Values": _choices(name, values)}
    whole, scale = is_whole(name), "Logarithmic" if values.scale == "log" else "Linear"
    low, high = (str((int if whole else float)(limit)) for limit in (values.low, values.high))
    return "Integer" if whole else "Continuous", {"MinValue": low, "MaxValue": high, "ScalingType": scale}


def _choices(name: str, values: Sequence[Any]) -> list[str]:
    fix = "Remove {} from the space, or set engine to container."
    for value in values:
        if isinstance(value, (list, dict)):
            kind = "a list" if isinstance(value, list) else "an object"
            raise ContractError(
                f"tuning.space.{name}: {shown(value)} is {kind}, but values of SageMaker's tuner are numbers and texts",
                fix.format(name),
            )
    return [value if isinstance(value, str) else json.dumps(value) for value in values]
