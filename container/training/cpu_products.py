"""Compute float32 matrix products with oneDNN where torch's BLAS library is slower."""

import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.library import Library

from container.job.log_once import log_detail

logger = logging.getLogger(__name__)

_FEWEST_PRODUCTS = 1 << 22  # of numbers; the choice of a kernel takes 3 microseconds
_CPU_INFO = Path("/proc/cpuinfo")
_registered: list[Library] = []  # a library that is freed takes its kernels with it


def choose_matrix_products(device: torch.device, cpu_info: Path = _CPU_INFO) -> None:
    """Let oneDNN compute large float32 products of this process, if it trains on an AMD processor with AVX-512.

    torch computes them with MKL, which uses AVX-512 on Intel processors only.
    """
    slow = device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX512" and _is_amd(cpu_info)
    if slow and use_onednn():
        log_detail(logger, "oneDNN computes large float32 matrix products: MKL is slower on this processor.")


def use_onednn() -> bool:
    """Replace torch's kernels of `mm` and `addmm` on the CPU; autograd and DTensor call these, too.

    Returns:
        False if torch has no oneDNN, or if its interface, which is not public, has changed.
    """
    if _registered:
        return True
    try:
        _linear(torch.ones(1, 1), torch.ones(1, 1), None)
    except (AttributeError, RuntimeError, TypeError):
        return False
    library = Library("aten", "IMPL")
    with warnings.catch_warnings():  # torch warns of a kernel that is replaced
        warnings.simplefilter("ignore")
        library.impl("mm", _mm, "CPU", allow_override=True)
        library.impl("addmm", _addmm, "CPU", allow_override=True)
    _registered.append(library)
    return True


def _is_amd(cpu_info: Path) -> bool:
    try:
        return "AuthenticAMD" in cpu_info.read_text()
    except OSError:  # not Linux
        return False


def _mm(left: Tensor, right: Tensor) -> Tensor:
    if _suits(left, right):
        return _linear(left, right, None)
    return torch.mm(left, right, out=left.new_empty(left.shape[0], right.shape[1]))


def _addmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if beta == alpha == 1 and bias.dtype == left.dtype and bias.shape == right.shape[1:] and _suits(left, right):
        return _linear(left, right, bias)
    out = left.new_empty(left.shape[0], right.shape[1])
    return torch.addmm(bias, left, right, beta=beta, alpha=alpha, out=out)


def _suits(left: Tensor, right: Tensor) -> bool:
    """Return whether oneDNN multiplies these faster. It would copy a `left` that is not contiguous."""
    return (
        left.dtype == right.dtype == torch.float32
        and left.is_contiguous()
        and left.shape[1] == right.shape[0]
        and left.numel() * right.shape[1] >= _FEWEST_PRODUCTS
    )


def _linear(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(left, right.t(), bias, "none", [], "")
