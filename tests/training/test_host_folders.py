"""Checkpoints of several hosts, over real processes: each rank is a host with a disk of its own."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from container.training import checkpoint
from container.training.checkpoint import CheckpointStore
from testing.rank_pool import RankPool

pytestmark = pytest.mark.slow


def outcome_of_a_save(folder: Path, full: int) -> str:
    """Save on hosts of which host `full` cannot write state.json; return what this host raises."""
    rank = torch.distributed.get_rank()
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    checkpoint._WRITE_TIMEOUT = timedelta(seconds=5)
    write = checkpoint._write_synced

    def write_synced(path: Path, text: str) -> None:
        if rank == full and path.name == "state.json":
            raise OSError(28, "No space left on device", str(path))
        write(path, text)

    checkpoint._write_synced = write_synced
    module = nn.Linear(2, 2)
    store = CheckpointStore(folder / f"host{rank}", keep=1, device=torch.device("cpu"))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    store.save(module, optimizer, name="epoch=0-step=1.ckpt", content={"step": 1}, best_step=None)
    try:
        store.wait()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_all_hosts_name_the_first_one_whose_disk_is_full_without_a_timeout(rank_pool: RankPool, tmp_path: Path) -> None:
    outcomes: list[Any] = rank_pool.run(outcome_of_a_save, tmp_path, 0, world_size=2)
    assert outcomes[0].startswith("OSError: [Errno 28] No space left on device")
    assert outcomes[1].startswith("PeerFailed: rank 0: OSError: [Errno 28] No space left on device")
