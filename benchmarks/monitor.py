"""Measure the monitor: false alarms, shifts that it finds, records per second, memory.

    python -m benchmarks.monitor [--runs 200] [--shifted 100] [--records 2000] [--rows 1000000 5000000] [--generated]

The table has 20 numeric columns of several distributions, categories of which one is rare-tailed, and the texts of the
clothing reviews with the tokens of MiniLM. Each run divides its rows at random into train, test and new records. A run
without a shift with anything out of bounds is a false alarm. A shift counts as found if it is found where it is.

The rate is that of the pass over all records, without texts and scores, which are those of a sample. The same rows are
also read without counting anything.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import read_reviews, require_minilm
from container.data.records import TextArrays
from container.monitoring.baseline import Baseline, SampledTexts, Scores, hashed_rows
from container.monitoring.captured import RecordFiles
from container.monitoring.checks import Check, Current, check_records
from container.monitoring.drift import tell_apart
from container.monitoring.observe import Labels, collect
from container.monitoring.profile import RecordProfile
from container.preprocessing.distributions import Categories, Distribution, TableDistributions, labelled
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.numeric_summary import NumericSummary
from container.preprocessing.risk_tables import RiskTable
from container.tables.table_file import Origin
from container.text.chunk_tokenizer import ChunkTokenizer
from contracts.steps import MonitorSettings
from testing.table_jobs import fit, settings

NUMBERS = [f"x{i}" for i in range(20)]
CATEGORIES = ["c0", "c1"]
CLASSES = (0, 1)
TRAIN, TEST = 5000, 2000
SETTINGS = MonitorSettings.from_environment({})


@dataclass(frozen=True)
class Pool:
    """Rows to draw from. `tokens` and `department` are those of a review; the model knows `logit`."""

    table: pa.Table
    tokens: list[np.ndarray]
    department: np.ndarray
    logit: np.ndarray
    label: np.ndarray
    unknown: int | None

    def take(self, rows: np.ndarray) -> "Pool":
        return Pool(
            self.table.take(pa.array(rows)),
            [self.tokens[row] for row in rows.tolist()],
            *(each[rows] for each in (self.department, self.logit, self.label)),
            self.unknown,
        )

    def texts(self, rows: np.ndarray) -> SampledTexts:
        chosen = [self.tokens[row] for row in rows.tolist()]
        offsets = np.cumsum([0, *map(len, chosen)])
        none = np.zeros(0, np.int64)
        texts = TextArrays(np.concatenate(chosen), offsets, none, none)
        return SampledTexts.of(texts, unknown=self.unknown, blank=[0])

    def lengths(self) -> NumericSummary:
        summary = NumericSummary()
        summary.add(np.array([len(each) for each in self.tokens], np.float64))
        return summary

    def scores(self, then: Distribution | None = None) -> Scores:
        probability = 1 / (1 + np.exp(-self.logit))
        return Scores.of(np.column_stack([1 - probability, probability]), self.label, CLASSES, then=then)


def main() -> int:
    arguments = _arguments()
    if arguments.count_only:
        return _count(arguments.count_only, arguments.rows[0])
    print_machine()
    pool, what = _pool(generated=arguments.generated)
    rows = f"{len(pool.tokens):,} rows; {TRAIN:,} of train, {TEST:,} of test, {arguments.records:,} records"
    metrics = pool.scores().metrics or {}
    print(f"{what}: {rows}; the AUROC of the model is {metrics['auroc'].value:.3f}\n")
    with tempfile.TemporaryDirectory() as work:
        fitted = _fitted(Path(work), pool)
        rows = [_measure(pool, fitted, name, shift, arguments) for name, shift in SHIFTS.items()]
        print_table("Shifts", ["shift", "runs", "found", "most often"], rows)
        if arguments.rows:
            rows = [_rate(Path(work), count, suffix) for suffix in ("csv", "parquet") for count in arguments.rows]
            print_table(
                "Counting all records",
                ["format", "records", "read, records/s", "monitor, records/s", "ratio", "peak MiB"],
                rows,
            )
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="runs without a shift")
    parser.add_argument("--shifted", type=int, default=100, help="runs of each shift")
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 5_000_000])
    parser.add_argument("--generated", action="store_true", help="generated reviews, even where the real ones exist")
    parser.add_argument("--count-only", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _pool(*, generated: bool) -> tuple[Pool, str]:
    tables, what = read_reviews(generated=generated, generated_rows=12_000)
    reviews = pa.concat_tables(tables.values(), promote_options="permissive")
    tokenizer = ChunkTokenizer.from_folder(require_minilm())
    texts = [text or "" for text in reviews["Review Text"].to_pylist()]
    tokens = [np.array(ids[:256] or [0], np.int32) for ids in tokenizer.encode_batch(texts)]
    table = _columns(len(texts), np.random.default_rng(0))
    logit = np.sum([table[name].to_numpy() for name in NUMBERS[:3]], axis=0) * 1.2
    label = (np.random.default_rng(1).random(len(logit)) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    department = np.array(reviews["Department Name"].to_pylist(), object)
    return Pool(table.append_column("text", pa.array(texts)), tokens, department, logit, label, tokenizer.unknown), what


def _columns(rows: int, rng: np.random.Generator) -> pa.Table:
    """Normals, skewed numbers, counts, and numbers of which some are missing; few categories, and many rare ones."""
    draws: list[Callable[[], np.ndarray]] = [
        lambda: rng.normal(0, 1, rows),
        lambda: rng.lognormal(0, 1, rows),
        lambda: rng.poisson(3, rows).astype(np.float64),
        lambda: np.where(rng.random(rows) < 0.3, np.nan, rng.normal(5, 2, rows)),
    ]
    columns: dict[str, Any] = {}
    for i, name in enumerate(NUMBERS):
        columns[name] = rng.normal(0, 1, rows) if i < 8 else draws[i % 4]()
    columns["c0"] = [f"a{i}" for i in np.minimum(rng.geometric(0.3, rows), 8)]
    columns["c1"] = [f"b{i}" for i in np.minimum(rng.zipf(1.3, rows), 50_000)]
    return pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})


def _fitted(work: Path, pool: Pool) -> FittedPreprocessing:
    hp = settings(
        id_name=None, text_name="text", tab_field_list=NUMBERS, cat_field_list=CATEGORIES, label_name="label",
    )  # fmt: skip
    some = pool.table.slice(0, 500).append_column("label", pa.array(pool.label[:500]))
    (work / "fit").mkdir()
    fitted = fit(work / "fit", some, hp)[0].fitted
    none = {name: RiskTable((0.5,), {}, {}) for name in CATEGORIES}  # the categories of train are those of each run
    return replace(fitted, risk_tables=none)


Shift = tuple[str | None, Callable[[Pool, np.random.Generator], Pool]]  # where it is, and what it does


def _with(pool: Pool, name: str, values: Any) -> Pool:
    index = pool.table.column_names.index(name)
    return replace(pool, table=pool.table.set_column(index, name, pa.array(values)))


def _new_categories(pool: Pool, rng: np.random.Generator) -> Pool:
    old = np.array(pool.table["c0"].to_pylist(), object)
    return _with(pool, "c0", np.where(rng.random(len(old)) < 0.05, "new", old))


def _flipped(pool: Pool, rng: np.random.Generator) -> Pool:
    return replace(pool, label=np.where(rng.random(len(pool.label)) < 0.1, 1 - pool.label, pool.label))


SHIFTS: dict[str, Shift] = {
    "none": (None, lambda pool, _: pool),
    "0.3 standard deviations in one of 20 columns": ("x7", lambda p, _: _with(p, "x7", p.table["x7"].to_numpy() + 0.3)),
    "5 % new categories": ("c0", _new_categories),
    "texts of another department": ("text", lambda pool, _: pool),
    "10 % of the labels flipped": ("labels", _flipped),
}


def _measure(pool: Pool, fitted: FittedPreprocessing, name: str, shift: Shift, arguments: argparse.Namespace) -> list:
    where, change = shift
    runs = arguments.runs if where is None else arguments.shifted
    found, said = 0, dict[str, int]()
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        before, now = np.split(rng.permutation(len(pool.tokens)), [TRAIN + TEST])
        if where == "text":  # train without one department, and records of it alone
            departments = [each for each in set(pool.department.tolist()) if each is not None]
            counts = {each: int((pool.department == each).sum()) for each in departments}
            chosen = sorted(counts, key=lambda each: -counts[each])[seed % 3]
            order = rng.permutation(len(pool.tokens))
            before = order[pool.department[order] != chosen][: TRAIN + TEST]
            now = order[pool.department[order] == chosen]
        new = change(pool.take(now[: arguments.records]), rng)
        checks = _run(pool, fitted, before, new, words=where in (None, "text"))  # which takes most of the time
        violated = [f"{check.subject}: {check.what}" for check in checks if check.violated]
        found += any(where is None or each.startswith(f"{where}:") for each in violated)
        said |= {each: said.get(each, 0) + 1 for each in violated}
        if seed % 20 == 19:
            print(f"{name}: {found} of {seed + 1}", file=sys.stderr, flush=True)
    most = ", ".join(f"{each} {count}" for each, count in sorted(said.items(), key=lambda item: -item[1])[:2])
    return [name, str(runs), f"{found} ({found / max(runs, 1):.1%})", most or "nothing"]


def _run(pool: Pool, fitted: FittedPreprocessing, before: np.ndarray, new: Pool, *, words: bool) -> list[Check]:
    train, test = pool.take(before[:TRAIN]), pool.take(before[TRAIN:])
    profile = RecordProfile(fitted)
    profile.add(train.table, Origin())
    baseline = Baseline(
        format_version=1,
        table=TableDistributions(
            rows=TRAIN,
            columns=tuple(train.table.column_names),
            labels=labelled(CLASSES, np.bincount(train.label).tolist()),
            numbers={name: Distribution.of(summary) for name, summary in profile.numbers.items()},
            categories={name: Categories.of(counts) for name, counts in profile.categories.items()},
        ),
        lengths={"text": Distribution.of(test.lengths())},
        texts={"text": test.texts(hashed_rows(len(test.tokens)))},
        scores=test.scores(),
    )
    profile = RecordProfile(fitted, baseline.table.categories)
    profile.add(new.table, Origin())
    texts = new.texts(hashed_rows(len(new.tokens)))
    scores = new.scores(baseline.scores.scores)
    current = Current(
        profile=profile,
        texts={"text": texts},
        lengths={"text": new.lengths()},
        told={"text": tell_apart(baseline.texts["text"], texts)} if words else {},
        scores=scores,
        labels=labelled(CLASSES, np.bincount(new.label, minlength=2).tolist()),
        labelled=scores,
    )
    return check_records(baseline, current, fitted, SETTINGS)


def _rate(work: Path, rows: int, suffix: str) -> list[str]:
    folder = work / f"{suffix}-{rows}"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for first in range(0, rows, 500_000):
        part = _columns(min(500_000, rows - first), rng).append_column(
            "text", pa.array(["a short text"] * min(500_000, rows - first))
        )
        path = folder / f"part-{first:09}.{suffix}"
        pa.csv.write_csv(part, path) if suffix == "csv" else pq.write_table(part, path)
    lines = []
    for count in (0, 1):
        command = [sys.executable, "-m", "benchmarks.monitor", "--count-only", str(folder), "--rows", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        lines.append(done.stdout.split())
    (read, _), (seconds, peak) = ((float(line[0]), line[1]) for line in lines)
    return [suffix, f"{rows:,}", f"{rows / read:,.0f}", f"{rows / seconds:,.0f}", f"{seconds / read:.1f}", peak]


def _count(folder: Path, counts: int) -> int:
    """Print the seconds and the peak memory of a pass over the records, which counts them or only reads them."""
    pool = Pool(_columns(2000, np.random.default_rng(1)), [], *[np.zeros(0)] * 3, None)  # type: ignore[arg-type]
    table = pool.table.append_column("text", pa.array(["a short text"] * 2000))
    label = np.arange(2000) % 2
    with tempfile.TemporaryDirectory() as work:
        fitted = _fitted(Path(work), replace(pool, table=table, label=label))
        known = RecordProfile(fitted)
        known.add(table, Origin())
        categories = {name: Categories.of(found) for name, found in known.categories.items()}
        profile, files = RecordProfile(fitted, categories), RecordFiles(folder, fitted.feature_inputs)
        began = time.monotonic()
        tables = files.tables(Path(work))
        if counts:
            collect(tables, profile, Labels(fitted.labels), sample_rows=2000)
        else:
            for _ in tables:
                pass
        seconds = time.monotonic() - began
    print(seconds, f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
