"""The template of the account: cfn-lint, moto's CloudFormation, and the calls of the commands against its policies."""

import ast
import fnmatch
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore import xform_name
from botocore.client import BaseClient
from botocore.session import Session
from cfnlint.api import lint

from contracts.errors import ContractError
from pipeline.aws import deploy, trial, waiting
from pipeline.aws.definition import definition
from pipeline.aws.deploy import start, upsert
from pipeline.aws.endpoint import delete, rollback
from pipeline.aws.endpoint import deploy as deploy_version
from pipeline.aws.executions import status
from pipeline.aws.fetch import fetch
from pipeline.aws.guard import Traffic
from pipeline.aws.monitor import schedule
from pipeline.aws.operator import Operator
from pipeline.aws.permissions import PERMISSIONS, PUSH, ROLES, UPLOAD, Account, resources_of
from pipeline.aws.resolve import aws_plan
from pipeline.aws.stack import expiration_days, stack
from pipeline.aws.versions import decide, versions_table
from pipeline.commands import main
from pipeline.config import PipelineConfig
from testing.jobs import REPOSITORY
from testing.pipelines import (
    APPROVED,
    AWS,
    EVERYTHING,
    IMAGE,
    all_steps,
    alternative,
    configuration,
    everything,
    serverless,
    tuned,
    write_config,
)
from testing.registrations import ANSWER, register
from testing.sagemaker_service import Service, complete_sagemaker

# moto's CloudFormation creates no policies of buckets and topics, no schedules and no builds, and says so.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Tried to parse AWS..(S3..BucketPolicy|SNS..TopicPolicy|CodeBuild|Scheduler):UserWarning"
)
TOPIC = "arn:aws:sns:eu-west-1:123456789012:models"
ROLE_ARN = "arn:aws:iam::123456789012:role/teams/Trainer"


def watched(*, registration: dict[str, Any] = APPROVED, **changes: Any) -> PipelineConfig:
    """Return a configuration of everything that the commands call AWS for, in a bucket of its own."""
    aws = {**EVERYTHING, "role": ROLE_ARN, "bucket": "stack-bucket", "kms_key": None}
    aws["notifications"] = {"email": "team@example.com"}
    aws["inputs"] = {"input_data": "s3://stack-bucket/data/", "pretrained": "s3://raw/encoders"}
    aws["deploy"] = {**EVERYTHING["deploy"], "scaling": {"maximum": 4, "target": 700}}
    aws["steps"] = {name: machine for name, machine in EVERYTHING["steps"].items() if name != "BatchScore"}
    hyperparameters = {**configuration().hyperparameters, "tab_field_list": [f"column_{n:03d}" for n in range(200)]}
    return configuration(
        aws={**aws, **changes},
        name="Stacked",
        hyperparameters=hyperparameters,
        settings={},
        condition={"metric": "test/auroc", "minimum": 0.8, "beat": "approved"},
        registration=registration,
        monitor={"alarm_topic": TOPIC},
    )


TRIGGERS = {"new_data": "_SUCCESS", "schedule": "cron(0 6 ? * MON *)", "time_zone": "Europe/Paris", "approved": True}


def triggered(**changes: Any) -> PipelineConfig:
    """Return the configuration above, in which a person approves, and what starts commands without a person."""
    return watched(registration={}, triggers=TRIGGERS, **changes)


EVERY = {"everything": everything, "alternative": alternative, "serverless": serverless, "tuned": tuned}
EVERY |= {"plain": configuration, "watched": watched, "triggered": triggered}


def resources(config: PipelineConfig) -> dict[str, dict[str, Any]]:
    return json.loads(stack(config))["Resources"]


def policy(config: PipelineConfig, name: str) -> list[dict[str, Any]]:
    properties = resources(config)[name]["Properties"]
    document = properties["Policies"][0] if name.endswith("Role") else properties
    return document["PolicyDocument"]["Statement"]


def actions(config: PipelineConfig, *of: str) -> set[str]:
    """Return the actions that the configuration grants to somebody."""
    resolved = aws_plan(config)
    account = Account(resolved, "key")
    granted = [each for each in PERMISSIONS if each.of in of and each.is_needed(resolved)]
    return {name for each in granted if resources_of(account, each.on) for name in each.names}


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_cfn_lint_finds_nothing_in_the_template(make: Callable[[], PipelineConfig]) -> None:
    assert lint(stack(make())) == []


def test_cfn_lint_finds_an_action_that_does_not_exist() -> None:
    text = stack(configuration()).replace("sagemaker:CreateTrainingJob", "sagemaker:CreateTrainingJbo")
    assert lint(text), "so that the test above checks policies"


OTHER = "111122223333"


def test_another_account_may_read_versions_packages_and_the_image_and_nothing_else() -> None:
    text = stack(watched(), share_with=[OTHER])
    assert lint(text) == []
    made = {name: each.get("Properties", {}) for name, each in json.loads(text)["Resources"].items()}
    documents = {
        "Key": made["Key"]["KeyPolicy"],
        "Bucket": made["BucketPolicy"]["PolicyDocument"],
        "Repository": made["Repository"]["RepositoryPolicyText"],
        "Group": made["Group"]["ModelPackageGroupPolicy"],
    }
    principal = {"AWS": [f"arn:aws:iam::{OTHER}:root"]}
    allowed = {
        (name, action): each.get("Resource")
        for name, document in documents.items()
        for each in document["Statement"]
        if each["Principal"] == principal
        for action in each["Action"]
    }
    assert allowed["Bucket", "s3:GetObject"] == ["arn:aws:s3:::stack-bucket/teams/risk/Stacked/models/*"]
    assert {action for _, action in allowed} == {
        *("kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "s3:GetObject"),
        *(f"ecr:{name}" for name in ("BatchCheckLayerAvailability", "BatchGetImage", "GetDownloadUrlForLayer")),
        *(f"sagemaker:{name}" for name in ("CreateModel", "DescribeModelPackage", "ListModelPackages")),
        "sagemaker:DescribeModelPackageGroup",
    }
    assert OTHER not in stack(watched())
    assert "Group" not in resources(watched()), "the first registration creates it"


@pytest.mark.parametrize(
    ("other", "aws", "cause"),
    [
        ("1111", {}, "--share-with 1111: is not an account: 12 digits"),
        ("123456789012", {}, "--share-with 123456789012: is the account of aws.role"),
        (OTHER, {"kms_key": "1234"}, "--share-with: the policy of the key .*key/1234 .aws.kms_key. is not part"),
    ],
)
def test_an_account_with_which_nothing_can_be_shared_is_refused(other: str, aws: dict[str, str], cause: str) -> None:
    with pytest.raises(ContractError, match=cause):
        stack(configuration(aws={**AWS, **aws}), share_with=[other])


@pytest.fixture(scope="module")
def created(local_aws: str) -> dict[str, str]:
    """Create the stack, and return its outputs."""
    client = boto3.client("cloudformation")
    client.create_stack(StackName="trainer", TemplateBody=stack(triggered()), Capabilities=["CAPABILITY_NAMED_IAM"])
    (found,) = client.describe_stacks(StackName="trainer")["Stacks"]
    assert found["StackStatus"] == "CREATE_COMPLETE"
    boto3.client("s3").put_object(Bucket="stack-bucket", Key="data/part.csv", Body=b"a\n1\n")
    return {each["OutputKey"]: each["OutputValue"] for each in found["Outputs"]}


def test_the_stack_creates_what_the_configuration_names(created: dict[str, str]) -> None:
    assert created["Role"] == ROLE_ARN
    assert created["Bucket"] == "stack-bucket"
    assert created["Repository"] == IMAGE.partition("@")[0]
    (rule,) = boto3.client("s3").get_bucket_encryption(Bucket="stack-bucket")["ServerSideEncryptionConfiguration"][
        "Rules"
    ]
    assert rule["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": created["Key"]}
    (repository,) = boto3.client("ecr").describe_repositories(repositoryNames=["text-table-trainer"])["repositories"]
    assert repository["imageTagMutability"] == "IMMUTABLE"
    of_images = resources(watched())["Repository"]["Properties"]["ImageScanningConfiguration"]
    assert of_images == {"ScanOnPush": True}, "in the template; moto's CloudFormation does not read it"
    groups = boto3.client("logs").describe_log_groups(logGroupNamePrefix="/aws/sagemaker/")["logGroups"]
    retention = {each["logGroupName"].rpartition("/")[2]: each["retentionInDays"] for each in groups}
    assert retention == {"ProcessingJobs": 90, "TrainingJobs": 90, "claims": 90}
    (alias,) = boto3.client("kms").list_aliases(KeyId=created["Key"])["Aliases"]
    assert alias["AliasName"] == "alias/Stacked"


def test_the_stack_creates_the_rules_that_start_a_build(created: dict[str, str]) -> None:
    rules = [each for each in boto3.client("events").list_rules()["Rules"] if "-Trigger" in each["Name"]]
    patterns = [json.loads(each["EventPattern"])["source"] for each in rules]
    assert sorted(patterns) == [["aws.s3"], ["aws.sagemaker"]]


def patterns(config: PipelineConfig) -> dict[str, dict[str, Any]]:
    """Return the pattern of each rule that publishes messages, by its name."""
    made = resources(config).items()
    return {name: each["Properties"]["EventPattern"] for name, each in made if each["Type"] == "AWS::Events::Rule"}


def test_a_message_is_published_for_each_event_that_the_configuration_can_have() -> None:
    found = patterns(watched())
    assert {name: each["detail"] for name, each in found.items()} == {
        "NotifyFailed": {
            "pipelineArn": [
                f"arn:aws:sagemaker:eu-west-1:123456789012:pipeline/{name}" for name in ("Stacked", "stacked")
            ],
            "currentPipelineExecutionStatus": ["Failed"],
        },
        "NotifyApproval": {"ModelPackageGroupName": ["Stacked"], "ModelApprovalStatus": ["PendingManualApproval"]},
        "NotifyDeployed": {"EndpointName": ["claims"], "EndpointStatus": ["IN_SERVICE", "InService"]},
        "NotifyViolated": {
            "pipelineArn": [
                f"arn:aws:sagemaker:eu-west-1:123456789012:pipeline/{name}-monitor" for name in ("Stacked", "stacked")
            ],
            "currentPipelineExecutionStatus": ["Failed"],
        },
    }
    plain = configuration(aws={**AWS, "notifications": {"topic": TOPIC}})
    assert set(patterns(plain)) == {"NotifyFailed", "NotifyApproval"}
    assert resources(plain)["NotifyFailed"]["Properties"]["Targets"] == [{"Id": "target", "Arn": TOPIC}]
    assert "Topic" not in resources(plain), "the configuration names one"
    assert patterns(configuration()) == {}


def test_the_stack_creates_a_topic_that_sends_messages_to_an_address(created: dict[str, str]) -> None:
    (topic,) = boto3.client("sns").list_topics()["Topics"]
    rules = boto3.client("events")
    (target,) = rules.list_targets_by_rule(Rule=rules.list_rules()["Rules"][0]["Name"])["Targets"]
    assert target["Arn"] == topic["TopicArn"]
    (subscription,) = resources(watched())["Topic"]["Properties"]["Subscription"]
    assert subscription == {"Protocol": "email", "Endpoint": "team@example.com"}


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"events": ["violated"]}, "aws.notifications.events: violated needs a section"),
        ({"topic": TOPIC.replace("arn:aws:", "arn:aws-cn:")}, "aws.notifications.topic: .* is in the partition aws-cn"),
    ],
)
def test_a_message_that_cannot_be_published_is_refused(given: dict[str, Any], cause: str) -> None:
    with pytest.raises(ContractError, match=cause):
        stack(configuration(aws={**AWS, "notifications": given}))


def test_an_address_for_a_topic_of_the_user_is_refused() -> None:
    with pytest.raises(ValueError, match="email is for the topic of the stack"):
        configuration(aws={**AWS, "notifications": {"topic": TOPIC, "email": "team@example.com"}})


def test_the_bucket_is_versioned_private_and_only_reached_with_encryption() -> None:
    made = resources(watched())
    bucket = made["Bucket"]["Properties"]
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    earlier, *expiring, captures = bucket["LifecycleConfiguration"]["Rules"]
    assert earlier["NoncurrentVersionExpiration"] == {"NoncurrentDays": 30}
    home = "teams/risk/Stacked"
    assert [(rule["Prefix"], rule["ExpirationInDays"]) for rule in expiring] == [
        (f"{home}/{folder}/", 60) for folder in ("executions", "PyTorchTraining", "checkpoints", "tensorboard")
    ]
    assert (captures["Prefix"], captures["ExpirationInDays"]) == (f"{home}/capture/", {"Ref": "CaptureRetentionInDays"})
    (denied,) = made["BucketPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    assert (denied["Effect"], denied["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})


@pytest.mark.parametrize(("cache", "days"), [("P30D", 60), ("PT12H", 31), ("P1DT6H30M", 32), (None, 30)])
def test_outputs_of_executions_are_deleted_after_the_step_cache_has_expired(cache: str | None, days: int) -> None:
    assert expiration_days(cache) == days


def test_the_key_of_the_stack_encrypts_logs_and_messages_and_their_services_may_use_it() -> None:
    made = {name: each["Properties"] for name, each in resources(watched()).items()}
    key = {"Fn::GetAtt": ["Key", "Arn"]}
    assert {name for name, each in made.items() if key in (each.get("KmsKeyId"), each.get("KmsMasterKeyId"))} == {
        *("Topic", "EndpointLogs", "ProcessingJobsLogs", "TrainingJobsLogs")
    }
    users = [each["Principal"] for each in made["Key"]["KeyPolicy"]["Statement"]]
    assert {"Service": "logs.eu-west-1.amazonaws.com"} in users
    assert {"Service": "events.amazonaws.com"} in users
    other = resources(configuration(aws={**AWS, "kms_key": "1234"}))
    assert not any("KmsKeyId" in each["Properties"] for each in other.values()), "the policy of that key is not ours"


def test_a_second_configuration_of_an_account_shares_the_repository_and_the_groups_of_the_jobs() -> None:
    made = json.loads(stack(watched()))
    conditions = {name: each["Condition"] for name, each in made["Resources"].items() if "Condition" in each}
    assert conditions == {
        "Repository": "CreateRepository",
        **dict.fromkeys(("ProcessingJobsLogs", "TrainingJobsLogs"), "CreateLogGroups"),
    }
    assert {name for name, each in made["Outputs"].items() if "Condition" in each} == {"Repository"}


def test_an_operator_deletes_models_and_configurations_of_this_endpoint_alone() -> None:
    found = {action: each.get("Condition") for each in policy(watched(), "OperatorPolicy") for action in each["Action"]}
    ours = {"StringEquals": {"aws:ResourceTag/text-table-trainer:endpoint": "claims"}}
    assert (found["sagemaker:DeleteModel"], found["sagemaker:DeleteEndpointConfig"]) == (ours, ours)


def test_what_has_data_stays_when_the_stack_is_deleted() -> None:
    kept = {name for name, each in resources(watched()).items() if each.get("DeletionPolicy") == "Retain"}
    logs = {name for name in resources(watched()) if name.endswith("Logs")}
    assert kept == {"Key", "Bucket", "Repository"} | logs


def test_a_template_is_for_the_account_and_the_region_of_the_configuration() -> None:
    (rule,) = json.loads(stack(configuration()))["Rules"].values()
    compared = [each["Assert"]["Fn::Equals"] for each in rule["Assertions"]]
    assert compared == [[{"Ref": "AWS::AccountId"}, "123456789012"], [{"Ref": "AWS::Region"}, "eu-west-1"]]


def test_a_key_or_an_image_that_exists_elsewhere_is_used_and_not_created() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/1234"
    image = IMAGE.replace("123456789012", "999999999999")
    config = configuration(aws={**AWS, "kms_key": key, "image": image})
    made = resources(config)
    assert not {"Key", "KeyAlias", "Repository"} & set(made)
    assert "Key" not in json.loads(stack(config))["Outputs"]
    (encryption,) = made["Bucket"]["Properties"]["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert encryption["ServerSideEncryptionByDefault"]["KMSMasterKeyID"] == key
    granted = {action: each["Resource"] for each in policy(config, "Role") for action in each["Action"]}
    assert granted["kms:GenerateDataKey"] == key
    assert granted["ecr:BatchGetImage"] == "arn:aws:ecr:eu-west-1:999999999999:repository/text-table-trainer"
    by_id = resources(configuration(aws={**AWS, "kms_key": "1234"}))
    assert "Key" not in by_id
    named = resources(configuration(aws={**AWS, "kms_key": "alias/trainer"}))
    assert named["KeyAlias"]["Properties"]["AliasName"] == "alias/trainer"


def test_the_arn_of_an_alias_is_refused() -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:alias/trainer"
    with pytest.raises(ContractError, match=r"aws.kms_key: .* is the ARN of an alias"):
        stack(configuration(aws={**AWS, "kms_key": key}))


def test_the_role_trusts_sagemaker_and_only_with_a_monitor_the_scheduler() -> None:
    def trusted(config: PipelineConfig) -> list[str]:
        (statement,) = resources(config)["Role"]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        return statement["Principal"]["Service"]

    assert trusted(configuration()) == ["sagemaker.amazonaws.com"]
    assert trusted(watched()) == ["sagemaker.amazonaws.com", "scheduler.amazonaws.com"]
    assert resources(watched())["Role"]["Properties"]["Path"] == "/teams/"


def test_the_command_prints_the_template_or_writes_it_to_a_file(tmp_path: Path, capsys) -> None:
    config = configuration()
    file = write_config(tmp_path, config.model_dump(mode="json", exclude_none=True))
    assert main(["stack", "--config", str(file)]) == 0
    assert capsys.readouterr().out == stack(config)
    assert main(["stack", "--config", str(file), "--out", str(tmp_path / "new" / "stack.json")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "new" / "stack.json").read_text() == stack(config)


def test_the_policy_of_the_caller_fits_into_iams_limit_of_6144_characters() -> None:
    for make in EVERY.values():
        for name in ("CallerPolicy", "OperatorPolicy"):
            assert len(re.sub(r"\s", "", json.dumps(policy(make(), name)))) <= 6_144


# The permissions that a call needs, except the one with its name: by AWS's Service Authorization Reference.
NEEDS: dict[str, set[str]] = {
    "s3:HeadBucket": {"s3:ListBucket"},
    "s3:ListObjectsV2": {"s3:ListBucket"},
    "s3:HeadObject": {"s3:GetObject"},
    "s3:GetObject": {"s3:GetObject", "kms:Decrypt"},
    "s3:PutObject": {"s3:PutObject", "kms:GenerateDataKey", "kms:Decrypt"},
    "sagemaker:CreatePipeline": {"sagemaker:CreatePipeline", "iam:PassRole", "s3:GetObject"},
    "sagemaker:UpdatePipeline": {"sagemaker:UpdatePipeline", "iam:PassRole", "s3:GetObject"},
    "scheduler:CreateSchedule": {"scheduler:CreateSchedule", "iam:PassRole"},
    "scheduler:UpdateSchedule": {"scheduler:UpdateSchedule", "iam:PassRole"},
    "sagemaker:CreateModel": {"sagemaker:CreateModel", "iam:PassRole", "sagemaker:AddTags"},
    "sagemaker:CreateEndpointConfig": {"sagemaker:CreateEndpointConfig", "sagemaker:AddTags"},
    "sagemaker:CreateEndpoint": {"sagemaker:CreateEndpoint", "sagemaker:AddTags"},
    "application-autoscaling:RegisterScalableTarget": {
        "application-autoscaling:RegisterScalableTarget",
        "iam:CreateServiceLinkedRole",  # the first time in an account
    },
    "sagemaker-runtime:InvokeEndpoint": {"sagemaker:InvokeEndpoint"},
}


def resource_of(parameters: dict[str, Any]) -> str | None:
    """Return the ARN that a call names; None for one that names none."""
    sagemaker = "arn:aws:sagemaker:eu-west-1:123456789012"
    kinds = {
        "PipelineName": f"{sagemaker}:pipeline/{{}}",
        "ModelPackageGroupName": f"{sagemaker}:model-package/{{}}/1",
        "ModelPackageName": "{}",
        "ModelPackageArn": "{}",
        "PipelineExecutionArn": "{}",
        "EndpointName": f"{sagemaker}:endpoint/{{}}",
        "EndpointConfigName": f"{sagemaker}:endpoint-config/{{}}",
        "ModelName": f"{sagemaker}:model/{{}}",
        "TrainingJobName": f"{sagemaker}:training-job/{{}}",
        "ProcessingJobName": f"{sagemaker}:processing-job/{{}}",
        "logGroupName": "arn:aws:logs:eu-west-1:123456789012:log-group:{}",
        "ResourceArn": "{}",
        "Name": "arn:aws:scheduler:eu-west-1:123456789012:schedule/default/{}",
        "AlarmName": "arn:aws:cloudwatch:eu-west-1:123456789012:alarm:{}",
    }
    if "AlarmNames" in parameters and "AlarmTypes" not in parameters:  # DeleteAlarms
        parameters = {"AlarmName": parameters["AlarmNames"][0]}
    if "Bucket" in parameters:
        return f"arn:aws:s3:::{'/'.join(parameters[name] for name in ('Bucket', 'Key') if name in parameters)}"
    return next((form.format(parameters[name]) for name, form in kinds.items() if name in parameters), None)


def allows(statements: list[dict[str, Any]], action: str, resource: str | None) -> bool:
    for each in (each for each in statements if action in each["Action"]):
        named = each["Resource"] if isinstance(each["Resource"], list) else [each["Resource"]]
        if any(isinstance(one, str) and fnmatch.fnmatchcase(resource or "*", one) for one in named):
            return True
    return False


@contextmanager
def recorded(patch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Yield a list to which the calls within the context are added, as botocore sends them."""
    made: list[tuple[str, dict[str, Any]]] = []
    send = BaseClient._make_api_call

    def record(self: Any, operation: str, parameters: dict[str, Any]) -> Any:
        made.append((f"{self.meta.service_model.service_name}:{operation}", dict(parameters)))
        return send(self, operation, parameters)

    with patch.context() as within:
        within.setattr(BaseClient, "_make_api_call", record)
        yield made


def _register(config: PipelineConfig) -> None:
    sagemaker, s3 = boto3.client("sagemaker"), boto3.client("s3")
    sagemaker.create_model_package_group(ModelPackageGroupName=config.group)
    for key, content in {
        "teams/risk/Stacked-monitor/Monitoring/metrics.json": {
            **{"time": "2026-11-30T10:00:00+00:00", "records": 1, "violations": 0, "left_out": {}, "metrics": {}},
            "comparisons": [],
        },
    }.items():
        s3.put_object(Bucket="stack-bucket", Key=key, Body=json.dumps(content))
    sagemaker.create_model_package(
        ModelPackageGroupName=config.group,
        ModelApprovalStatus="Approved",
        InferenceSpecification={
            "Containers": [{"Image": IMAGE, "ModelDataUrl": "s3://stack-bucket/model.tar.gz"}],
            "SupportedContentTypes": ["text/csv"],
            "SupportedResponseMIMETypes": ["text/csv"],
        },
    )


def _operating(config: PipelineConfig, service: Service) -> dict[str, list[Callable[[], Any]]]:
    """Return the commands of an operator, each as it calls everything that it may call."""
    job = "arn:aws:sagemaker:eu-west-1:123456789012:{}-job/job"
    service.answer, began = ANSWER, datetime(2026, 11, 30, tzinfo=UTC)
    service.steps = [
        {"StepName": name, "StepStatus": "Failed", "StartTime": began, "Metadata": {key: {"Arn": job.format(kind)}}}
        for name, key, kind in (("Load", "ProcessingJob", "processing"), ("Train", "TrainingJob", "training"))
    ]

    def on_account(run: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], Any]:
        return lambda: run(Operator.of(config), *arguments, **options)

    def prepare() -> None:
        for _ in range(2):
            register(config.group, folder="stack-bucket/teams/risk/Stacked")

    def log() -> None:
        boto3.client("logs").create_log_stream(logGroupName="/aws/sagemaker/TrainingJobs", logStreamName="job/algo-1")

    def fetch_one(operator: Operator) -> None:
        with tempfile.TemporaryDirectory() as folder:
            fetch(operator, 2, Path(folder, "version-2"))

    log()
    return {
        "status": [
            on_account(status, None, wait=False, logs=None),
            on_account(status, None, wait=False, logs="Train"),
            prepare,
        ],
        "compare": [on_account(fetch_one)],  # moto takes the metadata away with the approval
        "reject": [on_account(decide, "reject", 2, why="it does not suffice")],
        "approve": [
            on_account(decide, "approve", 2, why="it suffices"),
            on_account(decide, "approve", 3, why="it suffices"),
        ],
        "deploy": [
            on_account(deploy_version, 2, traffic=Traffic(), adopt=False),
            on_account(deploy_version, 3, traffic=Traffic(), adopt=False),
        ],
        "versions": [on_account(versions_table)],
        "rollback": [on_account(rollback)],
        "delete": [on_account(delete)],
    }


@pytest.fixture(scope="module")
def calls(created: dict[str, str]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return the calls of each command in the account that the stack created: what it calls at first, and again."""
    config = watched()
    commands: dict[str, list[Callable[[], Any]]] = {
        "upsert": [lambda: upsert(config), lambda: upsert(config), lambda: _register(config)],
        "start": [lambda: start(config, {})],
        "schedule": [lambda: schedule(config), lambda: schedule(config)],
    }
    found = {}
    with pytest.MonkeyPatch.context() as patch, complete_sagemaker() as service:
        commands |= _operating(config, service)
        patch.setattr(deploy, "_LONGEST_REQUEST", 1000)  # so that the definition is an object
        for module in (waiting, trial):
            patch.setattr(module, "POLL_SECONDS", 0.01)
        for command, steps in commands.items():
            with recorded(patch) as made:
                for step in steps[:2]:
                    step()
            for step in steps[2:]:
                step()
            found[command] = made
    return found


@pytest.mark.slow  # two pipelines are sent
def test_delete_ends_the_schedule_of_the_monitor(calls) -> None:
    made = [operation for operation, _ in calls["schedule"]]
    assert "scheduler:CreateSchedule" in made
    assert boto3.client("scheduler").list_schedules(NamePrefix="Stacked-monitor")["Schedules"] == []


def needed(calls: list[tuple[str, dict[str, Any]]]) -> set[str]:
    return {action for operation, _ in calls for action in NEEDS.get(operation, {operation})}


@pytest.mark.slow  # two pipelines are sent
def test_no_command_calls_without_permission_or_has_one_without_a_call(calls) -> None:
    assert {command: needed(made) for command, made in calls.items()} == {
        command: actions(watched(), command) for command in calls
    }


@pytest.mark.slow  # two pipelines are sent
def test_every_command_with_permissions_is_one_of_those_recorded(calls) -> None:
    assert {each.of for each in PERMISSIONS} - {*ROLES, PUSH, UPLOAD} == set(calls)


@pytest.mark.slow  # two pipelines are sent
def test_the_policy_of_the_caller_allows_each_call_on_its_resource(calls) -> None:
    statements = policy(watched(), "CallerPolicy") + policy(watched(), "OperatorPolicy")
    assert _refused(statements, calls) == []


@pytest.mark.slow  # two pipelines are sent
def test_the_role_of_the_builds_allows_each_call_of_start_and_deploy_and_reads_the_archive(calls) -> None:
    statements = policy(triggered(), "BuildRole")
    assert _refused(statements, {command: calls[command] for command in ("start", "deploy")}) == []
    assert allows(statements, "s3:GetObject", "arn:aws:s3:::stack-bucket/teams/risk/Stacked/settings/commands.zip")
    assert not allows(statements, "sagemaker:UpdateModelPackage", None), "it approves nothing"


def _refused(
    statements: list[dict[str, Any]], calls: dict[str, list[tuple[str, dict[str, Any]]]]
) -> list[tuple[str, str, str | None]]:
    """Return the calls that a policy does not allow, with the action and the resource."""
    return [
        (operation, action, resource_of(parameters))
        for made in calls.values()
        for operation, parameters in made
        for action in NEEDS.get(operation, {operation})
        if action.partition(":")[0] not in ("kms", "iam")  # another resource than the call names
        and not (action == "s3:GetObject" and operation.startswith("sagemaker:"))
        and not allows(statements, action, resource_of(parameters))
    ]


OTHER_KINDS = {"describe_transform_job", "invoke_endpoint_async"}  # of batch transforms and asynchronous endpoints


@pytest.mark.slow  # two pipelines are sent
def test_every_operation_that_the_code_calls_is_recorded(calls) -> None:
    """A method of a client that no command of this file calls has no permission: add the command to `calls`."""
    nodes = [
        node for path in (REPOSITORY / "pipeline/aws").glob("*.py") for node in ast.walk(ast.parse(path.read_text()))
    ]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    methods = {node.func.attr for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
    session = Session()
    models = [session.get_service_model(name) for name in texts & set(session.get_available_services())]
    known = {xform_name(operation) for model in models for operation in model.operation_names}
    named = {name for name in (texts | methods) & known if "_" in name}  # one word may be another method
    made = {xform_name(operation.partition(":")[2]) for each in calls.values() for operation, _ in each}
    assert named - OTHER_KINDS == made - {"head_object"}, "boto3's download_file calls that"


# What the role needs for each type of step: https://docs.aws.amazon.com/sagemaker/latest/dg/build-and-manage-access.html
_ENDED = "Create{0} Describe{0} Stop{0} AddTags"
OF_STEPS = {
    "Processing": _ENDED.format("ProcessingJob"),
    "Training": _ENDED.format("TrainingJob"),
    "Tuning": f"{_ENDED.format('HyperParameterTuningJob')} ListTrainingJobsForHyperParameterTuningJob "
    + _ENDED.format("TrainingJob"),
    "Transform": _ENDED.format("TransformJob"),
    "Model": "CreateModel DescribeModel AddTags",
    "RegisterModel": "CreateModelPackage DescribeModelPackage AddTags CreateModelPackageGroup "
    "DescribeModelPackageGroup",
    "EndpointConfig": "CreateEndpointConfig DescribeEndpointConfig AddTags",
    "Endpoint": "CreateEndpoint UpdateEndpoint DescribeEndpoint AddTags",
    "Condition": "AssociateTrialComponent CreateExperiment CreateTrial DescribeExperiment DescribeTrial",
    "Fail": "",
}


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_the_role_has_the_permissions_of_the_steps_and_no_others(make: Callable[[], PipelineConfig]) -> None:
    config = make()
    kinds = {step["Type"] for step in all_steps(json.loads(definition(config))).values()}
    steps = {f"sagemaker:{name}" for kind in kinds for name in OF_STEPS[kind].split()}
    steps |= {
        "sagemaker:AddTags",
        *(f"sagemaker:{_.format('TrainingJob')}" for _ in ("Create{}", "Describe{}", "Stop{}")),
    }
    granted = {name for each in policy(config, "Role") for name in each["Action"] if name.startswith("sagemaker:")}
    expected = steps | ({"sagemaker:StartPipelineExecution"} if config.monitor else set())
    assert granted == expected


def test_the_role_reads_the_inputs_and_writes_below_the_prefix_alone() -> None:
    statements = policy(watched(), "Role")
    written = [each["Resource"] for each in statements if "s3:PutObject" in each["Action"]]
    assert written == ["arn:aws:s3:::stack-bucket/teams/risk/*"]
    (read,) = [each["Resource"] for each in statements if each["Action"] == ["s3:GetObject"]]
    assert read == ["arn:aws:s3:::stack-bucket/data/*", "arn:aws:s3:::raw/encoders*"]


def test_a_role_is_passed_to_the_services_that_assume_it_alone() -> None:
    passed = [
        (each["Resource"], each["Condition"]["StringEquals"]["iam:PassedToService"])
        for each in policy(watched(), "CallerPolicy")
        if each["Action"] == ["iam:PassRole"]
    ]
    assert passed == [(ROLE_ARN, "sagemaker.amazonaws.com"), (ROLE_ARN, "scheduler.amazonaws.com")]


def test_an_input_in_a_directory_bucket_needs_a_session() -> None:
    inputs = {"input_data": "s3://table--euw1-az1--x-s3/rows/"}
    config = configuration(aws={**AWS, "inputs": inputs}, settings={})
    bucket = "arn:aws:s3express:eu-west-1:123456789012:bucket/table--euw1-az1--x-s3"
    for name in ("Role", "CallerPolicy"):
        found = {each["Resource"] for each in policy(config, name) if each["Action"] == ["s3express:CreateSession"]}
        assert found == {bucket}
