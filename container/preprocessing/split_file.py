"""Transform the slices of one split in order and write them to an uncompressed Arrow file for memory mapping."""

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from container.job.log_once import log_detail
from container.preprocessing.numeric_summary import NumericSummary
from container.preprocessing.scan import TableColumns
from container.preprocessing.slice_workers import SliceSettings, SliceWorkers
from container.preprocessing.transform import TransformCounts
from container.tables.channel_files import iter_tables
from contracts.file_systems import naming_full_disk

logger = logging.getLogger(__name__)

ROWS_PER_SLICE = 1024
SECONDS_BETWEEN_LINES = 15


@dataclass(frozen=True)
class WrittenSplit:
    """Statistics of a written split.

    Attributes:
        token_lengths: tokens per record, by role.
        seconds: wall-clock time.
        digest: hash of the model's inputs and labels; it does not depend on the batches.
    """

    counts: TransformCounts
    token_lengths: dict[str, NumericSummary]
    seconds: float
    digest: str


def batch_starts_path(path: Path) -> Path:
    """Return the path of the index of a split's file: each batch's first row, then the number of rows.

    Without it, opening the split would read every batch.
    """
    return path.with_suffix(".batches.npy")


class RowsDigest:
    """Hash prepared rows column by column, so that the result does not depend on the batches."""

    def __init__(self) -> None:
        self._hashes: dict[str, hashlib.blake2b] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next rows."""
        for name in batch.schema.names:
            if name in ("id", "raw_label"):
                continue
            column = batch.column(name)
            if pa.types.is_list(column.type):
                self._update(f"{name}/lengths", np.diff(column.offsets.to_numpy()))
            nested = pa.types.is_nested(column.type)
            self._update(name, (column.flatten() if nested else column).to_numpy(zero_copy_only=False))

    def hexdigest(self) -> str:
        whole = hashlib.blake2b(digest_size=16)
        for name in sorted(self._hashes):
            whole.update(name.encode() + self._hashes[name].digest())
        return whole.hexdigest()

    def _update(self, name: str, values: np.ndarray) -> None:
        column = self._hashes.setdefault(name, hashlib.blake2b(digest_size=16))
        column.update(np.ascontiguousarray(values).tobytes())


def write_split(
    path: Path,
    files: Sequence[Path],
    columns: TableColumns,
    *,
    roles: Sequence[str],
    expected_rows: int,
    workers: SliceWorkers,
    settings: SliceSettings,
) -> WrittenSplit:
    """Transform `files` and write them to `path`.

    Args:
        expected_rows: rows of the input, for the progress log.

    Raises:
        ContractError: an invalid value, a worker that died, a full disk.
    """
    split = path.stem
    counts = TransformCounts()
    lengths = {role: NumericSummary() for role in roles}
    digest = RowsDigest()
    batch_rows: list[int] = []
    start = last_line = time.monotonic()
    writer: pa.ipc.RecordBatchFileWriter | None = None
    slices = iter_tables(files, columns.transformed, rows_per_batch=ROWS_PER_SLICE, numeric=columns.numeric)
    with naming_full_disk(path, needs="Prepared data takes about 6 bytes per token."):
        with pa.OSFile(str(path), "wb") as sink:
            for batch, counted in workers.transform(slices, settings):
                writer = writer or pa.ipc.new_file(sink, batch.schema)
                if batch.num_rows:
                    writer.write_batch(batch)
                    batch_rows.append(batch.num_rows)
                    digest.add(batch)
                counts += counted
                for role, summary in lengths.items():
                    summary.add(np.diff(batch.column(f"{role}_tokens").offsets.to_numpy()).astype(np.float64))
                if time.monotonic() - last_line > SECONDS_BETWEEN_LINES:
                    last_line = time.monotonic()
                    read = counts.rows + counts.dropped
                    rate = read / (last_line - start)
                    speed = f"{rate:.0f} rows/s, {(expected_rows - read) / rate:.0f} s remaining"
                    logger.info("%s: %d of %d rows prepared, %s.", split, read, expected_rows, speed)
            if writer is not None:
                writer.close()
        np.save(batch_starts_path(path), np.cumsum([0, *batch_rows]))
    seconds = time.monotonic() - start
    rate = counts.rows / max(seconds, 1e-9)
    log_detail(logger, "%s: %d rows prepared in %.1f s (%.0f rows/s).", split, counts.rows, seconds, rate)
    return WrittenSplit(counts, lengths, seconds, digest.hexdigest())
