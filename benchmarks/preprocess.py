"""Measure TabularPreprocessing: rows per second and peak memory for each format and split method.

    python -m benchmarks.preprocess [--rows 5000000] [--formats csv parquet] [--split-by hash]

Each run is a separate process `python -m container preprocess` on generated part files. Peak memory is the process's
largest resident set, including mapped files.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.printing import print_machine, print_table

ROWS_PER_FILE = 250_000
TALK = (
    "the parcel never arrived and nobody answers my messages please refund the order today thank you very much the "
    "item works well arrived early in good shape happy with it will buy again from this seller"
)
TARGET_ROWS_PER_SECOND = 200_000
TARGET_BYTES = 1_000_000_000
SECONDS_BETWEEN_LOOKS = 0.02


@dataclass(frozen=True)
class Measured:
    """One run; `cpu_seconds` is its processor time, which machine load hardly changes."""

    rows: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    written_bytes: int


def main() -> int:
    arguments = _arguments()
    print_machine()
    rows, reached = [], True
    for file_format in arguments.formats:
        with tempfile.TemporaryDirectory(dir=arguments.work) as work:
            root = Path(work)
            _write_parts(root / "processing" / "input" / "data", arguments.rows, file_format)
            for split_by in arguments.split_by:
                found = _measure(root, arguments.rows, split_by)
                rate = found.rows / found.seconds
                reached &= found.peak_bytes < TARGET_BYTES and (rate >= TARGET_ROWS_PER_SECOND or "json" in file_format)
                rows.append(
                    [
                        file_format,
                        split_by,
                        f"{found.rows:,}",
                        f"{found.seconds:.1f}",
                        f"{found.cpu_seconds:.1f}",
                        f"{rate:,.0f}",
                        f"{found.peak_bytes / 2**20:,.0f} MiB",
                        f"{found.written_bytes / 2**20:,.0f} MiB",
                    ]
                )
    print_table(
        f"python -m container preprocess; target: {TARGET_ROWS_PER_SECOND:,} rows/s (except JSON), "
        f"less than {TARGET_BYTES / 2**20:,.0f} MiB",
        ["format", "split by", "rows", "seconds", "CPU seconds", "rows/s", "peak memory", "written"],
        rows,
    )
    return 0 if reached else 1


def _write_parts(folder: Path, rows: int, file_format: str) -> None:
    """Write generated rows: an id, a time, a text of 4 to 24 words, four numbers, two categories, a label."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    words = np.array(TALK.split())
    texts = [" ".join(rng.choice(words, rng.integers(4, 25))) for _ in range(10_000)]
    for part, start in enumerate(range(0, rows, ROWS_PER_FILE)):
        count = min(ROWS_PER_FILE, rows - start)
        table = pa.table(
            {
                "order_id": pa.array([f"A-{number:09d}" for number in range(start, start + count)]),
                "time": pa.array(np.datetime64("2025-01-01", "s") + rng.integers(0, 31_536_000, count)),
                "text": pa.array(texts, pa.string()).take(pa.array(rng.integers(0, len(texts), count))),
                **{name: pa.array(np.round(rng.normal(20, 5, count), 2)) for name in ("price", "rating", "age")},
                "quantity": pa.array(rng.integers(1, 9, count)),
                "marketplace": pa.array(["us", "uk", "de", "jp"]).take(pa.array(rng.integers(0, 4, count))),
                "category": pa.array(["toys", "books", "food"]).take(pa.array(rng.integers(0, 3, count))),
                "label": pa.array((rng.random(count) < 0.1).astype(np.int64)),
            }
        )
        path = folder / f"part-{part:05d}.{file_format}"
        if file_format == "parquet":
            pq.write_table(table, path)
        elif file_format == "jsonl":
            table.to_pandas().to_json(path, orient="records", lines=True, date_format="iso")
        elif file_format == "csv.gz":
            with pa.CompressedOutputStream(str(path), "gzip") as stream:
                pa_csv.write_csv(table, stream)
        else:
            delimiter = "," if file_format == "csv" else "\t"
            pa_csv.write_csv(table, path, pa_csv.WriteOptions(delimiter=delimiter))


def _measure(root: Path, rows: int, split_by: str) -> Measured:
    environment = {
        **os.environ,
        "LABEL_FIELD": "label",
        "ID_FIELD": "order_id",
        "SPLIT_BY": split_by,
        **({"TIME_FIELD": "time"} if split_by == "time" else {}),
    }
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "container", "preprocess", "--root", str(root)],
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    # Not ru_maxrss, because a child's value starts with its parent's memory.
    peak_bytes, ended = 0, 0
    while not ended:
        peak_bytes = max(peak_bytes, _peak_bytes(process.pid))
        time.sleep(SECONDS_BETWEEN_LOOKS)
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    seconds = time.perf_counter() - began
    if status != 0:
        raise SystemExit(f"preprocess failed: {(root / 'output' / 'message').read_text()}")
    out = root / "processing" / "output"
    profile = json.loads((out / "data_profile.json").read_text())
    assert profile["rows"] == rows, profile
    written = sum(path.stat().st_size for path in out.rglob("*_processed_data*"))
    return Measured(rows, seconds, usage.ru_utime + usage.ru_stime, peak_bytes, written)


def _peak_bytes(pid: int) -> int:
    """Return the largest resident set of a process so far (Linux); 0 if it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument(
        "--formats", nargs="+", default=["csv", "parquet"], choices=["csv", "tsv", "csv.gz", "jsonl", "parquet"]
    )
    parser.add_argument("--split-by", nargs="+", default=["hash"], choices=["hash", "stratified", "time"])
    parser.add_argument("--work", type=Path, help="folder for the files; 2 GB for 5,000,000 rows as CSV")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
