"""Start executions and deployments without a person: rules of EventBridge start a build, which runs our command."""

import io
import json
import re
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.aws.parameters import AwsPlan
from pipeline.aws.permissions import BUILDS, TRIGGERS, Account, resources_of, statements
from pipeline.aws.templates import role, rule
from pipeline.config_types import bucket_of

_CODE = Path(__file__).parents[2]
_REQUIREMENTS = ("boto3", "pydantic", "PyYAML")  # of `start` and `deploy`, which do not use the SageMaker SDK
_CONFIG = "pipeline.json"
_IMAGE, _PYTHON = "aws/codebuild/standard:7.0", "3.11"
_LONGEST_MINUTES = 480  # of a build: as long as an update of an endpoint may take
COMMANDS = "commands.zip"
TABLE = "input_data"  # the input whose new data starts an execution


def archive_uri(resolved: AwsPlan) -> str:
    """Return the place of the archive, which `upsert` writes and the build reads."""
    return f"{resolved.home}/settings/{COMMANDS}"


def archive(resolved: AwsPlan) -> bytes:
    """Return what a build needs for our commands: this code, the configuration, and the packages. Byte-stable."""
    config = resolved.config.model_dump_json(exclude_unset=True, exclude={"inputs", "hyperparameters_file"})
    files = {path for folder in ("contracts", "pipeline") for path in (_CODE / folder).rglob("*.*")}
    contents = {str(path.relative_to(_CODE)): path.read_bytes() for path in files if path.suffix in (".py", ".json")}
    contents |= {
        _CONFIG: config.encode(),
        "requirements.txt": "\n".join(f"{name}=={version(name)}" for name in _REQUIREMENTS).encode(),
    }
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in sorted(contents.items()):
            target.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return written.getvalue()


def triggers(account: Account) -> dict[str, dict[str, Any]]:
    """Return the resources; none without aws.triggers."""
    section = account.aws.triggers
    if section is None:
        return {}
    name = account.config.name
    (build,) = resources_of(account, "the build project")
    target = {"Arn": build, "RoleArn": {"Fn::GetAtt": ["TriggerRole", "Arn"]}}
    commands = {"deploy"} if section.approved else set[str]()
    made: dict[str, dict[str, Any]] = {}
    if section.new_data is not None:
        made["TriggerNewData"] = rule(
            f"{name}: new data", pattern=_new_object(account, section.new_data), target=target
        )
    if section.schedule is not None:
        made["TriggerSchedule"] = {
            "Type": "AWS::Scheduler::Schedule",
            "Properties": {
                "Name": f"{name}-start",
                "ScheduleExpression": section.schedule,
                "ScheduleExpressionTimezone": section.time_zone,
                "FlexibleTimeWindow": {"Mode": "OFF"},
                "Target": target,
            },
        }
    if made:
        commands.add("start")
    if section.approved:
        chosen = {"ModelPackageGroupName": [account.config.group], "ModelApprovalStatus": ["Approved"]}
        pattern = {"source": ["aws.sagemaker"], "detail-type": ["SageMaker Model Package State Change"]}
        variable = {"name": "COMMAND", "value": "deploy <version>", "type": "PLAINTEXT"}
        transformed = {
            "InputPathsMap": {"version": "$.detail.ModelPackageVersion"},
            "InputTemplate": json.dumps({"environmentVariablesOverride": [variable]}),
        }
        of_version = {**target, "InputTransformer": transformed}
        made["TriggerApproved"] = rule(
            f"{name}: an approved version", pattern={**pattern, "detail": chosen}, target=of_version
        )
    return {
        **made,
        "Build": _build(account),
        "BuildRole": role("codebuild.amazonaws.com", statements=statements(account, {BUILDS, *commands})),
        "TriggerRole": role(
            "events.amazonaws.com", "scheduler.amazonaws.com", statements=statements(account, {TRIGGERS})
        ),
    }


def _new_object(account: Account, name: str) -> dict[str, Any]:
    """Return the pattern of an object with this name, or end of a name, anywhere in the folder of the table."""
    uri = account.aws.inputs[TABLE]
    folder = uri.removeprefix(f"s3://{bucket_of(uri)}").strip("/")
    key = "*".join(re.sub(r"([*\\])", r"\\\1", part) for part in (f"{folder}/" if folder else "", name))
    detail = {"bucket": {"name": [bucket_of(uri)]}, "object": {"key": [{"wildcard": key}]}}
    return {"source": ["aws.s3"], "detail-type": ["Object Created"], "detail": detail}


def _build(account: Account) -> dict[str, Any]:
    """Return the project of CodeBuild that runs `python -m pipeline $COMMAND`."""
    install = {"runtime-versions": {"python": _PYTHON}, "commands": ["python -m pip install -r requirements.txt"]}
    run = {"commands": [f"python -m pipeline $COMMAND --config {_CONFIG}"]}
    return {
        "Type": "AWS::CodeBuild::Project",
        "Properties": {
            "Name": account.build_project,
            "Description": f"Runs python -m pipeline start or deploy for {account.config.name}.",
            "ServiceRole": {"Fn::GetAtt": ["BuildRole", "Arn"]},
            "Artifacts": {"Type": "NO_ARTIFACTS"},
            "Environment": {
                "Type": "LINUX_CONTAINER",
                "ComputeType": "BUILD_GENERAL1_SMALL",
                "Image": _IMAGE,
                "EnvironmentVariables": [{"Name": "COMMAND", "Value": "start"}],
            },
            "Source": {
                "Type": "S3",
                "Location": archive_uri(account.resolved).removeprefix("s3://"),
                "BuildSpec": json.dumps({"version": 0.2, "phases": {"install": install, "build": run}}),
            },
            "TimeoutInMinutes": _LONGEST_MINUTES,
            "LogsConfig": {"CloudWatchLogs": {"Status": "ENABLED", "GroupName": {"Ref": "BuildLogs"}}},
        },
    }
