"""Measure the companion without a network: quality on val and test, seconds, bytes, and the label flips that it finds.

    python -m benchmarks.companion --data FOLDER

FOLDER contains clothing-reviews/ and drug-reviews/, each with {train,val,test}.parquet.
"""

import argparse
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import lay_out_job, minilm_folder
from benchmarks.review_jobs import configuration
from container.companion.fit import Fitted, fit_companion
from container.companion.graph import predict
from container.data.split import PreparedSplit
from container.decision.softmax import log_softmax
from container.evaluation.bootstrap import estimate_metrics
from container.preprocessing.prepare import prepare_data
from container.results.companion import out_of_fold
from container.results.label_issues import find_label_issues
from contracts.hyperparameter_files import load_hyperparameters
from contracts.paths import SPLITS

FLIPPED = 0.03
METRICS = ("loss", "auroc", "average_precision", "f1_score")
COLUMNS = ("task", "part", "split", "log loss", "AUROC", "average precision", "F1", "fit: CPU s", "MB")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the companion without a network.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("build/companion"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--flips", type=int, default=1, help="number of seeds of the label flips; 0 = none")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    print_machine()
    rows = []
    for task in arguments.tasks:
        folder, values = TASKS[task]
        tables = {split: pq.read_table(arguments.data / folder / f"{split}.parquet") for split in SPLITS}
        rows += _measure(task, arguments.work / task, tables, _settings(values, tables))
    print_table(
        "The companion alone (average precision: of the rarer class, or the mean of the classes)", COLUMNS, rows
    )
    folder, values = TASKS["clothing"]
    tables = {split: pq.read_table(arguments.data / folder / f"{split}.parquet") for split in SPLITS}
    for seed in range(arguments.flips):
        _find_flips(arguments.work / f"flips{seed}", tables, _settings(values, tables), seed=seed)
    return 0


_DRUGS = {
    "primary_text_name": "benefitsReview",
    "secondary_text_name": "sideEffectsReview",
    "tab_field_list": ["rating"],
    "secondary_max_sen_len": 256,
    "is_binary": False,
}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "clothing": ("clothing-reviews", {}),
    "effectiveness": (
        "drug-reviews",
        {**_DRUGS, "label_name": "effectiveness", "cat_field_list": ["sideEffects", "urlDrugName", "condition"]},
    ),
    "sideEffects": (
        "drug-reviews",
        {**_DRUGS, "label_name": "sideEffects", "cat_field_list": ["effectiveness", "urlDrugName", "condition"]},
    ),
}


def _settings(given: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> dict[str, Any]:
    values = {**configuration("reviews_minilm"), "tokenizer": str(minilm_folder()), **given}
    if not values.get("is_binary", True):
        labels = sorted(set(tables["train"][values["label_name"]].to_pylist()))
        values |= {"num_classes": len(labels), "multiclass_categories": labels}
    return values


def _fit(folder: Path, tables: Mapping[str, pa.Table], values: Mapping[str, Any]) -> tuple[Fitted, Any, Any]:
    """Return the fitted companion, the text fields and the prepared splits."""
    paths = lay_out_job(folder, tables, values)
    hp = load_hyperparameters(paths)
    data = prepare_data(paths, hp)
    splits = {name: PreparedSplit(data.split(name), roles=[field.role for field in hp.text_fields]) for name in SPLITS}
    weights = [1.0] * hp.num_classes
    return fit_companion(splits["train"].arrays(), hp.text_fields, class_weights=weights, seed=hp.seed), hp, splits


def _measure(task: str, folder: Path, tables: Mapping[str, pa.Table], values: Mapping[str, Any]) -> list[Sequence[str]]:
    fitted, hp, splits = _fit(folder, tables, values)
    began = time.process_time()
    fit_companion(splits["train"].arrays(), hp.text_fields, class_weights=[1.0] * hp.num_classes, seed=hp.seed)
    seconds, size = f"{time.process_time() - began:.1f}", f"{fitted.companion.graph.ByteSize() / 1e6:.2f}"
    rows = []
    for split in ("val", "test"):
        logits, scores = predict(fitted.companion, splits[split].arrays(), hp.text_fields)
        table = np.concatenate([part.tabular for part in splits[split].arrays()])
        parts = {
            "companion": logits,
            "text, linear": fitted.text_logits(scores),
            "table": fitted.table_logits(table),
        }
        for part, values_of in parts.items():
            found = estimate_metrics(splits[split].column("label").to_numpy(), log_softmax(values_of), seed=0)
            figures = [f"{found[name].value:.4f} ± {found[name].standard_error or np.nan:.4f}" for name in METRICS]
            rows.append((task, part, split, *figures, seconds, size))
    return rows


def _find_flips(folder: Path, tables: Mapping[str, pa.Table], values: Mapping[str, Any], *, seed: int) -> None:
    """Flip labels of train at random, and print the share of flips among the rows that are found."""
    train, name = tables["train"], values["label_name"]
    labels = train[name].to_numpy().copy()
    flips = np.random.default_rng(seed).choice(len(labels), round(FLIPPED * len(labels)), replace=False)
    labels[flips] = 1 - labels[flips]
    changed = train.set_column(train.column_names.index(name), name, pa.array(labels))
    fitted, _, _ = _fit(folder, {**tables, "train": changed}, values)
    found = find_label_issues(out_of_fold(fitted))
    top = found.positions[: len(flips)]
    print(
        f"{len(flips)} labels flipped (seed {seed}): {len(found.positions)} rows flagged, "
        f"{np.isin(flips, found.positions).mean():.1%} of the flips among them; of the first {len(top)}, "
        f"{np.isin(top, flips).mean():.1%} are flips"
    )


if __name__ == "__main__":
    sys.exit(main())
