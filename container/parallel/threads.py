"""Choose the number of threads of a rank's computations on the CPU, by measuring its first ones."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import torch

from container.cores import candidates
from container.data.batch import PackedBatch

logger = logging.getLogger(__name__)

_AT_FIRST, _IN_TURN = 2, 4  # measurements of each number of threads: one after the other, then in turn
_TIE = 1.03  # more threads must be faster by this factor
_HOPELESS = 0.5  # of the best rate: a number of threads with less is not measured again, nor are fewer threads
_WINDOW = 100  # computations whose mean rate is watched
_FALLEN = 0.5  # of the chosen rate: below it, the measurement starts again

Sum = Callable[[torch.Tensor], torch.Tensor]


class ThreadChoice:
    """The number of threads of one kind of computation, such as optimizer steps.

    The first computation warms up. The next ones have all cores, then half of them, and so on until the rate is below
    half of the best: too few threads for a large model take the longest time. Then the numbers that remain are measured
    in turn. The fewest threads whose median rate is within 3 % of the best are chosen.

    Every rank of a job measures the same computations and sums its seconds and tokens with the other ranks, so that all
    choose the same number.

    Args:
        what: the kind of computation, for the log.
        cores: most threads.
        fixed: number of threads; None = measure.
        sum_over_ranks: see `RankMesh.sum`.
    """

    def __init__(self, what: str, *, cores: int, fixed: int | None = None, sum_over_ranks: Sum) -> None:
        self._what = what
        self._cores = cores
        self._sum = sum_over_ranks
        self._number = 1 if fixed is None and cores == 1 else fixed
        self._is_fixed = self._number is not None
        self._is_warm, self._unit = False, "tokens"
        self._seconds, self._tokens, self._count = 0.0, 0.0, 0
        self._begin()

    @property
    def number(self) -> int:
        """The number of threads of the next computation."""
        return self._turns[-1] if self._number is None else self._number

    @contextmanager
    def measured(self, batches: Sequence[PackedBatch]) -> Iterator[None]:
        """Compute this rank's batches with `number` threads. Collective where the number is not fixed."""
        torch.set_num_threads(self.number)
        tokens = sum(batch.num_tokens for batch in batches)
        self._unit = "tokens" if any(batch.texts for batch in batches) else "records"
        began = time.monotonic()
        yield
        self.add(time.monotonic() - began, tokens or sum(batch.num_records for batch in batches))

    def add(self, seconds: float, tokens: int) -> None:
        """Count a computation with `number` threads; choose the next number. Collective where it is not fixed."""
        if self._is_fixed:
            return
        self._seconds, self._tokens, self._count = self._seconds + seconds, self._tokens + tokens, self._count + 1
        if self._number is not None and self._count < _WINDOW:
            return
        seconds, tokens_of_all = self._sum(torch.tensor([self._seconds, self._tokens], dtype=torch.float64)).tolist()
        self._seconds, self._tokens, self._count = 0.0, 0.0, 0
        rate = tokens_of_all / max(seconds, 1e-9)
        if self._number is not None:
            self._watch(rate)
        elif self._is_warm:
            self._rates.setdefault(self._turns.pop(), []).append(rate)
            self._turns = self._turns or self._next_turns()
            if not self._turns:
                self._choose()
        self._is_warm = True

    def _begin(self) -> None:
        self._rates: dict[int, list[float]] = {}
        self._untried = candidates(self._cores)
        self._turns = [self._untried.pop()] * _AT_FIRST  # the last is the next

    def _next_turns(self) -> list[int]:
        """Return the numbers to measure next; none when each has been measured often enough."""
        fastest = {number: max(rates) for number, rates in self._rates.items()}
        promising = [number for number, rate in fastest.items() if rate >= _HOPELESS * max(fastest.values())]
        if self._untried and min(fastest) in promising:
            return [self._untried.pop()] * _AT_FIRST
        self._untried = []
        is_complete = max(map(len, self._rates.values())) > _AT_FIRST
        return [] if is_complete else sorted(promising) * _IN_TURN

    def _choose(self) -> None:
        rates = {number: median(self._rates[number]) for number in sorted(self._rates)}
        self._number = next(number for number, rate in rates.items() if rate * _TIE >= max(rates.values()))
        self._rate = rates[self._number]
        listed = ", ".join(f"{rate:,.0f} with {number}" for number, rate in rates.items())
        text = "threads of %s: %d of %d cores; %s/s: %s"
        logger.info(text, self._what, self._number, self._cores, self._unit, listed)

    def _watch(self, rate: float) -> None:
        if rate < _FALLEN * self._rate:
            text = "threads of %s: %.0f %s/s in %d computations, %.0f before: measuring again"
            logger.info(text, self._what, rate, self._unit, _WINDOW, self._rate)
            self._number = None
            self._begin()


def _current(what: str) -> "ThreadChoice":
    return ThreadChoice(what, cores=1, fixed=torch.get_num_threads(), sum_over_ranks=lambda sums: sums)


@dataclass(frozen=True)
class RankThreads:
    """The numbers of threads of a rank; by default torch's present one."""

    training: ThreadChoice = field(default_factory=lambda: _current("training"))
    prediction: ThreadChoice = field(default_factory=lambda: _current("prediction"))

    @classmethod
    def measured(cls, *, cores: int, fixed: int | None, sum_over_ranks: Sum) -> "RankThreads":
        """Return the threads of a rank that computes on the CPU; see `ThreadChoice`."""
        choices = (
            ThreadChoice(what, cores=cores, fixed=fixed, sum_over_ranks=sum_over_ranks)
            for what in ("training", "prediction")
        )
        return cls(*choices)
