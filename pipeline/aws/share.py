"""Let other accounts deploy the registered versions: the statements of the stack's resource policies."""

import re
from typing import Any

from contracts.errors import ContractError
from pipeline.aws.permissions import Account
from pipeline.aws.templates import kept, policy

_NUMBER = re.compile(r"\d{12}")


def check_shared(account: Account) -> None:
    """Raise ContractError for an account with which nothing can be shared."""
    for other in account.shared_with:
        if not _NUMBER.fullmatch(other) or other == account.number:
            problem = "is the account of aws.role" if other == account.number else "is not an account: 12 digits"
            raise ContractError(f"--share-with {other}: {problem}", "Name another account, such as 111122223333.")
    if account.shared_with and isinstance(account.key, str):
        raise ContractError(
            f"--share-with: the policy of the key {account.key} (aws.kms_key) is not part of the stack",
            "Leave out aws.kms_key, or set it to alias/NAME, so that the stack creates the key.",
        )


def shared(account: Account, actions: str, resource: Any = None) -> list[dict[str, Any]]:
    """Return the statement that allows the other accounts some actions; none without accounts.

    Args:
        actions: of one service: "s3:GetObject ListBucket".
        resource: None in the policy of a repository, which has none.
    """
    if not account.shared_with:
        return []
    service, _, names = actions.partition(":")
    partition = account.aws.role.partition(":iam:")[0]
    statement: dict[str, Any] = {
        "Effect": "Allow",
        "Principal": {"AWS": [f"{partition}:iam::{other}:root" for other in account.shared_with]},
        "Action": [f"{service}:{name}" for name in names.split()],
    }
    return [statement if resource is None else {**statement, "Resource": resource}]


def shared_group(account: Account) -> dict[str, Any]:
    """Return the group of the versions with its policy; without other accounts, the first registration creates it."""
    if not account.shared_with:
        return {}
    name = account.config.group
    of_versions = "sagemaker:CreateModel DescribeModelPackage ListModelPackages"
    statements = [
        *shared(account, of_versions, account.named("model-package", f"{name}/*")),
        *shared(account, "sagemaker:DescribeModelPackageGroup", account.named("model-package-group", name)),
    ]
    return {
        "Group": kept(
            "SageMaker::ModelPackageGroup", ModelPackageGroupName=name, ModelPackageGroupPolicy=policy(statements)
        )
    }
