"""Build the steps that host the new model: a batch transform, and an endpoint of one of three kinds."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from contracts.errors import ContractError
from contracts.serving import CSV, JSON, JSON_LINES, REQUEST_TYPES, RESPONSE_TYPES
from contracts.steps import ARCHIVED_MODEL, EVALUATION, MODEL_METRICS, PACKAGE, PAYLOAD, PAYLOAD_ARCHIVE, REGISTRATION
from pipeline.aws.jobs import Build, input_uris, job_retries, job_tags, output_uri, service_retries, volume_key
from pipeline.aws.parameters import APPROVAL, instance_type_parameter, machine_of
from pipeline.card import DOMAIN, TASK, model_card
from pipeline.config import PipelineConfig
from pipeline.config_aws import Asynchronous, Deploy, EndpointInstances
from pipeline.plan import StepPlan

VARIANT = "AllTraffic"
TRANSFORM_MODEL, ENDPOINT_MODEL = "BatchScoreModel", "EndpointModel"
ENDPOINT_CONFIG, ENDPOINT = "EndpointConfig", "Endpoint"
_LONGEST_PREFIX = 40  # of 63 characters, with a hyphen and the identifier of an execution


def container_definition(build: Build, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the container of a hosted or registered model: the image with the package."""
    from sagemaker.core.workflow.functions import Join

    package = Join(on="/", values=[output_uri(build, PACKAGE, "packaged_model"), ARCHIVED_MODEL])
    environment = {"Environment": dict(variables)} if variables else {}
    return {"Image": build.aws.image, "ModelDataUrl": package, **environment}


def transform_step(build: Build, plan: StepPlan) -> Any:
    """Return the batch transform; add the step of its model to the build."""
    from sagemaker.core.transformer import Transformer
    from sagemaker.core.workflow.execution_variables import ExecutionVariables
    from sagemaker.core.workflow.functions import Join
    from sagemaker.mlops.workflow.steps import TransformStep

    aws, section, contract = build.aws, build.config.batch_score, plan.contract
    assert section is not None
    machine = machine_of(build.config, contract.name)
    payload_mb, concurrency = section.payloads or (None, None)
    model = _model_step(build, TRANSFORM_MODEL, plan.environment, isolated=aws.network_isolation)
    build.steps[TRANSFORM_MODEL] = model
    (output,) = contract.outputs
    transformer = Transformer(
        model_name=model.properties.ModelName,
        instance_type=build.parameters[instance_type_parameter(contract.name)],
        instance_count=machine.instance_count,  # the SDK takes no parameter here
        strategy=section.strategy,
        assemble_with="Line",
        accept=section.content_type,
        output_path=Join(
            on="/", values=[build.home, ExecutionVariables.PIPELINE_EXECUTION_ID, contract.name, output.name]
        ),
        output_kms_key=aws.kms_key,
        volume_kms_key=volume_key(aws, machine.instance_type),
        max_concurrent_transforms=concurrency,
        max_payload=payload_mb,
        base_transform_job_name=build.config.name,
        tags=job_tags(aws),
        sagemaker_session=build.session,
    )
    return TransformStep(
        name=contract.name,
        description=contract.about,
        step_args=transformer.transform(
            data=input_uris(build, plan)["batch_input"],
            content_type=section.content_type,
            split_type="Line",
            input_filter=section.input_filter,
            output_filter=section.output_filter,
            join_source="Input" if section.join_input else None,
            model_client_config={"InvocationsTimeoutInSeconds": section.timeout_seconds},  # pyright: ignore[reportArgumentType]
        ),
        retry_policies=job_retries(aws),
    )


def deploy_steps(build: Build, deploy: Deploy) -> dict[str, Any]:
    """Return the steps that create or update the endpoint, by name.

    Pipelines support no condition in the branch of a condition, so the approval is checked here.

    Raises:
        ContractError: packages are not registered as approved.
    """
    from sagemaker.core.workflow.execution_variables import ExecutionVariables
    from sagemaker.core.workflow.functions import Join
    from sagemaker.mlops.workflow.endpoint_step import EndpointConfigStep, EndpointStep

    aws, approval = build.aws, build.config.registration.approval
    if approval != "Approved":
        raise ContractError(
            f"aws.deploy: is set, but registration.approval is {approval}",
            "Set registration.approval to Approved, or remove aws.deploy until the model is approved.",
        )
    # SageMaker's serverless endpoints refuse models with network isolation or a VPC.
    isolated = aws.network_isolation and deploy.serverless is None
    variables = build.plan.step(REGISTRATION).environment
    model = _model_step(build, ENDPOINT_MODEL, variables, isolated=isolated, in_vpc=deploy.serverless is None)
    hosted = {"VariantName": VARIANT, "ModelName": model.properties.ModelName}
    name = endpoint_name(build.config, deploy)
    config: Any = EndpointConfigStep(
        name=ENDPOINT_CONFIG,
        description="The instances of the endpoint, and its requests and answers in S3.",
        step_args=build.session.create_endpoint_config(
            # A configuration cannot change, so each execution creates one.
            name=Join(on="-", values=[name[:_LONGEST_PREFIX], ExecutionVariables.PIPELINE_EXECUTION_ID]),
            production_variants=[{**hosted, **_capacity(deploy)}],
            tags=job_tags(aws),
            kms_key=None if deploy.serverless else aws.kms_key,
            data_capture_config_dict=_capture(build, deploy),
            async_inference_config_dict=deploy.asynchronous and _queue(build, deploy.asynchronous),
        ),
        retry_policies=[service_retries(aws)],
    )
    endpoint = EndpointStep(
        name=ENDPOINT,
        description="Create or update the endpoint.",
        step_args=build.session.create_endpoint(
            endpoint_name=name,
            config_name=config.properties.EndpointConfigName,
            tags=job_tags(aws),
        ),
    )
    return {step.name: step for step in (model, config, endpoint)}


def endpoint_name(config: PipelineConfig, deploy: Deploy) -> str:
    """Return the name of the endpoint."""
    return deploy.endpoint or config.name


def _model_step(build: Build, name: str, variables: Mapping[str, str], *, isolated: bool, in_vpc: bool = True) -> Any:
    from sagemaker.mlops.workflow.model_step import ModelStep

    aws, session = build.aws, build.session
    vpc = {"Subnets": list(aws.subnets), "SecurityGroupIds": list(aws.security_groups)}
    build.session.context = (
        None  # a ModelStep reads its arguments from the session, which keeps those of the previous one
    )
    session.init_model_step_arguments(SimpleNamespace(sagemaker_session=session))
    session.create_model(
        name,
        role=aws.role,
        container_defs=container_definition(build, variables),
        vpc_config=vpc if aws.subnets and in_vpc else None,
        enable_network_isolation=isolated,
        tags=job_tags(aws),
    )
    return ModelStep(
        name=name,
        description="The package as a model that SageMaker can host.",
        step_args=session.context,
        depends_on=[REGISTRATION.name],  # after the check of the package
        retry_policies=[service_retries(aws)],
    )


def _capacity(deploy: Deploy) -> dict[str, Any]:
    if deploy.serverless is not None:
        return {
            "ServerlessConfig": {
                "MemorySizeInMB": deploy.serverless.memory_mb,
                "MaxConcurrency": deploy.serverless.concurrency,
            }
        }
    instances: EndpointInstances | None = deploy.real_time or deploy.asynchronous
    assert instances is not None
    return {
        "InstanceType": instances.instance_type,
        "InitialInstanceCount": instances.instance_count,
        "InitialVariantWeight": 1.0,
    }


def _capture(build: Build, deploy: Deploy) -> dict[str, Any] | None:
    if deploy.real_time is None or not deploy.real_time.capture_percent:
        return None
    key = {"KmsKeyId": build.aws.kms_key} if build.aws.kms_key else {}
    return {
        "EnableCapture": True,
        "InitialSamplingPercentage": deploy.real_time.capture_percent,
        "DestinationS3Uri": f"{build.home}/capture",
        "CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}],
        "CaptureContentTypeHeader": {"CsvContentTypes": [CSV], "JsonContentTypes": [JSON, JSON_LINES]},
        **key,
    }


def _queue(build: Build, asynchronous: Asynchronous) -> dict[str, Any]:
    topics = {"SuccessTopic": asynchronous.success_topic, "ErrorTopic": asynchronous.error_topic}
    topics = {name: topic for name, topic in topics.items() if topic}
    output: dict[str, Any] = {"S3OutputPath": asynchronous.output or f"{build.home}/asynchronous"}
    if topics:
        output["NotificationConfig"] = topics
    if build.aws.kms_key:
        output["KmsKeyId"] = build.aws.kms_key
    queue: dict[str, Any] = {"OutputConfig": output}
    if asynchronous.concurrency is not None:
        queue["ClientConfig"] = {"MaxConcurrentInvocationsPerInstance": asynchronous.concurrency}
    return queue


def registration_step(build: Build, plan: StepPlan) -> Any:
    """Return the step. The SDK's register() is not used because it calls S3 while the definition is built."""
    from sagemaker.core.model_metrics import MetricsSource, ModelMetrics
    from sagemaker.core.model_registry import create_model_package_from_containers, get_model_package_args
    from sagemaker.core.shapes import ModelPackageModelCard
    from sagemaker.core.workflow.functions import Join
    from sagemaker.mlops.workflow.model_step import ModelStep

    def file(step: Any, output: str, name: str) -> Any:
        return Join(on="/", values=[output_uri(build, step, output), name])

    evaluation = MetricsSource(
        content_type="application/json", s3_uri=file(MODEL_METRICS, "metrics_output", EVALUATION)
    )
    variables = build.plan.step(REGISTRATION).environment
    card = model_card(build.config, None)
    # A ModelStep reads only the session from the model.
    build.session.init_model_step_arguments(SimpleNamespace(sagemaker_session=build.session))
    create_model_package_from_containers(
        build.session,
        **get_model_package_args(
            container_def_list=[container_definition(build, variables)],
            content_types=list(REQUEST_TYPES),
            response_types=list(RESPONSE_TYPES),
            inference_instances=list(build.config.registration.inference_instances),
            transform_instances=list(build.config.registration.transform_instances),
            model_package_group_name=build.config.group,
            model_metrics=ModelMetrics(model_statistics=evaluation),
            approval_status=build.parameters.get(APPROVAL, build.config.registration.approval),
            customer_metadata_properties={"condition_metric": build.config.condition.metric},
            domain=DOMAIN,
            task=TASK,
            sample_payload_url=file(PAYLOAD, "payload_sample", PAYLOAD_ARCHIVE),
            skip_model_validation="None",
            model_card=ModelPackageModelCard(model_card_content=card, model_card_status="Draft"),
        ),
    )
    return ModelStep(
        name=plan.contract.name,
        description=plan.contract.about,
        step_args=build.session.context,
        retry_policies=[service_retries(build.aws)],
    )
