"""The evaluation of a job, written: predictions, metrics.json, curves and the report."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from container.decision.decision import Decision
from container.evaluation.analysis import SplitAnalysis, analyze
from container.evaluation.evaluation_input import EvaluationInput
from container.evaluation.plots import write_curves
from container.evaluation.predictions import write_predictions
from container.evaluation.report import render_report
from contracts import artifacts


def write_evaluation(out: Path, evaluation: EvaluationInput) -> dict[str, Any]:
    """Write {val,test}_predictions, metrics.json, tensorboard_eval/{roc,pr}_curve.png and report.html into `out`.

    Each file is written aside and renamed. Returns what metrics.json holds: `val/auroc` and the like, None where
    undefined, the reasons under `undefined`, and details.
    """
    plots = out / artifacts.TENSORBOARD_EVAL
    plots.mkdir(parents=True, exist_ok=True)
    for predictions in evaluation.splits.values():
        write_predictions(
            out,
            predictions,
            id_name=evaluation.id_name,
            label_name=evaluation.label_name,
            file_format=evaluation.input_format,
        )
    analyses, threshold = analyze(
        evaluation.splits,
        class_labels=evaluation.class_labels,
        losses=evaluation.losses,
        class_weights=evaluation.class_weights,
        threshold=decided_from(evaluation.decision),
        uncalibrated=evaluation.uncalibrated if evaluation.decision.changes_probabilities else None,
    )
    metrics = {
        **metrics_json(analyses, decision=evaluation.decision, threshold=threshold),
        "onnx_variants": {report.name: asdict(report) for report in evaluation.variants},
        "explanation": evaluation.explanation and evaluation.explanation.to_json(),
    }
    written = json.dumps(metrics, indent=2, allow_nan=False)
    _write_aside(out / artifacts.METRICS, written)
    write_curves(plots, analyses, class_labels=evaluation.class_labels)
    _write_aside(out / artifacts.REPORT, render_report(evaluation, analyses, threshold=threshold))
    return json.loads(written)


def decided_from(decision: Decision) -> float:
    """The threshold of two classes; without a decision about it, 0.5."""
    return 0.5 if decision.threshold is None else decision.threshold.value


def metrics_json(
    analyses: Mapping[str, SplitAnalysis], *, decision: Decision, threshold: float | None
) -> dict[str, Any]:
    """What metrics.json says of the splits.

    Args:
        threshold: of the best F1 on val; None where there is none.
    """
    flat: dict[str, Any] = {}
    undefined: dict[str, str] = {}
    for name, analysis in analyses.items():
        flat.update({f"{name}/{metric}": value for metric, value in analysis.metrics.values.items()})
        undefined.update({f"{name}/{metric}": reason for metric, reason in analysis.metrics.undefined.items()})
    details = {
        "records": {name: {"rows": a.rows, "labelled": a.labelled} for name, a in analyses.items()},
        "baselines": {name: a.baselines for name, a in analyses.items()},
        "intervals_95": {name: {key: list(pair) for key, pair in a.intervals.items()} for name, a in analyses.items()},
        "best_f1_threshold": None if threshold is None else {"threshold": threshold, "chosen_on": "val"},
        "thresholds": {name: [entry.to_dict() for entry in a.at_thresholds] for name, a in analyses.items()},
        "classes": {name: [asdict(scores) for scores in a.classes] for name, a in analyses.items()},
        "confusion_matrix": {name: a.confusion.tolist() for name, a in analyses.items()},
        "decision": decision.to_json(),
        "uncalibrated": {name: a.uncalibrated and asdict(a.uncalibrated) for name, a in analyses.items()},
        "calibration": {name: a.calibration and asdict(a.calibration) for name, a in analyses.items()},
    }
    return {**flat, "undefined": undefined, **details}


def _write_aside(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)
