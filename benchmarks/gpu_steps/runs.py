"""Small runs of the training loop in processes forked from a step, by the code of a worker (testing/parity.py)."""

import math
import multiprocessing
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testing.parity import ParityJobs, Trained
from testing.rank_pool import RankPool

LOSSES = 10  # of training, that are compared


@contextmanager
def forked_runs(folder: Path) -> Iterator[tuple[RankPool, ParityJobs]]:
    """Yield a pool whose ranks are forks of this process, which must not use CUDA before or meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    with RankPool(context=multiprocessing.get_context("fork")) as pool:
        yield pool, ParityJobs(pool, folder)


def first_losses(trained: Trained) -> list[float]:
    """Return the losses of the first training steps."""
    losses = [(int(name.rpartition(" ")[2]), float(loss)) for name, loss in trained.losses.items() if "train/" in name]
    return [loss for _, loss in sorted(losses)[:LOSSES]]


def loss_difference(found: Trained, expected: Trained) -> float:
    """Return the largest relative difference of the first losses; infinity if one is missing."""
    pairs = list(zip(first_losses(found), first_losses(expected)))
    differences = [abs(ours - theirs) / abs(theirs) for ours, theirs in pairs]
    complete = len(pairs) == LOSSES and all(map(math.isfinite, differences))
    return max(differences) if complete else math.inf


def mean_loss(trained: Trained) -> float:
    """Return the mean loss of all training steps; float16 skips a step whose gradients overflow, which has none."""
    losses = [float(loss) for name, loss in trained.losses.items() if "train/" in name]
    return statistics.fmean(loss for loss in losses if math.isfinite(loss))
