"""Build the SDK's ProcessingStep from a step's contract and plan, and the parts that all steps share."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.paths import SETTINGS_FILE
from contracts.step_contract import StepContract, StepFolder
from contracts.steps import (
    BATCH_SCORE,
    EVALUATION,
    MODEL_METRICS,
    MONITOR,
    PACKAGE,
    PAYLOAD,
    PYTORCH_TRAINING,
    TRACKING,
)
from pipeline.aws.errors import aws_errors
from pipeline.aws.parameters import (
    HYPERPARAMETER_PREFIX,
    INPUT_PREFIX,
    AwsPlan,
    data_key_parameter,
    instance_count_parameter,
    instance_type_parameter,
)
from pipeline.config_aws import Aws
from pipeline.graph import source
from pipeline.plan import StepPlan

ENTRYPOINT = ("python", "-m", "container")  # the image's entry point
CONDITION_FILE = "decision"
EXECUTIONS = "executions"  # the folder of what is not needed once the step cache has expired
MODELS = "models"  # the folder of what a registered version has
_KEPT = {**dict.fromkeys((MODEL_METRICS.name, PACKAGE.name, PAYLOAD.name), MODELS), BATCH_SCORE.name: "scores"}
_DESCRIBED = {  # botocore's shapes of what a step has as properties
    "Processing": ["DescribeProcessingJobResponse"],
    "Training": ["DescribeTrainingJobResponse"],
    "Tuning": ["DescribeHyperParameterTuningJobResponse", "ListTrainingJobsForHyperParameterTuningJobResponse"],
    "RegisterModel": ["DescribeModelPackageOutput"],
    "Model": ["DescribeModelOutput"],
    "EndpointConfig": ["DescribeEndpointConfigOutput"],
}
# Families with local NVMe storage that SDK 3.27 does not know: https://aws.amazon.com/ec2/instance-types/p6/
_LOCAL_STORAGE = ("p6-b300", "p6e-gb200")


@dataclass(frozen=True)
class Build(AwsPlan):
    """The state of building a pipeline.

    Attributes:
        parameters: the SDK's parameters by name.
        steps: the SDK's steps so far, by contract name.
    """

    session: Any
    parameters: Mapping[str, Any]
    steps: dict[str, Any]


def upload_settings(resolved: AwsPlan, s3: Any) -> None:
    """Write the input settings of each step that has one."""
    for step in resolved.plan.steps:
        if step.in_file:
            uri = f"{_settings_uri(resolved, step)}/{SETTINGS_FILE}"
            write_object(resolved.aws, s3, uri=uri, content=step.settings_file.encode())


def write_object(aws: Aws, s3: Any, *, uri: str, content: bytes) -> tuple[str, str]:
    """Write an object below the bucket, with the key of outputs; return its bucket and key."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": aws.kms_key} if aws.kms_key else {}
    with aws_errors(f"aws.bucket: {uri}", missing="Create the bucket in aws.region, or correct aws.bucket."):
        s3.put_object(Bucket=bucket, Key=key, Body=content, **encryption)
    return bucket, key


def _settings_uri(resolved: AwsPlan, plan: StepPlan) -> str:
    """Return the S3 folder of a step's input settings; the step cache compares its name, a digest of its content."""
    return f"{resolved.home}/settings/{hashlib.sha256(plan.settings_file.encode()).hexdigest()[:16]}"


def step(
    build: Build,
    kind: str,
    name: str,
    *,
    about: str,
    request: Mapping[str, Any],
    files: Sequence[Any] = (),
    cached: bool = False,
    **options: Any,
) -> Any:
    """Return the SDK's step that sends a request; check_limits checks it against botocore's model.

    The SDK's classes of jobs are not used: they leave out tags, networks and keys, and create a session for each step.

    Args:
        kind: its type in the definition, e.g. Training.
        request: the arguments; those without a value are left out.
        files: the SDK's property files of a processing step.
        cached: whether the step cache may replace it.
        options: further arguments of the SDK's step.
    """
    from sagemaker.core.workflow.properties import Properties
    from sagemaker.mlops.workflow.steps import ConfigurableRetryStep, StepTypeEnum

    class ServiceStep(ConfigurableRetryStep):
        property_files = files  # which the SDK's JsonGet looks up

        @property
        def arguments(self) -> Any:
            return given(request)

        @property
        def properties(self) -> Any:
            return Properties(step_name=name, step=self, shape_names=_DESCRIBED[kind])

        def to_request(self) -> Any:
            content: Any = super().to_request()
            if cached:
                content["CacheConfig"] = cache(build.aws)
            if files:
                content["PropertyFiles"] = [file.expr for file in files]
            return content

    return ServiceStep(name, StepTypeEnum(kind), description=about, **options)


def given(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a request that have a value."""
    return {name: value for name, value in request.items() if value not in (None, {}, [])}


def processing_step(build: Build, plan: StepPlan) -> Any:
    """Return the processing step of a contract."""
    from sagemaker.core.workflow.properties import PropertyFile

    contract, aws, machine = plan.contract, build.aws, build.machine(plan.contract.name)
    mlflow = build.config.mlflow if contract is TRACKING else None
    volume = {"VolumeSizeInGB": machine.volume_gb, **key("VolumeKmsKeyId", volume_key(aws, machine.instance_type))}
    network = {
        "EnableInterContainerTrafficEncryption": aws.encrypt_traffic,
        "EnableNetworkIsolation": aws.network_isolation and mlflow is None,
    }
    return step(
        build,
        "Processing",
        contract.name,
        about=contract.about,
        request={
            "RoleArn": aws.role,
            "AppSpecification": {
                "ImageUri": (mlflow and mlflow.image) or aws.image,
                "ContainerEntrypoint": list(ENTRYPOINT),
                "ContainerArguments": list(plan.command),
            },
            "Environment": environment(build, plan),
            "ProcessingInputs": _inputs(build, plan),
            "ProcessingOutputConfig": {
                "Outputs": [_output(build, contract, folder) for folder in contract.outputs],
                **key("KmsKeyId", aws.kms_key),
            },
            "ProcessingResources": {"ClusterConfig": {**instances(build, contract.name), **volume}},
            "NetworkConfig": {**network, **({"VpcConfig": build.vpc} if build.vpc else {})},
            "StoppingCondition": {"MaxRuntimeInSeconds": machine.max_runtime_seconds},
            "Tags": build.tags,
        },
        files=[PropertyFile(name=CONDITION_FILE, output_name="metrics_output", path=EVALUATION)]
        if contract is MODEL_METRICS
        else [],
        # Tracking completes also where the server has not the results, and new records may be in the same folder.
        cached=mlflow is None and contract is not MONITOR,
        retry_policies=job_retries(aws),
    )


def instances(build: Build, name: str) -> dict[str, Any]:
    """Return the type and the number of a step's instances."""
    return {
        "InstanceType": build.parameters[instance_type_parameter(name)],
        "InstanceCount": build.parameters.get(instance_count_parameter(name), build.machine(name).instance_count),
    }


def key(name: str, value: str | None) -> dict[str, str]:
    """Return an argument with a KMS key, if there is one."""
    return {name: value} if value else {}


def volume_key(aws: Aws, *instance_types: str) -> str | None:
    """Return the KMS key for the volumes of a job's instances; None if the service accepts none.

    Instance types with local storage encrypt it with a key of the hardware. A job's request must then have no key.
    """
    return aws.kms_key if all(map(has_volume, instance_types)) else None


def has_volume(instance_type: str) -> bool:
    """Return whether instances of this type have a volume with a KMS key, and no local storage."""
    from sagemaker.core.common_utils import instance_supports_kms

    family = instance_type.removeprefix("ml.").partition(".")[0]
    return instance_supports_kms(instance_type) and family not in _LOCAL_STORAGE


def output_uri(build: Build, contract: StepContract, output: str) -> Any:
    """Return the URI of a step's output; for a cached step, the earlier execution's URI."""
    from sagemaker.core.workflow.functions import Join

    properties = build.steps[contract.name].properties
    if contract is not PYTORCH_TRAINING:
        return properties.ProcessingOutputConfig.Outputs[output].S3Output.S3Uri
    if build.plan.tuner is not None:
        # The best job is the first summary, as in TuningStep.get_top_model_s3_uri. A tuner has no property with the
        # URI of an artifact; the step cache compares the path, so an earlier execution had the same.
        archive = "model.tar.gz" if output == "model_output" else "output.tar.gz"
        return Join(on="/", values=[output_path(build), training_job(build), "output", archive])
    if output == "model_output":
        return properties.ModelArtifacts.S3ModelArtifacts
    # output/data has no property; the service writes it next to the model.
    job = [properties.OutputDataConfig.S3OutputPath, training_job(build)]
    return Join(on="/", values=[*job, "output", "output.tar.gz"])


def training_job(build: Build) -> Any:
    """Return the name of the training job; with a tuner, of the best."""
    properties = build.steps[PYTORCH_TRAINING.name].properties
    return (properties if build.plan.tuner is None else properties.TrainingJobSummaries[0]).TrainingJobName


def output_path(build: Build) -> str:
    """Return the S3 folder of the artifacts of training jobs, each in a folder with the job's name."""
    return f"{build.home}/{PYTORCH_TRAINING.name}"


def environment(build: Build, plan: StepPlan) -> dict[str, Any]:
    """Return a step's variables; one that repeats a hyperparameter refers to its parameter, so that both change."""
    variables: dict[str, Any] = plan.sent(plan.environment)
    for variable, name in plan.from_hyperparameters.items():
        if (parameter := f"{HYPERPARAMETER_PREFIX}{name}") in build.parameters:
            variables[variable] = build.parameters[parameter]
    if plan.contract is TRACKING:
        variables.setdefault("MLFLOW_RUN_NAME", training_job(build))
    if (parameter := data_key_parameter(plan.contract.name)) in build.parameters:
        variables["DATA_KEY"] = build.parameters[parameter]
    return variables


def input_uris(build: Build, plan: StepPlan) -> dict[str, Any]:
    """Return the S3 URI of each input that is there, by logical name."""
    from sagemaker.core.workflow.functions import Join

    uris: dict[str, Any] = {}
    for folder in plan.contract.inputs:
        origin = source(plan.contract, folder)
        if f"{INPUT_PREFIX}{folder.name}" in build.parameters and folder.name in plan.outside:
            uris[folder.name] = build.parameters[f"{INPUT_PREFIX}{folder.name}"]
        elif origin is not None:
            uri = output_uri(build, origin.step, origin.output)
            uris[folder.name] = Join(on="/", values=[uri, origin.subfolder]) if origin.subfolder else uri
        elif folder.name == "settings" and plan.in_file:
            uris[folder.name] = _settings_uri(build, plan)
    return uris


def _inputs(build: Build, plan: StepPlan) -> list[Any]:
    may_shard = not plan.contract.settings.from_environment(plan.environment).whole_inputs
    sharded = {folder.name for folder in plan.contract.inputs if may_shard and folder.sharded}
    return [
        {
            "InputName": name,
            "S3Input": {
                "S3Uri": uri,
                "LocalPath": plan.contract.input(name).container_path,
                "S3DataType": "S3Prefix",
                "S3InputMode": "File",
                "S3DataDistributionType": "ShardedByS3Key" if name in sharded else "FullyReplicated",
                "S3CompressionType": "None",
            },
        }
        for name, uri in input_uris(build, plan).items()
    ]


def _output(build: Build, contract: StepContract, folder: StepFolder) -> Any:
    uri, path = new_output(build, contract, folder), folder.container_path
    return {"OutputName": folder.name, "S3Output": {"S3Uri": uri, "LocalPath": path, "S3UploadMode": "EndOfJob"}}


def new_output(build: Build, contract: StepContract, folder: StepFolder) -> Any:
    """Return the S3 folder of an output, below that of the execution, or of what is kept longer."""
    from sagemaker.core.workflow.execution_variables import ExecutionVariables
    from sagemaker.core.workflow.functions import Join

    if contract is MONITOR:
        return f"{build.home}/{contract.name}"
    place = f"{build.home}/{_KEPT.get(contract.name, EXECUTIONS)}"
    return Join(on="/", values=[place, ExecutionVariables.PIPELINE_EXECUTION_ID, contract.name, folder.name])


def cache(aws: Aws) -> dict[str, Any]:
    """Return the settings of the step cache."""
    return {"Enabled": True, "ExpireAfter": aws.cache_expires} if aws.cache_expires else {"Enabled": False}


def service_retries(aws: Aws) -> Any:
    """Return the retry policy of every step: for faults and throttling of the service."""
    from sagemaker.mlops.workflow.retry import StepExceptionTypeEnum, StepRetryPolicy

    reasons = [StepExceptionTypeEnum.SERVICE_FAULT, StepExceptionTypeEnum.THROTTLING]
    return StepRetryPolicy(exception_types=reasons, **aws.retries.model_dump())


def job_retries(aws: Aws) -> list[Any]:
    """Return the retry policies of a job: those of every step, and for missing capacity."""
    from sagemaker.mlops.workflow.retry import SageMakerJobExceptionTypeEnum as Job
    from sagemaker.mlops.workflow.retry import SageMakerJobStepRetryPolicy

    for_jobs = SageMakerJobStepRetryPolicy(
        exception_types=[Job.RESOURCE_LIMIT],
        failure_reason_types=[Job.INTERNAL_ERROR, Job.CAPACITY_ERROR],
        **aws.retries.model_dump(),
    )
    return [service_retries(aws), for_jobs]
