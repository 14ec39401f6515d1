"""Build the steps that host the new model: a batch transform, and an endpoint of one of three kinds."""

from collections.abc import Mapping
from typing import Any

from contracts.serving import CSV, JSON, JSON_LINES, REQUEST_TYPES, RESPONSE_TYPES
from contracts.step_contract import StepContract
from contracts.steps import (
    ARCHIVED_MODEL,
    DATA_LOADING,
    EVALUATION,
    MODEL_METRICS,
    PACKAGE,
    PAYLOAD,
    PAYLOAD_ARCHIVE,
    REGISTRATION,
    VERSION,
    VERSION_FACTS,
)
from pipeline.aws.jobs import (
    CONDITION_FILE,
    Build,
    given,
    input_uris,
    instances,
    job_retries,
    key,
    new_output,
    output_uri,
    service_retries,
    step,
    training_job,
    volume_key,
)
from pipeline.aws.parameters import APPROVAL, CAPTURES, AwsPlan, data_key_parameter
from pipeline.card import DOMAIN, GENERATED, TASK, model_card
from pipeline.config import PipelineConfig
from pipeline.config_aws import Asynchronous, Deploy
from pipeline.plan import StepPlan

VARIANT, SHADOW = "AllTraffic", "Shadow"
TRANSFORM_MODEL, ENDPOINT_MODEL = "BatchScoreModel", "EndpointModel"
ENDPOINT_CONFIG, ENDPOINT = "EndpointConfig", "Endpoint"
OURS = "text-table-trainer:endpoint"  # the key of a tag, with the name of the endpoint
_MODEL = "The package as a model that SageMaker can host."
_LONGEST_PREFIX = 40  # of 63 characters, with a hyphen and the identifier of an execution


def container_definition(build: Build, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the container of a hosted or registered model: the image with the package."""
    from sagemaker.core.workflow.functions import Join

    package = Join(on="/", values=[output_uri(build, PACKAGE, "packaged_model"), ARCHIVED_MODEL])
    environment = {"Environment": dict(variables)} if variables else {}
    return {"Image": build.aws.image, "ModelDataUrl": package, **environment}


def transform_step(build: Build, plan: StepPlan) -> Any:
    """Return the batch transform; add the step of its model to the build."""
    aws, section, contract = build.aws, build.config.batch_score, plan.contract
    assert section is not None
    machine = build.machine(contract.name)
    payload_mb, concurrency = section.payloads or (None, None)
    model = step(
        build,
        "Model",
        TRANSFORM_MODEL,
        about=_MODEL,
        request={
            "ExecutionRoleArn": aws.role,
            "PrimaryContainer": container_definition(build, plan.environment),
            "VpcConfig": build.vpc,
            "EnableNetworkIsolation": aws.network_isolation or None,
            "Tags": build.tags,
        },
        depends_on=[REGISTRATION.name],  # after the check of the package
        retry_policies=[service_retries(aws)],
    )
    build.steps[TRANSFORM_MODEL] = model
    (output,) = contract.outputs
    records = {"S3DataType": "S3Prefix", "S3Uri": input_uris(build, plan)["batch_input"]}
    processing = {
        "InputFilter": section.input_filter,
        "OutputFilter": section.output_filter,
        "JoinSource": "Input" if section.join_input else None,
    }
    return step(
        build,
        "Transform",
        contract.name,
        about=contract.about,
        request={
            "ModelName": model.properties.ModelName,
            "BatchStrategy": section.strategy,
            "MaxConcurrentTransforms": concurrency,
            "MaxPayloadInMB": payload_mb,
            "ModelClientConfig": {"InvocationsTimeoutInSeconds": section.timeout_seconds},
            "TransformInput": {
                "DataSource": {"S3DataSource": records},
                "ContentType": section.content_type,
                "SplitType": "Line",
            },
            "TransformOutput": {
                "S3OutputPath": new_output(build, contract, output),
                "Accept": section.content_type,
                "AssembleWith": "Line",
                **key("KmsKeyId", aws.kms_key),
            },
            "TransformResources": {
                **instances(build, contract.name),
                **key("VolumeKmsKeyId", volume_key(aws, machine.instance_type)),
            },
            "DataProcessing": {name: value for name, value in processing.items() if value},
            "Tags": build.tags,
        },
        retry_policies=job_retries(aws),
    )


def deploy_steps(build: Build, deploy: Deploy) -> dict[str, Any]:
    """Return the steps that create or update the endpoint with the registered model, by name."""
    from sagemaker.core.workflow.execution_variables import ExecutionVariables
    from sagemaker.core.workflow.functions import Join

    retries = [service_retries(build.aws)]
    model = step(
        build,
        "Model",
        ENDPOINT_MODEL,
        about=_MODEL,
        request=model_request(build, deploy, build.steps[REGISTRATION.name].properties.ModelPackageArn),
        depends_on=[REGISTRATION.name],
        retry_policies=retries,
    )
    name = endpoint_name(build.config, deploy)
    # A configuration cannot change, so each execution creates one.
    unique = Join(on="-", values=[name[:_LONGEST_PREFIX], ExecutionVariables.PIPELINE_EXECUTION_ID])
    config = step(
        build,
        "EndpointConfig",
        ENDPOINT_CONFIG,
        about="The instances of the endpoint, and its requests and answers in S3.",
        request=endpoint_config_request(build, deploy, name=unique, model=model.properties.ModelName),
        retry_policies=retries,
    )
    endpoint = step(
        build,
        "Endpoint",
        ENDPOINT,
        about="Create or update the endpoint.",
        request={
            "EndpointName": name,
            "EndpointConfigName": config.properties.EndpointConfigName,
            "Tags": endpoint_tags(build, deploy),
        },
    )
    return {made.name: made for made in (model, config, endpoint)}


def endpoint_name(config: PipelineConfig, deploy: Deploy) -> str:
    """Return the name of the endpoint."""
    return deploy.endpoint or config.name


def endpoint_tags(resolved: AwsPlan, deploy: Deploy) -> list[dict[str, str]]:
    """Return the tags of an endpoint, its configurations and its models; one says that this project made them."""
    return [*resolved.tags, {"Key": OURS, "Value": endpoint_name(resolved.config, deploy)}]


def model_request(resolved: AwsPlan, deploy: Deploy, package: Any) -> dict[str, Any]:
    """Return the arguments of CreateModel, without the name.

    Args:
        package: ARN of the registered version, which has the container.
    """
    isolated = resolved.aws.network_isolation
    on_instances = {"VpcConfig": resolved.vpc, "EnableNetworkIsolation": isolated or None}
    return given(
        {
            "ExecutionRoleArn": resolved.aws.role,
            "PrimaryContainer": {"ModelPackageName": package},
            # SageMaker's serverless endpoints refuse models with network isolation or a VPC.
            **({} if deploy.serverless else on_instances),
            "Tags": endpoint_tags(resolved, deploy),
        }
    )


def endpoint_config_request(resolved: AwsPlan, deploy: Deploy, *, name: Any, model: Any) -> dict[str, Any]:
    """Return the arguments of CreateEndpointConfig."""
    return given(
        {
            "EndpointConfigName": name,
            "ProductionVariants": [{"VariantName": VARIANT, "ModelName": model, **_capacity(deploy)}],
            "Tags": endpoint_tags(resolved, deploy),
            "KmsKeyId": None if deploy.serverless else resolved.aws.kms_key,
            "DataCaptureConfig": _capture(resolved, deploy),
            "AsyncInferenceConfig": deploy.asynchronous and _queue(resolved, deploy.asynchronous),
        }
    )


def _capacity(deploy: Deploy) -> dict[str, Any]:
    if deploy.serverless is not None:
        return {
            "ServerlessConfig": {
                "MemorySizeInMB": deploy.serverless.memory_mb,
                "MaxConcurrency": deploy.serverless.concurrency,
                **({"ProvisionedConcurrency": deploy.scaling.minimum} if deploy.scaling else {}),
            }
        }
    assert deploy.instances is not None
    return {
        "InstanceType": deploy.instances.instance_type,
        "InitialInstanceCount": deploy.instances.instance_count,
        "InitialVariantWeight": 1.0,
    }


def _capture(resolved: AwsPlan, deploy: Deploy) -> dict[str, Any] | None:
    if deploy.real_time is None or not deploy.real_time.capture_percent:
        return None
    return {
        "EnableCapture": True,
        "InitialSamplingPercentage": deploy.real_time.capture_percent,
        "DestinationS3Uri": f"{resolved.home}/{CAPTURES}",
        "CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}],
        "CaptureContentTypeHeader": {"CsvContentTypes": [CSV], "JsonContentTypes": [JSON, JSON_LINES]},
        **key("KmsKeyId", resolved.aws.kms_key),
    }


def _queue(resolved: AwsPlan, asynchronous: Asynchronous) -> dict[str, Any]:
    topics = {"SuccessTopic": asynchronous.success_topic, "ErrorTopic": asynchronous.error_topic}
    topics = {name: topic for name, topic in topics.items() if topic}
    path = asynchronous.output or f"{resolved.home}/asynchronous"
    output: dict[str, Any] = {"S3OutputPath": path, **key("KmsKeyId", resolved.aws.kms_key)}
    if topics:
        output["NotificationConfig"] = topics
    queue: dict[str, Any] = {"OutputConfig": output}
    if asynchronous.concurrency is not None:
        queue["ClientConfig"] = {"MaxConcurrentInvocationsPerInstance": asynchronous.concurrency}
    return queue


def registration_step(build: Build, plan: StepPlan) -> Any:
    """Return the step. The SDK's register() is not used because it calls S3 while the definition is built."""
    from sagemaker.core.workflow.functions import Join

    def uri(contract: StepContract, output: str, name: str) -> Any:
        return Join(on="/", values=[output_uri(build, contract, output), name])

    registration = build.config.registration
    card = model_card(build.config, build.plan, None, image=build.aws.image)
    evaluation = {"ContentType": JSON, "S3Uri": uri(MODEL_METRICS, "metrics_output", EVALUATION)}
    return step(
        build,
        "RegisterModel",
        plan.contract.name,
        about=plan.contract.about,
        request={
            "ModelPackageGroupName": build.config.group,
            "ModelApprovalStatus": build.parameters.get(APPROVAL, registration.approval),
            "InferenceSpecification": {
                "Containers": [container_definition(build, plan.environment)],
                "SupportedContentTypes": list(REQUEST_TYPES),
                "SupportedResponseMIMETypes": list(RESPONSE_TYPES),
                "SupportedRealtimeInferenceInstanceTypes": list(registration.inference_instances),
                "SupportedTransformInstanceTypes": list(registration.transform_instances),
            },
            "ModelMetrics": {"ModelQuality": {"Statistics": evaluation}},
            "CustomerMetadataProperties": _made_of(build),
            "Domain": DOMAIN,
            "Task": TASK,
            "SamplePayloadUrl": uri(PAYLOAD, "payload_sample", PAYLOAD_ARCHIVE),
            "SkipModelValidation": "None",
            "ModelCard": {"ModelCardContent": card, "ModelCardStatus": "Draft"},
        },
        retry_policies=[service_retries(build.aws)],
    )


def _made_of(build: Build) -> dict[str, Any]:
    """Return what the version was made of, as texts; the local registry writes the same names."""
    from sagemaker.core.workflow.execution_variables import ExecutionVariables
    from sagemaker.core.workflow.functions import Join, JsonGet

    def measured(name: str) -> Any:
        path = f"{VERSION}.{name}"
        fact = JsonGet(step_name=MODEL_METRICS.name, property_file=CONDITION_FILE, json_path=path)
        return Join(on="", values=[fact])  # a text

    return {
        "condition_metric": build.config.condition.metric,
        **{name: measured(name) for name in VERSION_FACTS},
        "image": build.aws.image,
        "data_key": build.parameters.get(data_key_parameter(DATA_LOADING.name), GENERATED),
        "training_job": training_job(build),
        "execution": ExecutionVariables.PIPELINE_EXECUTION_ARN,
    }
