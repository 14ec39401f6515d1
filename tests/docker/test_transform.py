"""A batch transform by the SageMaker SDK's local mode, with the image."""

import json
from pathlib import Path

import boto3
import pandas as pd
import pytest
from sagemaker.core.local.local_session import LocalSession

from contracts.ports import free_port
from contracts.serving import CSV, JSON_LINES

RECORDS = 100_000
INVALID_EVERY = 100


def write_input(folder: Path, table: pd.DataFrame, content_type: str) -> None:
    folder.mkdir()
    if content_type == CSV:
        table.to_csv(folder / "records.csv", index=False)
    else:
        table.to_json(folder / "records.jsonl", orient="records", lines=True)


def transform(image: str, model: Path, work: Path, *, content_type: str, environment: dict[str, str]) -> None:
    """Run a transform job over work/input; its output files are in work/output."""
    boto = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local", region_name="us-east-1")
    session = LocalSession(boto, default_bucket="unused")
    session.config = {"local": {"container_root": str(work), "serving_port": free_port()}}
    client = session.sagemaker_client
    client.create_model("model", {"Image": image, "ModelDataUrl": f"file://{model}", "Environment": environment})
    client.create_transform_job(
        "scores",
        "model",
        {
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"file://{work / 'input'}"}},
            "ContentType": content_type,
            "SplitType": "Line",
        },
        {"S3OutputPath": f"file://{work / 'output'}", "Accept": JSON_LINES, "AssembleWith": "Line"},
        {"InstanceType": "local", "InstanceCount": 1},
        BatchStrategy="MultiRecord",  # local mode does not know the spelling of GET /execution-parameters
    )


@pytest.mark.parametrize("content_type", [JSON_LINES, CSV])
def test_local_mode_scores_every_record_and_reports_the_invalid_ones(image, trained_job, tmp_path, content_type):
    table = pd.read_csv(trained_job.channel("test") / "data.csv", dtype=str, keep_default_na=False)
    table = table.iloc[[row % len(table) for row in range(RECORDS)]].reset_index(drop=True)
    expected = pd.read_csv(trained_job.output_data / "test_predictions.csv")["prob_class_1"]
    table.loc[::INVALID_EVERY, "price"] = "dear"
    write_input(tmp_path / "input", table, content_type)
    environment = {"SERVING_INVALID_RECORDS": "report", "SERVING_CSV_COLUMNS": ",".join(table.columns)}
    transform(image, trained_job.model, tmp_path, content_type=content_type, environment=environment)
    (written,) = (tmp_path / "output").rglob("*.out")
    answers = [json.loads(line) for line in written.read_text().splitlines() if line]
    assert len(answers) == RECORDS
    for row, answer in enumerate(answers):
        if row % INVALID_EVERY == 0:
            assert "'price'" in answer["error"]
        else:
            assert answer["probabilities"][1] == pytest.approx(expected[row % len(expected)], abs=1e-5)
