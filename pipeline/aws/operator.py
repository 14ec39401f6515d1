"""The account in which a command operates: its clients, look-ups, and changes, which --dry-run only prints."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from contracts.errors import ContractError, shown
from pipeline.aws.feasibility import check_account
from pipeline.aws.limits import key_of, violations
from pipeline.aws.parameters import AwsPlan
from pipeline.aws.resolve import aws_plan
from pipeline.aws.session import aws_session
from pipeline.config import PipelineConfig
from pipeline.config_aws import Deploy


@dataclass(frozen=True)
class Operator:
    """The account of a configuration, as a command uses it.

    Attributes:
        dry_run: whether changes are only printed.
    """

    resolved: AwsPlan
    dry_run: bool
    session: Any
    clients: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, config: PipelineConfig, *, dry_run: bool = False) -> "Operator":
        """Return the account of a configuration; raise ContractError if the credentials are of another account."""
        resolved = aws_plan(config)
        operator = cls(resolved, dry_run, aws_session(resolved.aws.region))
        check_account(resolved, operator.client("sts"))
        return operator

    @property
    def config(self) -> PipelineConfig:
        return self.resolved.config

    @property
    def deploy(self) -> Deploy:
        """The section of the endpoint."""
        if self.resolved.aws.deploy is None:
            raise ContractError("aws.deploy: is missing", "Add it: docs/hosting.md compares the kinds of endpoints.")
        return self.resolved.aws.deploy

    def client(self, service: str) -> Any:
        """Return the client of a service."""
        if service not in self.clients:
            self.clients[service] = self.session.client(service)
        return self.clients[service]

    def look_up(self, operation: str, **request: str) -> dict[str, Any] | None:
        """Return the description of a resource of SageMaker by its name; None where it does not exist."""
        return look_up(self.client("sagemaker"), operation, **request)

    def tags(self, arn: str) -> dict[str, str]:
        """Return the tags of a resource of SageMaker."""
        pages = self.client("sagemaker").get_paginator("list_tags").paginate(ResourceArn=arn)
        return {tag["Key"]: tag["Value"] for page in pages for tag in page["Tags"]}

    def change(self, what: str, service: str, operation: str, **request: Any) -> dict[str, Any]:
        """Print what changes, and send the request; {} with --dry-run.

        Raises:
            ContractError: botocore's model of the service does not allow the request.
        """
        client = self.client(service)
        name = client.meta.method_to_api_mapping[operation]
        shape = client.meta.service_model.operation_model(name).input_shape
        for violation in violations(shape, request, {}):
            key = key_of(self.resolved.plan, "", violation.path)
            cause = f"{key}: {shown(violation.value.content)} {violation.problem} ({name})"
            raise ContractError(cause, "Correct it.")
        print(f"{'would ' if self.dry_run else ''}{what}", flush=True)
        return {} if self.dry_run else getattr(client, operation)(**request)


def look_up(sagemaker: Any, operation: str, **request: str) -> dict[str, Any] | None:
    """Return the description of a resource by its name; None where it does not exist."""
    with ignore_missing(sagemaker, *request.values()):
        return getattr(sagemaker, operation)(**request)
    return None


@contextmanager
def ignore_missing(client: Any, name: str) -> Iterator[None]:
    """End the context at an error which says that the resource `name` does not exist."""
    try:
        yield
    except client.exceptions.ClientError as error:
        code, text = error.response["Error"]["Code"], error.response["Error"]["Message"]
        if code not in ("ResourceNotFound", "ResourceNotFoundException", "ValidationException") or name not in text:
            raise
