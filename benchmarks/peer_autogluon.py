"""Run one job of benchmarks/peers.py with AutoGluon Multimodal: settings (a JSON file) in, results.json out.

The interpreter is that of an environment with AutoGluon. AutoGluon joins the text columns into one sequence.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import onnxruntime
import pandas as pd
from autogluon.multimodal import MultiModalPredictor
from autogluon.multimodal.learners.base import BaseLearner

NAMES = {"roc_auc": "auroc", "average_precision": "average_precision", "f1": "f1_score"}
NAMES |= {name: name for name in ("precision", "recall", "accuracy")}
SPLITS = ("train", "val", "test")


class TrainingClock(pl.Callback):
    """Measure training without validations and checkpoints, which lie between two batches."""

    seconds = since = 0.0
    validations, validated = 0, True

    def on_train_batch_start(self, *_: Any) -> None:
        if self.validated:
            self.since, self.validated = time.perf_counter(), False

    def on_train_batch_end(self, *_: Any) -> None:
        now = time.perf_counter()
        self.seconds, self.since = self.seconds + now - self.since, now

    def on_validation_start(self, trainer: pl.Trainer, _: Any) -> None:
        self.validated = True
        self.validations += not trainer.sanity_checking


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    columns, path = [*job["texts"], job["label"]], job["folder"]
    splits = {name: pd.read_parquet(f"{job['data']}/{name}.parquet", columns=columns) for name in SPLITS}
    clock, original = TrainingClock(), BaseLearner.get_callbacks_per_run
    # fit has no argument for callbacks of Lightning's trainer.
    BaseLearner.get_callbacks_per_run = lambda *given, **named: [*original(*given, **named), clock]
    predictor = MultiModalPredictor(job["label"], problem_type="binary", eval_metric="roc_auc", path=f"{path}/model")
    types = dict.fromkeys(job["texts"], "text")
    settings = {"hyperparameters": job["hyperparameters"], "column_types": types, "seed": job["seed"]}
    predictor.fit(splits["train"], tuning_data=splits["val"], **settings)  # saves the model
    results = {"train_seconds": clock.seconds, "validations": clock.validations}
    for split in ("val", "test"):
        values = predictor.evaluate(splits[split], metrics=list(NAMES))
        results |= {f"{split}/{NAMES[name]}": value for name, value in values.items()}
    export(predictor, splits["val"][:8].drop(columns=job["label"]), folder=path)
    Path(path, "results.json").write_text(json.dumps(results))


def export(predictor: MultiModalPredictor, records: Any, *, folder: str) -> None:
    """Write model.onnx and compare its probabilities with the predictor's."""
    path = predictor.export_onnx(records, path=folder)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    batch = predictor._learner.get_processed_batch_for_deployment(data=records, onnx_tracing=True)
    logits = np.asarray(session.run(None, {value.name: batch[value.name].numpy() for value in session.get_inputs()})[1])
    actual = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    difference = np.abs(actual - predictor.predict_proba(records, as_pandas=False)).max()
    assert difference < 1e-4, f"the probabilities of model.onnx differ by {difference}"


if __name__ == "__main__":
    main()
