"""python -m pipeline run --docker: the SDK's local pipeline with the image; moto's server replaces S3."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from testing.jobs import REPOSITORY
from testing.pipelines import CONFIG, write_config
from tests.docker.engine import docker


def run(image: str, folder: Path, **changes) -> subprocess.CompletedProcess:
    config = write_config(folder, {**CONFIG, **changes})
    arguments = ["run", "--config", config, "--root", folder / "root", "--docker", image]
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *map(str, arguments)], cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip


@pytest.fixture(scope="module")
def ran(image, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline")
    return folder / "root", run(image, folder, condition={"metric": "test/auroc", "minimum": 0.0})


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
        assert (root / "docker" / step / "ml" / file).is_file(), step
        assert (root / "docker" / step / "log.txt").stat().st_size, step


def test_a_step_that_fails_in_its_container_is_named_with_its_cause(image, tmp_path):
    (tmp_path / "table").mkdir()
    (tmp_path / "table/claims.csv").write_text("order_id,chat,shiptrack,price\n" + "1,hello,sent,2\n" * 40)
    done = run(image, tmp_path, inputs={"input_data": "table"}, settings={})
    assert done.returncode == 1
    assert "Step 'TabularPreprocessing' failed with message: " in done.stderr
    assert "'label'" in done.stderr
    assert not (tmp_path / "root/registry").exists()
    assert not (tmp_path / "root/docker/containers").exists()
    log = (tmp_path / "root/docker/TabularPreprocessing/log.txt").read_text()
    (container,) = re.findall(r"^Attaching to (\S+)", log, flags=re.MULTILINE)
    docker("inspect", container, expect=1)  # removed, although local mode leaves it
