"""Build evaluations for the tests: predictions of a known quality, and a data summary as preprocessing writes it."""

from typing import Any

import numpy as np
import pyarrow as pa

from container.evaluation.evaluation_input import EvaluationInput
from container.evaluation.predictions import SplitPredictions
from contracts.hyperparameters import Hyperparameters

SETTINGS: dict[str, Any] = {
    "id_name": "order_id",
    "text_name": "chat",
    "label_name": "refunded",
    "tab_field_list": ["price"],
    "cat_field_list": ["color"],
    "model_class": "multimodal_bert",
    "tokenizer": "from_scratch",
    "lr": 3e-4,
    "early_stop_metric": "val/auroc",
}


def split(
    name: str, rows: int, *, labels: list[int | str], seed: int = 0, only: int | None = None, unlabelled: float = 0.0
) -> SplitPredictions:
    """Return predictions that are mostly correct; `only` is the class of every record, if set."""
    rng = np.random.default_rng([seed, len(name)])
    num_classes = len(labels)
    y = rng.integers(0, num_classes, rows) if only is None else np.full(rows, only)
    logits = rng.normal(size=(rows, num_classes))
    logits[np.arange(rows), y] += 2
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = np.where(rng.random(rows) < unlabelled, -100, y)
    raw = pa.chunked_array([pa.array([None if k < 0 else str(labels[k]) for k in y], pa.string())])
    ids = pa.chunked_array([pa.array([f"{i:06d}" for i in range(rows)], pa.string())])
    return SplitPredictions(name, ids, raw, y, probabilities)


def evaluation(splits: dict[str, SplitPredictions], *, labels: list[int | str], **replaced: Any) -> EvaluationInput:
    """Return an EvaluationInput of `splits`; `replaced` replaces its other fields."""
    multiclass = {"num_classes": len(labels), "is_binary": False, "multiclass_categories": labels}
    hp = Hyperparameters(**SETTINGS, **(multiclass if len(labels) > 2 else {}))
    fields: dict[str, Any] = {
        "id_name": "order_id",
        "label_name": "refunded",
        "input_format": "csv",
        "early_stop_metric": hp.early_stop_metric,
        "best_step": 4,
        "history": history(),
        "data_summary": data_summary(splits, labels),
        "hyperparameters": hp.model_dump(mode="json"),
        "run": {
            "model class": "multimodal_bert",
            "weights": "the best by val/auroc (0.9, step 4 of 6)",
            "processes": 2,
        },
    }
    return EvaluationInput(splits=splits, class_labels=labels, **{**fields, **replaced})


def two_splits(rows: int = 400, *, labels: tuple[int | str, ...] = (0, 1), **test: Any) -> EvaluationInput:
    """Return an EvaluationInput of val and test with `rows` records each; `test` applies to the test split only."""
    listed = list(labels)
    splits = {"val": split("val", rows, labels=listed), "test": split("test", rows, labels=listed, **test)}
    return evaluation(splits, labels=listed)


def history() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = [
        {"step": i, "epoch": i / 2, "train/loss": 0.7 / i, "lr": 1e-4 / i, "rows_per_second": 100.0}
        for i in range(1, 7)
    ]
    for entry, value in zip(entries[1::2], (0.7, 0.9, 0.8)):
        entry.update({"val/loss": 1 - value, "val/auroc": value})
    return entries


def data_summary(splits: dict[str, SplitPredictions], labels: list[int | str]) -> dict[str, Any]:
    described = {}
    for name in ("train", *splits):
        y = splits[name].labels if name in splits else np.arange(1000) % len(labels)
        rows = len(y)
        described[name] = {
            "rows": rows,
            "dropped_unlabelled": 0,
            "unlabelled": int((y < 0).sum()),
            "duplicate_ids": 0,
            "duplicate_id_example": None,
            "classes": {str(label): int((y == k).sum()) for k, label in enumerate(labels)},
            "numeric": {"price": _numeric(rows)},
            "categories": {"color": {"distinct": 3, "missing": 0, "unseen_rows": 0}},
            "texts": {"text": _text(rows)},
            "seconds": 0.1,
            "rows_per_second": 10.0 * rows,
        }
    return {"class_labels": labels, "splits": described}


def _numeric(rows: int) -> dict[str, Any]:
    found = rows > 0
    value = 20.5 if found else None
    return {
        "count": rows, "missing": 0, "mean": value, "std": 4.0 if found else None, "median": value, "min": value,
        "max": value, "imputed": 0, "imputed_with": 20.5,
    }  # fmt: skip


def _text(rows: int) -> dict[str, Any]:
    length = 12 if rows else None
    return {
        "column": "chat",
        "records": rows,
        "chunks": rows,
        "tokens": 12 * rows,
        "empty_records": 0,
        "truncated_records": 0,
        "cut_chunks": 0,
        "cut_tokens": 0,
        "tokens_per_record": {
            "mean": length,
            "max": length,
            "p50": length,
            "p90": length,
            "p95": length,
            "p99": length,
        },
    }
