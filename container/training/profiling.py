"""Measure what a step costs: a trace and a table of a few steps on request, the memory and the GPU of every rank."""

import ctypes
import logging
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from container.job.log_once import log_detail, log_once
from container.parallel.mesh import RankMesh
from contracts.errors import first_line

logger = logging.getLogger(__name__)

_SKIPPED, _WARMUP, _TRACED = 2, 1, 3  # steps; the first ones allocate and compile
_COSTLIEST = 10
_GIB = 2**30
# Read by NVML. Utilization: the share of the last second, or of a part of it, in which a kernel ran.
_SENSORS: Mapping[str, Callable[[torch.device], float]] = {
    "gpu/utilization_percent": torch.cuda.utilization,
    "gpu/memory_gib": lambda device: torch.cuda.device_memory_used(device) / _GIB,
    "gpu/power_watts": lambda device: torch.cuda.power_draw(device) / 1000,
}


def step_profiler(ranks: RankMesh, *, steps: int, folder: Path) -> profile:
    """Return a started profiler that traces a few of the next steps with torch.profiler.

    Each rank writes trace.rank{r}.json.gz (for chrome://tracing or Perfetto) and costliest.rank{r}.txt, the ten
    operations with the most self time.

    Args:
        steps: number of steps of this run, above 0; fewer are skipped in a short run.
        folder: created when there is something to write.
    """
    traced = min(_TRACED, steps)
    warmup = min(_WARMUP, steps - traced)
    cuda = ranks.device.type == "cuda"
    profiler = profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])],
        schedule=schedule(wait=min(_SKIPPED, steps - traced - warmup), warmup=warmup, active=traced, repeat=1),
        on_trace_ready=partial(_write, folder=folder, rank=ranks.rank, cuda=cuda),
        record_shapes=True,
        acc_events=True,
    )
    profiler.start()
    return profiler


def _write(profiled: profile, *, folder: Path, rank: int, cuda: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    profiled.export_chrome_trace(str(folder / f"trace.rank{rank}.json.gz"))
    order = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    table = profiled.key_averages().table(sort_by=order, row_limit=_COSTLIEST)
    (folder / f"costliest.rank{rank}.txt").write_text(table)
    logger.info("profile: trace and table are in %s; the most expensive operations:\n%s", folder, table)


def log_memory(ranks: RankMesh, *, detail: bool) -> None:
    """Log the memory of every rank, on rank 0; called by all ranks together.

    Args:
        detail: for the log file only.
    """
    memory = torch.zeros(ranks.world_size, 3, dtype=torch.float64)
    memory[ranks.rank] = torch.tensor(_device_memory(ranks.device), dtype=torch.float64)
    ranks.sum(memory)
    names = "allocated, reserved, peak" if ranks.device.type == "cuda" else "resident, reserved, peak"
    values = "; ".join(f"rank {rank}: {', '.join(f'{v:.2f}' for v in row)}" for rank, row in enumerate(memory.tolist()))
    log = partial(log_detail, logger) if detail else logger.info
    log("memory in GiB (%s): %s", names, values)


class GpuMeter:
    """Samples what the GPUs of all ranks do; there are no figures without GPUs or the package nvidia-ml-py."""

    def __init__(self, ranks: RankMesh, device: torch.device) -> None:
        self._ranks, self._device = ranks, device
        self._sensors = list(_SENSORS.values()) if device.type == "cuda" else []
        self._samples: list[list[float]] = []

    def sample(self) -> None:
        """Read this rank's GPU; call it while it computes."""
        try:
            self._samples.append([sensor(self._device) for sensor in self._sensors])
        except Exception as error:  # NVML's own, and those of torch and of a missing package
            self._sensors = []
            log_once(logger, logging.INFO, f"the GPU's utilization and power are not known: {first_line(error)}")

    def figures(self) -> dict[str, float]:
        """Log and return the means since the last call, and the lowest of all ranks; called by all ranks together."""
        samples, self._samples = [sample for sample in self._samples if sample], []
        means = torch.zeros(self._ranks.world_size, len(_SENSORS), dtype=torch.float64)
        if samples:
            means[self._ranks.rank] = torch.tensor([statistics.fmean(values) for values in zip(*samples)])
        self._ranks.sum(means)
        known = means[means.any(dim=1)]  # a GPU that computes holds memory
        if not len(known):
            return {}
        mean, lowest = known.mean(dim=0).tolist(), known.amin(dim=0).tolist()
        values = "; ".join(f"{name}={value:.4g}, lowest {low:.4g}" for name, value, low in zip(_SENSORS, mean, lowest))
        logger.info("GPUs since the last validation: %s", values)
        return dict(zip(_SENSORS, mean)) | {f"{name}_lowest": low for name, low in zip(_SENSORS, lowest)}


def return_freed_memory() -> None:
    """Return freed memory from the C library to the operating system (glibc only); takes 0.1 s.

    Packed batches differ in size, so that freed blocks rarely fit the next batch: without this, a process grew from 2.8
    to 5.4 GiB in half an hour on the CPU.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _device_memory(device: torch.device) -> tuple[float, ...]:
    """Return allocated, reserved and peak memory in GiB; on the CPU: resident, virtual data and peak resident."""
    if device.type == "cuda":
        used = torch.cuda.memory_allocated, torch.cuda.memory_reserved, torch.cuda.max_memory_allocated
        return tuple(count(device) / _GIB for count in used)
    if sys.platform != "linux":
        return 0.0, 0.0, 0.0
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return tuple(int(fields[name].split()[0]) * 1024 / _GIB for name in ("VmRSS", "VmData", "VmHWM"))
