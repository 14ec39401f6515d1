"""The Python of docs/aws.md, from the upload to the deletion of the endpoint, against moto."""

import io
import json
import tarfile

import boto3
import pytest
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
    for name, value in {**VARIABLES, "SAGEMAKER_VALIDATE_ROLE": "false"}.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        yield folder


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
