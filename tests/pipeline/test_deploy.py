"""upsert and start, against moto's server: a real HTTP service on loopback."""

import ast
import io
import json
import os
import re
import sys
from contextlib import redirect_stderr
from types import SimpleNamespace
from unittest.mock import patch

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    IncompleteReadError,
    InvalidConfigError,
    NoCredentialsError,
    ParamValidationError,
    ProfileNotFound,
)
from botocore.parsers import ResponseParserError

from contracts.errors import ContractError
from pipeline.aws import deploy
from pipeline.aws.definition import definition
from pipeline.aws.deploy import champion, parse_overrides, start, upsert
from pipeline.aws.errors import aws_errors
from pipeline.aws.resolve import aws_plan
from pipeline.aws.session import sagemaker_sdk
from pipeline.commands import _pairs, main
from pipeline.config_aws import Aws, Training
from testing.jobs import run_python
from testing.pipelines import AWS, EVERYTHING, all_steps, configuration, everything, tuned, wide, write_config


@pytest.fixture(scope="module")
def client(local_aws):
    return boto3.client("sagemaker")


@pytest.fixture(scope="module")
def deployed(local_aws):
    return upsert(everything())


@pytest.fixture(scope="module")
def undeployed(local_aws):
    aws = Aws.model_validate({**EVERYTHING, "deploy": None})
    config = everything().model_copy(update={"aws": aws, "name": "undeployed"})
    upsert(config)
    return config


def sent_parameters(client, arn):
    found = client.list_pipeline_parameters_for_execution(PipelineExecutionArn=arn)["PipelineParameters"]
    return {each["Name"]: each["Value"] for each in found}


def keys_of(parameters):
    return {name: value for name, value in parameters.items() if name.endswith(("DataKey", "CheckpointKey"))}


def test_upsert_creates_the_pipeline_with_its_definition_and_tags(client, deployed):
    pipeline = client.describe_pipeline(PipelineName="demo")
    assert pipeline["PipelineArn"] == deployed
    assert pipeline["RoleArn"] == everything().aws.role
    assert [step["Name"] for step in json.loads(pipeline["PipelineDefinition"])["Steps"]][-1] == "MetricCondition"
    assert {"Key": "team", "Value": "risk"} in client.list_tags(ResourceArn=deployed)["Tags"]


def test_other_records_to_score_train_nothing_again(client, deployed):
    first = sent_parameters(client, start(everything(), {}))
    boto3.client("s3").put_object(Bucket="raw", Key="records/new.csv", Body=b"1,2")
    other = sent_parameters(client, start(everything(), {"Input_batch_input": "s3://raw/records/new.csv"}))
    assert other["Input_batch_input"] == "s3://raw/records/new.csv"
    assert keys_of(other) == keys_of(first)


def test_another_calibration_packages_again_and_trains_nothing_again(client, deployed):
    first = keys_of(sent_parameters(client, start(everything(), {})))
    boto3.client("s3").put_object(Bucket="raw", Key="calibration/calibration.json", Body=b"{}")
    other = keys_of(sent_parameters(client, start(everything(), {"Input_calibration_model": "s3://raw/calibration"})))
    assert [name for name in first if first[name] != other[name]] == ["PackageDataKey"]


def test_a_second_upsert_updates_the_same_pipeline_and_start_needs_it(client, local_aws, tmp_path, capsys):
    config = everything().model_copy(update={"name": "edited"})
    deployed = upsert(config)
    changed = {**config.model_dump(mode="json", exclude_none=True), "name": "edited"}
    changed["condition"] = {"metric": "test/auroc", "minimum": 0.7}
    file = str(write_config(tmp_path, changed))
    assert main(["start", "--config", file]) == 1
    assert "written from another configuration: Threshold is 0.8, now 0.7" in capsys.readouterr().err
    assert main(["upsert", "--config", file]) == 0
    assert capsys.readouterr().out.strip() == deployed
    assert main(["start", "--config", file]) == 0
    changed["condition"]["metric"] = "test/f1_score"  # no parameter
    assert main(["start", "--config", str(write_config(tmp_path, changed))]) == 1


def test_upsert_uploads_the_settings_that_a_job_cannot_contain(client, local_aws):
    config = wide().model_copy(update={"name": "wide"})
    upsert(config)
    steps = all_steps(json.loads(client.describe_pipeline(PipelineName="wide")["PipelineDefinition"]))
    inputs = {each["InputName"]: each for each in steps["TabularPreprocessing"]["Arguments"]["ProcessingInputs"]}
    bucket, key = inputs["settings"]["S3Input"]["S3Uri"].removeprefix("s3://").split("/", 1)
    found = boto3.client("s3").get_object(Bucket=bucket, Key=f"{key}/settings.json")
    assert json.loads(json.load(found["Body"])["LABEL_MAP"])["class_299"] == 299
    assert found["SSEKMSKeyId"] == EVERYTHING["kms_key"]


def test_a_long_definition_is_an_encrypted_object_below_the_prefix_of_the_pipeline(client, local_aws, monkeypatch):
    monkeypatch.setattr(deploy, "_LONGEST_REQUEST", 1000)
    config = everything().model_copy(update={"name": "long"})
    first, second = upsert(config), upsert(config)
    assert first == second
    s3 = boto3.client("s3")
    (found,) = s3.list_objects_v2(Bucket="my-bucket", Prefix="teams/risk/long/definitions/")["Contents"]
    assert re.fullmatch(r"teams/risk/long/definitions/[0-9a-f]{16}\.json", found["Key"])
    stored = s3.get_object(Bucket="my-bucket", Key=found["Key"])
    assert stored["SSEKMSKeyId"] == EVERYTHING["kms_key"]
    assert json.load(stored["Body"]) == json.loads(definition(config))
    deployed = client.describe_pipeline(PipelineName="long")["PipelineDefinition"]
    assert ast.literal_eval(deployed) == json.loads(definition(config))  # moto prints the object's content as Python


def test_a_misspelt_bucket_is_named_and_not_created(local_aws):
    with pytest.raises(ContractError, match="aws.bucket: my-bukcet does not exist"):
        upsert(configuration(aws={**AWS, "bucket": "my-bukcet"}))
    buckets = [each["Name"] for each in boto3.client("s3").list_buckets()["Buckets"]]
    assert "my-bukcet" not in buckets


def test_a_tag_without_a_value_reaches_the_pipeline_and_its_jobs(client, local_aws):
    tags, sent = {"team": ""}, [{"Key": "team", "Value": ""}]
    for config in (
        configuration(aws={**AWS, "tags": tags}, name="tagged"),
        tuned(aws={**AWS, "tags": tags}).model_copy(update={"name": "tagged-search"}),
    ):
        arn = upsert(config)
        steps = all_steps(json.loads(client.describe_pipeline(PipelineName=config.name)["PipelineDefinition"]))
        assert [steps[name]["Arguments"]["Tags"] for name in ("DataLoading", "PyTorchTraining")] == [sent, sent]
        assert client.list_tags(ResourceArn=arn)["Tags"] == sent


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("allowed", None),
        ("implicitDeny", "SageMaker lacks sagemaker:CreateExperiment."),
        (ClientError({"Error": {"Code": "AccessDenied"}}, "Simulate"), "SageMaker are not known (AccessDenied)."),
    ],
)
def test_executions_are_recorded_in_experiments_where_the_role_allows_it(client, monkeypatch, capsys, answer, line):
    send = BaseClient._make_api_call

    def simulate(self, operation, parameters):
        if operation != "SimulatePrincipalPolicy":
            return send(self, operation, parameters)
        if isinstance(answer, ClientError):
            raise answer
        (arn,) = parameters["ResourceArns"]
        assert arn.startswith("arn:aws:sagemaker:eu-west-1:123456789012:experiment")
        return {"EvaluationResults": [{"EvalActionName": "", "EvalDecision": answer}]}

    monkeypatch.setattr(BaseClient, "_make_api_call", simulate)
    upsert(configuration(name="recorded"))
    sent = json.loads(client.describe_pipeline(PipelineName="recorded")["PipelineDefinition"])
    recorded = {
        "ExperimentName": {"Get": "Execution.PipelineName"},
        "TrialName": {"Get": "Execution.PipelineExecutionId"},
    }
    assert sent["PipelineExperimentConfig"] == (None if line else recorded)
    said = [each for each in capsys.readouterr().err.splitlines() if "SageMaker Experiments" in each]
    assert [each.endswith(line) for each in said] == [True] if line else said == []


def test_start_sends_parameters_and_a_folder_for_checkpoints(client, deployed):
    first = sent_parameters(client, start(everything(), {"Threshold": "0.9", "Hp_lr": "0.01"}))
    assert (first["Threshold"], first["Hp_lr"]) == ("0.9", "0.01")
    other_threshold = sent_parameters(client, start(everything(), {"Threshold": "0.5", "Hp_lr": "0.01"}))
    assert other_threshold["CheckpointKey"] == first["CheckpointKey"]
    other_rate = sent_parameters(client, start(everything(), {"Hp_lr": "0.02"}))
    assert other_rate["CheckpointKey"] != first["CheckpointKey"]
    boto3.client("s3").put_object(Bucket="raw", Key="table/part-1.csv", Body=b"a,b\n3,4\n")
    more_rows = sent_parameters(client, start(everything(), {"Hp_lr": "0.01"}))
    assert more_rows["CheckpointKey"] == first["CheckpointKey"], "the folder has the keys of the data too"
    assert more_rows["DataLoadingDataKey"] != first["DataLoadingDataKey"] == other_rate["DataLoadingDataKey"]


@pytest.mark.parametrize(
    ("name", "value", "same"),
    [
        ("PyTorchTrainingInstanceType", "ml.g5.12xlarge", True),
        ("ApprovalStatus", "Approved", True),
        ("Hp_lr", "2e-3", True),  # as the configuration has it, in another notation
        ("TabularPreprocessingInstanceCount", "2", False),  # gives rows in another order
    ],
)
def test_a_training_resumes_where_only_its_instances_or_the_approval_change(client, undeployed, name, value, same):
    first, other = (sent_parameters(client, start(undeployed, given)) for given in ({}, {name: value}))
    assert (other["CheckpointKey"] == first["CheckpointKey"]) == same


def test_without_a_registered_model_the_threshold_of_an_execution_alone_decides(client, undeployed):
    sent = sent_parameters(client, start(undeployed, {"Threshold": "0.6"}))
    assert sent["Threshold"] == "0.6"
    bucket, key = sent["Input_champion"].removeprefix("s3://").split("/", 1)
    (marker,) = boto3.client("s3").list_objects_v2(Bucket=bucket, Prefix=key)["Contents"]
    assert marker["Key"].endswith("/no-champion")


def test_start_looks_up_the_package_of_the_registered_model_that_must_be_beaten(client, deployed):
    register(client, name="first", status="Approved")
    register(client, name="second", status="PendingManualApproval")
    sent = sent_parameters(client, start(everything(), {}))
    assert sent["Input_champion"] == "s3://my-bucket/first/"
    other = sent_parameters(client, start(everything(), {"Input_champion": "s3://my-bucket/second/"}))
    assert other["Input_champion"] == "s3://my-bucket/second/"
    assert keys_of(sent) == keys_of(other), "it trains nothing again; the step cache compares the URI"


def register(client, *, name, status, group="demo"):
    groups = client.list_model_package_groups()["ModelPackageGroupSummaryList"]
    if group not in [each["ModelPackageGroupName"] for each in groups]:
        client.create_model_package_group(ModelPackageGroupName=group)
    client.create_model_package(
        ModelPackageGroupName=group,
        ModelApprovalStatus=status,
        InferenceSpecification={
            "Containers": [{"Image": "image", "ModelDataUrl": f"s3://my-bucket/{name}/model.tar.gz"}],
            "SupportedContentTypes": ["text/csv"],
            "SupportedResponseMIMETypes": ["text/csv"],
        },
    )


def missing(client, operation, name):
    """Let an operation fail as AWS does for a resource that does not exist."""
    error = {"Code": "ValidationException", "Message": f"ModelPackageGroup arn:aws:sagemaker:::{name} does not exist."}
    response = SimpleNamespace(status_code=400), {"Error": error, "ResponseMetadata": {}}
    client.meta.events.register(f"before-call.sagemaker.{operation}", lambda **_: response)


@pytest.mark.parametrize("operation", ["ListModelPackages", "DescribeModelPackage"])
def test_a_group_or_package_that_does_not_exist_is_no_model_to_beat(client, local_aws, capsys, operation):
    config = configuration(condition={"metric": "test/auroc", "minimum": 0.5, "beat": "newest"}, name="none")
    register(client, name="none", status="Approved", group="none")
    other = boto3.client("sagemaker")
    missing(other, operation, "none")
    assert champion(config, other) is None
    assert capsys.readouterr().err.endswith("No newest model to beat in none: the threshold alone decides.\n")


def test_the_approved_model_is_found_behind_a_page_of_others(client, local_aws):
    config = configuration(condition={"metric": "test/auroc", "minimum": 0.5, "beat": "approved"}, name="paged")
    register(client, name="old", status="Approved", group="paged")
    for _ in range(100):
        register(client, name="new", status="PendingManualApproval", group="paged")
    assert champion(config, client) == "s3://my-bucket/old/"


def test_starting_a_missing_pipeline_names_the_command_that_creates_it(local_aws):
    with pytest.raises(ContractError) as error:
        start(configuration(name="nowhere"), {})
    assert error.value.cause == "pipeline 'nowhere': does not exist in eu-west-1"
    assert "upsert" in error.value.fix


def test_a_pipeline_that_upsert_did_not_write_is_named(client, local_aws):
    definition = json.dumps({"Version": "2020-12-01", "Steps": []})
    client.create_pipeline(PipelineName="foreign", PipelineDefinition=definition, RoleArn=AWS["role"])
    refused = "pipeline 'foreign': was not written by python -m pipeline upsert"
    for send in (lambda config: start(config, {}), upsert):
        with pytest.raises(ContractError, match=refused) as error:
            send(configuration(name="foreign"))
        assert "--replace" in error.value.fix
    assert client.describe_pipeline(PipelineName="foreign")["PipelineDefinition"] == definition
    arn = upsert(configuration(name="foreign"), replace=True)
    assert client.describe_pipeline(PipelineName="foreign")["PipelineArn"] == arn
    assert upsert(configuration(name="foreign")) == arn, "it is ours now"


def test_a_bucket_or_an_account_elsewhere_is_refused_before_anything_is_sent(client, local_aws):
    s3 = boto3.client("s3", region_name="us-east-1")
    s3.create_bucket(Bucket="elsewhere")
    config = configuration(aws={**AWS, "bucket": "elsewhere"}, name="elsewhere-pipeline")
    other = configuration(aws={**AWS, "role": AWS["role"].replace("1234", "9234")}, name="elsewhere-pipeline")
    with pytest.raises(ContractError, match="aws.bucket: elsewhere is in us-east-1, but aws.region is eu-west-1"):
        upsert(config)
    with pytest.raises(ContractError, match="aws.role: .* is of the account 923456789012, but the credentials are"):
        upsert(other)
    assert "Contents" not in s3.list_objects_v2(Bucket="elsewhere")
    names = [each["PipelineName"] for each in client.list_pipelines()["PipelineSummaries"]]
    assert "elsewhere-pipeline" not in names


def test_an_input_that_is_also_the_beginning_of_a_neighbour_starts_nothing(client, undeployed):
    s3 = boto3.client("s3")
    for key in ("near/a.csv", "near_old/b.csv"):
        s3.put_object(Bucket="raw", Key=key, Body=b"x")
    with pytest.raises(ContractError, match="parameter Input_input_data: s3://raw/near is also the beginning of"):
        start(undeployed, {"Input_input_data": "s3://raw/near"})
    start(undeployed, {"Input_input_data": "s3://raw/near/"})


@pytest.mark.parametrize("name", ["input_data", "batch_input"])
def test_an_input_without_objects_starts_nothing(client, undeployed, name):
    boto3.client("s3").put_object(Bucket="raw", Key="empty/")  # as the console creates a folder
    before = client.list_pipeline_executions(PipelineName=undeployed.name)["PipelineExecutionSummaries"]
    with pytest.raises(ContractError, match=f"parameter Input_{name}: no object under s3://raw/empty/"):
        start(undeployed, {f"Input_{name}": "s3://raw/empty/"})
    assert client.list_pipeline_executions(PipelineName=undeployed.name)["PipelineExecutionSummaries"] == before


def test_an_input_of_the_configuration_without_a_bucket_is_named(client, local_aws):
    config = configuration(aws={**AWS, "inputs": {"input_data": "s3://rwa/table"}}, settings={}, name="bucketless")
    upsert(config)
    with pytest.raises(
        ContractError, match="aws.inputs.input_data: s3://rwa/table: ListObjectsV2 failed with NoSuchBu"
    ):
        start(config, {})


@pytest.mark.parametrize("command", ["upsert", "start"])
@pytest.mark.parametrize(
    ("variables", "cause"),
    [
        ({}, "Unable to locate credentials"),
        ({"AWS_PROFILE": "nobody"}, "The config profile (nobody) could not be found"),
    ],
)
def test_missing_credentials_are_a_message_of_every_command(command, variables, cause, local_aws, tmp_path):
    hidden = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    environment = {**kept, "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", **variables}
    file = write_config(tmp_path, everything().model_dump(mode="json", exclude_none=True))
    with patch.dict(os.environ, environment, clear=True), redirect_stderr(io.StringIO()) as printed:
        assert main([command, "--config", str(file)]) == 1
    shown, fix = printed.getvalue().splitlines()
    assert shown == f"{command} of 'demo': {cause}"
    assert fix.startswith("Check the AWS credentials")


def response(code):
    return ClientError({"Error": {"Code": code, "Message": "why"}}, "CreatePipeline")


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (response("AccessDenied"), "Grant the permission for CreatePipeline to the caller; docs/pipeline_aws.md, Perm"),
        (response("ExpiredToken"), "Check the AWS credentials"),
        (response("PermanentRedirect"), "Name a bucket in aws.region"),
        (response("ThrottlingException"), "Wait a minute"),
        (response("ConflictException"), "Wait a minute"),
        (response("ResourceLimitExceeded"), "Delete what is no longer needed, or request a larger quota"),
        (response("NoSuchBucket"), "Create it."),
        (response("Unheard"), "Correct what the message names"),
        (EndpointConnectionError(endpoint_url="http://a"), "Check the network"),
        (ResponseParserError("an answer in HTML"), "Check the network, the proxy settings"),
        (ParamValidationError(report="x"), "Correct what the message names"),
        (NoCredentialsError(), "Check the AWS credentials"),
        (ProfileNotFound(profile="nobody"), "Check the AWS credentials"),
        (InvalidConfigError(error_msg="x"), "Check the AWS credentials"),
        (IncompleteReadError(actual_bytes=1, expected_bytes=2), "Correct what the message names"),
    ],
)
def test_the_kind_of_an_error_of_aws_decides_its_fix(error, fix):
    with pytest.raises(ContractError) as raised, aws_errors("here", missing="Create it."):
        raise error
    assert raised.value.cause.startswith("here: ")
    assert raised.value.fix.startswith(fix)


def test_a_missing_permission_is_named_as_iam_names_it():
    refused = (
        "User: arn:aws:iam::1:user/a is not authorized to perform: iam:PassRole on resource: arn:aws:iam::1:role/b"
    )
    error = ClientError({"Error": {"Code": "AccessDeniedException", "Message": refused}}, "CreatePipeline")
    with pytest.raises(ContractError) as raised, aws_errors("here"):
        raise error
    assert raised.value.fix.startswith("Grant iam:PassRole to the caller;")


def test_an_error_of_aws_names_the_operation_and_the_message_of_the_service():
    with pytest.raises(ContractError) as raised, aws_errors("here"):
        raise response("AccessDenied")
    assert raised.value.cause == "here: CreatePipeline failed with AccessDenied: why"


@pytest.mark.parametrize(
    ("overrides", "cause"),
    [
        ({"Treshold": "0.5"}, "parameter Treshold: unknown; did you mean 'Threshold'"),
        ({"Threshold": "high"}, "parameter Threshold: 'high' is not of type float"),
        ({"Threshold": "95"}, "parameter Threshold: '95' is invalid: 95 is not between 0 and 1, as test/auroc is"),
        ({"Threshold": "nan"}, "parameter Threshold: 'nan' is invalid: nan is not between 0 and 1"),
        ({"ApprovalStatus": "Maybe"}, "parameter ApprovalStatus: 'Maybe' is invalid"),
        ({"CheckpointKey": ""}, "parameter CheckpointKey: '' is invalid: it may contain only letters"),
        ({"PyTorchTrainingInstanceCount": "2_0"}, "parameter PyTorchTrainingInstanceCount: '2_0' is not of type int"),
        ({"PyTorchTrainingInstanceCount": "0"}, "parameter PyTorchTrainingInstanceCount: '0' is invalid"),
        ({"Hp_batch_size": "0"}, "batch_size: '0' is invalid"),
    ],
)
def test_a_parameter_that_is_refused_is_named(overrides, cause):
    config = configuration()
    with pytest.raises(ContractError) as error:
        parse_overrides(aws_plan(config), overrides)
    assert error.value.cause.startswith(cause)


def test_a_parameter_that_is_set_twice_is_refused():
    with pytest.raises(ContractError, match="--set Threshold=0.5: Threshold is set twice"):
        _pairs(["Threshold=0.9", "Threshold=0.5"])


def test_an_input_that_is_no_s3_uri_is_refused():
    with pytest.raises(ContractError, match="parameter Input_input_data: 'https://b/t' is invalid"):
        parse_overrides(aws_plan(everything()), {"Input_input_data": "https://b/t"})


def test_an_encoder_that_an_execution_would_download_without_a_network_is_refused():
    config = everything()
    assert config.aws is not None
    inputs = {name: uri for name, uri in config.aws.inputs.items() if name != "pretrained"}
    isolated = {"network_isolation": True, "inputs": inputs, "training": Training()}
    aws = config.aws.model_copy(update=isolated)
    config = config.model_copy(update={"aws": aws})
    with pytest.raises(ContractError, match="'distilbert-base-uncased' would be downloaded"):
        parse_overrides(aws_plan(config), {"Hp_tokenizer": "distilbert-base-uncased"})


def test_a_number_of_instances_on_which_the_training_cannot_run_is_refused():
    hyperparameters = {**configuration().hyperparameters, "ensemble": 3}
    config = configuration(hyperparameters=hyperparameters)
    with pytest.raises(ContractError, match="ensemble: is 3, and the job has 2 hosts"):
        parse_overrides(aws_plan(config), {"PyTorchTrainingInstanceCount": "2"})


def test_a_missing_sdk_is_installed_with_the_pinned_versions(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ContractError) as missing, sagemaker_sdk("eu-west-1"):
        pass
    assert missing.value.fix == "Install it: pip install -c constraints.txt '.[aws]'"


@pytest.mark.parametrize("command", ["definition", "upsert", "start"])
def test_a_command_without_the_sdk_says_how_to_install_it(command, tmp_path):
    file = write_config(tmp_path, everything().model_dump(mode="json", exclude_none=True))
    code = (
        "import sys\n"
        "for name in ('boto3', 'botocore', 'sagemaker'): sys.modules[name] = None\n"
        f"from pipeline.commands import main; sys.exit(main([{command!r}, '--config', {str(file)!r}]))"
    )
    ended = run_python(code)
    assert ended.returncode == 1
    assert ended.stderr.startswith("the SageMaker SDK is not installed (")
