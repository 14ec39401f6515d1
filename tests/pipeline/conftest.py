"""AWS on this machine: moto's server."""

import urllib.request

import boto3
import pytest
from moto.core.responses import ActionResult
from moto.iam.responses import IamResponse
from moto.server import ThreadedMotoServer

from testing.pipelines import loopback_only

VARIABLES = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_SESSION_TOKEN": "test",
    "AWS_DEFAULT_REGION": "eu-west-1",
}


def _allowed(response: IamResponse) -> ActionResult:
    action = response._get_param("ActionNames.member.1")
    return ActionResult({"EvaluationResults": [{"EvalActionName": action, "EvalDecision": "allowed"}]})


@pytest.fixture(scope="module")
def local_aws():
    """Set the environment to a local service with a table in a bucket, and yield its URL."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/moto-api/reset", method="POST"))  # of another module
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**VARIABLES, "AWS_ENDPOINT_URL": url}.items():
            patch.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
            patch.delenv(name, raising=False)
        patch.setattr("pipeline.aws.deploy.print_estimate", lambda *_, **__: None)  # another process, for seconds
        patch.setattr(IamResponse, "simulate_principal_policy", _allowed, raising=False)  # moto has none
        s3 = boto3.client("s3")
        for bucket in ("raw", "my-bucket"):
            s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        s3.put_object(Bucket="raw", Key="table/part-0.csv", Body=b"a,b\n1,2\n")
        for name in ("artifacts", "calibration", "encoders", "initial", "previous", "records", "scripts"):
            s3.put_object(Bucket="raw", Key=f"{name}/file", Body=b"of an input")
        with loopback_only():
            yield url
    server.stop()
