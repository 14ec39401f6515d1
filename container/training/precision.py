"""Choose the precision of matrix products by the settings and the device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from contracts.hyperparameters import Hyperparameters

_AMPERE = (8, 0)  # the first GPUs with bfloat16 and TF32


def precision_of(hp: Hyperparameters, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products in training."""
    automatic = hp.bf16 == "auto" and not hp.fp16 and device.type == "cuda"
    if hp.bf16 is True or (automatic and torch.cuda.get_device_capability(device) >= _AMPERE):
        return torch.bfloat16
    return torch.float16 if hp.fp16 else torch.float32


@contextmanager
def float32_products(hp: Hyperparameters, device: torch.device) -> Iterator[None]:
    """Compute the block's float32 matrix products on a GPU in TF32 if hp.tf32 is set."""
    rounds = hp.tf32 and device.type == "cuda"
    previous = torch.get_float32_matmul_precision()
    if rounds:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if rounds:
            torch.set_float32_matmul_precision(previous)
