"""Steps of packed microbatches for one data-parallel rank, assembled ahead of time by a thread.

A thread, not worker processes: assembling a batch is a few slices of a memory map (under a millisecond for 32 records),
so processes would cost more in shared memory and start-up than they save.
"""

import queue
import threading
from collections.abc import Iterator

import numpy as np

from container.data.batch import PackedBatch
from container.data.sampler import BatchPlan, split_batch
from container.data.split import PreparedSplit

_AHEAD = 4


def step_batches(
    split: PreparedSplit, order: np.ndarray, *, batch_plan: BatchPlan, data_rank: int
) -> Iterator[list[PackedBatch]]:
    """Yield this rank's microbatches of each global batch of `order`, without padding.

    Every rank gets the same number of steps and of microbatches. A microbatch that the last, smaller global batch
    leaves empty holds one record of weight 0, so that all ranks run the same number of passes.

    Args:
        order: positions in `split`, in the order in which the steps use them.
        data_rank: 0..batch_plan.data_parallel_size - 1.
    """
    for start in range(0, len(order), batch_plan.global_batch):
        positions = order[start : start + batch_plan.global_batch]
        microbatches = split_batch(split.token_counts(positions), batch_plan)
        yield [
            split.pack(positions[indices]) if len(indices) else split.pack(positions[:1], filler=True)
            for indices in microbatches[data_rank :: batch_plan.data_parallel_size]
        ]


class Prefetched:
    """Runs an iterator in a thread, a few items ahead; an exception in it is raised where the items are taken.

    Use as a context manager: leaving it stops the thread, also in the middle.
    """

    def __init__(self, items: Iterator[list[PackedBatch]]) -> None:
        self._items = items
        self._queue: queue.Queue = queue.Queue(maxsize=_AHEAD)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)

    def __enter__(self) -> "Prefetched":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def __iter__(self) -> Iterator[list[PackedBatch]]:
        while True:
            item, error = self._queue.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item

    def _fill(self) -> None:
        try:
            for item in self._items:
                if not self._put((item, None)):
                    return
            self._put((None, None))
        except BaseException as error:
            self._put((None, error))

    def _put(self, item: tuple) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False
