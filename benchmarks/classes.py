"""Compare all model classes on the clothing reviews: quality, size, training speed, and latency of a single record.

Each class trains with its configuration in hyperparams/, with small encoders of random weights, or with MiniLM. The
latency is that of Predictor.predict for one raw record of the test split, including preprocessing.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.printing import print_machine, print_table
from benchmarks.review_data import REAL_REVIEWS, REPOSITORY, require_minilm
from benchmarks.review_jobs import ReviewJob, configuration, missing_data, train_on_reviews
from container.predictor import Predictor
from contracts.model_classes import MODEL_CLASSES

COLUMNS = (
    *("model_class", "val AUROC", "test AUROC", "AP of the rare class", "F1 at 0.5", "parameters", "training rows/s"),
    *("PyTorch p50", "p99", "ONNX p50", "p99"),
)
_WARMUP = 10
_TRAINING = ("batch_size", "max_epochs", "lr", "weight_decay", "val_check_interval", "early_stop_metric")


def main() -> int:
    arguments = _arguments()
    missing = missing_data(arguments.data)
    if missing is not None:
        print(missing)
        return 1
    if arguments.encoder == "minilm":
        require_minilm()
    print_machine()
    rows = []
    for name in arguments.classes:
        values = settings(name, encoder=arguments.encoder, epochs=arguments.epochs)
        job = train_on_reviews(arguments.work / name, values, data=arguments.data, rows=arguments.rows)
        rows.append(_figures(name, job, data=arguments.data, records=arguments.records))
        print("  ".join(rows[-1]), flush=True)
    print_table(f"Women's Clothing Reviews, label Recommended IND, encoder {arguments.encoder}", COLUMNS, rows)
    return 0


def settings(name: str, *, encoder: str, epochs: int | None) -> dict[str, Any]:
    """Return the configuration of a model class in hyperparams/, with `encoder` and one training for all."""
    values = configuration("reviews_from_scratch")
    if name != "trimodal_bert":
        # Without the preset, which adds a companion: the network is measured.
        training = {key: values[key] for key in _TRAINING} | {"preset": "defaults"}
        values = {"encoder_config": values["encoder_config"], **configuration(name), **training}
    if encoder == "minilm":
        minilm = configuration("reviews_minilm")
        omitted = (
            "_comments",
            "model_class",
            *(key for key in minilm if key.endswith("_name") or "max_sen_len" in key),
        )
        encoder_settings = {key: value for key, value in minilm.items() if key not in omitted}
        values |= {**encoder_settings, "tokenizer": str(require_minilm()), "share_encoder": False}
        del values["encoder_config"]
    return values if epochs is None else {**values, "max_epochs": epochs}


def _figures(name: str, job: ReviewJob, *, data: Path, records: int) -> list[str]:
    table = pq.read_table(data / "test.parquet").slice(0, records + _WARMUP).to_pylist()
    latencies = []
    for backend in ("torch", "onnx"):
        predictor = Predictor.load(job.paths.model, backend=backend)
        seconds = []
        for record in table:
            start = time.perf_counter()
            predictor.predict([record])
            seconds.append(time.perf_counter() - start)
        latencies += [f"{1000 * np.quantile(seconds[_WARMUP:], q):.1f} ms" for q in (0.5, 0.99)]
    metrics = job.metrics
    return [
        name,
        f"{metrics['val/auroc']:.4f}",
        f"{metrics['test/auroc']:.4f}",
        f"{job.rare_ap:.4f}",
        f"{metrics['test/f1_score']:.4f}",
        f"{job.parameters:,}",
        job.rate,
        *latencies,
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", nargs="+", choices=list(MODEL_CLASSES), default=list(MODEL_CLASSES))
    parser.add_argument("--encoder", choices=("from_scratch", "minilm"), default="from_scratch")
    parser.add_argument("--epochs", type=int, help="replaces the configuration's max_epochs")
    parser.add_argument("--rows", type=int, help="training rows; default: all")
    parser.add_argument("--records", type=int, default=300, help="number of records whose latency is measured")
    parser.add_argument("--data", type=Path, default=REAL_REVIEWS, help="folder with {train,val,test}.parquet")
    parser.add_argument(
        "--work",
        type=Path,
        default=REPOSITORY / "build" / "classes",
        help="parent of one job folder per class; existing job folders are replaced",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
