"""Measure the search of hyperparameters on the clothing reviews.

tpe       TPE with pruning, as `python -m container tune` runs it
random    the same with settings drawn at random
killed    the search tpe, killed at random moments; the exit code is 1 if its trials are not those of tpe
"""

import argparse
import collections
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import REAL_REVIEWS, REPOSITORY, lay_out_job
from benchmarks.review_jobs import configuration, missing_data
from container.evaluation.tuning_report import saved_steps
from container.tuning.study import TuningStudy
from contracts import artifacts
from contracts.hyperparameter_files import load_hyperparameters
from contracts.paths import SPLITS, JobPaths

SPACE = {
    "lr": {"low": 3e-4, "high": 1e-2, "scale": "log"},
    "weight_decay": {"low": 1e-3, "high": 0.1, "scale": "log"},
    "dropout": {"low": 0.0, "high": 0.4},
    "hidden_common_dim": [50, 100, 200],
    "max_epochs": [1, 2, 3],
}
RANDOM = (
    "import sys, zlib, container.tuning.study as study; from optuna.samplers import RandomSampler; "
    "study.sampler = lambda seed: RandomSampler(seed=zlib.crc32(seed.encode())); "
    "from container.commands import main; sys.exit(main(sys.argv[1:]))"
)
COLUMNS = (
    *("search", "trials", "complete", "pruned", "best val AUROC", "test AUROC of the winner"),
    *("steps saved", "first step after a trial's begin", "whole search", "kills"),
)
LOG = "tune.log"
_ENDED = re.compile(r"trial (\d+) (?:complete|pruned|fail): ")
_FIRST_STEP = re.compile(r"first optimizer step done ([\d.]+) s after")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=REAL_REVIEWS, help="folder of {train,val,test}.parquet")
    parser.add_argument("--work", type=Path, default=Path("build/tune"), help="folder of the searches, replaced")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--rows", type=int, default=None, help="training rows; default: all")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--searches", nargs="+", default=["tpe", "random", "killed"])
    arguments = parser.parse_args()
    missing = missing_data(arguments.data)
    if missing is not None:
        print(missing)
        return 1
    print_machine()
    rows, trials = [], {}
    for name in arguments.searches:
        paths = _lay_out(arguments.work / name, arguments)
        seconds, kills = _run(paths, sampler=name, kills=arguments.kills if name == "killed" else 0)
        study = TuningStudy(paths, load_hyperparameters(paths), num_workers=1)
        trials[name] = [
            {"state": each.state, "value": each.value, "settings": each.drawn, "validations": each.best_values}
            for each in study.trials
        ]
        rows.append((*_row(name, paths, study, seconds), str(kills)))
    print_table("Search on Women's Clothing Reviews", COLUMNS, rows)
    if {"tpe", "killed"} <= trials.keys():
        different = differences(trials["tpe"], trials["killed"], log=(arguments.work / "killed" / LOG).read_text())
        print("\n".join(different) or "The killed search has the same trials, and none of them ended twice.")
        return 1 if different else 0
    return 0


def differences(expected: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], *, log: str) -> list[str]:
    """Return the differences of a search that was killed from one that was not, and the trials that it repeated."""
    lines = [] if len(expected) == len(found) else [f"{len(found)} trials instead of {len(expected)}"]
    for number, (one, other) in enumerate(zip(expected, found)):
        for name in one:
            if one[name] != other[name]:
                lines.append(f"trial {number}: {name} {other[name]} instead of {one[name]}")
    ended = collections.Counter(_ENDED.findall(log))
    lines += [f"trial {number} ended {times} times" for number, times in ended.items() if times > 1]
    return lines


def _lay_out(root: Path, arguments: argparse.Namespace) -> JobPaths:
    shutil.rmtree(root, ignore_errors=True)
    tables = {split: pq.read_table(arguments.data / f"{split}.parquet") for split in SPLITS}
    tables["train"] = tables["train"].slice(0, arguments.rows)
    tuning = {"metric": "val/auroc", "trials": arguments.trials, "space": SPACE}
    values = {**configuration("reviews_from_scratch"), "val_check_interval": 0.25, "explain": 0, "tuning": tuning}
    return lay_out_job(root, tables, values)


def _run(paths: JobPaths, *, sampler: str, kills: int) -> tuple[float, int]:
    """Run the search to its end, killing it up to `kills` times; return its seconds and the kills."""
    start = ["-c", RANDOM] if sampler == "random" else ["-m", "container"]
    command = [sys.executable, *start, "tune", "--root", str(paths.root)]
    began = time.perf_counter()
    draw, code = random.Random(0), 1
    log, killed = paths.root / LOG, 0
    print(f"Searching in {paths.root}; the log: {log}", flush=True)
    with log.open("w") as sink:
        for left in range(kills, -1, -1):
            process = subprocess.Popen(command, cwd=REPOSITORY, stdout=sink, stderr=subprocess.STDOUT)
            try:
                code = process.wait(draw.uniform(5, 25) if left else None)
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                killed += 1
    if code:
        sys.exit(f"the search ended with exit code {code}:\n{log.read_text()[-2000:]}")
    return time.perf_counter() - began, killed


def _row(name: str, paths: JobPaths, study: TuningStudy, seconds: float) -> tuple[str, ...]:
    summary = json.loads((paths.output_data / artifacts.TUNING / artifacts.TUNING_SUMMARY).read_text())
    metrics = json.loads((paths.output_data / artifacts.METRICS).read_text())
    trials = summary["trials"]
    saved, planned = saved_steps(trials)
    return (
        name,
        str(len(trials)),
        *(str(sum(trial["state"] == state for trial in trials)) for state in ("complete", "pruned")),
        f"{summary['winner']['value']:.4f}",
        f"{metrics['test/auroc']:.4f}",
        f"{saved / max(1, planned):.0%}",
        _latency(paths, study),
        f"{seconds:.0f} s",
    )


def _latency(paths: JobPaths, study: TuningStudy) -> str:
    """Return the median time from the begin of a trial, after that of another one, to its first optimizer step."""
    found: list[float] = []
    for trial in study.trials[1:]:
        log = paths.tuning / f"trial-{trial.number:04d}" / "log.txt"
        first = _FIRST_STEP.search(log.read_text()) if log.is_file() else None
        if first:
            found.append(float(first[1]))
    return f"{statistics.median(found):.1f} s" if found else "-"


if __name__ == "__main__":
    sys.exit(main())
