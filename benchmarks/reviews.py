"""Measure quality on the clothing reviews: run one job per configuration and seed, and print its test metrics.

minilm                   whether a product is recommended, from both texts and the table
minilm_without_rating    the same without the column Rating, which nearly determines the label
from_scratch             with two small encoders of random weights
leakage                  from_scratch with 1,200 products as a category: risk tables fitted in-sample and out-of-fold
rating                   the rating, 1 to 5, only from both texts, joined into one, with MiniLM
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import REAL_REVIEWS, REPOSITORY, require_minilm
from benchmarks.review_jobs import TITLE_AND_TEXT, ReviewJob, configuration, missing_data, train_on_reviews

CONFIGURATIONS = ("minilm", "minilm_without_rating", "from_scratch", "leakage", "rating")
FIGURES = ("val/auroc", "test/auroc", "test/average_precision", "rare_ap", "test/f1_score")
COLUMNS = (
    *("configuration", "seed", "epochs", "val AUROC", "test AUROC", "average precision", "AP of the rare class"),
    *("F1", "training rows/s", "whole job"),
)


def main() -> int:
    arguments = _arguments()
    missing = missing_data(arguments.data)
    if missing is not None:
        print(missing)
        return 1
    jobs = [job for name in arguments.configuration for job in settings(name).items()]
    encoder = str(require_minilm()) if any(values["tokenizer"] is None for _, values in jobs) else None
    print_machine()
    rows = []
    for name, given in jobs:
        values = {**given, "tokenizer": given["tokenizer"] or encoder}
        if arguments.epochs is not None:
            values["max_epochs"] = arguments.epochs
        figures = []
        for seed in arguments.seeds:
            folder = arguments.work / f"{name.replace(' ', '_').replace(',', '')}_seed{seed}"
            job = train_on_reviews(folder, {**values, "seed": seed}, data=arguments.data)
            figures.append(_figures(job))
            rows.append(_row(name, seed, values, figures[-1], job))
            print("  ".join(rows[-1]), flush=True)
        if len(figures) > 1:
            rows.append(_spread(name, values, figures))
    print_table("Women's Clothing Reviews", COLUMNS, rows)
    return 0


def settings(name: str) -> dict[str, dict[str, Any]]:
    """Return the jobs of a configuration by name; the tokenizer None stands for MiniLM's folder."""
    if name == "from_scratch":
        return {name: configuration("reviews_from_scratch")}
    if name == "leakage":
        values = configuration("reviews_from_scratch")
        with_products = {**values, "cat_field_list": [*values["cat_field_list"], "Clothing ID"]}
        return {
            "without products": values,
            "products, out-of-fold": with_products,
            "products, in-sample": {**with_products, "risk_table_folds": 0},
        }
    values = {**configuration("reviews_minilm"), "tokenizer": None}
    if name == "minilm_without_rating":
        values["tab_field_list"] = [column for column in values["tab_field_list"] if column != "Rating"]
    elif name == "rating":
        classes = {"is_binary": False, "num_classes": 5, "multiclass_categories": [1, 2, 3, 4, 5]}
        values |= {"label_name": "Rating", "tab_field_list": [], "cat_field_list": [], **classes}
        # About the square roots of the "balanced" weights, so that frequent ratings still count more than rare ones.
        values |= {"class_weights": [2.24, 1.7, 1.29, 0.95, 0.6], "lr": 2e-4, "max_epochs": 3}
        values |= {"early_stop_metric": "val/f1_score", "bf16": False}  # as in benchmarks/log.md
        # One text: the title and the review.
        values |= {"model_class": "bert", "text_name": TITLE_AND_TEXT}
        for name_of_two in ("primary_text_name", "secondary_text_name", "share_encoder", "secondary_max_sen_len"):
            del values[name_of_two]
        del values["numeric_embedding"]
    return {name: values}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configuration", choices=CONFIGURATIONS, nargs="+", default=["minilm", "from_scratch"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, help="replaces the configuration's max_epochs")
    parser.add_argument("--data", type=Path, default=REAL_REVIEWS, help="folder with {train,val,test}.parquet")
    parser.add_argument(
        "--work",
        type=Path,
        default=REPOSITORY / "build" / "reviews",
        help="parent of one folder per job; existing job folders are replaced",
    )
    return parser.parse_args()


def _figures(job: ReviewJob) -> list[float | None]:
    return [job.rare_ap if name == "rare_ap" else job.metrics[name] for name in FIGURES]


def _row(name: str, seed: int, values: Mapping[str, Any], figures: Sequence[float | None], job: ReviewJob) -> list[str]:
    shown = ("-" if figure is None else f"{figure:.4f}" for figure in figures)
    return [name, str(seed), str(values["max_epochs"]), *shown, job.rate, f"{job.seconds / 60:.1f} min"]


def _spread(name: str, values: Mapping[str, Any], by_seed: Sequence[Sequence[float | None]]) -> list[str]:
    """Return a row with mean and standard deviation over the seeds."""
    cells = []
    for figures in zip(*by_seed, strict=True):
        known = [figure for figure in figures if figure is not None]
        cells.append(f"{statistics.mean(known):.4f} ± {statistics.stdev(known):.4f}" if len(known) > 1 else "-")
    return [name, "mean", str(values["max_epochs"]), *cells, "", ""]


if __name__ == "__main__":
    sys.exit(main())
