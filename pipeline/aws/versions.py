"""The registered versions on AWS: list them, and decide about one."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.aws.operator import Operator, ignore_missing
from pipeline.aws.serving import endpoint_name
from pipeline.versions import DECISIONS, Version, no_version, table


def packages(sagemaker: Any, group: str, only: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the ARN and the description of each model package, the newest first; none before the first run."""
    for summary in _summaries(sagemaker, group, only):
        arn = summary["ModelPackageArn"]
        with ignore_missing(sagemaker, group):  # deleted since it was listed
            yield arn, sagemaker.describe_model_package(ModelPackageName=arn)


def _summaries(sagemaker: Any, group: str, only: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    pages = sagemaker.get_paginator("list_model_packages").paginate(
        ModelPackageGroupName=group, SortBy="CreationTime", SortOrder="Descending", **only
    )
    with ignore_missing(sagemaker, group):  # the first registration creates it
        yield from (summary for page in pages for summary in page["ModelPackageSummaryList"])


def find_package(operator: Operator, number: int) -> dict[str, Any]:
    """Return the description of a version.

    Raises:
        ContractError: it does not exist.
    """
    sagemaker, group = operator.client("sagemaker"), operator.config.group
    arns = {summary["ModelPackageVersion"]: summary["ModelPackageArn"] for summary in _summaries(sagemaker, group, {})}
    if number not in arns:
        raise no_version(group, number, sorted(arns))
    return sagemaker.describe_model_package(ModelPackageName=arns[number])


def version_of(package: Mapping[str, Any]) -> Version:
    """Return a version by the description of its package."""
    properties = package.get("CustomerMetadataProperties") or {}
    return Version(
        number=package["ModelPackageVersion"],
        created=package["CreationTime"].isoformat(),
        approval=package.get("ModelApprovalStatus", ""),
        reason=package.get("ApprovalDescription") or "",
        metric=properties.get("condition_metric", "/-"),
        properties=properties,
    )


def versions_table(operator: Operator) -> str:
    """Return the table of versions, with the one that the endpoint has."""
    from pipeline.aws.endpoint import served_version

    deploy = operator.resolved.aws.deploy
    in_service = served_version(operator) if deploy is not None else None
    service = "The endpoint" if deploy is None else endpoint_name(operator.config, deploy)
    found = packages(operator.client("sagemaker"), operator.config.group, {})
    versions = [version_of(package) for _, package in found]
    return table(versions, group=operator.config.group, in_service=in_service, service=service)


def read_object(s3: Any, uri: str) -> bytes | None:
    """Return the content of an object; None where it does not exist."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    try:
        return s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    except s3.exceptions.NoSuchKey:
        return None


def decide(operator: Operator, command: str, number: int, *, why: str) -> None:
    """Approve or reject a version; nothing changes where it has this status and reason.

    Args:
        command: approve or reject.
    """
    package, status = find_package(operator, number), DECISIONS[command]
    version = version_of(package)
    if (version.approval, version.reason) == (status, why):
        print(f"Version {number} is {status.lower()} already.")
        return
    operator.change(
        f"{command} version {number} of {operator.config.group}",
        "sagemaker",
        "update_model_package",
        ModelPackageArn=package["ModelPackageArn"],
        ModelApprovalStatus=status,
        ApprovalDescription=why,
    )
