"""Let Application Auto Scaling change the number of an endpoint's instances; a pipeline has no step for it."""

from contracts.errors import ContractError
from pipeline.aws.definition import aws_plan
from pipeline.aws.serving import VARIANT, endpoint_name
from pipeline.aws.session import aws_session
from pipeline.config import PipelineConfig


def autoscale(config: PipelineConfig) -> str:
    """Create or update the scaling policy of the endpoint, and return the policy's ARN.

    Raises:
        ContractError: the configuration has no autoscaling, or the endpoint does not exist.
    """
    aws, _ = aws_plan(config)
    deploy = aws.deploy
    if deploy is None or deploy.real_time is None or deploy.real_time.autoscaling is None:
        raise ContractError("aws.deploy.real_time.autoscaling: is missing", "Add it: max_instances and a target.")
    section, name = deploy.real_time.autoscaling, endpoint_name(config, deploy)
    session = aws_session(aws.region)
    sagemaker, scaling = session.client("sagemaker"), session.client("application-autoscaling")
    try:
        sagemaker.describe_endpoint(EndpointName=name)
    except sagemaker.exceptions.ClientError as error:
        if error.response["Error"]["Code"] != "ValidationException":
            raise
        raise ContractError(
            f"endpoint {name!r}: does not exist in {aws.region}",
            "Start an execution of the pipeline, and wait for its end.",
        ) from None
    target = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{name}/variant/{VARIANT}",
        "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
    }
    scaling.register_scalable_target(**target, MinCapacity=section.min_instances, MaxCapacity=section.max_instances)
    policy = scaling.put_scaling_policy(
        **target,
        PolicyName=f"{name}-invocations",
        PolicyType="TargetTrackingScaling",
        TargetTrackingScalingPolicyConfiguration={
            "TargetValue": float(section.invocations_per_instance),
            "PredefinedMetricSpecification": {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"},
        },
    )
    return policy["PolicyARN"]
