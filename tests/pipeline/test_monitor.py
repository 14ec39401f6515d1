"""The monitor on AWS: its pipeline, schedule and alarm, against moto's server and botocore's models."""

import json
from typing import Any

import boto3
import pytest

from contracts.errors import ContractError
from pipeline.aws.definition import checked_definition
from pipeline.aws.deploy import upsert
from pipeline.aws.monitor import schedule
from pipeline.aws.resolve import aws_plan, monitor_plan
from pipeline.config import PipelineConfig
from testing.pipelines import APPROVED, EVERYTHING, all_steps, configuration

TOPIC = "arn:aws:sns:eu-west-1:123456789012:models"
STEPS = {name: machine for name, machine in EVERYTHING["steps"].items() if name != "BatchScore"}


def watched(**monitor: Any) -> PipelineConfig:
    given = {"alarm_topic": TOPIC, "labels": "s3://raw/labels/", **monitor}
    aws = {**EVERYTHING, "steps": STEPS, "inputs": {"input_data": "s3://raw/table/"}}
    settings = {"Monitoring": {"window_hours": 168}}
    return configuration(aws=aws, registration=APPROVED, settings=settings, monitor=given)


@pytest.fixture(scope="module")
def upserted(local_aws: str) -> str:
    return upsert(watched())


def test_the_pipeline_of_the_monitor_reads_what_the_endpoint_captures_and_its_own_history() -> None:
    definition = json.loads(checked_definition(monitor_plan(watched())))
    (step,) = all_steps(definition).values()
    arguments = step["Arguments"]
    defaults = {each["Name"]: each["DefaultValue"] for each in definition["Parameters"]}
    inputs = {each["InputName"]: each["S3Input"]["S3Uri"]["Get"] for each in arguments["ProcessingInputs"]}
    found = {name: defaults[path.removeprefix("Parameters.")] for name, path in inputs.items()}
    home = "s3://my-bucket/teams/risk"
    assert found == {
        "model_input": f"{home}/demo/no-model-chosen/",
        "records": f"{home}/demo/capture/claims/AllTraffic/",
        "labels": "s3://raw/labels/",
        "history": f"{home}/demo-monitor/Monitoring/",
    }
    (output,) = arguments["ProcessingOutputConfig"]["Outputs"]
    assert output["S3Output"]["S3Uri"] == f"{home}/demo-monitor/Monitoring"
    assert arguments["AppSpecification"]["ContainerArguments"] == ["monitor"]
    assert arguments["Environment"] == {
        "FAIL_ON_VIOLATION": "true",
        "CLOUDWATCH_PIPELINE": "demo-monitor",
        "WINDOW_HOURS": "168.0",
    }
    assert step["CacheConfig"] == {"Enabled": False} if "CacheConfig" in step else True


def test_the_pipeline_of_the_training_has_no_monitor() -> None:
    steps = all_steps(json.loads(checked_definition(aws_plan(watched()))))
    assert "Monitoring" not in steps
    assert "Registration" in steps


def test_without_captured_requests_the_monitor_is_an_error() -> None:
    aws = {**EVERYTHING, "steps": STEPS, "inputs": {"input_data": "s3://raw/table/"}, "deploy": None}
    with pytest.raises(ContractError, match=r"monitor.captured: is missing"):
        monitor_plan(configuration(aws=aws, settings={}, monitor={}))


def test_upsert_creates_both_pipelines(upserted: str) -> None:
    client = boto3.client("sagemaker")
    arns = [client.describe_pipeline(PipelineName=name)["PipelineArn"] for name in ("demo", "demo-monitor")]
    assert upserted.splitlines() == arns


def test_the_schedule_starts_the_pipeline_with_the_newest_approved_model(upserted: str) -> None:
    client, scheduler = boto3.client("sagemaker"), boto3.client("scheduler")
    with pytest.raises(ContractError, match="demo has no approved model to watch"):
        schedule(watched())
    client.create_model_package_group(ModelPackageGroupName="demo")
    for version, status in enumerate(("Approved", "Approved", "PendingManualApproval")):
        client.create_model_package(
            ModelPackageGroupName="demo",
            ModelApprovalStatus=status,
            InferenceSpecification={
                "Containers": [{"Image": "image", "ModelDataUrl": f"s3://my-bucket/{version}/model.tar.gz"}],
                "SupportedContentTypes": ["text/csv"],
                "SupportedResponseMIMETypes": ["text/csv"],
            },
        )
    arn = schedule(watched())
    assert schedule(watched(schedule="cron(0 6 ? * MON *)", time_zone="Europe/Berlin")) == arn
    found = scheduler.get_schedule(Name="demo-monitor")
    assert found["ScheduleExpression"] == "cron(0 6 ? * MON *)"
    assert found["Target"]["Arn"] == upserted.splitlines()[1]
    assert found["Target"]["SageMakerPipelineParameters"]["PipelineParameterList"] == [
        {"Name": "Input_model_input", "Value": "s3://my-bucket/1/model.tar.gz"}
    ]
    (alarm,) = boto3.client("cloudwatch").describe_alarms(AlarmNames=["demo-monitor"])["MetricAlarms"]
    assert alarm["AlarmActions"] == [TOPIC]
    history = boto3.client("s3").get_object(Bucket="my-bucket", Key="teams/risk/demo-monitor/Monitoring/history.jsonl")
    assert history["Body"].read() == b"\n"
