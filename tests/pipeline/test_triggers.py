"""What starts an execution or a deployment without a person: the rules, and the build that runs our command."""

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from typing import Any

import boto3
import pytest
from botocore.session import Session

from contracts.errors import ContractError
from pipeline.aws.deploy import upsert
from pipeline.aws.limits import violations
from pipeline.aws.resolve import aws_plan
from pipeline.aws.stack import stack
from pipeline.aws.triggers import archive
from pipeline.config import PipelineConfig
from testing.pipelines import APPROVED, AWS, configuration

TABLE = {"input_data": "s3://my-bucket/da*ta/"}
DEPLOY = {"real_time": {"instance_type": "ml.c5.large"}}
# What the image of the build has not, because the build installs three packages.
ABSENT = ("torch", "numpy", "pandas", "sagemaker", "container", "sklearn", "pyarrow")
RUN = f"import sys; sys.modules.update(dict.fromkeys({ABSENT})); from pipeline.commands import main; sys.exit(main())"


def triggered(triggers: dict[str, Any], **changes: Any) -> PipelineConfig:
    aws = {**AWS, "inputs": TABLE, "deploy": DEPLOY, "triggers": triggers, **changes}
    return configuration(name="triggered", aws=aws, settings={})


def resources(**triggers: Any) -> dict[str, dict[str, Any]]:
    return json.loads(stack(triggered(triggers)))["Resources"]


def properties(made: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    return made[name]["Properties"]


@pytest.mark.parametrize(
    ("key", "starts"),
    [
        ("da*ta/_SUCCESS", True),
        ("da*ta/2026/12/_SUCCESS", True),
        ("da*ta/part-0.csv", False),
        ("data/_SUCCESS", False),
        ("da*ta_old/_SUCCESS", False),
    ],
)
def test_the_object_that_completes_new_data_starts_an_execution(key: str, starts: bool) -> None:
    pattern = properties(resources(new_data="_SUCCESS"), "TriggerNewData")["EventPattern"]
    assert pattern["detail"]["bucket"] == {"name": ["my-bucket"]}
    (name,) = pattern["detail"]["object"]["key"]
    parts = [re.escape(re.sub(r"\\(.)", r"\1", part)) for part in re.split(r"(?<!\\)\*", name["wildcard"])]
    assert bool(re.fullmatch(".*".join(parts), key)) == starts


def test_the_bucket_of_the_stack_sends_its_events_if_a_rule_needs_them() -> None:
    sends = {"EventBridgeConfiguration": {"EventBridgeEnabled": True}}
    assert properties(resources(new_data="_SUCCESS"), "Bucket")["NotificationConfiguration"] == sends
    assert "NotificationConfiguration" not in properties(resources(schedule="rate(1 day)"), "Bucket")


def test_botocore_accepts_the_schedule_and_what_a_rule_sends_to_the_build() -> None:
    made, session = resources(schedule="rate(1 day)", time_zone="Europe/Paris", approved=True), Session()
    arns = {"Arn": "arn:aws:codebuild:eu-west-1:123456789012:project/x", "RoleArn": "arn:aws:iam::123456789012:role/x"}
    schedule = {**properties(made, "TriggerSchedule"), "Target": arns}
    assert schedule["ScheduleExpressionTimezone"] == "Europe/Paris"
    assert not list(violations(_shape(session, "scheduler", "CreateSchedule"), schedule, {}))
    (target,) = properties(made, "TriggerApproved")["Targets"]
    assert target["InputTransformer"]["InputPathsMap"] == {"version": "$.detail.ModelPackageVersion"}
    sent = json.loads(target["InputTransformer"]["InputTemplate"].replace("<version>", "3"))
    assert sent["environmentVariablesOverride"][0]["value"] == "deploy 3"
    assert not list(violations(_shape(session, "codebuild", "StartBuild"), {"projectName": "x", **sent}, {}))


def _shape(session: Session, service: str, operation: str) -> Any:
    return session.get_service_model(service).operation_model(operation).input_shape


def test_a_build_that_only_starts_cannot_deploy() -> None:
    def granted(**triggers: Any) -> set[str]:
        document = properties(resources(**triggers), "BuildRole")["Policies"][0]["PolicyDocument"]
        return {action for each in document["Statement"] for action in each["Action"]}

    assert "s3:GetObject" in granted(schedule="rate(1 day)"), "it reads the archive"
    assert "sagemaker:CreateEndpoint" in granted(approved=True) - granted(schedule="rate(1 day)")
    assert "sagemaker:StartPipelineExecution" in granted(schedule="rate(1 day)") - granted(approved=True)


@pytest.mark.parametrize(
    ("triggers", "changes", "cause"),
    [
        ({"new_data": "_SUCCESS"}, {"inputs": {}}, "triggers.new_data needs inputs.input_data"),
        ({"new_data": "x"}, {"inputs": {"input_data": "s3://t--euw1-az1--x-s3/rows/"}}, "not a directory bucket"),
        ({"approved": True}, {"deploy": None}, "triggers.approved needs deploy"),
    ],
)
def test_a_trigger_without_what_it_needs_is_refused(triggers, changes, cause) -> None:
    with pytest.raises(ValueError, match=cause):
        triggered(triggers, **changes)


@pytest.mark.parametrize(
    "schedule",
    [
        *("rate(1 hour)", "rate(7 days)", "at(2027-01-31T06:00:00)", "cron(0 6 ? * MON *)", "cron(*/5 8-18 L * ? *)"),
        *("cron(15,45 9 ? JAN,JUL TUE-THU 2027-2030)", "cron(0 10 15W * ? *)", "cron(0 6 ? * 2#1 *)"),
    ],
)
def test_a_schedule_of_eventbridge_scheduler_is_accepted(schedule) -> None:
    assert triggered({"schedule": schedule}).aws.triggers.schedule == schedule


@pytest.mark.parametrize(
    "schedule",
    [
        *("rate(0 days)", "rate(2 weeks)", "at(tomorrow)", "cron(0 6 * * MON)", "cron(0 6 * * MON *)", "0 6 * * MON"),
        *("cron(0 25 ? * MON *)", "cron(0 6 ? * ? *)", "cron(0 6 ? * MO *)", "cron(0 6 ? * MON * *)", "cron()"),
    ],
)
def test_a_schedule_that_the_service_would_refuse_is_refused(schedule) -> None:
    with pytest.raises(ValueError, match="is not rate"):
        triggered({"schedule": schedule})


@pytest.mark.parametrize(
    ("aws", "cause"),
    [
        ({"triggers": {"time_zone": "Europe/Pariss"}}, "no time zone 'Europe/Pariss'; did you mean 'Europe/Paris'"),
        ({"notifications": {"email": "team at example.com"}}, "is not an address such as"),
        ({"notifications": {"topic": "models"}}, "is not an ARN such as arn:aws:sns:"),
    ],
)
def test_what_only_the_service_would_refuse_is_refused_before(aws, cause) -> None:
    with pytest.raises(ValueError, match=cause):
        configuration(aws={**AWS, **aws})


def test_a_version_is_not_deployed_twice() -> None:
    aws = {**AWS, "deploy": DEPLOY, "triggers": {"approved": True}}
    with pytest.raises(ValueError, match="would both deploy a version"):
        configuration(aws=aws, registration=APPROVED)


def test_a_failed_build_is_announced() -> None:
    config = triggered({"schedule": "rate(1 day)"}, notifications={"events": ["untriggered"]})
    rule = json.loads(stack(config))["Resources"]["NotifyUntriggered"]["Properties"]["EventPattern"]
    assert (rule["source"], rule["detail"]["project-name"]) == (["aws.codebuild"], ["triggered-triggers"])
    with pytest.raises(ContractError, match="untriggered needs a section .*\n.*or add aws.triggers"):
        stack(configuration(aws={**AWS, "notifications": {"events": ["untriggered"]}}))


def test_the_archive_of_the_same_configuration_has_the_same_bytes() -> None:
    resolved = aws_plan(triggered({"approved": True}))
    assert archive(resolved) == archive(resolved)


@pytest.mark.slow  # a pipeline is sent
def test_a_build_starts_an_execution_from_the_archive_with_three_packages(local_aws: str, tmp_path) -> None:
    config = triggered({"schedule": "rate(1 day)"})
    boto3.client("s3").put_object(Bucket="my-bucket", Key="da*ta/part-0.csv", Body=b"a,b\n1,2\n")
    upsert(config)
    build = properties(json.loads(stack(config))["Resources"], "Build")
    bucket, _, key = build["Source"]["Location"].partition("/")
    content = boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    zipfile.ZipFile(io.BytesIO(content)).extractall(tmp_path)
    names = [line.partition("==")[0] for line in (tmp_path / "requirements.txt").read_text().splitlines()]
    assert names == ["boto3", "pydantic", "PyYAML"]
    (command,) = json.loads(build["Source"]["BuildSpec"])["phases"]["build"]["commands"]
    arguments = command.replace("$COMMAND", build["Environment"]["EnvironmentVariables"][0]["Value"]).split()[3:]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    program = [sys.executable, "-c", RUN, *arguments]
    ended = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    summaries = boto3.client("sagemaker").list_pipeline_executions(PipelineName="triggered")
    assert [each["PipelineExecutionArn"] for each in summaries["PipelineExecutionSummaries"]] == [ended.stdout.strip()]


def test_a_job_can_change_no_command_of_a_build_and_approve_nothing_that_is_then_deployed() -> None:
    def denied(**triggers: Any) -> list[tuple[list[str], Any]]:
        document = properties(resources(**triggers), "Role")["Policies"][0]["PolicyDocument"]
        return [(each["Action"], each.get("Condition")) for each in document["Statement"] if each["Effect"] == "Deny"]

    approving = {"StringEquals": {"sagemaker:ModelApprovalStatus": "Approved"}}
    assert denied(schedule="rate(1 day)") == [(["s3:PutObject"], None)]
    assert denied(approved=True) == [(["s3:PutObject"], None), (["sagemaker:CreateModelPackage"], approving)]


def test_every_role_trusts_services_for_this_account_alone() -> None:
    roles = [each for each in resources(approved=True).values() if each["Type"] == "AWS::IAM::Role"]
    conditions = [
        statement["Condition"]
        for each in roles
        for statement in each["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    ]
    assert len(roles) == 3
    assert conditions == [{"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}] * 3
