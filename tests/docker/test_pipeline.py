"""python -m pipeline run --docker: each step in a container of the image."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from testing.jobs import REPOSITORY, TINY_ENCODER
from testing.pipelines import CONFIG, write_config


def run(image: str, folder: Path, **changes) -> subprocess.CompletedProcess:
    config = write_config(folder, {**CONFIG, **changes})
    arguments = ["run", "--config", config, "--root", folder / "root", "--docker", image]
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *map(str, arguments)], cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip


LONG = "x" * 300  # as a variable, too long for a job's request
LONG_SETTINGS = {  # with others, too long as a hyperparameter
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02,
    "layer_norm_eps": 1e-12, "type_vocab_size": 2, "pad_token_id": 0,
}  # fmt: skip
RECORDS = [{"order_id": number, "chat": f"item {number} never came", "price": number} for number in range(20)]


@pytest.fixture(scope="module")
def ran(image, tmp_path_factory):
    """A run with settings in files, records to score, and a tracker that is down."""
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "records").mkdir()
    (folder / "records" / "new.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in RECORDS))
    changes = {
        "condition": {"metric": "test/auroc", "minimum": 0.0},
        "settings": {**CONFIG["settings"], "Payload": {"default_text_value": LONG}},
        "hyperparameters": {**CONFIG["hyperparameters"], "encoder_config": {**TINY_ENCODER, **LONG_SETTINGS}},
        "inputs": {"batch_input": "records"},
        "batch_score": {"join_input": True},
        "mlflow": {"tracking_uri": "http://127.0.0.1:9"},
    }
    return folder / "root", run(image, folder, **changes)


def test_a_raw_table_becomes_a_registered_model_in_containers(ran):
    root, done = ran
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    package = json.loads((root / "registry/demo/1/model_package.json").read_text())
    assert package["CustomerMetadataProperties"]["decision"].startswith("test/auroc is ")
    assert (root / "registry/demo/1/model.tar.gz").stat().st_size > 100_000


def test_every_step_has_its_outputs_and_its_log_in_one_folder(ran):
    root, _ = ran
    for step, file in {
        "DataLoading": "processing/output/data/part-00000.csv",
        "TabularPreprocessing": "processing/output/train/train_processed_data.csv",
        "PyTorchTraining": "output/data/metrics.json",
        "ModelMetricsComputation": "processing/output/metrics/evaluation.json",
        "Package": "processing/output/model.tar.gz",
        "Payload": "processing/output/payload.tar.gz",
    }.items():
        (directory,) = (root / "steps" / step).iterdir()
        assert (directory / "ml" / file).is_file(), step
        assert (directory / "log.txt").stat().st_size, step


def test_settings_that_a_job_cannot_contain_reach_its_container_in_a_file(ran):
    root, _ = ran
    (config,) = (root / "steps").glob("PyTorchTraining/*/ml/model/hyperparameters.json")
    assert LONG_SETTINGS.items() <= json.loads(config.read_text())["encoder_config"].items()
    (payload,) = (root / "steps").glob("Payload/*/ml/processing/output/payload.tar.gz")
    with tarfile.open(payload) as archive:
        (sample,) = [name for name in archive.getnames() if name.endswith(".json")]
        assert LONG in archive.extractfile(sample).read().decode()


def test_records_are_scored_by_a_server_in_a_container(ran):
    root, _ = ran
    (scores,) = (root / "steps/BatchScore").glob("*/ml/batch/output/new.jsonl.out")
    lines = [json.loads(line) for line in scores.read_text().splitlines()]
    assert [line["order_id"] for line in lines] == list(range(20))
    assert all(0 <= line["SageMakerOutput"]["probabilities"][1] <= 1 for line in lines)
    assert "serving /opt/ml/model at 0.0.0.0 on port 8080" in scores.parents[3].joinpath("log.txt").read_text()


def test_a_tracker_that_is_down_is_a_warning_with_the_command(ran):
    root, done = ran
    assert f"python -m container track --root {root}/steps/PyTorchTraining/" in done.stderr


def test_a_step_that_fails_in_its_container_is_named_with_its_cause(image, tmp_path):
    (tmp_path / "table").mkdir()
    (tmp_path / "table/claims.csv").write_text("order_id,chat,shiptrack,price\n" + "1,hello,sent,2\n" * 40)
    done = run(image, tmp_path, inputs={"input_data": "table"}, settings={})
    assert done.returncode == 1
    assert "TabularPreprocessing failed: " in done.stderr
    assert "'label'" in done.stderr
    assert not (tmp_path / "root/registry").exists()
