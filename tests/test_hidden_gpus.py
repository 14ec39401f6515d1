"""The tests on a machine with GPUs."""

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from container.training.precision import precision_of
from testing.parity import DROPOUT_OFF, ONE_PROCESS, SETTINGS, tolerance
from tests.conftest import pytest_configure


def visible_gpus() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("expression", "visible"), [("", ""), ("not slow and not docker", ""), ("not gpu", ""), ("gpu", "0,1")]
)
def test_only_the_tests_marked_gpu_see_gpus(monkeypatch, expression, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    pytest_configure(SimpleNamespace(option=SimpleNamespace(markexpr=expression)))
    assert visible_gpus() == visible


def test_a_test_and_the_ranks_that_it_starts_see_no_gpu(rank_pool):
    assert visible_gpus() == ""
    assert rank_pool.run(visible_gpus, world_size=2) == ["", ""]


def test_parity_compares_float32_on_a_gpu_too(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    hp = ONE_PROCESS.hyperparameters({**SETTINGS, **DROPOUT_OFF})
    assert precision_of(hp, torch.device("cuda", 0)) == torch.float32


@pytest.mark.parametrize(("gpu", "expected"), [(False, 1e-5), (True, 1e-4)])
def test_parity_allows_a_gpu_its_order_of_sums(monkeypatch, gpu, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert tolerance() == expected


def test_make_test_gpu_collects_only_the_files_that_have_tests_for_gpus():
    repository = Path(__file__).parents[1]
    recipe = re.search(r"^test-gpu:.*\n\t(.*)", (repository / "Makefile").read_text(), re.M).group(1)
    command = recipe.replace("$$", "$").replace("$(BIN)/python -m pytest", "echo")
    run = subprocess.run(["bash", "-c", command], cwd=repository, capture_output=True, text=True, check=True)
    *options, files = run.stdout.split(maxsplit=2)
    assert options == ["-m", "gpu"]
    assert "tests/models/test_packed_encoders.py" in files.split()
    assert not [
        file for file in files.split() if re.search(r"import (boto3|nbformat)", (repository / file).read_text())
    ]
