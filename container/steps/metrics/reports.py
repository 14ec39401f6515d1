"""Build the contents of metrics.json, metrics_report.json and evaluation.json."""

from dataclasses import asdict
from typing import Any

from container.decision.decision import Decision, Threshold
from container.evaluation.analysis import SplitAnalysis, metrics_json
from container.evaluation.curves import thin
from container.evaluation.model_metrics import ModelMetrics, SplitMetrics
from contracts.revision import UNKNOWN, revision
from contracts.steps import VERSION_FACTS


def metrics_content(metrics: ModelMetrics) -> dict[str, Any]:
    """Return metrics.json: the content of a training job's metrics.json, and `split/name` for every further number."""
    decision = Decision(threshold=None if metrics.threshold is None else Threshold(metrics.threshold))
    analyses = {name: split.analysis for name, split in metrics.splits.items()}
    return {
        **{f"{name}/{key}": value for name, split in metrics.splits.items() for key, value in _further(split).items()},
        **metrics_json(analyses, decision=decision, threshold=metrics.best_f1_threshold),
        "class_labels": list(metrics.class_labels),
    }


def report_content(metrics: ModelMetrics) -> dict[str, Any]:
    """Return metrics_report.json: metrics.json, curves, recall, operating points, slices and the comparison."""
    return {
        **metrics_content(metrics),
        "operating_points": {
            "chosen_on": metrics.chosen_on,
            "targets": {target: asdict(threshold) for target, threshold in metrics.operating_points.items()},
        },
        "capture": {name: split.capture and _capture(split) for name, split in metrics.splits.items()},
        "slices": {
            name: {field: [each.to_dict() for each in groups] for field, groups in split.slices.items()}
            for name, split in metrics.splits.items()
        },
        "comparison": {
            name: split.comparison and {**asdict(split.comparison), "verdict": split.comparison.verdict}
            for name, split in metrics.splits.items()
        },
        "curves": {name: _curves(split.analysis) for name, split in metrics.splits.items()},
    }


def version_facts(metrics: ModelMetrics, *, metric: str, training_rows: int | None) -> dict[str, str]:
    """Return what describes a registered version, by contracts.steps.VERSION_FACTS: texts, none of which is missing."""
    split, _, name = metric.partition("/")
    analysis = metrics.splits[split].analysis
    value, interval = metrics_content(metrics)[metric], analysis.intervals.get(name)
    texts = (
        "undefined" if value is None else f"{value:.6g}",
        "none" if interval is None else f"{interval[0]:.6g} to {interval[1]:.6g}",
        f"{analysis.labelled} labelled records of {split}",
        UNKNOWN if training_rows is None else str(training_rows),
        revision(),
    )
    return dict(zip(VERSION_FACTS, texts, strict=True))


def model_statistics(metrics: ModelMetrics, *, split: str) -> dict[str, Any]:
    """Return one split's defined metrics in the Model Registry's format, for evaluation.json."""
    analysis = metrics.splits[split].analysis
    names = {"accuracy": "accuracy", "precision": "precision", "recall": "recall", "f1_score": "f1", "auroc": "auc"}
    values = {
        registry_name: {"value": analysis.metrics.values[name], "standard_deviation": "NaN"}
        for name, registry_name in names.items()
        if analysis.metrics.values[name] is not None
    }
    labels = [str(label) for label in metrics.class_labels]
    confusion = {label: dict(zip(labels, map(int, row))) for label, row in zip(labels, analysis.confusion)}
    if len(labels) > 2:
        averaged = {name if name == "accuracy" else f"macro_{name}": value for name, value in values.items()}
        return {"multiclass_classification_metrics": {"confusion_matrix": confusion, **averaged}}
    statistics: dict[str, Any] = {"confusion_matrix": confusion, **values}
    if analysis.curves:
        roc, precision_recall = thin(analysis.curves[0].roc), thin(analysis.curves[0].precision_recall)
        statistics["receiver_operating_characteristic_curve"] = {
            "false_positive_rates": roc.x.tolist(),
            "true_positive_rates": roc.y.tolist(),
        }
        statistics["precision_recall_curve"] = {
            "precisions": precision_recall.y.tolist(),
            "recalls": precision_recall.x.tolist(),
        }
    return {"binary_classification_metrics": statistics}


def _further(split: SplitMetrics) -> dict[str, float | None]:
    """Return further numbers: calibration, recall within limits, differences from the previous model."""
    calibration = split.analysis.calibration
    further: dict[str, float | None] = {
        "brier_score": calibration and calibration.brier_score,
        "expected_calibration_error": calibration and calibration.expected_calibration_error,
    }
    if split.capture is not None:
        points = {f"{share:g}": point for share, point in split.capture.at_shares.items()}
        points |= {f"fpr_{rate:g}": point for rate, point in split.capture.at_false_positive_rate.items()}
        for name, point in points.items():
            further[f"count_recall_at_{name}"] = point.count_recall
            if split.capture.positive_amount is not None:
                further[f"dollar_recall_at_{name}"] = point.dollar_recall
    if split.comparison is not None:
        further |= {f"{name}_difference": value for name, value in split.comparison.differences.items()}
    return further


def _capture(split: SplitMetrics) -> dict[str, Any]:
    capture = split.capture
    assert capture is not None
    curves = {"count": capture.count_curve, "dollar": capture.dollar_curve}
    thinned = {name: thin(curve) for name, curve in curves.items() if curve is not None}
    return {
        "positive_amount": capture.positive_amount,
        "positives_without_amount": split.missing_amounts,
        "at_flagged_share": {f"{share:g}": asdict(point) for share, point in capture.at_shares.items()},
        "at_false_positive_rate": {
            f"{rate:g}": asdict(point) for rate, point in capture.at_false_positive_rate.items()
        },
        "curves": {
            name: {"flagged_share": curve.x.tolist(), "recall": curve.y.tolist()} for name, curve in thinned.items()
        },
    }


def _curves(analysis: SplitAnalysis) -> list[dict[str, Any]]:
    return [
        {
            "class_id": curve.class_id,
            "roc": {"false_positive_rate": curve.roc.x.tolist(), "true_positive_rate": curve.roc.y.tolist()},
            "precision_recall": {
                "recall": curve.precision_recall.x.tolist(),
                "precision": curve.precision_recall.y.tolist(),
            },
        }
        for curve in analysis.curves
    ]
