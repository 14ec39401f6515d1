"""Compare the presets, a stack of TF-IDF and boosted trees, and AutoGluon on the real tables, with standard errors.

The system "joined" is preset recommended with both texts as one sequence for one encoder, beside an encoder for each.

recommended     clothing reviews: whether a product is recommended, from both texts and the table
rating          clothing reviews: the rating, 1 to 5, from both texts alone
effectiveness   drug reviews: five classes, from two texts, a number and three categories
side_effects    drug reviews: likewise
fresh           movies: whether most critics liked a movie, from title, cast, 4 numbers and 6 categories
genre           movies: nine classes, from title, cast, 4 numbers and 4 categories
score           movies: the critics' score, five classes, from title, cast, 5 numbers and 8 categories; 1,200 rows
survived        passengers: two classes, from the name, a number and 2 categories; 800 rows
topic           Debian's packages: 13 classes, from description, dependencies, 3 numbers and 2 categories
interface       Debian's packages: text (1) or graphical (0), from the description, 3 numbers and 3 categories
foreign         movies: whether a movie has no English version, from title, cast, 4 numbers and 4 categories
large           Debian's packages: size above the median, from description, dependencies, their number and 3 categories

Standard errors are those of 200 bootstrap samples of the rows; with several seeds, figures are means over the seeds.
They do not contain the variation between seeds. The samples are the same for all systems, so the error of a difference
is usually smaller than those of its two figures.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from benchmarks.printing import print_machine, print_table
from benchmarks.quality_tasks import REVIEWS, TASKS, MissingData, Task
from benchmarks.review_data import REPOSITORY, lay_out_job, minilm_folder
from benchmarks.stack import stack_probabilities
from contracts.paths import SPLITS

SYSTEMS = ("defaults", "recommended", "joined", "best", "stack", "autogluon")
AUTOGLUON_EPOCHS = 4  # as preset recommended on the drug reviews
SAMPLES = 200
HELD_OUT = ("val", "test")
REFERENCE = "recommended"


def main() -> int:
    arguments = _arguments()
    encoder = minilm_folder()
    try:
        for name in arguments.tasks:
            TASKS[name].write_missing()
    except MissingData as missing:
        print(missing)
        return 1
    if encoder is None:
        print("MiniLM is not installed: run make setup, then run again.")
        return 1
    given = {"tokenizer": str(encoder), **json.loads(arguments.set)}
    print_machine()
    rows, differences = [], []
    for name in arguments.tasks:
        measured = {system: _measure(name, system, given, arguments) for system in arguments.systems}
        for system, each in measured.items():
            rows += each.rows(name, system)
            if REFERENCE in measured and system != REFERENCE:
                differences += each.differences(name, system, measured[REFERENCE])
    print_table("Quality", ("task", "system", "seeds", "metric", *HELD_OUT, "minutes"), rows)
    if differences:
        columns = ("task", "system", "metric", *HELD_OUT)
        print_table(f"Difference from {REFERENCE}, on the same bootstrap samples", columns, differences)
    return 0


@dataclass(frozen=True)
class Measured:
    """The metrics of one system on one task.

    Attributes:
        values: by metric and split, means over the seeds: of all rows, then of each bootstrap sample. [1 + SAMPLES]
        seeds: number of seeds.
        minutes: of the job of one seed.
    """

    values: Mapping[str, Mapping[str, np.ndarray]]
    seeds: int
    minutes: float

    def rows(self, task: str, system: str) -> list[list[str]]:
        """Return the table's rows of this system."""
        rows = []
        for metric, values in self.values.items():
            cells = [_with_error(values[split]) for split in HELD_OUT]
            rows.append([task, system, str(self.seeds), metric, *cells, f"{self.minutes:.1f}"])
        return rows

    def differences(self, task: str, system: str, other: "Measured") -> list[list[str]]:
        """Return rows with the differences from `other`, of the metrics on the same samples."""
        rows = []
        for metric, values in self.values.items():
            cells = [_with_error(values[split] - other.values[metric][split], "+") for split in HELD_OUT]
            rows.append([task, system, metric, *cells])
        return rows


def _measure(name: str, system: str, given: Mapping[str, Any], arguments: argparse.Namespace) -> Measured:
    task = TASKS[name]
    tables = {split: pd.read_parquet(task.data / f"{split}.parquet") for split in SPLITS}
    label = task.settings["label_name"]
    tables = {split: table[table[label].notna()] for split, table in tables.items()}
    classes = sorted(tables["train"][label].unique().tolist())
    truth = {split: tables[split][label].map(classes.index).to_numpy() for split in HELD_OUT}
    started, seeds = time.monotonic(), arguments.seeds
    if system == "stack":
        seeds = [0]
        found = [stack_probabilities(tables, task.settings, classes)]
    else:
        runs = {seed: arguments.work / f"{name}_{system}_{seed}" for seed in seeds}
        for root in runs.values():
            shutil.rmtree(root, ignore_errors=True)
        if system == "autogluon":
            found = [
                run_autogluon(root, task, given, seed=seed, classes=classes, python=arguments.autogluon)
                for seed, root in runs.items()
            ]
        else:
            preset = "recommended" if system == "joined" else system
            asked = task.with_joined_texts() if system == "joined" else task
            found = [
                run_job(root, asked, {"preset": preset, "seed": seed, **given}, classes) for seed, root in runs.items()
            ]
    minutes = (time.monotonic() - started) / 60 / len(seeds)
    values = {
        metric: {split: _values(function, truth[split], [each[split] for each in found]) for split in HELD_OUT}
        for metric, function in (_BINARY if len(classes) == 2 else _MULTICLASS).items()
    }
    measured = Measured(values, len(seeds), minutes)
    for row in measured.rows(name, system):
        print("  ".join(row), flush=True)
    return measured


def run_job(root: Path, task: Task, settings: Mapping[str, Any], classes: Sequence[Any]) -> dict[str, np.ndarray]:
    """Run a job and return the probabilities of val and test."""
    several = {"is_binary": False, "num_classes": len(classes), "multiclass_categories": list(classes)}
    tables = {split: pq.read_table(task.data / f"{split}.parquet") for split in SPLITS}
    values = {**task.settings, **(several if len(classes) > 2 else {}), "explain": 0, **settings}
    paths = lay_out_job(root, tables, values)
    with (root / "train.log").open("w") as log:
        command = [sys.executable, "-m", "container", "train", "--root", str(root)]
        subprocess.run(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT, check=True)
    columns = [f"prob_class_{i}" for i in range(len(classes))]
    return {
        split: pd.read_parquet(paths.output_data / f"{split}_predictions.parquet")[columns].to_numpy()
        for split in HELD_OUT
    }


def run_autogluon(
    root: Path, task: Task, given: Mapping[str, Any], *, seed: int, classes: Sequence[Any], python: Path
) -> dict[str, np.ndarray]:
    """Fit AutoGluon with the encoder, precision and epochs of `given`; return the probabilities of val and test."""
    root.mkdir(parents=True)
    kinds = {
        "text": ["text_name", "primary_text_name", "secondary_text_name"],
        "numerical": ["tab_field_list"],
        "categorical": ["cat_field_list"],
    }
    types = {
        column: kind
        for kind, settings in kinds.items()
        for setting in settings
        if setting in task.settings
        for column in np.atleast_1d(task.settings[setting]).tolist()
    }
    job = {"folder": str(root), "data": str(task.data), "label": task.settings["label_name"], "column_types": types}
    job |= {"encoder": given["tokenizer"], "precision": "bf16-mixed" if given.get("bf16") else 32}
    job |= {"max_epochs": given.get("max_epochs", AUTOGLUON_EPOCHS), "seed": seed, "classes": list(classes)}
    (root / "job.json").write_text(json.dumps(job))
    with (root / "train.log").open("w") as log:
        command = [str(python), str(REPOSITORY / "benchmarks" / "quality_autogluon.py"), str(root / "job.json")]
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
    return {name: pd.read_parquet(root / f"{name}.parquet").to_numpy() for name in HELD_OUT}


def _values(function: Callable[..., float], truth: np.ndarray, found: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of a metric over the seeds: of all rows, then of samples. [N], [N, K] each -> [1 + SAMPLES]"""
    random = np.random.default_rng(0)
    rows = [np.arange(len(truth)), *(random.integers(0, len(truth), len(truth)) for _ in range(SAMPLES))]
    return np.array([np.mean([function(truth[each], scores[each]) for scores in found]) for each in rows])


def _with_error(values: np.ndarray, sign: str = "") -> str:
    """Return the value of all rows with its standard error. [1 + SAMPLES]"""
    return f"{values[0]:{sign}.4f} ± {values[1:].std():.4f}"


def _macro_f1(truth: np.ndarray, scores: np.ndarray) -> float:
    return float(f1_score(truth, scores.argmax(1), average="macro"))


def auroc_one_versus_rest(truth: np.ndarray, scores: np.ndarray) -> float:
    return float(np.mean([roc_auc_score(truth == each, scores[:, each]) for each in np.unique(truth)]))


_BINARY = {
    "AUROC": lambda truth, scores: float(roc_auc_score(truth, scores[:, 1])),
    "AP of the rare class": lambda truth, scores: float(average_precision_score(1 - truth, scores[:, 0])),
}
_MULTICLASS = {
    "macro F1": _macro_f1,
    "AUROC": auroc_one_versus_rest,
    "accuracy": lambda truth, scores: float((scores.argmax(1) == truth).mean()),
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", choices=TASKS, nargs="+", default=list(REVIEWS))
    parser.add_argument("--systems", choices=SYSTEMS, nargs="+", default=["recommended", "best", "stack"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--autogluon", type=Path, help="interpreter of an environment with autogluon.multimodal")
    parser.add_argument("--set", default="{}", help='settings in addition, as JSON, e.g. {"max_epochs": 1}')
    parser.add_argument(
        "--work", type=Path, default=REPOSITORY / "build" / "quality", help="parent of the jobs' folders"
    )
    arguments = parser.parse_args()
    if "autogluon" in arguments.systems and arguments.autogluon is None:
        parser.error("--systems autogluon needs --autogluon PYTHON")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
