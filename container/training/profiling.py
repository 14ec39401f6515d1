"""Measure what a step costs: a trace and a table of a few steps on request, and the memory of every rank."""

import ctypes
import logging
import sys
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from container.log_once import log_detail
from container.parallel.mesh import RankMesh

logger = logging.getLogger(__name__)

_SKIPPED, _WARMUP, _TRACED = 2, 1, 3  # steps; the first ones allocate and compile
_COSTLIEST = 10
_GIB = 2**30


class StepProfiler:
    """Trace a few steps of a run with torch.profiler; do nothing unless `enabled`.

    Each rank writes trace.rank{r}.json.gz (for chrome://tracing or Perfetto) and costliest.rank{r}.txt, the ten
    operations with the most self time.

    Args:
        steps: number of steps of this run; fewer are skipped in a short run.
        folder: created when there is something to write.
    """

    def __init__(self, *, enabled: bool, ranks: RankMesh, steps: int, folder: Path) -> None:
        self._rank = ranks.rank
        self._folder = folder
        self._cuda = ranks.device.type == "cuda"
        self._profile: profile | None = None
        if not enabled or steps < 1:
            return
        traced = min(_TRACED, steps)
        warmup = min(_WARMUP, steps - traced)
        skipped = min(_SKIPPED, steps - traced - warmup)
        self._left = skipped + warmup + traced
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=skipped, warmup=warmup, active=traced, repeat=1),
            on_trace_ready=self._write,
            record_shapes=True,
            acc_events=True,
        )
        self._profile.start()

    def step(self) -> None:
        """Advance after an optimizer step."""
        if self._profile is None:
            return
        self._profile.step()
        self._left -= 1
        if self._left == 0:
            self.close()

    def close(self) -> None:
        """Write the trace of the steps so far, if it is not written yet."""
        if self._profile is not None:
            running, self._profile = self._profile, None
            running.stop()

    def _write(self, profiled: profile) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        profiled.export_chrome_trace(str(self._folder / f"trace.rank{self._rank}.json.gz"))
        order = "self_cuda_time_total" if self._cuda else "self_cpu_time_total"
        table = profiled.key_averages().table(sort_by=order, row_limit=_COSTLIEST)
        (self._folder / f"costliest.rank{self._rank}.txt").write_text(table)
        logger.info("profile: trace and table are in %s; the most expensive operations:\n%s", self._folder, table)


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
