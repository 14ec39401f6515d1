"""Rank 0's last act: everything under output/data/."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.tensorboard import SummaryWriter

from container.decision.decision import Decision
from container.decision.softmax import softmax
from container.evaluation.evaluate import write_evaluation
from container.evaluation.evaluation_input import EvaluationInput
from container.evaluation.explanation import Explanation
from container.evaluation.predictions import SplitPredictions
from container.evaluation.variant_report import VariantReport
from container.job import Job
from container.training.job_data import JobData
from container.training.loop import merge_history
from container.training.predict import weighted_log_loss
from container.training.state import TrainingState
from contracts import artifacts
from contracts.atomic_files import AtomicFile


def write_results(
    job: Job,
    *,
    data: JobData,
    logits: dict[str, np.ndarray],
    decision: Decision,
    explanation: Explanation | None,
    variants: Sequence[VariantReport],
    state: TrainingState,
    run: dict[str, Any],
) -> tuple[Mapping[str, float | None], dict[str, int]]:
    """Write predictions, metrics, plots, report and TensorBoard's evaluation.

    Returns:
        The flat metrics, and the size in bytes of each file by its path relative to output/data.
    """
    out = job.paths.output_data
    out.mkdir(parents=True, exist_ok=True)
    scored = {name: decision.log_probabilities(values) for name, values in logits.items()}
    probabilities = {name: np.exp(values) for name, values in scored.items()}
    splits = {name: data.splits[name] for name in logits}
    labels = {name: split.column("label").to_numpy() for name, split in splits.items()}
    prepared = data.prepared
    evaluation = EvaluationInput(
        splits={
            name: SplitPredictions(
                split=name,
                ids=split.column("id"),
                raw_labels=split.column("raw_label") if "raw_label" in split.column_names else None,
                labels=labels[name],
                probabilities=probabilities[name],
            )
            for name, split in splits.items()
        },
        class_labels=list(prepared.fitted.class_labels),
        id_name=job.hp.id_name,
        label_name=job.hp.label_name,
        input_format=prepared.input_format,
        early_stop_metric=job.hp.early_stop_metric,
        history=merge_history(state.history),
        data_summary=prepared.summary,
        hyperparameters=job.hp.model_dump(mode="json"),
        run=run,
        losses={name: weighted_log_loss(scored[name], labels[name], data.class_weights) for name in splits},
        class_weights=data.class_weights,
        decision=decision,
        explanation=explanation,
        variants=variants,
        uncalibrated={name: softmax(values) for name, values in logits.items()},
    )
    evaluated = write_evaluation(out, evaluation)
    metrics = {
        name: value
        for name, value in evaluated.items()
        if name.split("/")[0] in splits and (value is None or isinstance(value, (int, float)))
    }
    _write_predict_results(out / artifacts.PREDICT_RESULTS, labels=labels, probabilities=probabilities)
    _write_tensorboard(out / artifacts.TENSORBOARD_EVAL, metrics, state=state)
    predictions = (f"{name}_predictions.{prepared.input_format}" for name in splits)
    written = {name: (out / name).stat().st_size for name in (*artifacts.REQUIRED_EVALUATION_FILES, *predictions)}
    return metrics, written


def _write_predict_results(path: Any, *, labels: dict[str, np.ndarray], probabilities: dict[str, np.ndarray]) -> None:
    """y_true and y_pred of test, val_y_true and val_y_pred of val; y_pred is [N] for two classes, else [N, K]."""
    content = {}
    for name, prefix in (("test", ""), ("val", "val_")):
        scores = torch.from_numpy(probabilities[name])
        content[f"{prefix}y_true"] = torch.from_numpy(np.array(labels[name]))
        content[f"{prefix}y_pred"] = scores[:, 1] if scores.shape[1] == 2 else scores
    with AtomicFile(path) as temporary:
        torch.save(content, temporary)


def _write_tensorboard(folder: Any, metrics: Mapping[str, float | None], *, state: TrainingState) -> None:
    import matplotlib.image

    with SummaryWriter(str(folder)) as writer:
        for name, value in metrics.items():
            if value is not None:
                writer.add_scalar(name, value, state.step)
        for name in ("roc_curve", "pr_curve"):
            if (folder / f"{name}.png").is_file():
                image = matplotlib.image.imread(folder / f"{name}.png")[..., :3]
                writer.add_image(name, image, state.step, dataformats="HWC")
