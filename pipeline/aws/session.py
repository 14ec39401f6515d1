"""Sessions: the SageMaker SDK's, which makes no AWS calls, for the definition; and boto3's, for AWS.

Use the SDK within `sagemaker_sdk()` only: its import needs a region and looks for credentials, also in the network.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from contracts.errors import ContractError

# No usage reports, and no settings from files of the machine: the definition depends on the configuration alone.
_SDK_FILE = Path(__file__).with_name("sdk_config.json")
_FILE_VARIABLES = ("SAGEMAKER_ADMIN_CONFIG_OVERRIDE", "SAGEMAKER_USER_CONFIG_OVERRIDE")


@contextmanager
def sagemaker_sdk(region: str) -> Iterator[None]:
    """Import the SDK, and let a pipeline be built within the context without a call to AWS.

    Raises:
        ContractError: the SDK is not installed.
    """
    try:
        import boto3
    except ImportError as error:
        raise not_installed(error) from None
    variables = {
        "AWS_ACCESS_KEY_ID": "offline",
        "AWS_SECRET_ACCESS_KEY": "offline",
        "AWS_SESSION_TOKEN": "offline",
        "AWS_DEFAULT_REGION": region,
        "AWS_REGION": region,
        **dict.fromkeys(_FILE_VARIABLES, str(_SDK_FILE)),
    }
    for name in _FILE_VARIABLES:
        if os.environ.get(name, variables[name]) != variables[name]:
            print(f"{name}: is ignored; the pipeline depends on its configuration alone.", file=sys.stderr)
    with patch.object(boto3, "DEFAULT_SESSION", None), patch.dict(os.environ, variables):
        for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
            os.environ.pop(name, None)
        _import_sdk()
        yield


def _import_sdk() -> None:
    # Without a level, sagemaker.config sets INFO and logs which configuration files it does not find.
    levels = {"sagemaker": logging.ERROR, "sagemaker.config": logging.ERROR, "botocore": logging.WARNING}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        import sagemaker.mlops.workflow.pipeline  # noqa: F401
    except ImportError as error:
        raise not_installed(error) from None


def not_installed(error: ImportError) -> ContractError:
    """Return the error of a machine without the SageMaker SDK, which installs boto3."""
    install = "pip install -c constraints.txt '.[aws]'"
    return ContractError(f"the SageMaker SDK is not installed ({error})", f"Install it: {install}")


def offline_session(region: str, bucket: str) -> Any:
    """Return a PipelineSession that only builds, within `sagemaker_sdk`: it needs no credentials."""
    import boto3
    from sagemaker.core.workflow.pipeline_context import PipelineSession

    own = json.loads(_SDK_FILE.read_text())
    session = boto3.Session(region_name=region)
    return PipelineSession(boto_session=session, default_bucket=bucket, sagemaker_config=own)


@cache
def partition_of(region: str) -> str:
    """Return the partition of a region, e.g. aws-cn; raise ContractError for a text that is no region.

    A session of botocore would read the profile, and fail for one that does not exist.
    """
    try:
        from botocore.exceptions import UnknownRegionError
        from botocore.loaders import Loader
        from botocore.regions import EndpointResolver
    except ImportError as error:
        raise not_installed(error) from None
    try:
        return EndpointResolver(Loader().load_data("endpoints")).get_partition_for_region(region)
    except UnknownRegionError:
        raise ContractError(f"aws.region: {region!r} is not a region of AWS", "Write, e.g., eu-west-1.") from None


def aws_session(region: str) -> Any:
    """Return boto3's session with the credentials of the environment."""
    try:
        import boto3
    except ImportError as error:
        raise not_installed(error) from None
    return boto3.Session(region_name=region)
