"""Measure published text + table benchmarks, fold by fold, beside the figures of others.

clothing   women_clothing_review of MulTaBench: Rating, 5 classes; 9,000 train, 1,000 val and 1,878 test rows
imdb       imdb_genre_prediction of AutoML-MM, as TabSTAR splits it: 2 classes; 645 train, 73 val and 82 test rows
cards      Hearthstone cards of TextTabBench: player_class, 10 classes

The metric is the AUROC of test, for several classes the mean of one class against the others. Nothing is chosen on
test. The folds and others' figures are made by ../shared/tools/published_splits.py. The systems:

joined         preset recommended; the texts are one sequence (text_name is a list)
best           preset best, with joined texts
two_encoders   preset recommended, with two of the texts
one_text       preset recommended, with one of the texts
coded          as joined, but whole numbers of few values are categories, as `init` may read them
lightgbm, autogluon   others, in an environment of their own (--peers; published_peers.py)
autogluon_mm   AutoGluon Multimodal with the same encoder and 3 epochs, with autogluon.multimodal in that environment
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.printing import print_machine, print_table
from benchmarks.quality import auroc_one_versus_rest, run_autogluon, run_job
from benchmarks.quality_tasks import Task
from benchmarks.review_data import REPOSITORY, require_minilm

SHARED = REPOSITORY.parent / "shared"
FIGURES = SHARED / "data" / "published" / "figures.csv"
PEERS = ("lightgbm", "autogluon")
MULTIMODAL = "autogluon_mm"
SYSTEMS = ("joined", "best", "two_encoders", "one_text", "coded", MULTIMODAL, *PEERS)


@dataclass(frozen=True)
class Benchmark:
    """The columns of a benchmark's table; the texts in the order of importance; the numbers that may be codes."""

    label: str
    id_name: str
    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    max_sen_len: int
    folds: int
    coded: tuple[str, ...] = ()

    def settings(self, system: str) -> dict[str, Any]:
        """Return the hyperparameters of a system."""
        first, second = self.texts[:2]
        coded = self.coded if system == "coded" else ()
        texts = {
            "two_encoders": {"primary_text_name": first, "secondary_text_name": second, "model_class": "trimodal_bert"},
            "one_text": {"text_name": first},
        }
        return {
            "id_name": self.id_name,
            "label_name": self.label,
            "tab_field_list": [name for name in self.numbers if name not in coded],
            "cat_field_list": [*self.categories, *coded],
            "max_sen_len": self.max_sen_len,
            "early_stop_metric": "val/auroc",  # the metric of the benchmark, which AutoGluon is also told
            "preset": "best" if system == "best" else "recommended",
            "model_class": "multimodal_bert",
            **texts.get(system, {"text_name": list(self.texts)}),
        }


BENCHMARKS = {
    "clothing": Benchmark(
        "Rating",
        "review_id",
        ("Review Text", "Title"),
        ("Age", "Positive Feedback Count", "Recommended IND"),
        ("Division Name", "Department Name", "Class Name", "Clothing ID"),
        max_sen_len=256,
        folds=5,
    ),
    "imdb": Benchmark(
        "Genre_is_Drama",
        "row_id",
        ("Description", "Actors", "Title", "Director"),
        ("Rank", "Year", "Runtime (Minutes)", "Rating", "Votes", "Revenue (Millions)", "Metascore"),
        (),
        max_sen_len=256,
        folds=10,
        coded=("Year",),
    ),
    "cards": Benchmark(
        "player_class",
        "row_id",
        ("text", "name", "flavor"),
        ("cost", "attack", "health"),
        ("type", "set", "rarity"),
        max_sen_len=128,
        folds=5,
        coded=("cost", "attack", "health"),
    ),
}


def main() -> None:
    """Run the systems on the folds and print the tables."""
    arguments = _arguments()
    print_machine()
    for name in arguments.data:
        _measure(name, arguments)


def _measure(name: str, arguments: argparse.Namespace) -> None:
    benchmark = BENCHMARKS[name]
    rows, found = [], {}
    for fold in arguments.folds if arguments.folds is not None else range(benchmark.folds):
        folder = arguments.work / f"{name}-{fold}"
        if not (folder / "test.parquet").is_file():
            splits = SHARED / "tools" / "published_splits.py"
            subprocess.run([sys.executable, str(splits), name, str(fold), str(folder)], check=True, capture_output=True)
        for system in arguments.systems:
            auroc, parts, minutes = _fold(folder, benchmark, system, arguments)
            found[system, fold] = auroc
            rows.append([str(fold), system, f"{auroc:.4f}", *parts, f"{minutes:.1f}"])
            print("  ".join([name, *rows[-1]]), flush=True)
    columns = ("fold", "system", "test AUROC", "network", "companion", "minutes")
    print_table(f"{name}: each fold", columns, rows)
    print_table(f"{name}: means over the folds", ("system", "folds", "mean", "difference"), _means(name, found))


def _fold(
    folder: Path, benchmark: Benchmark, system: str, arguments: argparse.Namespace
) -> tuple[float, tuple[str, str], float]:
    """Return the AUROC of test, that of the network and of the companion alone, and the minutes of the job."""
    labels = {split: pd.read_parquet(folder / f"{split}.parquet")[benchmark.label] for split in ("train", "test")}
    classes = sorted(labels["train"].unique().tolist())
    root = folder / system
    shutil.rmtree(root, ignore_errors=True)
    settings = {"tokenizer": str(require_minilm()), **benchmark.settings(system), **json.loads(arguments.set)}
    began = time.monotonic()
    task = Task(folder, settings)
    if system in PEERS:
        scores = _peer(root, benchmark, system, classes, arguments)
    elif system == MULTIMODAL:
        given = {"max_epochs": 3, **settings}
        scores = run_autogluon(root, task, given, seed=42, classes=classes, python=arguments.peers)["test"]
    else:
        scores = run_job(root, task, {}, classes)["test"]
    minutes = (time.monotonic() - began) / 60
    report = root / "output/data/metrics.json"
    metrics = json.loads(report.read_text()) if report.is_file() else {}
    of_parts = (metrics.get("companion") or {}).get("parts") or {}
    alone = [of_parts.get(part, {}).get("test", {}).get("auroc", {}).get("value") for part in ("network", "companion")]
    shown = tuple("-" if value is None else f"{value:.4f}" for value in alone)
    shutil.rmtree(root / "checkpoints", ignore_errors=True)
    truth = labels["test"].map(classes.index).to_numpy()
    return auroc_one_versus_rest(truth, scores), (shown[0], shown[1]), minutes


def _peer(
    root: Path, benchmark: Benchmark, system: str, classes: list[Any], arguments: argparse.Namespace
) -> np.ndarray:
    """Fit another system; return its probabilities of test. [N, K]"""
    root.mkdir()
    job = {
        "system": system,
        "data": str(root.parent),
        "folder": str(root),
        "label": benchmark.label,
        "texts": benchmark.texts,
        "numbers": benchmark.numbers,
        "categories": benchmark.categories,
        "classes": classes,
        "seconds": round(arguments.minutes * 60),
    }
    (root / "job.json").write_text(json.dumps(job))
    with (root / "log.txt").open("w") as log:
        script = REPOSITORY / "benchmarks" / "published_peers.py"
        command = [str(arguments.peers), str(script), str(root / "job.json")]
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
    return pd.read_parquet(root / "test.parquet").to_numpy()


def _means(name: str, found: Mapping[tuple[str, int], float]) -> list[list[str]]:
    """Return the mean of each system and of each published one over the same folds, and the paired difference."""
    folds = sorted({fold for _, fold in found})
    figures = pd.read_csv(FIGURES)
    figures = figures[figures["data"] == name]
    published = {
        f"{system} ({inputs})": of_system.set_index("fold").auroc.reindex(folds).to_numpy()
        for (system, inputs), of_system in figures.groupby(["system", "inputs"])
    }
    ours = {system: np.array([found[system, fold] for fold in folds]) for system in dict.fromkeys(s for s, _ in found)}
    reference = next(iter(ours))
    rows = []
    for system, values in sorted({**published, **ours}.items(), key=lambda item: -np.nanmean(item[1])):
        differences = values - ours[reference]
        error = f" ± {differences.std(ddof=1) / len(folds) ** 0.5:.4f}" if len(folds) > 1 else ""
        compared = "" if system == reference else f"{differences.mean():+.4f}{error}"
        rows.append([f"**{system}**" if system in ours else system, str(len(folds)), f"{values.mean():.4f}", compared])
    return rows


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=BENCHMARKS, nargs="+", default=list(BENCHMARKS))
    parser.add_argument("--folds", type=int, nargs="+", help="default: all folds of the protocol")
    parser.add_argument("--systems", choices=SYSTEMS, nargs="+", default=["joined"])
    parser.add_argument("--set", default="{}", help='settings in addition, as JSON, e.g. {"bf16": true}')
    parser.add_argument("--peers", type=Path, help="interpreter of an environment with autogluon.tabular[all]")
    parser.add_argument("--minutes", type=float, default=10, help="limit of AutoGluon's fit of a fold")
    parser.add_argument("--work", type=Path, default=REPOSITORY / "build" / "published", help="folder of the jobs")
    arguments = parser.parse_args()
    if set(arguments.systems) & {MULTIMODAL, *PEERS} and arguments.peers is None:
        parser.error("--systems lightgbm, autogluon and autogluon_mm need --peers PYTHON")
    return arguments


if __name__ == "__main__":
    main()
