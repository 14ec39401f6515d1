"""Measure memory per rank under fsdp: bytes of parameters, gradients and optimizer state on 1, 2 and 4 processes.

    python -m benchmarks.memory

The figures are the storage sizes of the largest rank's tensors after an AdamW step of a job. The exit code is 1 if a
fraction differs from 1/N by more than 5 %.
"""

import sys
import tempfile
from pathlib import Path

from benchmarks.printing import print_machine, print_table
from testing.parity import ADAMW, DROPOUT_OFF, HeldBytes, ParityJobs, Strategy
from testing.rank_pool import RankPool

# Wide enough that the number of ranks divides the rows of most tensors.
ENCODER = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
WORLD_SIZES = (1, 2, 4)
TOLERANCE = 0.05
PARTS = ("parameters", "gradients", "optimizer")


def held_bytes(jobs: ParityJobs, world_size: int) -> HeldBytes:
    """Return the largest bytes per rank of each part on `world_size` processes."""
    strategy = Strategy(f"fsdp {world_size}", world_size, {"strategy": "fsdp"})
    encoder = {**DROPOUT_OFF["encoder_config"], **ENCODER}
    (trained,) = jobs.train(strategy, {**DROPOUT_OFF, **ADAMW, "encoder_config": encoder, "max_epochs": 1})
    return HeldBytes(**{part: max(getattr(rank, part) for rank in trained.held) for part in PARTS})


def main() -> int:
    print_machine()
    with RankPool(timeout=300) as pool, tempfile.TemporaryDirectory() as folder:
        jobs = ParityJobs(pool, Path(folder))
        held = {world_size: held_bytes(jobs, world_size) for world_size in WORLD_SIZES}
    shares = {n: [getattr(held[n], part) / getattr(held[1], part) for part in PARTS] for n in WORLD_SIZES}
    rows = [
        [
            str(n),
            *(f"{getattr(held[n], part):,} ({share:.4f})" for part, share in zip(PARTS, shares[n])),
            f"{1 / n:.4f}",
        ]
        for n in WORLD_SIZES
    ]
    print_table(
        "Largest bytes per rank under fsdp, and their fraction of one process's bytes",
        ("processes", "parameters", "gradients", "optimizer state", "1/N"),
        rows,
    )
    return 0 if all(abs(share * n - 1) <= TOLERANCE for n in WORLD_SIZES for share in shares[n]) else 1


if __name__ == "__main__":
    sys.exit(main())
