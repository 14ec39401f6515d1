"""Build the SDK's ProcessingStep from a step's contract and plan, and the parts that all steps share."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contracts.paths import SETTINGS_FILE
from contracts.step_contract import StepContract, StepFolder
from contracts.steps import EVALUATION, MODEL_METRICS, PYTORCH_TRAINING, TRACKING
from pipeline.aws.errors import aws_errors
from pipeline.aws.parameters import (
    HYPERPARAMETER_PREFIX,
    INPUT_PREFIX,
    data_key_parameter,
    instance_count_parameter,
    instance_type_parameter,
    machine_of,
)
from pipeline.config import PipelineConfig
from pipeline.config_aws import Aws
from pipeline.graph import source
from pipeline.plan import Plan, StepPlan

ENTRYPOINT = ("python", "-m", "container")  # the image's entry point
CONDITION_FILE = "decision"
# Families with local NVMe storage that SDK 3.27 does not know: https://aws.amazon.com/ec2/instance-types/p6/
_LOCAL_STORAGE = ("p6-b300", "p6e-gb200")


@dataclass(frozen=True)
class Build:
    """The state of building a pipeline.

    Attributes:
        parameters: the SDK's parameters by name.
        steps: the SDK's steps so far, by contract name.
    """

    config: PipelineConfig
    plan: Plan
    session: Any
    parameters: Mapping[str, Any]
    steps: dict[str, Any]

    @property
    def aws(self) -> Aws:
        assert self.config.aws is not None
        return self.config.aws

    @property
    def home(self) -> str:
        return home_of(self.config)


def home_of(config: PipelineConfig) -> str:
    """Return the S3 folder of everything that this pipeline writes."""
    assert config.aws is not None
    return f"s3://{config.aws.bucket}/{config.aws.prefix}/{config.name}"


def upload_settings(config: PipelineConfig, plan: Plan, s3: Any) -> None:
    """Write the input settings of each step that has one."""
    assert config.aws is not None
    for step in plan.steps:
        if step.in_file:
            uri = f"{_settings_uri(config, step)}/{SETTINGS_FILE}"
            write_object(config.aws, s3, uri=uri, content=step.settings_file.encode())


def write_object(aws: Aws, s3: Any, *, uri: str, content: bytes) -> tuple[str, str]:
    """Write an object below the bucket, with the key of outputs; return its bucket and key."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": aws.kms_key} if aws.kms_key else {}
    with aws_errors(f"aws.bucket: {uri}", missing="Create the bucket in aws.region, or correct aws.bucket."):
        s3.put_object(Bucket=bucket, Key=key, Body=content, **encryption)
    return bucket, key


def job_tags(aws: Aws) -> Any:
    """Return the tags of the pipeline and of everything that it creates."""
    return [{"Key": key, "Value": value} for key, value in sorted(aws.tags.items())]


def _settings_uri(config: PipelineConfig, plan: StepPlan) -> str:
    """Return the S3 folder of a step's input settings; the step cache compares its name, a digest of its content."""
    return f"{home_of(config)}/settings/{hashlib.sha256(plan.settings_file.encode()).hexdigest()[:16]}"


def processing_step(build: Build, plan: StepPlan) -> Any:
    """Return the processing step of a contract."""
    from sagemaker.core.network import NetworkConfig
    from sagemaker.core.processing import Processor
    from sagemaker.core.workflow.properties import PropertyFile
    from sagemaker.mlops.workflow.steps import ProcessingStep

    contract, aws, machine = plan.contract, build.aws, machine_of(build.config, plan.contract.name)
    condition_file = PropertyFile(name=CONDITION_FILE, output_name="metrics_output", path=EVALUATION)
    mlflow = build.config.mlflow if contract is TRACKING else None
    processor = Processor(
        role=aws.role,
        image_uri=(mlflow and mlflow.image) or aws.image,
        entrypoint=list(ENTRYPOINT),
        instance_count=build.parameters.get(instance_count_parameter(contract.name), 1),
        instance_type=build.parameters[instance_type_parameter(contract.name)],
        volume_size_in_gb=machine.volume_gb,
        volume_kms_key=volume_key(aws, machine.instance_type),
        output_kms_key=aws.kms_key,
        max_runtime_in_seconds=machine.max_runtime_seconds,
        sagemaker_session=build.session,
        env=environment(build, plan) or None,
        tags=job_tags(aws),
        network_config=NetworkConfig(
            enable_network_isolation=aws.network_isolation and mlflow is None,
            encrypt_inter_container_traffic=aws.encrypt_traffic,
            subnets=list(aws.subnets) or None,
            security_group_ids=list(aws.security_groups) or None,
        ),
    )
    return ProcessingStep(
        name=contract.name,
        description=contract.about,
        step_args=processor.run(
            inputs=_inputs(build, plan),
            outputs=[_output(build, contract, folder) for folder in contract.outputs],
            arguments=list(plan.command),
        ),
        property_files=[condition_file] if contract is MODEL_METRICS else None,
        cache_config=cache(aws) if mlflow is None else None,  # it completes also where the server has not the results
        retry_policies=job_retries(aws),
    )


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
        return Join(on="/", values=[output_path(build), _training_job(build), "output", archive])
    if output == "model_output":
        return properties.ModelArtifacts.S3ModelArtifacts
    # output/data has no property; the service writes it next to the model.
    job = [properties.OutputDataConfig.S3OutputPath, _training_job(build)]
    return Join(on="/", values=[*job, "output", "output.tar.gz"])


def _training_job(build: Build) -> Any:
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
        variables.setdefault("MLFLOW_RUN_NAME", _training_job(build))
    if (parameter := data_key_parameter(plan.contract.name)) in build.parameters:
        variables["DATA_KEY"] = build.parameters[parameter]
    return variables


def input_uris(build: Build, plan: StepPlan) -> dict[str, Any]:
    """Return the S3 URI of each input that is there, by logical name."""
    from sagemaker.core.workflow.functions import Join

    uris: dict[str, Any] = {}
    for folder in plan.contract.inputs:
        origin = source(plan.contract, folder)
        if origin is not None:
            uri = output_uri(build, origin.step, origin.output)
            uris[folder.name] = Join(on="/", values=[uri, origin.subfolder]) if origin.subfolder else uri
        elif folder.name in plan.outside:
            uris[folder.name] = build.parameters[f"{INPUT_PREFIX}{folder.name}"]
        elif folder.name == "settings" and plan.in_file:
            uris[folder.name] = _settings_uri(build.config, plan)
    return uris


def _inputs(build: Build, plan: StepPlan) -> list[Any]:
    from sagemaker.core.shapes import ProcessingInput, ProcessingS3Input

    settings = plan.contract.settings.from_environment(plan.environment)
    may_shard = not settings.whole_inputs
    return [
        ProcessingInput(
            input_name=name,
            s3_input=ProcessingS3Input(
                s3_uri=uri,
                local_path=plan.contract.input(name).container_path,
                s3_data_type="S3Prefix",
                s3_input_mode="File",
                s3_data_distribution_type="ShardedByS3Key"
                if may_shard and plan.contract.input(name).sharded
                else "FullyReplicated",
            ),
        )
        for name, uri in input_uris(build, plan).items()
    ]


def _output(build: Build, contract: StepContract, folder: StepFolder) -> Any:
    from sagemaker.core.shapes import ProcessingOutput, ProcessingS3Output
    from sagemaker.core.workflow.execution_variables import ExecutionVariables
    from sagemaker.core.workflow.functions import Join

    execution = ExecutionVariables.PIPELINE_EXECUTION_ID
    return ProcessingOutput(
        output_name=folder.name,
        s3_output=ProcessingS3Output(
            s3_uri=Join(on="/", values=[build.home, execution, contract.name, folder.name]),
            local_path=folder.container_path,
            s3_upload_mode="EndOfJob",
        ),
    )


def tagged(step: type, aws: Aws, **arguments: Any) -> Any:
    """Return a step of the SDK, with the tags of its job; SDK 3.27 itself leaves out tags with an empty value.

    Args:
        step: the SDK's class, whose `step_args` have no tags.
    """

    class Tagged(step):
        @property
        def arguments(self) -> Any:
            return {**super().arguments, **({"Tags": job_tags(aws)} if aws.tags else {})}

    return Tagged(**arguments)


def cache(aws: Aws) -> Any:
    """Return the settings of the step cache."""
    from sagemaker.mlops.workflow.steps import CacheConfig

    return CacheConfig(
        enable_caching=aws.cache_expires is not None,
        expire_after=aws.cache_expires,  # pyright: ignore[reportCallIssue]  # assigned without an annotation there
    )


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
