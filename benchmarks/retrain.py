"""Measure how many steps a training saves that starts from an earlier model.

    python -m benchmarks.retrain [--epochs 3] [--seeds 1 2 3] [--lr 1e-3 3e-4] [--onward-epochs 1 3] [--generated]

Half of the clothing reviews first, then all of them: once from random weights, and once from the model of the half. The
steps of a training are those until val/auroc first reaches the best value of the training from random weights.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import ONE_TEXT, lay_out_job, read_reviews
from contracts.paths import JobPaths

SETTINGS: dict[str, Any] = {
    **ONE_TEXT,
    "tokenizer": "from_scratch",
    "encoder_config": {
        "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128,
        "vocab_size": 4000,
    },
    "max_sen_len": 128,
    "batch_size": 64,
    "lr": 1e-3,
    "val_check_interval": 0.1,
    "early_stop_metric": "val/auroc",
    "early_stop_patience": 100,
    "explain": 0,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--lr", type=float, nargs="+", default=[SETTINGS["lr"]], help="of the training from the half")
    parser.add_argument("--onward-epochs", type=int, nargs="+", help="of the training from the half")
    parser.add_argument("--generated", action="store_true", help="generated reviews, even where the real ones exist")
    arguments = parser.parse_args()
    print_machine()
    tables, what = read_reviews(generated=arguments.generated, generated_rows=2000)
    rows = tables["train"].num_rows
    print(f"{what}: {rows:,} rows of train, at first {rows // 2:,}; {arguments.epochs} epochs\n")
    lines = []
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as work:
            onward = [
                {"lr": lr, "max_epochs": epochs}
                for epochs in arguments.onward_epochs or [arguments.epochs]
                for lr in arguments.lr
            ]
            lines += _compare(Path(work), tables, {**SETTINGS, "seed": seed, "max_epochs": arguments.epochs}, onward)
    print_table(
        "Training again",
        [
            "seed",
            "lr, from the half",
            "epochs, from the half",
            "best val/auroc, fresh",
            "steps, fresh",
            "steps, from the half",
            "ratio",
            "test/auroc",
            "from the half",
        ],
        lines,
    )
    return 0


def _compare(
    work: Path, tables: dict[str, pa.Table], settings: dict[str, Any], onward: list[dict[str, Any]]
) -> list[list[str]]:
    """Return a row for each training from the half, which has the settings of an entry of `onward`."""
    half = {**tables, "train": tables["train"].slice(0, tables["train"].num_rows // 2)}
    first = _train(work / "half", half, settings)
    fresh = _train(work / "fresh", tables, settings)
    target = max(value for _, value in _validations(fresh))
    rows = []
    for number, changed in enumerate(onward):
        job = _train(work / f"onward-{number}", tables, {**settings, **changed}, "--initial-model", str(first.root))
        steps = [next((step for step, value in _validations(paths) if value >= target), None) for paths in (fresh, job)]
        ratio = "-" if None in steps else f"{steps[1] / steps[0]:.2f}"  # type: ignore[operator]
        areas = (json.loads((paths.output_data / "metrics.json").read_text())["test/auroc"] for paths in (fresh, job))
        row = [settings["seed"], changed["lr"], changed["max_epochs"], f"{target:.4f}", *steps, ratio]
        rows.append([*map(str, row), *(f"{area:.4f}" for area in areas)])
    return rows


def _train(root: Path, tables: dict[str, pa.Table], settings: dict[str, Any], *arguments: str) -> JobPaths:
    paths = lay_out_job(root, tables, settings)
    command = [sys.executable, "-m", "container", "train", "--root", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    print(*(line for line in done.stdout.splitlines() if "initial model" in line), sep="\n", flush=True)
    return paths


def _validations(paths: JobPaths) -> list[tuple[int, float]]:
    entries = json.loads((paths.output_data / "history.json").read_text())["entries"]
    return [(entry["step"], entry["val/auroc"]) for entry in entries if entry.get("val/auroc") is not None]


if __name__ == "__main__":
    sys.exit(main())
