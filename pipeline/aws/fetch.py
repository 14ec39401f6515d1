"""Fetch what a comparison of versions needs: the package, and the predictions of its training."""

from pathlib import Path

from contracts.errors import ContractError
from contracts.paths import JobPaths
from contracts.steps import ARCHIVED_OUTPUT, PYTORCH_TRAINING
from pipeline.aws.operator import Operator
from pipeline.aws.versions import find_package
from pipeline.comparison import COMPARED, unpack


def fetch(operator: Operator, number: int, folder: Path) -> None:
    """Write model/ and output/data/ of a version to a folder.

    Raises:
        ContractError: the version does not exist, or one of its archives.
    """
    package, paths, s3 = find_package(operator, number), JobPaths(folder), operator.client("s3")
    job = (package.get("CustomerMetadataProperties") or {}).get("training_job")
    if job is None:
        raise ContractError(f"version {number}: names no training_job", "Register the model again.")
    predictions = f"{operator.resolved.home}/{PYTORCH_TRAINING.name}/{job}/output/{ARCHIVED_OUTPUT}"
    model = package["InferenceSpecification"]["Containers"][0]["ModelDataUrl"]
    archive = folder.with_suffix(".tar.gz")
    for uri, target, only in ((model, paths.model, ()), (predictions, paths.output_data, COMPARED)):
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        try:
            s3.download_file(bucket, key, str(archive))
        except s3.exceptions.ClientError as error:
            if error.response["Error"]["Code"] != "404":
                raise
            raise ContractError(f"version {number}: {uri} does not exist", "Restore it, or train again.") from None
        unpack(archive, target, only=only)
        archive.unlink()
