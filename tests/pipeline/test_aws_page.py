"""The Python of docs/aws.md, from the upload to the deletion of the endpoint, against moto."""

import io
import json
import tarfile
from types import SimpleNamespace

import boto3
import pytest
from botocore.client import BaseClient
from moto import mock_aws

from tests.pipeline.conftest import VARIABLES
from tests.test_pages import blocks_of


@pytest.fixture
def job(tmp_path, monkeypatch):
    folder = tmp_path / "myjob"
    for name, content in {
        "input/data/train/train.csv": "id,chat,label\n1,a,0\n",
        "input/data/pretrained/MiniLM/config.json": "{}",
        "input/config/hyperparameters.json": json.dumps({"text_name": ["chat", "shiptrack"], "preset": "recommended"}),
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.chdir(tmp_path)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SAGEMAKER_VALIDATE_ROLE", raising=False)
    with mock_aws():
        create_role(*blocks_of("docs/aws.md", "json"))
        simulate_policies(monkeypatch)
        yield folder


def create_role(trust: str, policy: str) -> None:
    iam, name = boto3.client("iam"), "text-table-trainer"
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)
    iam.put_role_policy(RoleName=name, PolicyName="trainer", PolicyDocument=policy)


def simulate_policies(monkeypatch) -> None:
    """Let IAM answer from the policy that the role has; without a resource, it allows actions on all resources."""
    call = BaseClient._make_api_call

    def answered(self, operation, parameters):
        if operation != "SimulatePrincipalPolicy":
            return call(self, operation, parameters)
        name = parameters["PolicySourceArn"].rpartition("/")[2]
        document = boto3.client("iam").get_role_policy(RoleName=name, PolicyName="trainer")["PolicyDocument"]
        allowed = {action for part in document["Statement"] if part["Resource"] == "*" for action in part["Action"]}
        decisions = {name: "allowed" if name in allowed else "implicitDeny" for name in parameters["ActionNames"]}
        return {"EvaluationResults": [{"EvalActionName": name, "EvalDecision": d} for name, d in decisions.items()]}

    monkeypatch.setattr(BaseClient, "_make_api_call", answered)


def validated() -> str:
    from sagemaker.core.helper import resolve_and_validate_role

    return resolve_and_validate_role(
        "arn:aws:iam::123456789012:role/text-table-trainer",
        sagemaker_session=SimpleNamespace(boto_session=boto3.Session(region_name="eu-west-1")),
    )


def test_the_sdk_accepts_the_role_of_the_page_and_refuses_it_without_a_part_that_it_checks(job):
    assert validated().endswith("role/text-table-trainer")
    from sagemaker.core.helper import RoleValidationError

    policy = json.loads(blocks_of("docs/aws.md", "json")[1])
    iam = boto3.client("iam")
    for statement in [part for part in policy["Statement"] if part["Resource"] == "*"]:
        less = {**policy, "Statement": [part for part in policy["Statement"] if part is not statement]}
        document = json.dumps(less)
        iam.put_role_policy(RoleName="text-table-trainer", PolicyName="trainer", PolicyDocument=document)
        with pytest.raises(RoleValidationError):
            validated()
    iam.put_role_policy(RoleName="text-table-trainer", PolicyName="trainer", PolicyDocument=json.dumps(policy))
    other = blocks_of("docs/aws.md", "json")[0].replace("sagemaker.amazonaws.com", "ec2.amazonaws.com")
    iam.update_assume_role_policy(RoleName="text-table-trainer", PolicyDocument=other)
    with pytest.raises(RoleValidationError, match="trust policy"):
        validated()


def _archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("report.html"), io.BytesIO())
    return buffer.getvalue()


@pytest.mark.slow
def test_the_python_of_the_page_is_accepted_by_the_service(job):
    upload, train, download, deploy, ask, delete = blocks_of("docs/aws.md", "python")[1:]
    names: dict[str, object] = {}
    exec(blocks_of("docs/aws.md", "python")[0], names)
    exec(upload, names)
    exec(train.replace("wait=True, logs=True", "wait=False"), names)
    client = boto3.client("sagemaker")
    (summary,) = client.list_training_jobs()["TrainingJobSummaries"]
    sent = client.describe_training_job(TrainingJobName=summary["TrainingJobName"])
    assert [channel["ChannelName"] for channel in sent["InputDataConfig"]] == ["pretrained", "train"]
    assert sent["HyperParameters"]["preset"] == "recommended"
    model = sent["ModelArtifacts"]["S3ModelArtifacts"]
    bucket, _, key = model.removeprefix("s3://").partition("/")
    for name in ("model", "output"):
        boto3.client("s3").put_object(Bucket=bucket, Key=key.replace("model.tar.gz", f"{name}.tar.gz"), Body=_archive())
    exec(download, names)
    assert (job / "aws" / "output" / "report.html").is_file()
    exec(deploy, names)
    exec(ask, names)
    exec(delete, names)
    assert client.list_endpoints()["Endpoints"] == []
