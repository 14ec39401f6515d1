"""Check that the resources of a configuration are in its region, or in the partition of its region, such as aws-cn."""

import re
from collections.abc import Iterator
from typing import Any

from contracts.errors import ContractError
from pipeline.config import PipelineConfig

_REPOSITORY = re.compile(r"\d{12}\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.")


def check_partitions(config: PipelineConfig, session: Any) -> None:
    """Raise ContractError for a region that botocore does not know, or a resource of another region or partition.

    Args:
        session: boto3's, which knows the partition of each region.
    """
    assert config.aws is not None
    region = config.aws.region
    expected = _partition(session, region)
    if expected is None:
        raise ContractError(
            f"aws.region: {region!r} is of no partition that botocore knows",
            "Correct it. If it is new, update botocore.",
        )
    for key, resource in _resources(config):
        repository = _REPOSITORY.match(resource)
        found = _partition(session, repository["region"]) if repository else None
        other = repository["region"] if repository else ""
        if resource.startswith("arn:"):
            if resource.count(":") < 5:
                raise ContractError(f"{key}: {resource} is not a whole ARN", "Copy the ARN from the service's console.")
            _, found, _, other, *_ = resource.split(":")
        if found is not None and found != expected:
            raise ContractError(
                f"{key}: {resource} is in the partition {found}, but aws.region {region} is in {expected}",
                f"Correct {key} or aws.region.",
            )
        if other not in ("", region) and key != "mlflow.tracking_uri":
            raise ContractError(
                f"{key}: {resource} is in the region {other}, but aws.region is {region}",
                f"Name one in {region}, or correct aws.region.",
            )


def _resources(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    """Yield key and value of everything that may name a partition."""
    aws, mlflow = config.aws, config.mlflow
    assert aws is not None
    yield "aws.role", aws.role
    yield "aws.image", aws.image
    yield "aws.kms_key", aws.kms_key or ""
    if aws.deploy is not None and aws.deploy.asynchronous is not None:
        yield "aws.deploy.asynchronous.success_topic", aws.deploy.asynchronous.success_topic or ""
        yield "aws.deploy.asynchronous.error_topic", aws.deploy.asynchronous.error_topic or ""
    if mlflow is not None:
        yield "mlflow.tracking_uri", mlflow.tracking_uri
        yield "mlflow.image", mlflow.image or ""


def _partition(session: Any, region: str) -> str | None:
    from botocore.exceptions import UnknownRegionError

    try:
        return session.get_partition_for_region(region)
    except UnknownRegionError:
        return None
