"""Compute the records of several requests together, without waiting for more requests."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from itertools import count
from typing import Any, Protocol, TypeVar

import numpy as np

from container.errors import ClientGone, DeadlineError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
ComputeRecords = Callable[[Sequence[Any], Sequence[int]], np.ndarray]


class Records(Protocol):
    """What is computed: RecordArrays, or the runs of a record's HeadInputs."""

    def padded_tokens(self, index: int, /) -> int:
        """Return the tokens that count for the limit of a round."""
        ...


def result_within(answer: Future[Result], timeout: float | None) -> Result:
    """Return the result of a future; cancel it if it has none after `timeout` seconds.

    Raises:
        DeadlineError: it had no result in time.
        Exception: the error that the computation raised.
    """
    if wait([answer], timeout).not_done:
        answer.cancel()
        raise DeadlineError
    return answer.result()


def unless_gone(gone: Callable[[], bool], call: Callable[[], Result]) -> Result:
    """Return the result of `call`; if the client has gone, raise ClientGone and do not call it."""
    if gone():
        raise ClientGone
    return call()


class _Waiting:
    """Records in the queue, of which the first `done` are computed."""

    def __init__(
        self, compute: ComputeRecords, records: Sequence[Records], indices: Sequence[int], gone: Callable[[], bool]
    ) -> None:
        self.compute = compute
        self.gone = gone
        self.records = records
        self.indices = indices
        self.count = len(indices)
        assert self.count
        self.done = 0
        self.parts: list[np.ndarray] = []
        self.answer: Future[np.ndarray] = Future()

    def is_abandoned(self) -> bool:
        """Return whether nobody waits for the answer; end the wait of the thread whose client has gone."""
        if not (self.answer.cancelled() or self.gone()):
            return False
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(ClientGone())
        return True


class BatchingQueue:
    """A queue whose worker computes all requests that arrived while it was busy.

    A single request is computed immediately. Requests that arrive meanwhile form the next batch. In each round, every
    waiting request gets an equal share of the batch. A request with thousands of records does not delay a small one.

    Args:
        compute: class probabilities of record indices[i] of records[i]. [N, K]
        batch_size: the most records in a round.
        max_tokens: the most tokens in a round of several records, including padding; None = no limit.

    Attributes:
        current: number of the round that is computed; None between rounds.
    """

    def __init__(self, compute: ComputeRecords, *, batch_size: int, max_tokens: int | None = None) -> None:
        assert batch_size >= 1
        self._compute = compute
        self._batch_size = batch_size
        self._max_tokens = max_tokens
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self.current: int | None = None
        self._worker = threading.Thread(target=self._work, name="batching", daemon=True)
        self._worker.start()

    @property
    def alive(self) -> bool:
        return self._worker.is_alive()

    def compute(
        self,
        records: Sequence[Records],
        indices: Sequence[int],
        *,
        timeout: float | None = None,
        function: ComputeRecords | None = None,
        gone: Callable[[], bool] = lambda: False,
    ) -> np.ndarray:
        """Return the class probabilities of record indices[i] of records[i], i = 0..N-1. [N, K]

        Args:
            function: computes something else of these records. [N, ...]
            gone: returns whether the client has gone; asked before each round.

        Raises:
            DeadlineError: `timeout` seconds passed, or the client has gone; the remaining records are dropped.
            Exception: the error that `compute` raised for these records.
        """
        function = function or self._compute
        if not indices:
            return function([], [])
        request = _Waiting(function, records, indices, gone)
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()
        return result_within(request.answer, timeout)

    def _work(self) -> None:
        for number in count():
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                shares = self._take()
            if shares:
                self.current = number
                for function in dict.fromkeys(request.compute for request, _ in shares):
                    self._answer([share for share in shares if share[0].compute == function])
                self.current = None

    def _take(self) -> list[tuple[_Waiting, range]]:
        """Return the records of the next round; requests with further records move to the end of the queue."""
        waiting = [request for request in self._waiting if not request.is_abandoned()]
        self._waiting.clear()
        shares: list[tuple[_Waiting, range]] = []
        room, tokens = self._batch_size, 0
        for i, request in enumerate(waiting):
            # Later requests use what a request with fewer records leaves of its share.
            share = max(1, room // min(room, len(waiting) - i)) if room else 0
            stop = request.done
            while stop < min(request.done + share, request.count):
                tokens += request.records[stop].padded_tokens(request.indices[stop])
                if self._max_tokens is not None and tokens > self._max_tokens and (shares or stop > request.done):
                    room = 0
                    break
                stop += 1
            if stop == request.done:
                self._waiting.extendleft(reversed(waiting[i:]))
                break
            shares.append((request, range(request.done, stop)))
            room = max(0, room - len(shares[-1][1]))
        for request, taken in shares:
            if taken.stop < request.count:
                self._waiting.append(request)
        return shares

    def _answer(self, shares: Sequence[tuple[_Waiting, range]]) -> None:
        records = [part for request, taken in shares for part in request.records[taken.start : taken.stop]]
        indices = [index for request, taken in shares for index in request.indices[taken.start : taken.stop]]
        try:
            results = shares[0][0].compute(records, indices)  # [N, ...]
        except Exception as error:
            if len(shares) > 1:  # find the request that fails; the others must not fail
                for share in shares:
                    self._answer([share])
                return
            logger.exception("%d records could not be computed", len(indices))
            request, _ = shares[0]
            with self._changed:
                self._waiting = deque(other for other in self._waiting if other is not request)
            if request.answer.set_running_or_notify_cancel():
                request.answer.set_exception(error)
            return
        start = 0
        for request, taken in shares:
            request.parts.append(results[start : start + len(taken)])
            start += len(taken)
            request.done = taken.stop
            if request.done == request.count and request.answer.set_running_or_notify_cancel():
                request.answer.set_result(np.concatenate(request.parts))
