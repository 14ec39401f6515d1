"""Loss curves with dropout on: other masks than one process's, but no other distribution.

For a seed, d is the mean over all steps of (train/loss under a strategy - train/loss of one process): same weights,
same batches, other masks. One process has other masks too where it cuts its batches otherwise; the spread s of those d,
about zero, is what masks alone do. With d from several seeds, z = mean(d) / (s / sqrt(seeds)): standard normal where a
strategy's dropout is right. |z| up to LIMIT agrees (by chance above it in one of 16,000 comparisons); with dropout left
off it is -5, with dropout applied twice +6.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from testing.parity import (
    ADAMW,
    DROPOUT_ON,
    ONE_PROCESS,
    TOLERANCE,
    Difference,
    ParityJobs,
    Strategy,
    Trained,
    disagreement,
)

SEEDS = (1, 2, 3)
LIMIT = 4.0
_OTHER_MASKS = (2, 4, 8)


@dataclass(frozen=True)
class DropoutParity:
    """How a strategy trains with dropout.

    Attributes:
        z: see above.
        copies: how far ranks that hold the same weights have come apart: not at all, unless their masks differed.
    """

    z: float
    copies: Difference

    @property
    def holds(self) -> bool:
        return abs(self.z) <= LIMIT and self.copies.value <= TOLERANCE


@dataclass(frozen=True)
class DropoutCheck:
    """One process's losses with dropout, and how far masks alone move them.

    Attributes:
        losses: mean train/loss over all steps, of each seed. [SEEDS]
        spread: s.
    """

    jobs: ParityJobs
    losses: np.ndarray
    spread: float

    @classmethod
    def prepare(cls, jobs: ParityJobs) -> "DropoutCheck":
        """Train one process: with each seed once as it is, and with other masks."""
        losses = _mean_losses(_train(jobs, ONE_PROCESS, DROPOUT_ON))
        others = [Strategy("other masks", 1, {"accumulate_grad_batches": times}) for times in _OTHER_MASKS]
        moved = [_mean_losses(_train(jobs, other, DROPOUT_ON)) - losses for other in others]
        return cls(jobs, losses, float(np.sqrt(np.mean(np.square(moved)))))

    def compare(self, strategy: Strategy, dropout: dict[str, Any] = DROPOUT_ON) -> DropoutParity:
        """Raises what ParityJobs.train raises."""
        runs = _train(self.jobs, strategy, dropout)
        return DropoutParity(self._z(_mean_losses(runs)), max(map(disagreement, runs), key=lambda found: found.value))

    def _z(self, losses: np.ndarray) -> float:
        return float((losses - self.losses).mean() / (self.spread / math.sqrt(len(SEEDS))))


def _train(jobs: ParityJobs, strategy: Strategy, dropout: dict[str, Any]) -> list[Trained]:
    return jobs.train(strategy, *({**dropout, **ADAMW, "seed": seed} for seed in SEEDS))


def _mean_losses(runs: list[Trained]) -> np.ndarray:
    """Mean train/loss over all steps, of each seed. [SEEDS]"""
    return np.array([np.mean([v for name, v in run.losses.items() if name.startswith("train/")]) for run in runs])
