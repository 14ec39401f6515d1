"""Look up the objects under the inputs of an execution, before it starts."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from contracts.errors import ContractError
from contracts.steps import BATCH_SCORE
from pipeline.aws.errors import aws_errors
from pipeline.aws.feasibility import check_bucket
from pipeline.aws.parameters import INPUT_PREFIX
from pipeline.config_aws import Aws
from pipeline.graph import inputs_of


def input_data(aws: Aws, values: Mapping[str, Any], s3: Any) -> dict[str, list[str]]:
    """Return what identifies the data under each input, except that of records to score, which trains nothing.

    Raises:
        ContractError: there is no object under an input.
    """
    data: dict[str, list[str]] = {}
    for name, configured in aws.inputs.items():
        parameter = f"{INPUT_PREFIX}{name}"
        key, uri = f"aws.inputs.{name}", configured
        if parameter in values:
            key, uri = f"parameter {parameter}", values[parameter]
        with aws_errors(f"{key}: {uri}", missing=f"Correct the bucket of {key}."):
            check_bucket(key, uri, aws.region, s3)
            objects = dict(_objects(s3, uri))
        if not objects:
            raise ContractError(f"{key}: no object under {uri}", "Correct the URI, or upload the data.")
        _check_neighbours(key, uri, objects)
        if name not in inputs_of(BATCH_SCORE):
            data[name] = [f"{path} {tag}" for path, tag in objects.items()]
    return data


def _check_neighbours(key: str, uri: str, objects: Iterable[str]) -> None:
    """Raise ContractError where a URI without / at its end is the beginning of several names.

    SageMaker reads every object whose key begins with the URI's: s3://bucket/table also reads s3://bucket/table_old/.
    """
    prefix = uri.removeprefix("s3://").partition("/")[2]
    if not prefix or prefix.endswith("/"):
        return
    names = {"".join(path.removeprefix(prefix).partition("/")[:2]) for path in objects}
    others = sorted(names - {"", "/"})
    if others and (len(names) > len(others) or (len(names) > 1 and any(name.endswith("/") for name in names))):
        neighbour = f"s3://{uri.removeprefix('s3://').partition('/')[0]}/{prefix}{others[-1]}"
        raise ContractError(
            f"{key}: {uri} is also the beginning of {neighbour}, which SageMaker would read too",
            f"End the URI of a folder with /: {uri}/" if "" not in names else "Move the other one, or name a folder.",
        )


def _objects(s3: Any, uri: str) -> Iterator[tuple[str, str]]:
    """Yield the key, and the entity tag with the size, of each object except the folders that S3's console creates."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for entry in page.get("Contents", []):
            if not entry["Key"].endswith("/"):
                yield entry["Key"], f"{entry['ETag']} {entry['Size']}"
