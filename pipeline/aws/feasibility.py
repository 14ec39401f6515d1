"""Refuse what cannot run: instance types, and resources of another region, partition or account."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter

from contracts.errors import ContractError
from contracts.steps import PYTORCH_TRAINING
from pipeline.aws.errors import ANOTHER_REGION
from pipeline.aws.parameters import HYPERPARAMETER_PREFIX, INSTANCE_TYPE, AwsPlan, instance_type_parameter
from pipeline.aws.session import partition_of
from pipeline.config_types import bucket_of, in_directory_bucket

# Families of instances; tests compare the GPUs with the catalogue of `plan`.
NO_CODE = ("p2", "p3", "p3dn")  # GPUs before compute capability 7.5, for which CUDA 13 has no code
NO_BFLOAT16 = (*NO_CODE, "g4dn")  # GPUs before compute capability 8.0
_OTHER_CHIPS = ("trn1", "trn1n", "trn2", "inf1", "inf2", "dl1")
_ARM = re.compile(r"[a-z]\d+g[dn]*|p6e-gb200")  # of families of CPUs, and of the host of Grace Blackwell
_GPU = re.compile(r"[gp]\d")
_IMAGE = re.compile(r"\d{12}\.dkr[.-]ecr(?:-fips)?\.([a-z0-9-]+)\.")
_DEFAULT_BUCKET = re.compile(r"sagemaker-([a-z]{2}(?:-[a-z]+)+-\d)-\d{12}")
_ARN_PARTS = 6
_BOOLEAN = TypeAdapter(bool)


def check_instances(resolved: AwsPlan, overrides: Mapping[str, Any]) -> None:
    """Raise ContractError for an instance type on which the image does not run, or not with the job's settings.

    Args:
        overrides: parameters given to an execution.
    """
    types = _types(resolved)
    types |= {f"parameter {name}": text for name, text in overrides.items() if name.endswith(INSTANCE_TYPE)}
    for key, instance_type in types.items():
        _check_type(key, instance_type, cuda=resolved.aws.accelerator == "cuda")
    if resolved.plan.watches:
        return
    training = PYTORCH_TRAINING.name
    group = resolved.aws.training.training_group
    key = f"aws.training.instance_groups.{group}" if group else f"aws.steps.{training}"
    key = f"parameter {instance_type_parameter(training)}" if instance_type_parameter(training) in overrides else key
    if _family(types[key]) in NO_BFLOAT16 and _bfloat16(resolved, overrides):
        raise ContractError(
            f"hyperparameters.bf16: is true, but the GPU of {types[key]} ({key}) has no bfloat16",
            "Set fp16 to true and leave out bf16, or use another instance type, such as ml.g5.xlarge.",
        )


def check_places(resolved: AwsPlan) -> None:
    """Raise ContractError for a resource whose name says that it is of another partition or region."""
    aws, mlflow = resolved.aws, resolved.config.mlflow
    partition = partition_of(aws.region)
    for key, image in {"aws.image": aws.image, **({"mlflow.image": mlflow.image} if mlflow else {})}.items():
        if image is not None:
            host = _IMAGE.match(image)
            if host is None:
                raise ContractError(f"{key}: {image!r} is not an image of Amazon ECR", "Push it to ECR in aws.region.")
            _require(key, image, host[1], aws.region, "Push the image to ECR in aws.region")
    queue = aws.deploy.asynchronous if aws.deploy else None
    arns = {
        "aws.role": aws.role,
        "aws.kms_key": aws.kms_key,
        "mlflow.tracking_uri": mlflow and mlflow.tracking_uri,
        "aws.deploy.asynchronous.success_topic": queue and queue.success_topic,
        "aws.notifications.topic": aws.notifications and aws.notifications.topic,
        "aws.deploy.asynchronous.error_topic": queue and queue.error_topic,
    }
    for key, text in arns.items():
        parts = (text or "").split(":", _ARN_PARTS - 1)
        if parts[0] == "arn" and len(parts) == _ARN_PARTS:
            if parts[1] != partition:
                raise ContractError(
                    f"{key}: {text} is in the partition {parts[1]}, but aws.region {aws.region} is in {partition}",
                    f"Use one of the partition {partition}, or correct aws.region.",
                )
            if key == "aws.kms_key":
                _require(key, text, parts[3], aws.region, "Use a key of aws.region")
    if default := _DEFAULT_BUCKET.fullmatch(aws.bucket):
        _require("aws.bucket", aws.bucket, default[1], aws.region, "Use a bucket in aws.region")


def check_account(resolved: AwsPlan, sts: Any) -> None:
    """Raise ContractError if the role is of another account than the caller, who cannot pass it to SageMaker."""
    account, of_role = sts.get_caller_identity()["Account"], resolved.aws.role.split(":")[4]
    if of_role != account:
        raise ContractError(
            f"aws.role: {resolved.aws.role} is of the account {of_role}, but the credentials are of {account}",
            "Use a role of the account in which the pipeline runs, or the credentials of the other account.",
        )


def check_bucket(key: str, uri: str, region: str, s3: Any) -> bool:
    """Return whether a bucket exists, as far as the caller may know; raise ContractError if its region is another."""
    from botocore.exceptions import ClientError

    if in_directory_bucket(uri):
        return True
    try:
        answer = s3.head_bucket(Bucket=bucket_of(uri))
    except ClientError as error:
        answer = error.response
        if answer["ResponseMetadata"]["HTTPStatusCode"] == 404:  # of HTTP
            return False
    found = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("x-amz-bucket-region", region)
    _require(key, uri, found, region, ANOTHER_REGION.removesuffix("."))
    return True


def _require(key: str, value: object, found: str, region: str, fix: str) -> None:
    if found != region:
        raise ContractError(f"{key}: {value} is in {found}, but aws.region is {region}", f"{fix}.")


def _types(resolved: AwsPlan) -> dict[str, str]:
    """Return every instance type of the configuration, by its key."""
    aws, registration = resolved.aws, resolved.config.registration
    groups = aws.training.instance_groups
    types = {
        f"aws.steps.{step.contract.name}": resolved.machine(step.contract.name).instance_type
        for step in resolved.plan.steps
        if step.contract.kind != "registration" and not (groups and step.contract is PYTORCH_TRAINING)
    }
    types |= {f"aws.training.instance_groups.{name}": group.instance_type for name, group in groups.items()}
    if aws.deploy is not None and aws.deploy.instances is not None:
        types["aws.deploy"] = aws.deploy.instances.instance_type
    for name in ("inference_instances", "transform_instances"):
        types |= {f"registration.{name}.{n}": kind for n, kind in enumerate(getattr(registration, name))}
    return types


def _check_type(key: str, instance_type: str, *, cuda: bool) -> None:
    family = _family(instance_type)
    causes: Iterator[tuple[bool, str, str]] = iter(
        (
            (family in _OTHER_CHIPS, "has an accelerator for which the image has no code", "Use CPUs or NVIDIA GPUs."),
            (bool(_ARM.fullmatch(family)), "has an ARM processor, and the image is for x86-64", "Use, e.g., ml.m5."),
            (family in NO_CODE, "has a GPU for which the image has no code", "Use ml.g4dn, ml.g5 or a newer type."),
            (
                bool(_GPU.match(family)) and not cuda,
                "has a GPU, and aws.accelerator says that the image is for CPUs",
                "Build the image with ACCELERATOR=cuda and set aws.accelerator to cuda, or use a CPU type.",
            ),
        )
    )
    for holds, cause, fix in causes:
        if holds:
            raise ContractError(f"{key}: {instance_type} {cause}", fix)


def _family(instance_type: str) -> str:
    return instance_type.removeprefix("ml.").partition(".")[0]


def _bfloat16(resolved: AwsPlan, overrides: Mapping[str, Any]) -> bool:
    """Return whether the training, or a trial of its search, computes in bfloat16."""
    search = resolved.config.tuning
    values_of_bf16 = [
        overrides.get(f"{HYPERPARAMETER_PREFIX}bf16", resolved.plan.hyperparameters.get("bf16")),
        *(values if isinstance(values := ((search and search.space) or {}).get("bf16"), list) else ()),
    ]
    return any(_BOOLEAN.validate_python(value) for value in values_of_bf16 if value not in (None, "null", "auto"))
