"""Time work on a GPU or a CPU."""

import time
from collections.abc import Callable

import torch


def now(device: torch.device | str) -> float:
    """Return the time once the device has done all its work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds_per_call(
    work: Callable[[], object], device: torch.device | str, *, calls: int = 10, warmup: int = 3
) -> float:
    """Return the mean seconds of a call, after some that are not counted."""
    for _ in range(warmup):
        work()
    started = now(device)
    for _ in range(calls):
        work()
    return (now(device) - started) / calls


def seconds_without_host(work: Callable[[], object], device: torch.device | str, *, calls: int = 10) -> float:
    """Return the mean seconds of a call; on a GPU of its kernels alone, by replaying a graph of several calls."""
    if torch.device(device).type != "cuda":
        return seconds_per_call(work, device, calls=calls)
    with torch.cuda.stream(torch.cuda.Stream()):
        work()  # allocates gradients and the products' workspaces
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    return seconds_per_call(graph.replay, device) / calls


def product_tflops(device: torch.device | str, *, size: int) -> float:
    """Measure a product of two square bfloat16 matrices of random numbers, in TFLOP/s."""
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    return 2 * size**3 / seconds_per_call(lambda: a @ b, device) / 1e12


def copy_gigabytes_per_second(device: torch.device | str, *, num_bytes: int) -> float:
    """Measure a copy inside the device's memory; bytes read and written count."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return 2 * num_bytes / seconds_per_call(lambda: target.copy_(source), device) / 1e9
