"""Measure data preparation: short files, rows/s on reviews, memory for a million rows, time to open the result.

Each preparation runs in a separate process, which starts its worker processes as a training job does. Memory is
anonymous memory (the kernel's proportional Pss_Anon), without the page cache of mapped files.
"""

import argparse
import concurrent.futures
import json
import logging
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import TWO_TEXTS, generate_reviews, lay_out_job, minilm_folder, read_reviews
from container.preprocessing.prepare import UNFINISHED, prepare_data
from container.preprocessing.prepared import open_prepared
from container.steps.program import run_step
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.paths import JobPaths
from contracts.steps import PROCESSING_STEPS
from testing.table_jobs import settings, table, write_job

GENERATED_REVIEWS = 20_000
HELD_OUT_ROWS = 1_000
ROWS_PER_FILE = 100_000
ROWS_PER_SHORT_FILE = 5
SECONDS_BETWEEN_SAMPLES = 0.1
MARKS = (0.1, 0.25, 0.5, 1.0)
FIRST_BATCH = 32
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Sample:
    """A sample of a running preparation: bytes written of train, memory of its process and of all its workers."""

    written: int
    main_bytes: int
    worker_bytes: int


@dataclass(frozen=True)
class Preparation:
    """A finished preparation; `seconds` includes reading, fitting, starting processes, transforming and writing."""

    folder: Path
    rows: int
    seconds: float
    samples: tuple[Sample, ...]


def main() -> int:
    arguments = _arguments()
    print_machine()
    encoder = minilm_folder()
    if encoder is None:
        print(
            "MiniLM is not installed. A vocabulary learned from the reviews (from_scratch) replaces its WordPiece one."
        )
    configuration = {**TWO_TEXTS, "tokenizer": "from_scratch" if encoder is None else str(encoder)}
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        tables, source = read_reviews(
            generated=arguments.generated, generated_rows=min(GENERATED_REVIEWS, arguments.rows)
        )
        _prepare_short_files(Path(work) / "short", files=arguments.short_files)
        if arguments.only_short_files:
            return 0
        reviews = _prepare_reviews(Path(work), configuration, tables=tables, source=source, repeats=arguments.repeats)
        large = _prepare_large(Path(work) / "large", configuration, rows=arguments.rows)
        _time_opening([*reviews, large], configuration)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10, help="copies of the reviews in the long runs")
    parser.add_argument("--rows", type=int, default=1_000_000, help="generated rows of the memory measurement")
    parser.add_argument("--short-files", type=int, default=2_000, help=f"files of {ROWS_PER_SHORT_FILE} rows")
    parser.add_argument("--only-short-files", action="store_true", help="measure nothing else")
    parser.add_argument("--work", type=Path, help="folder for temporary files; about 1 GB for 1,000,000 rows")
    parser.add_argument("--generated", action="store_true", help="use generated reviews even if the real ones exist")
    return parser.parse_args()


def _prepare_short_files(work: Path, *, files: int) -> None:
    """Print processor time for the same rows in one file and in many, in each format that a program reads."""
    rows = files * ROWS_PER_SHORT_FILE
    lines = []
    for command, file_format in [("train", "csv"), ("train", "parquet"), *(("preprocess", name) for name in _WRITERS)]:
        seconds = []
        for count in (1, files):
            root = work / f"{command}-{file_format}-{count}"
            paths = write_job(root)
            folder = (
                paths.channel("train") if command == "train" else PROCESSING_STEPS[command].input("DATA").path(root)
            )
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for number in range(count):
                part = table(rows // count, start=number * (rows // count))
                _WRITERS[file_format](part, folder / f"part-{number:05d}.{file_format}")
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=_SPAWN) as pool:
                seconds.append(pool.submit(_processor_seconds, command, paths).result())
        lines.append([command, file_format, *(f"{each:.2f}" for each in seconds)])
    title = f"Processor time (user, with child processes) to prepare or split {rows:,} short rows"
    print_table(title, ["program", "format", "one file", f"{files:,} files"], lines)


def _write_json_lines(part: pa.Table, path: Path) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in part.to_pylist()))


_WRITERS: dict[str, Callable[[pa.Table, Path], object]] = {
    "csv": pa.csv.write_csv, "jsonl": _write_json_lines, "parquet": pq.write_table,
}  # fmt: skip


def _processor_seconds(command: str, paths: JobPaths) -> float:
    logging.disable(logging.INFO)
    if command == "train":
        prepare_data(paths, settings(tokenizer="tiny"))
    else:
        environment = {"LABEL_FIELD": "label", "ID_FIELD": "id"}
        assert run_step(command, paths.root, {"job_type": "training"}, environment) == 0
    users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(who).ru_utime for who in users) - _imported


_imported = resource.getrusage(resource.RUSAGE_SELF).ru_utime


def _prepare_reviews(
    work: Path, configuration: dict[str, Any], *, tables: dict[str, pa.Table], source: str, repeats: int
) -> list[Preparation]:
    """Measure rows/s on the reviews, once and repeated; return a preparation of each size."""
    lines, finished = [], {}
    for copies in dict.fromkeys((1, repeats)):
        for file_format in ("csv", "parquet"):
            copied = {split: _repeat(table, copies) for split, table in tables.items()}
            root = work / f"{file_format}-{copies}"
            done = _prepare(lay_out_job(root, copied, configuration, file_format=file_format), configuration)
            finished[copies] = done
            lines.append([file_format, f"{done.rows:,}", f"{done.seconds:.1f}", f"{done.rows / done.seconds:,.0f}"])
    print_table(
        f"Preparing {source}: Review Text + Title + table, all of train, val and test",
        ["format", "rows", "seconds", "rows/s"],
        lines,
    )
    return list(finished.values())


def _repeat(table: pa.Table, copies: int) -> pa.Table:
    """Return several copies of the table, with new ids."""
    repeated = pa.concat_tables([table] * copies)
    column = repeated.column_names.index("review_id")
    return repeated.set_column(column, "review_id", pa.array(np.arange(repeated.num_rows)))


def _prepare_large(root: Path, configuration: dict[str, Any], *, rows: int) -> Preparation:
    """Prepare `rows` generated rows and print the memory during preparation."""
    held_out = {split: pa.concat_tables(generate_reviews(HELD_OUT_ROWS, seed=1)) for split in ("val", "test")}
    paths = lay_out_job(root, held_out, configuration)
    _write_train(paths.channel("train"), rows)
    found = _prepare(paths, configuration)
    size = found.folder.joinpath("train.arrow").stat().st_size
    fitting = [sample for sample in found.samples if not sample.written]
    lines = [_memory_line("while fitting", fitting)]
    reached = 0.0
    for mark in MARKS:
        between = [sample for sample in found.samples if reached * size < sample.written <= mark * size]
        lines.append(_memory_line(f"{mark * rows:,.0f}", between))
        reached = mark
    print_table(
        f"Memory while preparing {rows:,} generated reviews ({found.rows / found.seconds:,.0f} rows/s): "
        "maximum since the previous line",
        ["rows written", "main process", "workers together", "all"],
        lines,
    )
    return found


def _write_train(folder: Path, rows: int) -> None:
    """Write generated reviews to Parquet files, with one block in memory at a time."""
    folder.mkdir(parents=True)
    writer: pq.ParquetWriter | None = None
    written = 0
    for block in generate_reviews(rows, seed=0):
        if written % ROWS_PER_FILE == 0:
            if writer is not None:
                writer.close()
            writer = pq.ParquetWriter(folder / f"reviews-{written // ROWS_PER_FILE:04d}.parquet", block.schema)
        writer.write_table(block)
        written += block.num_rows
    writer.close()


def _memory_line(name: str, samples: Sequence[Sample]) -> list[str]:
    if not samples:
        return [name, *["too short to measure"] * 3]
    columns = (
        max(sample.main_bytes for sample in samples),
        max(sample.worker_bytes for sample in samples),
        max(sample.main_bytes + sample.worker_bytes for sample in samples),
    )
    return [name, *(f"{size / 2**20:.0f} MiB" for size in columns)]


def _prepare(paths: JobPaths, configuration: dict[str, Any]) -> Preparation:
    """Prepare in a separate process and sample its memory."""
    ours, theirs = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_prepare_process, args=(paths, configuration, theirs))
    process.start()
    theirs.close()
    samples = []
    while not ours.poll(SECONDS_BETWEEN_SAMPLES):
        memory = {pid: _anonymous_bytes(pid) for pid in _family(process.pid)}
        main_bytes = memory.pop(process.pid, 0)
        written = sum(path.stat().st_size for path in paths.prepared.glob(f"{UNFINISHED}*/train.arrow"))
        samples.append(Sample(written, main_bytes, sum(memory.values())))
    folder, rows, seconds = ours.recv()
    process.join()
    return Preparation(folder, rows, seconds, tuple(samples))


def _prepare_process(paths: JobPaths, configuration: dict[str, Any], connection: Connection) -> None:
    start = time.perf_counter()
    prepared = prepare_data(paths, parse_hyperparameters(configuration))
    connection.send((prepared.folder, sum(prepared.rows.values()), time.perf_counter() - start))


def _family(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(status.parent.name)] = int(fields[1])
    family = [pid]
    for member in family:  # the list grows during the iteration
        family += [child for child, parent in parents.items() if parent == member]
    return family


def _anonymous_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon")), 0)


def _time_opening(preparations: Sequence[Preparation], configuration: dict[str, Any]) -> None:
    """Open each in a new process, after removing its file from the page cache."""
    lines = []
    for found in preparations:
        file = found.folder / "train.arrow"
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        ours, theirs = _SPAWN.Pipe(duplex=False)
        process = _SPAWN.Process(target=_open_process, args=(found.folder, configuration, theirs))
        process.start()
        theirs.close()
        rows, opening, packing = ours.recv()
        process.join()
        lines.append([f"{rows:,}", f"{file.stat().st_size / 2**20:,.0f} MiB", f"{opening:.3f}", f"{packing:.3f}"])
    print_table(
        "Opening prepared data that is not in the page cache",
        ["rows of train", "file", "seconds to open", f"to the first {FIRST_BATCH} random records"],
        lines,
    )


def _open_process(folder: Path, configuration: dict[str, Any], connection: Connection) -> None:
    from container.data.split import PreparedSplit  # imports torch, which preparing processes must not import

    roles = [field.role for field in parse_hyperparameters(configuration).text_fields]
    start = time.perf_counter()
    split = PreparedSplit(open_prepared(folder).split("train"), roles=roles)
    opened = time.perf_counter()
    split.pack(np.random.default_rng(0).permutation(len(split))[:FIRST_BATCH])
    connection.send((len(split), opened - start, time.perf_counter() - start))


if __name__ == "__main__":
    sys.exit(main())
