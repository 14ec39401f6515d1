"""The precision of matrix products, by the settings and the device."""

import os
from types import SimpleNamespace

import pytest
import torch

from container.job.launch import worker
from container.training.precision import float32_products, precision_of
from contracts.paths import JobPaths
from testing.encoder_families import hyperparameters

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
AMPERE, TURING = (8, 0), (7, 5)


@pytest.fixture
def gpu(monkeypatch):
    def has(capability):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)

    return has


@pytest.mark.parametrize(
    ("settings", "capability", "device", "precision"),
    [
        ({}, AMPERE, GPU, torch.bfloat16),
        ({}, TURING, GPU, torch.float32),
        ({}, AMPERE, CPU, torch.float32),
        ({"bf16": False}, AMPERE, GPU, torch.float32),
        ({"bf16": "false"}, AMPERE, GPU, torch.float32),
        ({"bf16": True}, TURING, CPU, torch.bfloat16),
        ({"fp16": True}, AMPERE, GPU, torch.float16),
    ],
)
def test_a_gpu_that_has_bfloat16_uses_it_unless_the_settings_choose(gpu, settings, capability, device, precision):
    gpu(capability)
    assert precision_of(hyperparameters(**settings), device) == precision


def tf32_switches() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.fixture(params=[True, False], ids=["cuDNN allowed", "cuDNN forbidden"])
def outside(request, monkeypatch) -> tuple[str, bool]:
    """The switches outside training."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", request.param)
    return "highest", request.param


@pytest.mark.parametrize(("tf32", "switches"), [(True, ("high", True)), (False, ("highest", False))])
def test_matrix_products_and_cudnn_use_tf32_in_the_block_as_asked_for(outside, tf32, switches):
    with float32_products(hyperparameters(tf32=tf32), GPU):
        assert tf32_switches() == switches
    assert tf32_switches() == outside


def test_tf32_changes_nothing_on_a_cpu(outside):
    with float32_products(hyperparameters(tf32=True), CPU):
        assert tf32_switches() == outside


class Joined(Exception):
    """The worker has joined the process group."""


def joins(tmp_path, monkeypatch):
    """Start a worker until it joins the process group; return the switches of TF32 then."""

    def join(**_):
        raise Joined(tf32_switches())

    monkeypatch.setattr(worker, "init_distributed", join)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    timeline = SimpleNamespace(mark=lambda _: None)
    job = SimpleNamespace(hp=hyperparameters(tf32=True), timeline=timeline, paths=JobPaths(tmp_path))
    with pytest.raises(Joined) as joined:
        worker.run(job, SimpleNamespace())
    return joined.value.args[0]


def test_a_worker_forbids_tf32_before_it_computes_anything(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert joins(tmp_path, monkeypatch) == ("highest", False)


@pytest.mark.parametrize("chosen", [None, "/other/trace"])
def test_the_flight_recorder_writes_to_the_output_or_where_the_user_says(tmp_path, monkeypatch, chosen):
    name = "TORCH_FR_DUMP_TEMP_FILE"
    monkeypatch.setenv(name, chosen) if chosen else monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    try:
        joins(tmp_path, monkeypatch)
        assert os.environ[name] == (chosen or str(tmp_path / "output" / "data" / "collectives.rank"))
    finally:
        os.environ.clear()
        os.environ.update(before)
