"""Schedule the monitor on AWS, with an alarm."""

from typing import Any

from contracts.errors import ContractError
from contracts.steps import MONITOR_HISTORY
from pipeline.aws.deploy import deployed_pipeline
from pipeline.aws.jobs import write_object
from pipeline.aws.operator import Operator, ignore_missing
from pipeline.aws.parameters import INPUT_PREFIX, AwsPlan
from pipeline.aws.resolve import monitor_folder, monitor_plan
from pipeline.aws.session import aws_session
from pipeline.aws.versions import packages, read_object
from pipeline.config import Monitor, PipelineConfig

_PIPELINES = "AWS/Sagemaker/ModelBuildingPipeline"  # the service's namespace of the metrics of pipelines


def schedule(config: PipelineConfig) -> str:
    """Create or update the schedule of the pipeline NAME-monitor, and its alarm; return the ARN of the schedule.

    The schedule has the newest approved model of the group: run this again after another one is approved.

    Raises:
        ContractError: there is no section `monitor`, no approved model, or `upsert` did not write the pipeline.
    """
    resolved = monitor_plan(config)
    session = aws_session(resolved.aws.region)
    monitor = config.monitor
    assert monitor is not None, "monitor_plan requires it"
    sagemaker, s3 = session.client("sagemaker"), session.client("s3")
    pipeline = deployed_pipeline(resolved, sagemaker)
    if pipeline is None:
        raise ContractError(
            f"pipeline {resolved.config.name!r}: does not exist in {resolved.aws.region}",
            "Create it: python -m pipeline upsert",
        )
    model = _approved_model(config, sagemaker)
    _begin_history(resolved, s3)
    request = {
        "Name": resolved.config.name,
        "ScheduleExpression": monitor.schedule,
        "ScheduleExpressionTimezone": monitor.time_zone,
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "Target": {
            "Arn": pipeline["PipelineArn"],
            "RoleArn": monitor.schedule_role or resolved.aws.role,
            "SageMakerPipelineParameters": {
                "PipelineParameterList": [{"Name": f"{INPUT_PREFIX}model_input", "Value": model}]
            },
        },
    }
    if monitor.alarm_topic is not None:
        session.client("cloudwatch").put_metric_alarm(**violation_alarm(resolved, monitor))
    scheduler = session.client("scheduler")
    try:
        return scheduler.create_schedule(**request)["ScheduleArn"]
    except scheduler.exceptions.ConflictException:
        return scheduler.update_schedule(**request)["ScheduleArn"]


def delete_schedule(operator: Operator) -> str:
    """Delete the schedule, if there is one, and return the name of its alarm."""
    name, scheduler = monitor_plan(operator.config).config.name, operator.client("scheduler")
    with ignore_missing(scheduler, name):
        scheduler.get_schedule(Name=name)
        operator.change(f"delete the schedule {name}", "scheduler", "delete_schedule", Name=name)
    return name


def _approved_model(config: PipelineConfig, sagemaker: Any) -> str:
    for _, package in packages(sagemaker, config.group, {"ModelApprovalStatus": "Approved"}):
        return package["InferenceSpecification"]["Containers"][0]["ModelDataUrl"]
    raise ContractError(
        f"registration.group: {config.group} has no approved model to watch", "Approve one, then schedule its monitor."
    )


def _begin_history(resolved: AwsPlan, s3: Any) -> None:
    """Write a history without runs, because a job fails for an input without objects."""
    uri = f"{monitor_folder(resolved)}{MONITOR_HISTORY}"
    if read_object(s3, uri) is None:
        write_object(resolved.aws, s3, uri=uri, content=b"\n")


def violation_alarm(resolved: AwsPlan, monitor: Monitor) -> dict[str, Any]:
    """Return an alarm on failed executions: a run in which something is out of bounds fails."""
    return {
        "AlarmName": resolved.config.name,
        "AlarmDescription": "The monitor failed, or found something out of bounds: see its report.",
        "AlarmActions": [monitor.alarm_topic] if monitor.alarm_topic else [],
        "Namespace": _PIPELINES,
        "MetricName": "ExecutionFailed",
        "Dimensions": [{"Name": "PipelineName", "Value": resolved.config.name}],
        "Statistic": "Sum",
        "Period": 3600,
        "EvaluationPeriods": 1,
        "Threshold": 1.0,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "TreatMissingData": "notBreaching",
    }
