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


def forbid_tf32() -> None:
    """Compute float32 products on GPUs without TF32, outside float32_products; torch lets cuDNN use it by default."""
    torch.backends.cudnn.allow_tf32 = False


@contextmanager
def float32_products(hp: Hyperparameters, device: torch.device) -> Iterator[None]:
    """Compute the block's float32 products on a GPU in TF32 if hp.tf32 is set, else without.

    torch has one switch for matrix products and one for cuDNN, which computes LSTMs and convolutions.
    """
    if device.type != "cuda":
        yield
        return
    previous = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if hp.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = hp.tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous[0])
        torch.backends.cudnn.allow_tf32 = previous[1]
