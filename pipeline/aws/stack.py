"""Write the CloudFormation template of the account in which a configuration runs; makes no AWS calls."""

import json
import re
from collections.abc import Sequence
from typing import Any

from contracts.errors import ContractError
from contracts.steps import PYTORCH_TRAINING
from pipeline.aws.feasibility import check_places
from pipeline.aws.jobs import EXECUTIONS, MODELS
from pipeline.aws.notifications import PUBLISHER, notifications
from pipeline.aws.parameters import CAPTURES, AwsPlan
from pipeline.aws.permissions import (
    OPERATING,
    PERMISSIONS,
    ROLE,
    ROLES,
    SCHEDULE_ROLE,
    Account,
    repository_arn,
    statements,
)
from pipeline.aws.resolve import aws_plan
from pipeline.aws.serving import endpoint_name
from pipeline.aws.share import check_shared, shared, shared_group
from pipeline.aws.templates import kept, policy, role
from pipeline.aws.triggers import COMMANDS, TABLE, triggers
from pipeline.config import PipelineConfig
from pipeline.config_types import bucket_of
from pipeline.versions import APPROVED

_KEPT_DAYS = 30  # versions that were replaced or deleted
_UPLOAD_DAYS = 7  # uploads that were not completed
_RETENTION, _CAPTURE_RETENTION = "LogRetentionInDays", "CaptureRetentionInDays"
_JOB_LOGS, _REPOSITORY = "CreateLogGroups", "CreateRepository"
_SHARED = {  # what configurations of one account have together
    _JOB_LOGS: "the log groups of SageMaker's jobs",
    _REPOSITORY: "the repository of the image",
}


def stack(config: PipelineConfig, *, share_with: Sequence[str] = ()) -> str:
    """Return the template as indented JSON with a final line feed.

    Args:
        share_with: accounts that deploy the registered versions.

    Raises:
        ContractError: the configuration is refused, or a resource is not one that a stack can create.
    """
    resolved = aws_plan(config)
    check_places(resolved)
    resources = _resources(resolved, tuple(share_with))
    outputs: dict[str, dict[str, Any]] = {
        "Bucket": {"Value": {"Ref": "Bucket"}},
        "Role": {"Value": {"Fn::GetAtt": ["Role", "Arn"]}},
        "CallerPolicy": {"Value": {"Ref": "CallerPolicy"}},
    }
    if "Key" in resources:
        outputs["Key"] = {"Value": {"Fn::GetAtt": ["Key", "Arn"]}}
    if "Repository" in resources:
        outputs["Repository"] = {"Value": {"Fn::GetAtt": ["Repository", "RepositoryUri"]}, "Condition": _REPOSITORY}
    account = Account(resolved, None).number
    content = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"The account of the pipeline {config.name}, written by python -m pipeline stack.",
        "Parameters": {
            **{
                name: {"Type": "Number", "Default": days, "Description": f"Days after which {what} are deleted."}
                for name, days, what in ((_RETENTION, 90, "logs"), (_CAPTURE_RETENTION, 365, "captured requests"))
            },
            **{
                name: {
                    "Type": "String",
                    "Default": "true",
                    "AllowedValues": ["true", "false"],
                    "Description": f"false where the account has {what} already.",
                }
                for name, what in _SHARED.items()
            },
        },
        "Rules": {
            "PlaceOfTheConfiguration": {
                "Assertions": [
                    {
                        "Assert": {"Fn::Equals": [{"Ref": f"AWS::{name}"}, value]},
                        "AssertDescription": f"The configuration is for {value}.",
                    }
                    for name, value in (("AccountId", account), ("Region", resolved.aws.region))
                ]
            }
        },
        "Conditions": {name: {"Fn::Equals": [{"Ref": name}, "true"]} for name in _SHARED},
        "Resources": resources,
        "Outputs": outputs,
    }
    return json.dumps(content, indent=1) + "\n"


def _resources(resolved: AwsPlan, share_with: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    key = _existing_key(resolved)
    account = Account(resolved, key or {"Fn::GetAtt": ["Key", "Arn"]}, share_with)
    check_shared(account)
    return {
        **({} if key else _key(account)),
        **_bucket(account),
        **_repository(account),
        **_identities(account),
        **_log_groups(account),
        **notifications(account),
        **triggers(account),
        **shared_group(account),
    }


def _existing_key(resolved: AwsPlan) -> str | None:
    """Return the ARN of the key that the configuration names; None where the stack creates one."""
    name = resolved.aws.kms_key
    if name is None or name.startswith("alias/"):
        return None
    if ":alias/" in name:
        raise ContractError(
            f"aws.kms_key: {name} is the ARN of an alias, by which a policy cannot allow the use of a key",
            "Give the ARN or the ID of the key; or alias/NAME, and the stack creates a key.",
        )
    return name if name.startswith("arn:") else Account(resolved, None).arn("kms", f"key/{name}")


def _key(account: Account) -> dict[str, dict[str, Any]]:
    owner = {"AWS": f"{account.aws.role.partition(':role/')[0]}:root"}
    statement = {"Effect": "Allow", "Principal": owner, "Action": "kms:*", "Resource": "*"}  # IAM policies decide
    alias = account.aws.kms_key or f"alias/{account.config.name}"
    return {
        "Key": kept(
            "KMS::Key",
            Description=f"Encrypts what the pipeline {account.config.name} writes.",
            EnableKeyRotation=True,
            KeyPolicy=policy(
                [statement, *_services(account), *shared(account, "kms:CreateGrant Decrypt DescribeKey", "*")]
            ),
        ),
        "KeyAlias": {
            "Type": "AWS::KMS::Alias",
            "Properties": {"AliasName": alias, "TargetKeyId": {"Ref": "Key"}},
        },
    }


def _services(account: Account) -> list[dict[str, Any]]:
    """Return the statements with which CloudWatch Logs and EventBridge use the key of the stack."""
    logs = {"kms:EncryptionContext:aws:logs:arn": account.arn("logs", "log-group:/aws/*")}
    of_logs = {"Principal": {"Service": f"logs.{account.aws.region}.amazonaws.com"}, "Condition": {"ArnLike": logs}}
    writes = {"Effect": "Allow", "Action": ["kms:Decrypt", "kms:GenerateDataKey*"], "Resource": "*"}
    actions = [*writes["Action"], "kms:Describe*", "kms:Encrypt*", "kms:ReEncrypt*"]
    return [
        {**writes, **of_logs, "Action": actions},
        *([{**writes, "Principal": {"Service": PUBLISHER}}] if account.aws.notifications else []),
    ]


def _bucket(account: Account) -> dict[str, dict[str, Any]]:
    name = account.aws.bucket
    encryption = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": account.key}
    encrypted = {"ServerSideEncryptionByDefault": encryption, "BucketKeyEnabled": True}
    earlier = {
        "NoncurrentVersionExpiration": {"NoncurrentDays": _KEPT_DAYS},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": _UPLOAD_DAYS},
    }
    home, days = (
        account.resolved.home.removeprefix(f"s3://{name}/"),
        expiration_days(account.aws.cache_expires),
    )
    outputs = (EXECUTIONS, PYTORCH_TRAINING.name, "checkpoints", "tensorboard")
    rules = [
        {"Id": "earlier-versions", "Status": "Enabled", **earlier},
        *(
            {"Id": folder, "Status": "Enabled", "Prefix": f"{home}/{folder}/", "ExpirationInDays": after}
            for folder, after in {**dict.fromkeys(outputs, days), CAPTURES: {"Ref": _CAPTURE_RETENTION}}.items()
        ),
    ]
    blocked = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")
    plain = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": account.s3(name, f"{name}/*"),
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    packages = shared(account, "s3:GetObject", account.s3(f"{account.resolved.home}/{MODELS}/*"))
    return {
        "Bucket": kept(
            "S3::Bucket",
            BucketName=name,
            BucketEncryption={"ServerSideEncryptionConfiguration": [encrypted]},
            LifecycleConfiguration={"Rules": rules},
            OwnershipControls={"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
            PublicAccessBlockConfiguration=dict.fromkeys(blocked, True),
            VersioningConfiguration={"Status": "Enabled"},
            **_events(account),
        ),
        "BucketPolicy": {
            "Type": "AWS::S3::BucketPolicy",
            "Properties": {"Bucket": {"Ref": "Bucket"}, "PolicyDocument": policy([plain, *packages])},
        },
    }


def _events(account: Account) -> dict[str, Any]:
    """Return the setting with which the bucket sends its events to EventBridge, if a trigger needs them."""
    section, table = account.aws.triggers, account.aws.inputs.get(TABLE, "")
    if section is None or section.new_data is None or bucket_of(table) != account.aws.bucket:
        return {}
    return {"NotificationConfiguration": {"EventBridgeConfiguration": {"EventBridgeEnabled": True}}}


def expiration_days(cache_expires: str | None) -> int:
    """Return the days after which outputs of executions are deleted: later than a step takes them from the cache."""
    found = re.fullmatch(r"P(?:(\d+)D)?(T.*)?", cache_expires or "P0D")
    assert found, "CacheAge has this form"
    return _KEPT_DAYS + int(found[1] or 0) + (found[2] is not None)


def _repository(account: Account) -> dict[str, dict[str, Any]]:
    """Return the repository of the image, if it is one of the account."""
    image = account.aws.image
    if not repository_arn(image).startswith(account.arn("ecr", "repository/")):
        return {}
    pull = shared(account, "ecr:BatchCheckLayerAvailability BatchGetImage GetDownloadUrlForLayer")
    return {
        "Repository": kept(
            "ECR::Repository",
            RepositoryName=image.partition("@")[0].partition("/")[2],
            ImageScanningConfiguration={"ScanOnPush": True},
            ImageTagMutability="IMMUTABLE",
            **({"RepositoryPolicyText": policy(pull)} if pull else {}),
        )
        | {"Condition": _REPOSITORY}
    }


def _identities(account: Account) -> dict[str, dict[str, Any]]:
    """Return the role of the jobs, and the policy of who calls the commands."""
    path, _, name = account.aws.role.partition(":role/")[2].rpartition("/")
    monitor = account.config.monitor
    schedules = monitor is not None and monitor.schedule_role in (None, account.aws.role)
    services = ["sagemaker.amazonaws.com", *(["scheduler.amazonaws.com"] if schedules else [])]
    roles = [ROLE, *([SCHEDULE_ROLE] if schedules else [])]
    of_callers = {permission.of for permission in PERMISSIONS} - {*ROLES, *OPERATING}
    return {
        "Role": role(
            *services,
            statements=[*statements(account, roles), *_denied(account)],
            RoleName=name,
            **({"Path": f"/{path}/"} if path else {}),
        ),
        "CallerPolicy": {
            "Type": "AWS::IAM::ManagedPolicy",
            "Properties": {
                "Description": "For the people and the services that call python -m pipeline and push the image.",
                "PolicyDocument": policy(statements(account, of_callers)),
            },
        },
        "OperatorPolicy": {
            "Type": "AWS::IAM::ManagedPolicy",
            "Properties": {
                "Description": f"For those who call python -m pipeline {', '.join(OPERATING)}.",
                "PolicyDocument": policy(statements(account, OPERATING)),
            },
        },
    }


def _denied(account: Account) -> list[dict[str, Any]]:
    """Return what a job may not do: change what a build runs, or approve a version that is then deployed."""
    aws, triggers_of = account.aws, account.aws.triggers
    if triggers_of is None:
        return []
    partition = aws.role.partition(":iam:")[0]
    commands = f"{partition}:s3:::{aws.bucket}/{aws.prefix}/*/settings/{COMMANDS}"
    denied = [{"Effect": "Deny", "Action": ["s3:PutObject"], "Resource": commands}]
    if triggers_of.approved and account.config.registration.approval != APPROVED:
        approving = {"StringEquals": {"sagemaker:ModelApprovalStatus": APPROVED}}
        create = {"Action": ["sagemaker:CreateModelPackage"], "Resource": "*", "Condition": approving}
        denied.append({"Effect": "Deny", **create})
    return denied


def _log_groups(account: Account) -> dict[str, dict[str, Any]]:
    def group(name: str, **options: str) -> dict[str, Any]:
        properties = {"LogGroupName": f"/aws/{name}", "RetentionInDays": {"Ref": _RETENTION}}
        return {**kept("Logs::LogGroup", **properties, **account.encrypted("KmsKeyId")), **options}

    kinds = {step.contract.kind for step in account.resolved.plan.steps}
    jobs = ["ProcessingJobs", "TrainingJobs", *(["TransformJobs"] if "transform" in kinds else [])]
    groups = {f"{name}Logs": group(f"sagemaker/{name}", Condition=_JOB_LOGS) for name in jobs}
    if account.aws.deploy is not None:
        groups["EndpointLogs"] = group(f"sagemaker/Endpoints/{endpoint_name(account.config, account.aws.deploy)}")
    if account.aws.triggers is not None:
        groups["BuildLogs"] = group(f"codebuild/{account.build_project}")
    return groups
