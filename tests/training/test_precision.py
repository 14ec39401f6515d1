"""The precision of matrix products, by the settings and the device."""

import pytest
import torch

from container.training.precision import float32_products, precision_of
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


def test_tf32_holds_in_its_block_and_on_gpus_only():
    exact = torch.get_float32_matmul_precision()
    with float32_products(hyperparameters(tf32=True), GPU):
        assert torch.get_float32_matmul_precision() == "high"
    for settings, device in (({"tf32": True}, CPU), ({}, GPU)):
        with float32_products(hyperparameters(**settings), device):
            assert torch.get_float32_matmul_precision() == exact
    assert torch.get_float32_matmul_precision() == exact
