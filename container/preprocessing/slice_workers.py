"""Transform a stream of slices: a short one in this process, a long one in several worker processes."""

import logging
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa

from container.job.processes import end_with_parent, without_ctrl_c
from container.preprocessing.risk_tables import FoldedRisks
from container.preprocessing.transform import Preprocessor, TransformCounts, Transformed
from container.tables.channel_files import TableSlice
from container.tables.table_file import Origin
from contracts.errors import ContractError

logger = logging.getLogger(__name__)

SECONDS_ALONE = 1.5  # about the time to start the processes
SLICES_PER_WORKER = 2  # one in progress, one waiting


@dataclass(frozen=True)
class SliceSettings:
    """Settings of the transformation of one split."""

    is_train: bool
    drop_unlabelled: bool


class SliceWorkers:
    """Transform slices in order.

    Args:
        folder: the fitted preprocessing with its tokenizers.
        folds: out-of-fold risk values for train.
        num_workers: worker processes; 1 means this process alone.
        seconds_alone: processing time in this process, over all splits, before the workers start.
    """

    def __init__(
        self, folder: Path, folds: FoldedRisks | None, *, num_workers: int, seconds_alone: float = SECONDS_ALONE
    ) -> None:
        self._folder = folder
        self._folds = folds
        self._num_workers = num_workers
        self._seconds_alone = seconds_alone
        self._preprocessor = Preprocessor.load(folder)
        self._worked = 0.0
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def transform(self, slices: Iterator[TableSlice], settings: SliceSettings) -> Iterator[Transformed]:
        """Yield prepared batches in the order of `slices`, with a bounded number of slices in memory.

        Raises:
            ContractError: an invalid value, or a worker process that died.
        """
        if self._pool is None:
            for part in slices:
                start = time.monotonic()
                yield _transform(self._preprocessor, self._folds, part, settings)
                self._worked += time.monotonic() - start
                if self._num_workers > 1 and self._worked > self._seconds_alone:
                    self._pool = self._start()
                    break
        if self._pool is not None:
            yield from self._in_pool(self._pool, slices, settings)

    def _start(self) -> ProcessPoolExecutor:
        logger.info("Preparing in %d processes.", self._num_workers)
        return ProcessPoolExecutor(
            self._num_workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(str(self._folder), self._folds),
        )

    def _in_pool(
        self, pool: ProcessPoolExecutor, slices: Iterator[TableSlice], settings: SliceSettings
    ) -> Iterator[Transformed]:
        running: deque[Future[tuple[bytes, TransformCounts]]] = deque()
        try:
            for part in slices:
                with without_ctrl_c():  # the first one starts the processes
                    running.append(pool.submit(_work, _to_bytes(part.table), part.first_row, part.origin, settings))
                if len(running) > SLICES_PER_WORKER * self._num_workers:
                    yield _received(running.popleft())
            while running:
                yield _received(running.popleft())
        except BrokenProcessPool as error:
            raise ContractError(
                "preprocessing: a process that prepared data died; most likely the machine ran out of memory",
                "Set preprocess_workers to a smaller number, or use a machine with more memory.",
            ) from error


_worker: tuple[Preprocessor, FoldedRisks | None] | None = None


def _start_worker(folder: str, folds: FoldedRisks | None) -> None:
    global _worker  # noqa: PLW0603 - the state of a worker process
    end_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    pa.set_cpu_count(1)
    _worker = Preprocessor.load(Path(folder)), folds


def _work(data: bytes, first_row: int, origin: Origin, settings: SliceSettings) -> tuple[bytes, TransformCounts]:
    assert _worker is not None, "the initializer has run"
    part = TableSlice(pa.ipc.open_stream(data).read_all(), first_row, origin)
    batch, counts = _transform(*_worker, part, settings)
    return _to_bytes(batch), counts


def _transform(
    preprocessor: Preprocessor, folds: FoldedRisks | None, part: TableSlice, settings: SliceSettings
) -> Transformed:
    return preprocessor.transform(
        part.table,
        first_row=part.first_row,
        origin=part.origin,
        folds=folds if settings.is_train else None,
        drop_unlabelled=settings.is_train and settings.drop_unlabelled,
    )


def _to_bytes(rows: pa.Table | pa.RecordBatch) -> bytes:
    # Arrow's IPC format, because a pickled slice contains the whole table.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return sink.getvalue().to_pybytes()


def _received(future: Future[tuple[bytes, TransformCounts]]) -> Transformed:
    data, counts = future.result()
    return Transformed(pa.ipc.open_stream(data).read_next_batch(), counts)
