"""Show an execution on AWS: its steps, their cost, the cause of a failure, and the logs of a step."""

import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from contracts.errors import ContractError, one_line
from contracts.spelling import did_you_mean
from pipeline.aws.operator import Operator
from pipeline.aws.waiting import POLL_SECONDS
from pipeline.estimate import hourly_price
from pipeline.progress import COLUMNS, Progress, StepState

_RUNNING = ("Executing", "Stopping")
_LINES = 100  # of a log


@dataclass(frozen=True)
class _Job:
    """A kind of job: the operation that describes it, the argument with its name, and its log group."""

    operation: str
    argument: str
    group: str

    def instances(self, described: Mapping[str, Any]) -> tuple[str, int]:
        """Return type and number of its instances; "" where they are of several types."""
        part = described.get("ProcessingResources", {}).get("ClusterConfig") or described.get("TransformResources")
        part = part or described.get("ResourceConfig", {})
        return part.get("InstanceType", ""), part.get("InstanceCount", 0)


_JOBS = {  # by key of a step's metadata
    "TrainingJob": _Job("describe_training_job", "TrainingJobName", "/aws/sagemaker/TrainingJobs"),
    "ProcessingJob": _Job("describe_processing_job", "ProcessingJobName", "/aws/sagemaker/ProcessingJobs"),
    "TransformJob": _Job("describe_transform_job", "TransformJobName", "/aws/sagemaker/TransformJobs"),
}


def status(operator: Operator, execution: str | None, *, wait: bool, logs: str | None) -> int:
    """Print an execution, or the tail of a step's logs.

    Args:
        execution: its ID or ARN; None: the newest.
        wait: until it has ended.
        logs: the step whose logs are printed instead.

    Returns:
        0, or 1 if `wait` is set and the execution did not succeed.

    Raises:
        ContractError: there is no such pipeline, execution or step.
    """
    arn = _execution(operator, execution)
    sagemaker, progress = operator.client("sagemaker"), Progress()
    while True:
        described = sagemaker.describe_pipeline_execution(PipelineExecutionArn=arn)
        state, steps = described["PipelineExecutionStatus"], _steps(sagemaker, arn)
        if not wait or logs or state not in _RUNNING:
            break
        running = next((step["StepName"] for step in steps if step["StepStatus"] == "Executing"), "the next step")
        progress.show(f"{state}: {running}", f", {_seconds(described['CreationTime'], None):,.0f} s")
        time.sleep(POLL_SECONDS)
    progress.end()
    if logs is not None:
        _print_logs(operator, steps, logs)
        return 0
    took = _seconds(described["CreationTime"], None if state in _RUNNING else described["LastModifiedTime"])
    print(f"execution {arn.rpartition('/')[2]} of {operator.config.name}: {state}, {took:,.0f} s")
    states = [_state(operator, step) for step in steps]
    for step in states:
        print("\n".join(step.lines()))
    if dollars := [step.dollars for step in states if step.dollars is not None]:
        print(f"The jobs cost about ${sum(dollars):,.2f}, at prices on demand of the catalogue.")
    if reason := described.get("FailureReason"):
        print("\n".join(textwrap.wrap(one_line(reason), COLUMNS)))
    return int(wait and state != "Succeeded")


def _execution(operator: Operator, execution: str | None) -> str:
    """Return the ARN of an execution."""
    name = operator.config.name
    pipeline = operator.look_up("describe_pipeline", PipelineName=name)
    if pipeline is None:
        raise ContractError(f"pipeline {name!r}: does not exist", "Create it: python -m pipeline upsert")
    pages = operator.client("sagemaker").get_paginator("list_pipeline_executions").paginate(PipelineName=name)
    summaries = [summary for page in pages for summary in page["PipelineExecutionSummaries"]]
    if not summaries:
        raise ContractError(f"pipeline {name!r}: has no executions", "Start one: python -m pipeline start")
    if execution is None:
        return max(summaries, key=lambda summary: summary["StartTime"])["PipelineExecutionArn"]
    arns = {
        summary["PipelineExecutionArn"].rpartition("/")[2]: summary["PipelineExecutionArn"] for summary in summaries
    }
    key = execution.rpartition("/")[2]
    if key not in arns:
        cause = f"execution {key}: {name} has no such execution{did_you_mean(key, arns)}"
        raise ContractError(cause, "Correct the ID.")
    return arns[key]


def _steps(sagemaker: Any, arn: str) -> list[dict[str, Any]]:
    pages = sagemaker.get_paginator("list_pipeline_execution_steps").paginate(
        PipelineExecutionArn=arn, SortOrder="Ascending"
    )
    return [step for page in pages for step in page["PipelineExecutionSteps"]]


def _state(operator: Operator, step: Mapping[str, Any]) -> StepState:
    seconds = _seconds(step.get("StartTime"), step.get("EndTime"))
    if step.get("CacheHitResult", {}).get("SourcePipelineExecutionArn"):
        return StepState(step["StepName"], "cached", seconds)
    kind, name = _job_of(step)
    if kind is None:
        note = step.get("FailureReason", "") or _registered(step)
        return StepState(step["StepName"], step["StepStatus"].lower(), seconds, _first_line(note))
    described = operator.look_up(kind.operation, **{kind.argument: name}) or {}
    reason = described.get("ExitMessage") or described.get("FailureReason") or step.get("FailureReason", "")
    instance, count = kind.instances(described)
    price, ended = hourly_price(instance), step.get("EndTime") is not None
    dollars = None if price is None or not ended else price * count * seconds / 3600
    note = _first_line(reason) if step["StepStatus"] == "Failed" else ""
    return StepState(step["StepName"], step["StepStatus"].lower(), seconds, note, dollars)


def _job_of(step: Mapping[str, Any]) -> tuple[_Job | None, str]:
    """Return kind and name of the job of a step; (None, "") of a step without a job."""
    for key, metadata in step.get("Metadata", {}).items():
        if key in _JOBS:
            return _JOBS[key], metadata["Arn"].rpartition("/")[2]
    return None, ""


def _registered(step: Mapping[str, Any]) -> str:
    arn = step.get("Metadata", {}).get("RegisterModel", {}).get("Arn", "")
    return f"version {arn.rpartition('/')[2]}" if arn else ""


def _first_line(text: str) -> str:
    return one_line(text.strip().partition("\n")[0])


def _seconds(start: datetime | None, end: datetime | None) -> float:
    return 0.0 if start is None else ((end or datetime.now(UTC)) - start).total_seconds()


def _print_logs(operator: Operator, steps: list[dict[str, Any]], name: str) -> None:
    """Print the tail of the log streams of a step's job."""
    names = [step["StepName"] for step in steps]
    if name not in names:
        cause = f"--logs {name}: the execution has no such step{did_you_mean(name, names)}"
        raise ContractError(cause, f"Use one of: {', '.join(names)}." if names else "Wait for its first step.")
    kind, job = _job_of(next(step for step in steps if step["StepName"] == name))
    if kind is None:
        raise ContractError(f"--logs {name}: the step has no job, or it has not started", "Name a step with a job.")
    logs = operator.client("logs")
    streams = logs.describe_log_streams(logGroupName=kind.group, logStreamNamePrefix=f"{job}/")["logStreams"]
    for stream in streams:
        print(f"{kind.group} {stream['logStreamName']}")
        events = logs.get_log_events(
            logGroupName=kind.group, logStreamName=stream["logStreamName"], limit=_LINES, startFromHead=False
        )["events"]
        for event in events:
            print(event["message"])
    if not streams:
        print(f"{kind.group} has no log of {job} yet.")
