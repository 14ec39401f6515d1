"""Creates or updates the pipeline on AWS, and starts it."""

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

from contracts.errors import ContractError
from contracts.spelling import did_you_mean
from pipeline.aws.definition import aws_plan, build_pipeline, checkpoint_key, specs_of
from pipeline.aws.parameters import (
    CHECKPOINT_KEY,
    DATA_KEY,
    HYPERPARAMETER_PREFIX,
    INPUT_PREFIX,
    TO_BEAT,
    ParameterSpec,
)
from pipeline.aws.session import aws_session, sagemaker_sdk
from pipeline.config import PipelineConfig
from pipeline.decision import decision_value, limit_to_beat
from pipeline.plan import make_plan


def upsert(config: PipelineConfig) -> str:
    """Create the pipeline or bring it up to date; returns its ARN."""
    aws, _ = aws_plan(config)
    session = aws_session(aws.region, aws.bucket)
    tags = [{"Key": key, "Value": value} for key, value in sorted(aws.tags.items())]
    pipeline = build_pipeline(config, session)
    with sagemaker_sdk(aws.region):
        return pipeline.upsert(role_arn=aws.role, tags=tags or None)["PipelineArn"]


def start(config: PipelineConfig, overrides: Mapping[str, str]) -> str:
    """Start an execution of the pipeline as it is on AWS; returns its ARN.

    Args:
        overrides: values of parameters, as text.

    Raises:
        ContractError: an unknown parameter or a value that is refused; the pipeline does not exist.
    """
    aws, plan = aws_plan(config)
    values = parse_overrides(config, specs_of(config), overrides)
    session = aws_session(aws.region, aws.bucket)
    client = session.sagemaker_client
    if TO_BEAT in specs_of(config) and TO_BEAT not in values:
        registered = registered_metric(config, client, session.boto_session.client("s3"))
        if registered is not None:
            values[TO_BEAT] = limit_to_beat(config.condition, registered)
    data = _entity_tags(session.boto_session.client("s3"), config, values)
    values.setdefault(DATA_KEY, hashlib.sha256("\n".join(sorted(data)).encode()).hexdigest()[:16])
    values.setdefault(CHECKPOINT_KEY, checkpoint_key(config, plan, values, data=data))
    try:
        response = client.start_pipeline_execution(
            PipelineName=config.name,
            PipelineParameters=[{"Name": name, "Value": str(value)} for name, value in sorted(values.items())],
        )
    except client.exceptions.ClientError as error:
        if error.response["Error"]["Code"] not in ("ResourceNotFound", "ValidationException"):
            raise
        if config.name not in error.response["Error"]["Message"]:
            raise
        raise ContractError(
            f"pipeline {config.name!r}: does not exist in {aws.region}", "Create it: python -m pipeline upsert"
        ) from None
    return response["PipelineExecutionArn"]


def parse_overrides(
    config: PipelineConfig, specs: Mapping[str, ParameterSpec], overrides: Mapping[str, str]
) -> dict[str, Any]:
    """Values of parameters, typed and checked like the configuration's own."""
    values: dict[str, Any] = {}
    for name, text in overrides.items():
        spec = specs.get(name)
        if spec is None:
            raise ContractError(
                f"parameter {name}: unknown{did_you_mean(name, specs)}", f"Use one of: {', '.join(specs)}."
            )
        try:
            values[name] = spec.kind(text)
        except ValueError:
            raise ContractError(f"parameter {name}: {text!r} is not of type {spec.kind.__name__}", spec.about) from None
        if spec.choices and text not in spec.choices:
            raise ContractError(f"parameter {name}: {text!r} is refused", f"Use one of: {', '.join(spec.choices)}.")
    hyperparameters = {
        name.removeprefix(HYPERPARAMETER_PREFIX): value
        for name, value in values.items()
        if name.startswith(HYPERPARAMETER_PREFIX)
    }
    if hyperparameters:
        changed = config.model_copy(update={"hyperparameters": {**config.hyperparameters, **hyperparameters}})
        assert config.aws is not None
        make_plan(changed, config.aws.inputs)
    return values


def registered_metric(config: PipelineConfig, sagemaker: Any, s3: Any) -> float | None:
    """Return the metric of the registered model to beat; print a line and return None where there is none."""
    asked = {"ModelApprovalStatus": "Approved"} if config.condition.beat == "approved" else {}
    found = sagemaker.list_model_packages(
        ModelPackageGroupName=config.group, SortBy="CreationTime", SortOrder="Descending", **asked
    )["ModelPackageSummaryList"]
    for summary in found:
        package = sagemaker.describe_model_package(ModelPackageName=summary["ModelPackageArn"])
        measured_by = package.get("CustomerMetadataProperties", {}).get("condition_metric")
        uri = package.get("ModelMetrics", {}).get("ModelQuality", {}).get("Statistics", {}).get("S3Uri")
        if uri is None or measured_by != config.condition.metric:
            _print(f"{summary['ModelPackageArn']} was not decided by {config.condition.metric}; looking further back.")
            continue
        bucket, key = uri.removeprefix("s3://").split("/", 1)
        text = s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode()
        value = decision_value(text, where=uri)
        if value is not None:
            _print(f"To beat: {config.condition.metric} {value:.6g} of {summary['ModelPackageArn']}.")
            return value
    _print(f"No {config.condition.beat} model to beat in {config.group}: the threshold alone decides.")
    return None


def _entity_tags(s3: Any, config: PipelineConfig, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return keys, entity tags and sizes of the objects under the inputs, so that new data starts a new training."""
    assert config.aws is not None
    tags: list[str] = []
    for name, default in config.aws.inputs.items():
        bucket, _, prefix = str(values.get(f"{INPUT_PREFIX}{name}", default)).removeprefix("s3://").partition("/")
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            tags += [f"{entry['Key']} {entry['ETag']} {entry['Size']}" for entry in page.get("Contents", [])]
    return tuple(tags)


def _print(line: str) -> None:
    print(line, file=sys.stderr)
