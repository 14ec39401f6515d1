"""What each rank holds under fsdp: bytes of parameters, gradients and optimizer state on 1, 2 and 4 processes.

    python -m benchmarks.memory

Measured on the ranks themselves, after an AdamW step of a job: the storages that their own tensors lie in, the largest
rank's. Ends with exit code 1 when a share is more than 5 % from 1/N.
"""

import sys
import tempfile
from pathlib import Path

from benchmarks.printing import print_machine, print_table
from testing.parity import ADAMW, DROPOUT_OFF, HeldBytes, ParityJobs, Strategy
from testing.rank_pool import RankPool

# Wide enough that the rows of few tensors do not divide by the number of ranks.
ENCODER = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
WORLD_SIZES = (1, 2, 4)
TOLERANCE = 0.05
PARTS = ("parameters", "gradients", "optimizer")


def held_bytes(jobs: ParityJobs, world_size: int) -> HeldBytes:
    """What the fullest rank of `world_size` holds of each part."""
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
        "Bytes that the fullest rank holds under fsdp, and their share of one process's",
        ("processes", "parameters", "gradients", "optimizer state", "1/N"),
        rows,
    )
    return 0 if all(abs(share * n - 1) <= TOLERANCE for n in WORLD_SIZES for share in shares[n]) else 1


if __name__ == "__main__":
    sys.exit(main())
