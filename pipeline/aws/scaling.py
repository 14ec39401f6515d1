"""Register the automatic scaling of an endpoint (Application Auto Scaling), and take it away for an update."""

from typing import Any

from pipeline.aws.operator import Operator
from pipeline.aws.serving import VARIANT, endpoint_name
from pipeline.config_aws import Deploy, Scaling

_SERVICE = "application-autoscaling"
_COOLDOWN = 300  # seconds after the step from no instances to one


def register_scaling(operator: Operator) -> None:
    """Register the scaling of the configuration, if it has one; again, to replace it."""
    deploy, scaling = operator.deploy, operator.deploy.scaling
    if scaling is None:
        return
    name = endpoint_name(operator.config, deploy)
    target = _target(name, deploy)
    what = f"scale {name} from {scaling.minimum} to {scaling.maximum}"
    bounds = {"MinCapacity": scaling.minimum, "MaxCapacity": scaling.maximum}
    operator.change(what, _SERVICE, "register_scalable_target", **target, **bounds)
    operator.change(
        f"scale {name} by the target {scaling.target:g}",
        _SERVICE,
        "put_scaling_policy",
        **target,
        PolicyName=f"{name}-target",
        PolicyType="TargetTrackingScaling",
        TargetTrackingScalingPolicyConfiguration=_tracking(name, deploy, scaling),
    )
    if scaling.minimum == 0:
        _scale_from_zero(operator, name, target)


def deregister_scaling(operator: Operator) -> None:
    """Deregister the endpoint, with all its policies: an update of an endpoint that scales can fail."""
    name = endpoint_name(operator.config, operator.deploy)
    resources = [f"endpoint/{name}/variant/{VARIANT}"]
    autoscaling = operator.client(_SERVICE)
    targets = autoscaling.describe_scalable_targets(ServiceNamespace="sagemaker", ResourceIds=resources)
    for target in targets["ScalableTargets"]:
        named = {key: target[key] for key in ("ServiceNamespace", "ResourceId", "ScalableDimension")}
        operator.change(f"stop the scaling of {name}", _SERVICE, "deregister_scalable_target", **named)


def backlog_alarm(name: str) -> str:
    """Return the name of the alarm that starts the first instance of an asynchronous endpoint."""
    return f"{name}-backlog"


def _target(name: str, deploy: Deploy) -> dict[str, str]:
    counted = "DesiredProvisionedConcurrency" if deploy.serverless else "DesiredInstanceCount"
    return {
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{name}/variant/{VARIANT}",
        "ScalableDimension": f"sagemaker:variant:{counted}",
    }


def _tracking(name: str, deploy: Deploy, scaling: Scaling) -> dict[str, Any]:
    predefined = "SageMakerVariantInvocationsPerInstance"
    if deploy.serverless is not None:
        predefined = "SageMakerVariantProvisionedConcurrencyUtilization"
    if deploy.asynchronous is None:
        return {
            "TargetValue": scaling.target,
            "PredefinedMetricSpecification": {"PredefinedMetricType": predefined},
        }
    queue = _queue_metric(name, "ApproximateBacklogSizePerInstance")
    return {"TargetValue": scaling.target, "CustomizedMetricSpecification": {**queue, "Statistic": "Average"}}


def _queue_metric(name: str, metric: str) -> dict[str, Any]:
    dimensions = [{"Name": "EndpointName", "Value": name}]
    return {"Namespace": "AWS/SageMaker", "MetricName": metric, "Dimensions": dimensions}


def _scale_from_zero(operator: Operator, name: str, target: dict[str, str]) -> None:
    """Start an instance where requests wait and there is none: a target per instance has no value then."""
    policy = operator.change(
        f"start the first instance of {name} for a request",
        _SERVICE,
        "put_scaling_policy",
        **target,
        PolicyName=f"{name}-from-zero",
        PolicyType="StepScaling",
        StepScalingPolicyConfiguration={
            "AdjustmentType": "ChangeInCapacity",
            "MetricAggregationType": "Average",
            "Cooldown": _COOLDOWN,
            "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
        },
    )
    operator.change(
        f"set the alarm {backlog_alarm(name)}",
        "cloudwatch",
        "put_metric_alarm",
        **_queue_metric(name, "HasBacklogWithoutCapacity"),
        AlarmName=backlog_alarm(name),
        AlarmActions=[policy.get("PolicyARN", "the policy")],
        Statistic="Average",
        Period=60,
        EvaluationPeriods=2,
        Threshold=1.0,
        ComparisonOperator="GreaterThanOrEqualToThreshold",
        TreatMissingData="missing",
    )
