"""The SageMaker SDK's local mode with the image and examples/local_mode.py, on one host and on two."""

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from contracts import artifacts
from testing.jobs import CONFIGURATION, NO_DROPOUT, REPOSITORY, write_job

SETTINGS = {**CONFIGURATION, **NO_DROPOUT, "max_epochs": 1}
GLOBAL_BATCH = 8


def run_local_mode(image: str, work: Path, *, instances: int) -> tuple[str, dict[str, torch.Tensor], list[str]]:
    """Run the example, and return its log, the weights of its model.tar.gz, and the names in that archive."""
    paths = write_job(work / "job")
    settings = work / "hyperparameters.json"
    settings.write_text(json.dumps({**SETTINGS, "batch_size": GLOBAL_BATCH // instances}))
    command = [
        sys.executable, "examples/local_mode.py", "--image", image, "--work", work / "local",
        "--data", paths.channel("train").parent, "--hyperparameters", settings, "--instances", instances,
    ]  # fmt: skip
    done = subprocess.run(
        [str(part) for part in command], cwd=REPOSITORY, timeout=900, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    archive = work / "local" / "compressed_artifacts" / "model.tar.gz"
    with tarfile.open(archive) as model:
        names = model.getnames()
        model.extractall(work / "model", filter="data")
    return done.stdout, torch.load(work / "model" / "model.pth", weights_only=True), names


@pytest.fixture(scope="module")
def one_host(image, tmp_path_factory):
    return run_local_mode(image, tmp_path_factory.mktemp("one"), instances=1)


@pytest.fixture(scope="module")
def two_hosts(image, tmp_path_factory):
    return run_local_mode(image, tmp_path_factory.mktemp("two"), instances=2)


def test_a_model_trainer_job_in_a_local_container_writes_a_model_archive(one_host):
    log, _, names = one_host
    assert "completed in" in log
    assert set(artifacts.REQUIRED_MODEL_FILES) <= set(names)


def test_two_hosts_train_together(two_hosts):
    log, _, _ = two_hosts
    assert "2 hosts with 1 processes each: algo-1, algo-2" in log
    assert re.search(r"parameters on the CPU, 2 replicas", log)


def test_two_hosts_end_together_and_write_one_model(two_hosts):
    log, _, names = two_hosts
    assert log.count("completed in") == 2
    assert sorted(names) == sorted(set(names))
    assert set(artifacts.REQUIRED_MODEL_FILES) <= set(names)


def test_two_hosts_train_the_weights_of_one_with_the_same_global_batch(one_host, two_hosts):
    for name, value in one_host[1].items():
        torch.testing.assert_close(two_hosts[1][name], value, rtol=1e-4, atol=1e-5, msg=name)
