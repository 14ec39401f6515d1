"""Versions, the GPU, the kernels that exist, and the two ceilings for everything below."""

import platform
from contextlib import suppress

import torch
import torch.nn.functional as F

from benchmarks.gpu_steps.clock import copy_gigabytes_per_second, product_tflops
from benchmarks.gpu_steps.recorder import Recorder
from container.models import attention
from container.training.step_graph import CudaCapture


def run(check: Recorder) -> None:
    check.figure("torch", {
        "version": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
        "nccl": str(torch.cuda.nccl.version()) if torch.version.cuda and check.on_gpu else None,
        "python": platform.python_version(),
    })  # fmt: skip
    if check.on_gpu:
        properties = torch.cuda.get_device_properties(0)
        check.figure("gpu", {
            "name": properties.name, "capability": f"{properties.major}.{properties.minor}",
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "multiprocessors": properties.multi_processor_count,
        })  # fmt: skip
    check.holds("torch has varlen_attn", attention.varlen_attn is not None)
    check.figure("flash_operator_is_known", attention.flash_operator is not None)
    with check.part("kernels"):
        _kernels(check)
    with check.part("ceilings"):
        size, num_bytes = (256, 1 << 22) if check.tiny else (8192, 4 << 30)
        check.figure("copy_gb_per_s", round(copy_gigabytes_per_second(check.device, num_bytes=num_bytes), 1))
        check.figure("product_tflops", round(product_tflops(check.device, size=size), 4))
    if check.only_on_gpu("a job goes on after a capture that fails"):
        with check.part("a capture that fails"):
            _failed_capture(check)


def _failed_capture(check: Recorder) -> None:
    """Draw a mask of dropout after a capture that a wait of the host ends, as a job without graphs does."""
    ones = torch.ones(8, device=check.device)
    with torch.cuda.stream(torch.cuda.Stream()):
        with suppress(RuntimeError):
            CudaCapture()(ones.cpu)
        check.holds("dropout draws after a capture that fails", bool(F.dropout(ones).isfinite().all()))


def _kernels(check: Recorder) -> None:
    """Call each kernel that the product uses, once."""
    if not check.only_on_gpu("whether the flash and the memory-efficient kernel run"):
        return
    device = torch.device("cuda", 0)
    check.figure("has_flash", attention.has_flash(device))
    boundaries = torch.tensor([0, 100, 128], dtype=torch.int32, device=device)
    for dtype in (torch.bfloat16, torch.float32):
        vectors = torch.randn(128, 4, 64, device=device, dtype=dtype)
        context = attention.varlen_attention(
            *(vectors,) * 3, (boundaries, boundaries), longest=(128, 128), flash=attention.has_flash(device)
        )
        check.holds(f"a kernel attends in {dtype}", context is not None and bool(context.isfinite().all()))
