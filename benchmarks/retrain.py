"""Measure how many steps a training saves that starts from an earlier model.

    python -m benchmarks.retrain [--epochs 3] [--seeds 1 2 3] [--lr 3e-4] [--generated]

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
    parser.add_argument("--lr", type=float, default=SETTINGS["lr"], help="of the training from the half")
    parser.add_argument("--generated", action="store_true", help="generated reviews, even where the real ones exist")
    arguments = parser.parse_args()
    print_machine()
    tables, what = read_reviews(generated=arguments.generated, generated_rows=2000)
    rows = tables["train"].num_rows
    print(f"{what}: {rows:,} rows of train, at first {rows // 2:,}; {arguments.epochs} epochs\n")
    lines = []
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as work:
            lines.append(_compare(Path(work), tables, seed, epochs=arguments.epochs, lr=arguments.lr))
    print_table(
        "Training again",
        [
            "seed",
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


def _compare(work: Path, tables: dict[str, pa.Table], seed: int, *, epochs: int, lr: float) -> list[str]:
    settings = {**SETTINGS, "seed": seed, "max_epochs": epochs}
    half = {**tables, "train": tables["train"].slice(0, tables["train"].num_rows // 2)}
    first = _train(work / "half", half, settings)
    fresh = _train(work / "fresh", tables, settings)
    onward = _train(work / "onward", tables, {**settings, "lr": lr}, "--initial-model", str(first.root))
    target = max(value for _, value in _validations(fresh))
    steps = [next((step for step, value in _validations(paths) if value >= target), None) for paths in (fresh, onward)]
    ratio = "-" if None in steps else f"{steps[1] / steps[0]:.2f}"  # type: ignore[operator]
    areas = (json.loads((paths.output_data / "metrics.json").read_text())["test/auroc"] for paths in (fresh, onward))
    return [str(seed), f"{target:.4f}", *map(str, steps), ratio, *(f"{area:.4f}" for area in areas)]


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
