"""Ask a new model for the registered answers on an endpoint of its own, before any traffic moves to it."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from contracts.errors import ContractError
from contracts.steps import PAYLOAD_CHECK
from pipeline.answers import Sample, read_samples, require_answers
from pipeline.aws.jobs import write_object
from pipeline.aws.operator import Operator, ignore_missing
from pipeline.aws.versions import read_object
from pipeline.aws.waiting import POLL_SECONDS, wait_for_endpoint

TRIAL = "-trial"  # ends the name of an endpoint that answers sample requests
_ANSWER_SECONDS = 600.0


def ask_trial(operator: Operator, package: Mapping[str, Any], config: Mapping[str, Any], *, version: int) -> None:
    """Create an endpoint with one instance, send it the sample requests, and delete it.

    Args:
        package: the registered version.
        config: the arguments of CreateEndpointConfig that will serve.

    Raises:
        ContractError: the endpoint fails, or answers differently.
    """
    samples, name = _samples(operator, package), f"{config['EndpointConfigName']}{TRIAL}"
    if operator.dry_run:
        print(f"would ask an endpoint for a trial of version {version} for the registered answers")
        return
    with _endpoint(operator, name, config):
        ask = _ask_queue if operator.deploy.asynchronous else _ask
        require_answers(samples, lambda sample: ask(operator, name, sample), operator.resolved.plan, version=version)


def _samples(operator: Operator, package: Mapping[str, Any]) -> list[Sample]:
    s3, uri = operator.client("s3"), package.get("SamplePayloadUrl", "")
    archive = read_object(s3, uri) if uri else None
    where = package["ModelPackageArn"]
    if archive is None:
        raise ContractError(f"{where}: its sample requests {uri} do not exist", "Register the model again.")
    return read_samples(archive, read_object(s3, f"{uri.rpartition('/')[0]}/{PAYLOAD_CHECK}"), where=where)


@contextmanager
def _endpoint(operator: Operator, name: str, config: Mapping[str, Any]) -> Iterator[None]:
    """Create an endpoint of one instance, or go on with that of an interrupted command; delete it at the end."""
    (variant,) = config["ProductionVariants"]
    one = {"InitialInstanceCount": 1} if "InitialInstanceCount" in variant else {}
    serverless = {key: value for key, value in variant.get("ServerlessConfig", {}).items() if key[:4] != "Prov"}
    variant = {**variant, **one, **({"ServerlessConfig": serverless} if serverless else {})}
    request = {key: value for key, value in config.items() if key != "DataCaptureConfig"}
    request |= {"EndpointConfigName": name, "ProductionVariants": [variant]}
    try:
        if operator.look_up("describe_endpoint_config", EndpointConfigName=name) is None:
            operator.change(f"describe the endpoint {name}", "sagemaker", "create_endpoint_config", **request)
        if operator.look_up("describe_endpoint", EndpointName=name) is None:
            created = {"EndpointName": name, "EndpointConfigName": name, "Tags": config["Tags"]}
            operator.change(f"create the endpoint {name} for a trial", "sagemaker", "create_endpoint", **created)
        wait_for_endpoint(operator, name)
        yield
    finally:
        _remove(operator, name)


def _remove(operator: Operator, name: str) -> None:
    """Delete the endpoint for a trial; where this fails or is interrupted too, print the commands that delete it."""
    sagemaker = operator.client("sagemaker")
    try:
        with ignore_missing(sagemaker, name):
            operator.change(f"delete the endpoint {name}", "sagemaker", "delete_endpoint", EndpointName=name)
        with ignore_missing(sagemaker, name):
            sagemaker.delete_endpoint_config(EndpointConfigName=name)
    except BaseException:
        remove, region = "aws sagemaker delete-endpoint", operator.resolved.aws.region
        print(
            f"The endpoint {name} is left, and is billed. Delete it when it is not Creating any more:\n"
            f"{remove} --region {region} --endpoint-name {name}\n"
            f"{remove}-config --region {region} --endpoint-config-name {name}",
            file=sys.stderr,
        )
        raise


def _ask(operator: Operator, name: str, sample: Sample) -> str:
    answer = operator.client("sagemaker-runtime").invoke_endpoint(
        EndpointName=name, ContentType=sample.content_type, Accept=sample.accept, Body=sample.body
    )
    return answer["Body"].read().decode()


def _ask_queue(operator: Operator, name: str, sample: Sample) -> str:
    """Return the answer of an asynchronous endpoint, whose requests and answers are objects."""
    resolved, s3 = operator.resolved, operator.client("s3")
    uri = f"{resolved.home}/trial/{name}/{sample.content_type.replace('/', '_')}"
    write_object(resolved.aws, s3, uri=uri, content=sample.body)
    places = operator.client("sagemaker-runtime").invoke_endpoint_async(
        EndpointName=name, ContentType=sample.content_type, Accept=sample.accept, InputLocation=uri
    )
    fix, deadline = f"Look at its log: /aws/sagemaker/Endpoints/{name}.", time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline:
        if (answer := read_object(s3, places["OutputLocation"])) is not None:
            return answer.decode()
        if (failure := read_object(s3, places["FailureLocation"])) is not None:
            raise ContractError(f"{name}: refused the sample request: {failure.decode()[:300]}", fix)
        time.sleep(POLL_SECONDS)
    raise ContractError(f"{name}: did not answer within {_ANSWER_SECONDS:.0f} s", fix)
