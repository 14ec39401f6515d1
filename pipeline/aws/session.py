"""Sessions of the SageMaker SDK: one that makes no AWS calls, for the definition, and one for AWS.

The SDK is used within `sagemaker_sdk()` only: importing it, and building some of its steps, creates sessions of its
own, which want a region and look for credentials in places that include the network.
"""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from contracts.errors import ContractError

# No usage reports, and no settings from files of the machine: the definition depends on the configuration alone.
SDK_CONFIG = {"SchemaVersion": "1.0", "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}
_NOBODY = {"aws_access_key_id": "offline", "aws_secret_access_key": "offline", "aws_session_token": "offline"}


@contextmanager
def sagemaker_sdk(region: str) -> Iterator[None]:
    """Within it the SDK can be imported and a pipeline built, without a call to AWS.

    Raises:
        ContractError: the SDK is not installed.
    """
    try:
        import boto3
    except ImportError as error:
        raise _not_installed(error) from None
    told = {
        **{name.upper(): value for name, value in _NOBODY.items()},
        "AWS_DEFAULT_REGION": region,
        "AWS_REGION": region,
        # The role is checked by the jobs that assume it; the SDK's own check calls IAM while a definition is built.
        "SAGEMAKER_VALIDATE_ROLE": "false",
    }
    touched = (*told, "AWS_PROFILE", "AWS_DEFAULT_PROFILE")
    session, environment = boto3.DEFAULT_SESSION, {name: os.environ.pop(name, None) for name in touched}
    boto3.DEFAULT_SESSION = None
    os.environ.update(told)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Running within a PipelineSession")
            _import_sdk()
            with _validated_once():
                yield
    finally:
        boto3.DEFAULT_SESSION = session
        for name, value in environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _import_sdk() -> None:
    # sagemaker.config takes a level of its own where it has none: it would say which files it does not read.
    quiet = {"sagemaker": logging.ERROR, "sagemaker.config": logging.ERROR, "botocore": logging.WARNING}
    for name, level in quiet.items():
        logging.getLogger(name).setLevel(level)
    try:
        import sagemaker.mlops.workflow.pipeline
        import sagemaker.train  # noqa: F401
    except ImportError as error:
        raise _not_installed(error) from None


@contextmanager
def _validated_once() -> Iterator[None]:
    """Skip the SDK's validation of SDK_CONFIG at each lookup, about 90 times a definition; a session validates it."""
    from sagemaker.core.config.config_manager import SageMakerConfig

    with patch.object(SageMakerConfig, "validate_sagemaker_config"):
        yield


def _not_installed(error: ImportError) -> ContractError:
    return ContractError(
        f"the SageMaker SDK is not installed ({error})",
        "Install it: pip install '.[aws]'",
    )


def offline_session(region: str, bucket: str) -> Any:
    """A PipelineSession that only builds: it has no credentials and needs none."""
    with sagemaker_sdk(region):
        return _session(region, bucket)


def aws_session(region: str, bucket: str) -> Any:
    """A PipelineSession with the credentials of the environment."""
    with sagemaker_sdk(region):
        pass  # imported; the session itself is to see the environment as it is
    return _session(region, bucket)


def _session(region: str, bucket: str) -> Any:
    import boto3
    from sagemaker.core.workflow.pipeline_context import PipelineSession

    return PipelineSession(
        boto_session=boto3.Session(region_name=region), default_bucket=bucket, sagemaker_config=SDK_CONFIG
    )
