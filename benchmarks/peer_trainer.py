"""Run one job of benchmarks/peers.py with Hugging Face Trainer: settings (a JSON file) in, results.json out."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import torch
import transformers
from sklearn import metrics as sk

RANKED = {"auroc": sk.roc_auc_score, "average_precision": sk.average_precision_score}
DECIDED: dict[str, Any] = {"f1_score": sk.f1_score, "precision": sk.precision_score, "recall": sk.recall_score}
DECIDED["accuracy"] = sk.accuracy_score


class TrainingClock(transformers.TrainerCallback):
    """Measure training without validations and checkpoints, which lie between the end of a step and on_save."""

    seconds = since = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.since = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        now = time.perf_counter()
        self.seconds, self.since = self.seconds + now - self.since, now

    def on_save(self, *_: Any, **__: Any) -> None:
        self.since = time.perf_counter()


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(job["folder"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(job["encoder"])
    splits: dict[str, Any] = {split: encode(job, split, tokenizer) for split in ("train", "val", "test")}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(job["encoder"], dtype=torch.float32)
    clock = TrainingClock()
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(output_dir=str(folder / "checkpoints"), **job["training_arguments"]),
        train_dataset=splits["train"],
        eval_dataset=splits["val"],
        processing_class=tokenizer,
        compute_metrics=scores,
        callbacks=[clock],
    )
    trainer.train()
    results = {"train_seconds": clock.seconds}
    results["validations"] = sum("eval_loss" in entry for entry in trainer.state.log_history)
    for split in ("val", "test"):
        predicted: Any = trainer.predict(splits[split], metric_key_prefix=split)
        np.savez(folder / f"{split}_predictions.npz", labels=predicted.label_ids, logits=predicted.predictions)
        results |= {name.replace("_", "/", 1): value for name, value in predicted.metrics.items()}
    trainer.save_model(str(folder / "model"))
    inputs = trainer.data_collator(splits["val"][:8])
    del inputs["labels"]
    export(model.cpu().eval(), inputs, path=folder / "model.onnx")
    (folder / "results.json").write_text(json.dumps(results))


def encode(job: dict[str, Any], split: str, tokenizer: Any) -> list[dict[str, Any]]:
    """Return tokens and label of each row; two texts become the two segments of one sequence."""
    table = pd.read_parquet(Path(job["data"]) / f"{split}.parquet")
    texts = [table[name].fillna("").tolist() for name in job["texts"]]
    columns = {**tokenizer(*texts, truncation=True, max_length=job["max_length"]), "labels": table[job["label"]]}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def scores(predicted: Any) -> dict[str, float]:
    labels, score = predicted.label_ids, torch.from_numpy(predicted.predictions).softmax(dim=1)[:, 1].numpy()
    values = {name: float(metric(labels, score)) for name, metric in RANKED.items()}
    return {**values, **{name: float(metric(labels, score >= 0.5)) for name, metric in DECIDED.items()}}


def export(model: torch.nn.Module, inputs: dict[str, torch.Tensor], *, path: Path) -> None:
    """Write model.onnx and compare it with the model, on other shapes than those of the export."""
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    torch.onnx.export(model, kwargs=dict(inputs), f=path, dynamic_shapes=dict.fromkeys(inputs, sizes), dynamo=True)
    checked = {name: torch.cat([values, torch.zeros_like(values)], dim=1)[1:] for name, values in inputs.items()}
    with torch.inference_mode():
        expected = model(**checked).logits.numpy()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, {name: values.numpy() for name, values in checked.items()})
    difference = np.abs(actual - expected).max()
    assert difference < 1e-4, f"the logits of model.onnx differ by {difference}"


if __name__ == "__main__":
    main()
