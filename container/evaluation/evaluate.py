"""Write a job's evaluation: predictions, metrics.json, curves and the report."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from container.evaluation.analysis import analyze, metrics_json
from container.evaluation.evaluation_input import EvaluationInput
from container.evaluation.examples import Examples
from container.evaluation.plots import write_curves
from container.evaluation.predictions import write_predictions
from container.evaluation.report import render_report
from container.tables.column_types import label_column
from contracts import artifacts
from contracts.atomic_files import write_text_atomically


def write_evaluation(out: Path, evaluation: EvaluationInput) -> dict[str, Any]:
    """Write {val,test}_predictions, metrics.json, history.json, tensorboard_eval/{roc,pr}_curve.png and report.html.

    Each file is written atomically. Return the content of metrics.json: metrics such as `val/auroc`, None if undefined,
    the reasons under `undefined`, and details.
    """
    decision, plots = evaluation.decision, out / artifacts.TENSORBOARD_EVAL
    plots.mkdir(parents=True, exist_ok=True)
    for predictions in evaluation.splits.values():
        write_predictions(
            out,
            predictions,
            predicted=label_column(
                [evaluation.class_labels[k] for k in decision.decide(predictions.probabilities).tolist()],
                evaluation.class_labels,
            ),
            id_name=evaluation.id_name,
            label_name=evaluation.label_name,
            file_format=evaluation.input_format,
        )
    analyses, threshold = analyze(
        evaluation.splits,
        class_labels=evaluation.class_labels,
        threshold=0.5 if decision.threshold is None else decision.threshold.value,
        uncalibrated=evaluation.uncalibrated if decision.changes_probabilities else None,
    )
    write_curves(plots, analyses, class_labels=evaluation.class_labels)
    evaluation.timeline.mark("report")  # without the files that contain this time
    metrics = {
        **metrics_json(analyses, decision=decision, threshold=threshold),
        "class_labels": list(evaluation.class_labels),
        "draft": bool(evaluation.hyperparameters.get("draft")),
        "onnx_variants": {report.name: asdict(report) for report in evaluation.variants},
        **({} if evaluation.ensemble is None else {"ensemble": evaluation.ensemble}),
        "companion": evaluation.companion and asdict(evaluation.companion),
        "label_issues": evaluation.label_issues and asdict(evaluation.label_issues),
        "learning_curve": evaluation.learning_curve and asdict(evaluation.learning_curve),
        "slices": {} if evaluation.examples is None else _slices(evaluation.examples),
        "timeline": evaluation.timeline.seconds,
        "explanation": evaluation.explanation and asdict(evaluation.explanation),
    }
    written = json.dumps(metrics, indent=2, allow_nan=False)
    write_text_atomically(out / artifacts.METRICS, written)
    history = json.dumps({"entries": _finite(evaluation.history)}, indent=1, allow_nan=False)
    write_text_atomically(out / artifacts.HISTORY, history)
    write_text_atomically(out / artifacts.REPORT, render_report(evaluation, analyses, threshold=threshold))
    return json.loads(written)


def _slices(examples: Examples) -> dict[str, Any]:
    columns = {name: [each.to_dict() for each in values] for name, values in examples.values.items()}
    return {examples.split: columns}


def _finite(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries with null for a number that JSON cannot represent, such as the loss of a skipped step."""
    return [
        {name: value if value is None or math.isfinite(value) else None for name, value in entry.items()}
        for entry in history
    ]
