"""Choose the precision of matrix products by the settings and the device; scale the loss for float16."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from contracts.hyperparameters import Hyperparameters

_AMPERE = (8, 0)  # the first GPUs with bfloat16 and TF32
_START = 2.0**16
_GROWTH_INTERVAL = 2000


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


@dataclass
class LossScaler:
    """Scale the loss for float16, in which small gradients would vanish (Micikevicius et al. 2018).

    The scale halves after an overflow, and doubles after 2000 steps without one. Unlike in torch.amp.GradScaler, the
    global gradient norm decides, so that ranks with different shards skip the same steps.
    """

    factor: float = 1.0
    good_steps: int = 0
    enabled: bool = False

    @classmethod
    def start(cls, *, enabled: bool) -> "LossScaler":
        return cls(_START if enabled else 1.0, enabled=enabled)

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.factor if self.enabled else loss

    def update(self, *, finite: bool) -> None:
        """Adapt the scale to whether the gradients of a step were finite."""
        if not self.enabled:
            return
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.factor = max(1.0, self.factor / 2)
        elif self.good_steps == _GROWTH_INTERVAL:
            self.factor, self.good_steps = self.factor * 2, 0

    @property
    def searching(self) -> bool:
        """Whether an overflow is expected: the scale is above 1 and can be halved."""
        return self.enabled and self.factor > 1
