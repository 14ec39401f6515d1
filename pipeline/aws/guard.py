"""Guard an update of an endpoint: its alarms, and the steps in which the traffic moves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from contracts.errors import ContractError
from pipeline.aws.monitor import violation_alarm
from pipeline.aws.operator import Operator
from pipeline.aws.resolve import monitor_plan
from pipeline.aws.serving import VARIANT, endpoint_name
from pipeline.config_aws import Deploy

_LATENCY_MS = 1_000.0
_SMALLEST_STEP = 10  # % of the instances, of linear traffic; botocore documents it
_LONGEST_START = 7_200  # seconds in which the new instances start
_LONGEST = 28_800  # seconds, the service's limit of an update


@dataclass(frozen=True)
class Traffic:
    """The steps in which traffic moves to the new instances.

    Attributes:
        percent: of the instances: of the first of two steps (CANARY), or of each step (LINEAR); of the requests that
            a SHADOW gets as copies, whose answers nobody receives.
    """

    kind: Literal["ALL_AT_ONCE", "CANARY", "LINEAR", "SHADOW"] = "ALL_AT_ONCE"
    percent: int = 100

    @property
    def steps(self) -> int:
        return {"CANARY": 2, "LINEAR": math.ceil(100 / self.percent)}.get(self.kind, 1)

    def check(self, deploy: Deploy) -> None:
        """Raise ContractError for an endpoint whose traffic cannot move in these steps."""
        if self.kind == "ALL_AT_ONCE":
            return
        if self.kind == "SHADOW":
            if deploy.real_time is None:
                cause = "--shadow: SageMaker supports it for real-time endpoints alone"
                raise ContractError(cause, "Remove it, or set aws.deploy.real_time.")
            return
        if deploy.instances is None:
            cause = f"--{self.kind.lower()}: the traffic of a serverless endpoint moves at once"
            raise ContractError(cause, "Remove it. The sample request is answered before the traffic moves.")
        if self.kind == "LINEAR" and self.percent < _SMALLEST_STEP:
            raise ContractError(f"--linear {self.percent}: a step has at least {_SMALLEST_STEP} %", "Increase it.")
        if deploy.instances.instance_count < 2:
            cause = f"--{self.kind.lower()} {self.percent}: the endpoint has one instance, which takes all traffic"
            raise ContractError(cause, "Set instance_count of the endpoint to 2 or more, or remove it.")


def deployment_config(deploy: Deploy, traffic: Traffic, alarms: Sequence[str]) -> dict[str, Any]:
    """Return the DeploymentConfig of UpdateEndpoint; {} for a serverless endpoint, which has none."""
    if deploy.serverless is not None:
        return {}
    wait = deploy.guard.wait_seconds
    size = {"Type": "CAPACITY_PERCENT", "Value": traffic.percent}
    sizes = {"CANARY": {"CanarySize": size}, "LINEAR": {"LinearStepSize": size}}.get(traffic.kind, {})
    kind = traffic.kind if sizes else "ALL_AT_ONCE"
    routing = {"Type": kind, "WaitIntervalInSeconds": wait if sizes else 0, **sizes}
    waits = traffic.steps * wait
    if waits >= _LONGEST:
        cause = f"aws.deploy.guard.wait_seconds: {wait} in {traffic.steps} steps is {waits} s; an update has {_LONGEST}"
        raise ContractError(cause, "Reduce it, or move more traffic in a step.")
    rollback = {"AutoRollbackConfiguration": {"Alarms": [{"AlarmName": name} for name in alarms]}} if alarms else {}
    return {
        "BlueGreenUpdatePolicy": {
            "TrafficRoutingConfiguration": routing,
            "TerminationWaitInSeconds": wait,
            "MaximumExecutionTimeoutInSeconds": min(_LONGEST, waits + _LONGEST_START),
        },
        **rollback,
    }


def own_alarms(name: str, deploy: Deploy) -> list[dict[str, Any]]:
    """Return the alarms of an endpoint on errors and latency, as arguments of PutMetricAlarm."""
    dimensions = {"EndpointName": name, "VariantName": VARIANT}
    shared = {
        "Namespace": "AWS/SageMaker",
        "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
        "Period": 60,
        "EvaluationPeriods": 1,
        "TreatMissingData": "notBreaching",
    }
    errors = {
        "AlarmName": f"{name}-errors",
        "MetricName": "Invocation5XXErrors",
        "Statistic": "Sum",
        "Threshold": float(deploy.guard.errors),
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
    }
    limit = deploy.guard.latency_ms or (None if deploy.asynchronous else _LATENCY_MS)
    if limit is None:
        return [{**shared, **errors}]
    latency = {
        "AlarmName": f"{name}-latency",
        "MetricName": "ModelLatency",
        "ExtendedStatistic": "p99",
        "Threshold": limit * 1000.0,  # the metric is in microseconds
        "ComparisonOperator": "GreaterThanThreshold",
    }
    return [{**shared, **errors}, {**shared, **latency}]


def put_alarms(operator: Operator) -> list[str]:
    """Create or update the alarms that guard an update; return the names of those that can.

    An alarm that fires already would stop every update, also that which repairs its cause: it is left out.

    Raises:
        ContractError: an alarm of the configuration does not exist.
    """
    deploy, config = operator.deploy, operator.config
    if deploy.serverless is not None:
        return []
    ours = own_alarms(endpoint_name(config, deploy), deploy)
    if config.monitor is not None:
        ours.append(violation_alarm(monitor_plan(config), config.monitor))
    before = states(operator, [*(alarm["AlarmName"] for alarm in ours), *deploy.guard.alarms])
    for name in deploy.guard.alarms:
        if name not in before:
            cause = f"aws.deploy.guard.alarms: {name!r} does not exist in {operator.resolved.aws.region}"
            raise ContractError(cause, "Create the alarm in CloudWatch, or remove its name.")
    for alarm in ours:
        operator.change(f"set the alarm {alarm['AlarmName']}", "cloudwatch", "put_metric_alarm", **alarm)
    names = [*(alarm["AlarmName"] for alarm in ours), *deploy.guard.alarms]
    for name in names:
        if before.get(name, ("", ""))[0] == "ALARM":
            print(f"The alarm {name} fires already, so it does not guard this update.")
    return [name for name in names if before.get(name, ("", ""))[0] != "ALARM"]


def states(operator: Operator, names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return state and reason of each alarm that exists, by name."""
    kinds = ["MetricAlarm", "CompositeAlarm"]
    answer = operator.client("cloudwatch").describe_alarms(AlarmNames=list(names), AlarmTypes=kinds)
    alarms = [*answer.get("MetricAlarms", []), *answer.get("CompositeAlarms", [])]
    return {alarm["AlarmName"]: (alarm["StateValue"], alarm.get("StateReason", "")) for alarm in alarms}
