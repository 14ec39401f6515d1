"""Assemble the packed microbatches of each step for one data-parallel rank, ahead of time in a thread.

A thread, not worker processes: assembling a batch is a few slices of a memory map (under a millisecond for 32 records),
so processes would cost more in shared memory and start-up time than they save.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from container.data.batch import PackedBatch, use_side_stream
from container.data.sampler import BatchPlan, split_batch
from container.data.split import PreparedSplit

_AHEAD = 4


def step_batches(
    split: PreparedSplit, order: np.ndarray, *, batch_plan: BatchPlan, data_rank: int
) -> Iterator[list[PackedBatch]]:
    """Yield this rank's microbatches of each global batch of `order`, without padding.

    Every rank gets the same number of steps and microbatches. If the last, smaller global batch leaves a microbatch
    empty, it gets one record of weight 0.

    Args:
        order: positions in `split`, in training order.
        data_rank: 0..batch_plan.data_parallel_size - 1.
    """
    for start in range(0, len(order), batch_plan.global_batch):
        positions = order[start : start + batch_plan.global_batch]
        microbatches = split_batch(split.token_counts(positions), batch_plan)
        yield [
            split.pack(positions[indices]) if len(indices) else split.pack(positions[:1], filler=True)
            for indices in microbatches[data_rank :: batch_plan.data_parallel_size]
        ]


@contextmanager
def prefetched(items: Iterator[list[PackedBatch]], device: torch.device) -> Iterator[Iterator[list[PackedBatch]]]:
    """Assemble `items` in a thread, a few ahead; leaving the context ends the thread.

    The iterator that this yields raises an exception of `items` in the consumer's thread.

    Args:
        device: the device that the items will be copied to; for a GPU, they are assembled in pinned memory.
    """
    if device.type == "cuda":
        items = ([batch.each(Tensor.pin_memory) for batch in batches] for batches in items)
    with ThreadPoolExecutor(1, "prefetch", initializer=use_side_stream, initargs=(device,)) as thread:
        pending = deque(thread.submit(next, items, None) for _ in range(_AHEAD))

        def take() -> list[PackedBatch] | None:
            pending.append(thread.submit(next, items, None))
            return pending.popleft().result()

        try:
            yield iter(take, None)
        finally:
            thread.shutdown(cancel_futures=True)
