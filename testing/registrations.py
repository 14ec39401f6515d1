"""Register a package in moto's registry as an execution does."""

import io
import json
import tarfile

import boto3

from testing.pipelines import IMAGE

ANSWER = '{"predictions": [{"predicted_label": 0, "probabilities": [0.75, 0.25]}]}'


def archive(files: dict[str, bytes]) -> bytes:
    """Return a tar.gz of files by name."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archived:
        for name, body in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            archived.addfile(entry, io.BytesIO(body))
    return content.getvalue()


def register(group: str, *, answer: str = ANSWER, folder: str = "my-bucket/registered") -> str:
    """Register a package with its artifacts, a sample request and the answer to it; return its ARN.

    Args:
        folder: of the pipeline: BUCKET/PREFIX.
    """
    client, s3 = boto3.client("sagemaker"), boto3.client("s3")
    groups = client.list_model_package_groups()["ModelPackageGroupSummaryList"]
    if group not in [each["ModelPackageGroupName"] for each in groups]:
        client.create_model_package_group(ModelPackageGroupName=group)
    name, (bucket, _, prefix) = "payload_application_json_0.json", folder.partition("/")
    sample = {"file": name, "content_type": "application/json", "answer": answer}
    for file, content in {
        "payload.tar.gz": archive({name: b'{"chat": "DEFAULT_TEXT"}'}),
        "payload_check.json": json.dumps({"samples": [sample]}),
        "evaluation.json": json.dumps({"decision": {"metric": "test/auroc", "value": 0.91}}),
        "model.tar.gz": archive({"hyperparameters.json": b"{}"}),
    }.items():
        s3.put_object(Bucket=bucket, Key=f"{prefix}/{file}", Body=content)
    output = f"{prefix}/PyTorchTraining/trained/output/output.tar.gz"
    s3.put_object(Bucket=bucket, Key=output, Body=archive({"metrics.json": b"{}"}))
    container = {"Image": IMAGE, "ModelDataUrl": f"s3://{folder}/model.tar.gz"}
    types = {"SupportedContentTypes": ["application/json"], "SupportedResponseMIMETypes": ["application/json"]}
    evaluation = {"ContentType": "application/json", "S3Uri": f"s3://{folder}/evaluation.json"}
    return client.create_model_package(
        ModelPackageGroupName=group,
        ModelApprovalStatus="PendingManualApproval",
        InferenceSpecification={"Containers": [container], **types},
        CustomerMetadataProperties={
            "condition_metric": "test/auroc",
            "training_job": "trained",
        },
        ModelMetrics={"ModelQuality": {"Statistics": evaluation}},
        SamplePayloadUrl=f"s3://{folder}/payload.tar.gz",
    )["ModelPackageArn"]
