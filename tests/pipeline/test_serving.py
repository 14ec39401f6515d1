"""The steps that host a model: a batch transform, and an endpoint of each kind; and its automatic scaling."""

import json

import boto3
import pytest
from botocore import xform_name
from pydantic import ValidationError

from contracts.errors import ContractError
from contracts.serving import ServingSettings
from pipeline.aws.definition import definition
from pipeline.aws.deploy import parse_overrides
from pipeline.aws.limits import _OPERATIONS, value_of
from pipeline.aws.resolve import aws_plan
from testing.pipelines import (
    APPROVED,
    AWS,
    EVERYTHING,
    all_steps,
    alternative,
    configuration,
    everything,
    loopback_only,
    serverless,
)

KEY = EVERYTHING["kms_key"]
KINDS = {"real_time": everything, "serverless": serverless, "asynchronous": alternative}


@pytest.fixture(scope="module")
def hosted():
    """The steps of a definition with each kind of endpoint, by kind and name."""
    with loopback_only():
        return {kind: all_steps(json.loads(definition(config()))) for kind, config in KINDS.items()}


def sent(hosted, kind, step):
    return hosted[kind][step]["Arguments"]


def served(hosted, kind):
    """Return the settings of the registered model, which the endpoint's model must share."""
    (registered,) = sent(hosted, kind, "Registration")["InferenceSpecification"]["Containers"]
    package = {"Get": "Steps.Registration.ModelPackageArn"}
    assert sent(hosted, kind, "EndpointModel")["PrimaryContainer"] == {"ModelPackageName": package}
    return ServingSettings.from_environment(registered.get("Environment", {}))


def test_records_are_scored_as_the_section_says(hosted):
    transform = sent(hosted, "real_time", "BatchScore")
    assert transform["DataProcessing"] == {"InputFilter": "$[1:]", "JoinSource": "Input", "OutputFilter": "$[0,-1]"}
    assert transform["TransformInput"] == {
        "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": {"Get": "Parameters.Input_batch_input"}}},
        "ContentType": "text/csv",
        "SplitType": "Line",
    }
    assert transform["TransformOutput"]["Accept"] == "text/csv"
    assert transform["TransformOutput"]["AssembleWith"] == "Line"
    assert transform["TransformOutput"]["KmsKeyId"] == transform["TransformResources"]["VolumeKmsKeyId"] == KEY
    assert transform["TransformOutput"]["S3OutputPath"]["Std:Join"]["Values"][-2:] == ["BatchScore", "scores"]
    assert (transform["MaxPayloadInMB"], transform["MaxConcurrentTransforms"]) == (6, 8)
    assert transform["BatchStrategy"] == "MultiRecord"
    assert transform["ModelClientConfig"] == {"InvocationsTimeoutInSeconds": 900}
    assert transform["TransformResources"]["InstanceCount"] == 2
    assert transform["TransformResources"]["InstanceType"] == {"Get": "Parameters.BatchScoreInstanceType"}
    assert aws_plan(everything()).specs["BatchScoreInstanceType"].default == "ml.c5.xlarge"


def test_the_scoring_model_is_the_checked_package_with_the_limits_of_the_section(hosted):
    step = hosted["real_time"]["BatchScoreModel"]
    container = step["Arguments"]["PrimaryContainer"]
    assert step["DependsOn"] == ["Registration"]
    assert hosted["real_time"]["BatchScore"]["Arguments"]["ModelName"] == {"Get": "Steps.BatchScoreModel.ModelName"}
    (registered,) = sent(hosted, "real_time", "Registration")["InferenceSpecification"]["Containers"]
    assert container["ModelDataUrl"] == registered["ModelDataUrl"]
    settings = ServingSettings.from_environment(container["Environment"])
    # A quarter of eight payloads of 6 MiB, twice: the section has an input_filter, which writes its JSON again.
    assert (settings.serving_max_bytes, settings.serving_timeout_seconds) == (24 << 20, 895)


def test_neither_scores_nor_endpoints_are_made_by_default():
    with loopback_only():
        steps = all_steps(json.loads(definition(configuration())))
    assert {step["Type"] for step in steps.values()} == {
        "Processing", "Training", "RegisterModel", "Condition", "Fail"
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_an_endpoint_is_made_if_the_metric_suffices_and_after_the_registration(hosted, kind):
    decide = sent(hosted, kind, "MetricCondition")
    endpoint = ["EndpointModel", "EndpointConfig", "Endpoint"]
    assert [step["Name"] for step in decide["IfSteps"]][-3:] == endpoint
    assert hosted[kind]["EndpointModel"]["DependsOn"] == ["Registration"]
    (variant,) = sent(hosted, kind, "EndpointConfig")["ProductionVariants"]
    assert variant["ModelName"] == {"Get": "Steps.EndpointModel.ModelName"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_that_is_deployed_is_approved_and_no_execution_changes_this(hosted, kind):
    assert sent(hosted, kind, "Registration")["ModelApprovalStatus"] == "Approved"
    config = KINDS[kind]()
    with pytest.raises(ContractError, match="parameter ApprovalStatus: unknown"):
        parse_overrides(aws_plan(config), {"ApprovalStatus": "PendingManualApproval"})


@pytest.mark.parametrize("approval", ["PendingManualApproval", "Rejected"])
def test_an_execution_whose_package_waits_for_approval_makes_no_endpoint(approval):
    config = configuration(aws={**AWS, "deploy": {"real_time": {}}}, registration={"approval": approval})
    with loopback_only():
        content = json.loads(definition(config))
    assert not {"EndpointModel", "EndpointConfig", "Endpoint"} & set(all_steps(content))
    assert {each["Name"]: each["DefaultValue"] for each in content["Parameters"]}["ApprovalStatus"] == approval


@pytest.mark.parametrize("kind", KINDS)
def test_each_execution_makes_its_own_configuration_of_one_endpoint(hosted, kind):
    name = sent(hosted, kind, "EndpointConfig")["EndpointConfigName"]
    prefix = {"real_time": "claims"}.get(kind, "demo")
    assert name == {"Std:Join": {"On": "-", "Values": [prefix, {"Get": "Execution.PipelineExecutionId"}]}}
    endpoint = sent(hosted, kind, "Endpoint")
    assert endpoint["EndpointName"] == prefix
    assert endpoint["EndpointConfigName"] == {"Get": "Steps.EndpointConfig.EndpointConfigName"}


def test_a_real_time_endpoint_has_instances_and_saves_its_requests(hosted):
    config = sent(hosted, "real_time", "EndpointConfig")
    (variant,) = config["ProductionVariants"]
    assert (variant["InstanceType"], variant["InitialInstanceCount"]) == ("ml.c5.large", 2)
    capture = config["DataCaptureConfig"]
    assert (capture["InitialSamplingPercentage"], capture["KmsKeyId"]) == (20, KEY)
    assert capture["DestinationS3Uri"] == "s3://my-bucket/teams/risk/demo/capture"
    assert capture["CaptureOptions"] == [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}]
    assert served(hosted, "real_time") == ServingSettings()


def test_a_serverless_endpoint_has_memory_and_the_limits_of_its_kind(hosted):
    config = sent(hosted, "serverless", "EndpointConfig")
    (variant,) = config["ProductionVariants"]
    assert variant["ServerlessConfig"] == {"MemorySizeInMB": 2048, "MaxConcurrency": 7}
    assert not {"InstanceType", "InitialInstanceCount"} & set(variant)
    assert not {"KmsKeyId", "DataCaptureConfig", "AsyncInferenceConfig"} & set(config)
    assert served(hosted, "serverless") == ServingSettings(serving_max_bytes=4 << 20)


def test_an_asynchronous_endpoint_has_a_queue_and_the_limits_of_its_kind(hosted):
    config = sent(hosted, "asynchronous", "EndpointConfig")
    assert config["AsyncInferenceConfig"] == {
        "OutputConfig": {
            "S3OutputPath": "s3://answers/claims",
            "KmsKeyId": KEY,
            "NotificationConfig": {
                "SuccessTopic": "arn:aws:sns:eu-west-1:123456789012:success",
                "ErrorTopic": "arn:aws:sns:eu-west-1:123456789012:error",
            },
        },
        "ClientConfig": {"MaxConcurrentInvocationsPerInstance": 4},
    }
    settings = served(hosted, "asynchronous")
    assert (settings.serving_max_bytes, settings.serving_timeout_seconds) == (1 << 30, 3595)
    assert settings.serving_max_decoded_bytes == 4 << 30, "for Parquet"


def test_models_are_isolated_in_the_vpc_except_on_serverless_endpoints_which_refuse_it(hosted):
    vpc = {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]}
    for kind, model in (("real_time", "EndpointModel"), ("serverless", "BatchScoreModel")):
        assert sent(hosted, kind, model)["EnableNetworkIsolation"] is True
        assert sent(hosted, kind, model)["VpcConfig"] == vpc
    assert not {"EnableNetworkIsolation", "VpcConfig"} & set(sent(hosted, "serverless", "EndpointModel"))


def test_settings_of_the_registered_model_take_precedence_over_those_of_its_kind():
    config = configuration(
        aws={**AWS, "deploy": {"asynchronous": {}}, "inputs": {"input_data": "s3://raw/table"}},
        registration=APPROVED,
        settings={"Registration": {"serving_max_bytes": 1 << 20, "serving_threads": 2}},
    )
    with loopback_only():
        steps = all_steps(json.loads(definition(config)))
    variables = steps["Registration"]["Arguments"]["InferenceSpecification"]["Containers"][0]["Environment"]
    assert (variables["SERVING_MAX_BYTES"], variables["SERVING_THREADS"]) == ("1048576", "2")
    assert variables["SERVING_TIMEOUT_SECONDS"] == "3595.0"
    output = steps["EndpointConfig"]["Arguments"]["AsyncInferenceConfig"]["OutputConfig"]
    assert output == {"S3OutputPath": "s3://my-bucket/pipelines/demo/asynchronous"}


@pytest.mark.parametrize("deploy", [{}, {"serverless": {}, "asynchronous": {}}])
def test_an_endpoint_has_exactly_one_kind(deploy):
    with pytest.raises(ValidationError, match="exactly one of real_time, serverless and asynchronous"):
        configuration(aws={**AWS, "deploy": deploy})


@pytest.mark.parametrize(("field", "value"), [("volume_gb", 31), ("max_runtime_seconds", 60)])
def test_a_batch_transform_has_no_volume_and_no_maximum_duration(field, value):
    config = configuration(
        aws={**AWS, "inputs": {"batch_input": "s3://raw/records"}, "steps": {"BatchScore": {field: value}}},
        batch_score={},
    )
    with pytest.raises(ContractError, match=f"aws.steps.BatchScore.{field}: is set, and a batch transform has none"):
        aws_plan(config)


def executed(steps, client, parameters):
    """Send the steps that host a model to a service, in order, with the values that an execution knows."""
    known = {"Execution.PipelineExecutionId": "abcdef123456"}

    def resolved(value):
        if isinstance(value, list):
            return [resolved(part) for part in value]
        if not isinstance(value, dict):
            return value
        if set(value) == {"Std:Join"}:
            return value["Std:Join"]["On"].join(map(str, resolved(value["Std:Join"]["Values"])))
        if set(value) == {"Get"}:
            path = value["Get"]
            return (
                known[path] if path in known else value_of(value, parameters).content or f"s3://my-bucket/{path[6:13]}"
            )
        return {name: resolved(part) for name, part in value.items()}

    for name, step in steps.items():
        operation, added = _OPERATIONS.get(step["Type"], ("", {}))
        if operation not in ("CreateModel", "CreateTransformJob", "CreateEndpointConfig", "CreateEndpoint"):
            continue
        request = resolved({**dict.fromkeys(added, f"{name}-1"), **step["Arguments"]})
        for attribute in ("ModelName", "EndpointConfigName"):
            if attribute in request:
                known[f"Steps.{name}.{attribute}"] = request[attribute]
        getattr(client, xform_name(operation))(**request)


@pytest.mark.parametrize("kind", KINDS)
def test_a_service_makes_the_endpoint_and_the_scores_of_a_definition(hosted, kind, local_aws):
    client = boto3.client("sagemaker")
    parameters = {name: spec.default for name, spec in aws_plan(KINDS[kind]()).specs.items()}
    name = {"real_time": "claims"}.get(kind, "demo")
    executed(hosted[kind], client, parameters)
    try:
        endpoint = client.describe_endpoint(EndpointName=name)
        assert endpoint["EndpointConfigName"] == f"{name}-abcdef123456"
        variant = client.describe_endpoint_config(EndpointConfigName=f"{name}-abcdef123456")["ProductionVariants"][0]
        assert variant["ModelName"] == "EndpointModel-1"
        if kind != "asynchronous":
            job = client.describe_transform_job(TransformJobName="BatchScore-1")
            assert job["ModelName"] == "BatchScoreModel-1"
    finally:
        client.delete_endpoint(EndpointName=name)
        client.delete_endpoint_config(EndpointConfigName=f"{name}-abcdef123456")
        for model in client.list_models()["Models"]:
            client.delete_model(ModelName=model["ModelName"])
