"""Two processes on one GPU, over gloo: the numbers of one process."""

import os

import torch
import torch.distributed as dist

from benchmarks.gpu_steps.parity import compare_rows
from benchmarks.gpu_steps.recorder import Recorder
from benchmarks.gpu_steps.runs import forked_runs
from container.parallel.mesh import SHARE_GPU
from testing.rank_pool import RankFailed

ROWS = ("ddp 2", "fsdp 2, FULL_SHARD", "fsdp 2, SHARD_GRAD_OP", "ddp 2, accumulation")
NOT_SHOWN = "NCCL, its communicators and streams; communication beside computation; more memory than one GPU has"


def run(check: Recorder) -> None:
    os.environ[SHARE_GPU] = "1"
    with forked_runs(check.folder) as (pool, jobs):
        compare_rows(check, jobs, ROWS[1:2] if check.tiny else ROWS, seconds=15)
        check.note(f"two processes on one GPU do not show: {NOT_SHOWN}")
        if check.only_on_gpu("whether NCCL accepts two processes on one GPU") and check.has_time(15, "NCCL"):
            try:
                sums = pool.run(sum_over_nccl, world_size=2, timeout=30)
                check.figure("nccl_on_one_gpu", f"sums {sums}")
            except RankFailed as refused:
                lines = [line for line in str(refused).splitlines() if "Error" in line or "Duplicate" in line]
                check.figure("nccl_on_one_gpu", f"refused: {' '.join(lines[-2:])[:300]}")


def sum_over_nccl() -> float:
    """Return the sum of 1 over the ranks."""
    group = dist.new_group(backend="nccl")
    one = torch.ones(1, device="cuda:0")
    dist.all_reduce(one, group=group)
    return one.item()
