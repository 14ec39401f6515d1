"""Which records a step sees, and which rank computes which of them.

The order of an epoch depends on seed and epoch alone. A step takes the next `global_batch` records of it; how they are
dealt to ranks and microbatches changes nothing about their sum, so every world size computes the same step.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Slots:
    """How a global batch is cut: `data_size` ranks, each with `microbatches` of at most `batch_size` records.

    Attributes:
        records: records of a global batch where they do not fill the slots evenly; None: as many as there is room for.
    """

    batch_size: int
    data_size: int
    microbatches: int = 1
    records: int | None = None

    @property
    def global_batch(self) -> int:
        """Records of an optimizer step."""
        room = self.batch_size * self.data_size * self.microbatches
        assert self.records is None or self.records <= room
        return room if self.records is None else self.records

    def steps(self, num_records: int) -> int:
        """Steps that cover `num_records`, the last one possibly smaller."""
        return -(-num_records // self.global_batch)


def epoch_order(num_records: int, *, seed: int, epoch: int) -> np.ndarray:
    """The order of records in an epoch: a permutation of 0..num_records-1. [num_records] int64"""
    return np.random.default_rng([seed, epoch]).permutation(num_records)


def deal(token_counts: np.ndarray, slots: Slots) -> list[np.ndarray]:
    """Deal a global batch over microbatches so that their token counts balance.

    Greedy, longest record first, to the slot with the fewest tokens that has room (Graham's LPT rule).

    Args:
        token_counts: tokens of each record of the global batch. [n], n <= slots.global_batch

    Returns:
        For microbatch m of rank r, at place m * data_size + r, ascending indices into the batch; possibly empty.
    """
    count = slots.data_size * slots.microbatches
    assert len(token_counts) <= slots.global_batch
    dealt: list[list[int]] = [[] for _ in range(count)]
    load = np.zeros(count)
    for i in np.argsort(-token_counts, kind="stable"):
        slot = int(np.argmin(load))
        dealt[slot].append(int(i))
        load[slot] += token_counts[i]
        if len(dealt[slot]) == slots.batch_size:
            load[slot] = np.inf
    return [np.array(sorted(indices), np.int64) for indices in dealt]
