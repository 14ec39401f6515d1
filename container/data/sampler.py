"""Split epochs into global batches, and global batches into microbatches of ranks.

The order of an epoch depends only on seed and epoch. A step takes its next `global_batch` records. The step's sum does
not depend on how they are split over ranks and microbatches, so every world size computes the same step.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from contracts.hyperparameters import Hyperparameters


@dataclass(frozen=True)
class BatchPlan:
    """The sizes by which a global batch is split over data-parallel ranks and microbatches.

    Attributes:
        microbatch_size: maximum number of records of a microbatch, without max_tokens.
        num_microbatches: microbatches of each rank in a full optimizer step, without max_tokens.
        records: records of a global batch, if fewer than the microbatches can contain.
        max_tokens: maximum number of tokens of a microbatch with several records; 0 = the numbers above apply. The
            tokens of a step then determine its number of microbatches.
        per_pass: microbatches of one forward and backward: those of a pipeline, else 1.
    """

    microbatch_size: int
    data_parallel_size: int
    num_microbatches: int = 1
    records: int | None = None
    max_tokens: int = 0
    per_pass: int = 1

    @classmethod
    def of(cls, hp: Hyperparameters, *, data_parallel_size: int, per_pass: int, passes: int) -> "BatchPlan":
        """Return the plan of `hp` for a step of `passes` x batch_size records on each data-parallel rank."""
        return cls(
            hp.batch_size // per_pass,
            data_parallel_size,
            passes * per_pass,
            max_tokens=-(-hp.max_tokens_per_batch // per_pass),
            per_pass=per_pass,
        )

    @property
    def global_batch(self) -> int:
        """Return the number of records of an optimizer step."""
        capacity = self.microbatch_size * self.data_parallel_size * self.num_microbatches
        assert self.records is None or self.records <= capacity
        return capacity if self.records is None else self.records

    def steps(self, num_records: int) -> int:
        """Return the number of steps that cover `num_records`; the last one may be smaller."""
        return -(-num_records // self.global_batch)


def epoch_order(num_records: int, *, seed: int, epoch: int) -> np.ndarray:
    """Return the order of records in an epoch: a permutation of 0..num_records-1. [num_records] int64"""
    return np.random.default_rng([seed, epoch]).permutation(num_records)


def split_batch(token_counts: np.ndarray, batch_plan: BatchPlan) -> list[np.ndarray]:
    """Split a global batch into microbatches so that their token counts balance.

    Every rank gets as few passes as hold the records; with `max_tokens`, about as few as the longest record allows.

    Args:
        token_counts: tokens of each record of the global batch. [n], n <= batch_plan.global_batch

    Returns:
        For microbatch m of rank r, at index m * data_parallel_size + r, ascending indices into the batch; possibly
        empty.
    """
    assert len(token_counts) <= batch_plan.global_batch
    most = batch_plan.max_tokens
    of_a_pass = batch_plan.data_parallel_size * batch_plan.per_pass  # microbatches, on all ranks
    if not most:
        passes = -(-len(token_counts) // (of_a_pass * batch_plan.microbatch_size))
        return _deal(token_counts, passes * of_a_pass, size=batch_plan.microbatch_size)
    passes = max(1, -(-int(np.minimum(token_counts, most).sum()) // (of_a_pass * most)))  # fewer cannot be enough
    while True:
        microbatches = _deal(token_counts, passes * of_a_pass, size=len(token_counts))
        if all(len(indices) <= 1 or token_counts[indices].sum() <= most for indices in microbatches):
            return microbatches
        passes += 1 + passes // 32  # few attempts also for many passes


def _deal(token_counts: np.ndarray, count: int, *, size: int) -> list[np.ndarray]:
    """Deal records to `count` microbatches of at most `size` records each.

    Greedy: each record, the longest first, joins the microbatch with the fewest tokens that is not full (Graham's LPT
    rule).
    """
    microbatches: list[list[int]] = [[] for _ in range(count)]
    open_ones = [(0, index) for index in range(count)]  # a heap of (tokens, microbatch): the lightest, then the first
    tokens = token_counts.tolist()  # Python's numbers: numpy's take ten times as long, one at a time
    for i in np.argsort(-token_counts, kind="stable").tolist():
        load, lightest = open_ones[0]
        microbatches[lightest].append(i)
        if len(microbatches[lightest]) == size:
            heapq.heappop(open_ones)
        else:
            heapq.heapreplace(open_ones, (load + tokens[i], lightest))
    return [np.array(sorted(indices), np.int64) for indices in microbatches]
