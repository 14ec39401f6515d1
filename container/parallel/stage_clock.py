"""Measure the time of each stage of a pipeline and what its rank waits, on the device; the host never waits for it."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch

from container.job.log_once import log_detail
from container.parallel.mesh import RankMesh

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
_BUSY, _PASSES, _COUNT = 0, 1, 2  # seconds in the stage, seconds of the passes of its rank, number of passes


class _HostEvent:
    """The methods of torch.cuda.Event, for computation on the CPU."""

    def record(self) -> None:
        self._at = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "_HostEvent") -> float:
        return 1000 * (end._at - self._at)


class StageClock:
    """Adds up the time of this rank's stages, until `figures` compares all ranks.

    Args:
        costs: estimated cost of every stage (parallel/stages.py).
        rank_of: the rank along pp of every stage.
    """

    def __init__(self, ranks: RankMesh, *, costs: Sequence[float], rank_of: Sequence[int]) -> None:
        self._ranks, self._costs, self._rank_of = ranks, costs, rank_of
        on_gpu = ranks.device.type == "cuda"
        self._event: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True) if on_gpu else _HostEvent
        self._local = [stage for stage, rank in enumerate(rank_of) if rank == ranks.coordinate("pp")]
        self._pending: deque[tuple[int, Sequence[int], Any, Any]] = deque()
        self._sums = torch.zeros(len(rank_of), 3, dtype=torch.float64)

    def timed(self, function: Callable[P, R], stage: int | None = None) -> Callable[P, R]:
        """Return `function`, a part of a stage or, without one, a whole pass, with its time measured."""
        column, stages = (_BUSY, [stage]) if stage is not None else (_PASSES, self._local)

        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            start, end = self._event(), self._event()
            start.record()
            result = function(*args, **kwargs)
            end.record()
            self._pending.append((column, stages, start, end))
            self._add_finished()
            return result

        return measured

    def _add_finished(self) -> None:
        while self._pending and self._pending[0][-1].query():
            column, stages, start, end = self._pending.popleft()
            self._sums[stages, column] += start.elapsed_time(end) / 1000
            self._sums[stages, _COUNT] += column == _PASSES

    def figures(self, *, detail: bool) -> dict[str, float]:
        """Return milliseconds of each stage in a pass, and the idle share of its rank, since the last call.

        Called by all ranks together, after passes. Rank 0 logs them beside the estimated costs.

        Args:
            detail: for the log file only.
        """
        self._add_finished()
        busy, passes, count = self._ranks.sum(self._sums).T.tolist()
        self._sums.zero_()
        if not min(count):
            return {}
        figures = {}
        lines = [f"{'stage':>5} {'rank':>4}  {'estimated':>9} {'measured':>8} {'ms':>8} {'idle':>6}"]
        for stage, rank in enumerate(self._rank_of):
            of_rank = sum(busy[other] for other, its_rank in enumerate(self._rank_of) if its_rank == rank)
            idle, milliseconds = 1 - of_rank / passes[stage], 1000 * busy[stage] / count[stage]
            figures |= {f"stage_{stage}/milliseconds": milliseconds, f"stage_{stage}/idle_percent": 100 * idle}
            shares = self._costs[stage] / sum(self._costs), busy[stage] / sum(busy)
            lines.append(f"{stage:>5} {rank:>4}  {shares[0]:>9.1%} {shares[1]:>8.1%} {milliseconds:>8.1f} {idle:>6.1%}")
        log = partial(log_detail, logger) if detail else logger.info
        log("the stages of a pass, and how long their rank is idle:\n%s", "\n".join(lines))
        return figures
