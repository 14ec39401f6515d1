"""Compare loss curves with dropout: a strategy draws other masks than one process, from the same distribution.

For a seed, d is the mean over all steps of (train/loss under a strategy - train/loss of one process), with the same
weights and batches but other masks. One process also draws other masks if it splits its batches differently. The
standard deviation s of those d about zero measures the effect of masks alone. Over several seeds,
z = mean(d) / (s / sqrt(seeds)) is standard normal if a strategy's dropout is correct. The check passes if |z| <= LIMIT,
which chance exceeds in one of 16,000 comparisons. Without dropout z is -7; with dropout applied twice it is +8.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from testing.parity import (
    ADAMW,
    DROPOUT_ON,
    ONE_PROCESS,
    Difference,
    ParityJobs,
    Strategy,
    Trained,
    disagreement,
    tolerance,
)

SEEDS = (1, 2, 3, 4, 5, 6, 7, 8)
LIMIT = 4.0
_OTHER_MASKS = (2, 4, 8)


@dataclass(frozen=True)
class DropoutParity:
    """The result of the check for a strategy.

    Attributes:
        z: see the module's docstring.
        copies: the largest difference between ranks with the same weights; not zero if their masks differed.
    """

    z: float
    copies: Difference

    @property
    def holds(self) -> bool:
        return abs(self.z) <= LIMIT and self.copies.value <= tolerance()


@dataclass(frozen=True)
class DropoutCheck:
    """One process's losses with dropout, and the effect of masks alone on them.

    Attributes:
        losses: mean train/loss over all steps, for each seed. [SEEDS]
        spread: the standard deviation s.
    """

    jobs: ParityJobs
    losses: np.ndarray
    spread: float

    @classmethod
    def prepare(cls, jobs: ParityJobs) -> "DropoutCheck":
        """Train one process with each seed, and again with other masks."""
        losses = _mean_losses(_train(jobs, ONE_PROCESS, DROPOUT_ON))
        others = [Strategy("other masks", 1, {"accumulate_grad_batches": times}) for times in _OTHER_MASKS]
        differences = [_mean_losses(_train(jobs, other, DROPOUT_ON)) - losses for other in others]
        return cls(jobs, losses, float(np.sqrt(np.mean(np.square(differences)))))

    def compare(self, strategy: Strategy, dropout: dict[str, Any] = DROPOUT_ON) -> DropoutParity:
        """Compare with one process; raise the errors of ParityJobs.train."""
        runs = _train(self.jobs, strategy, dropout)
        copies = max(map(disagreement, runs), key=lambda difference: difference.value)
        return DropoutParity(self._z(_mean_losses(runs)), copies)

    def _z(self, losses: np.ndarray) -> float:
        return float((losses - self.losses).mean() / (self.spread / math.sqrt(len(SEEDS))))


def _train(jobs: ParityJobs, strategy: Strategy, dropout: dict[str, Any]) -> list[Trained]:
    return jobs.train(strategy, *({**dropout, **ADAMW, "seed": seed} for seed in SEEDS))


def _mean_losses(runs: list[Trained]) -> np.ndarray:
    """Return the mean train/loss over all steps, for each seed. [SEEDS]"""
    return np.array([np.mean([v for name, v in run.losses.items() if name.startswith("train/")]) for run in runs])
