"""Compute the metrics step's results: per split, with thresholds chosen on one split and measured on all."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from container.decision.decision import Decision, Threshold
from container.evaluation.analysis import SplitAnalysis, analyze, metrics_json
from container.evaluation.choose_threshold import choose_threshold, decisions_at
from container.evaluation.curves import rank, thin
from container.evaluation.predictions import SplitPredictions
from container.steps.metrics.capture import Capture, capture
from container.steps.metrics.comparison import Comparison, compare
from container.steps.metrics.slices import Slice, slices
from contracts.threshold_targets import parse_threshold

TARGETS = ("best_f1", "precision>=0.8", "precision>=0.9", "recall>=0.8", "recall>=0.9")
_SMALLEST = 1e-15  # a probability of 0 would make the log loss infinite


@dataclass(frozen=True)
class SplitInput:
    """A split's records. N rows.

    Attributes:
        amounts: NaN if missing. [N]
        groups: by column, the value of each record or None. [N] each
        previous: a previous model's probabilities, NaN if missing. [N, K]
    """

    predictions: SplitPredictions
    amounts: np.ndarray | None
    groups: Mapping[str, list[str | None]]
    previous: np.ndarray | None


@dataclass(frozen=True)
class MetricOptions:
    """The metrics step's options.

    Attributes:
        threshold: of two classes. previous_threshold: of the previous model.
    """

    class_labels: Sequence[int | str]
    threshold: float
    previous_threshold: float
    flagged_shares: Sequence[float]
    false_positive_rate: float
    min_group_rows: int


@dataclass(frozen=True)
class SplitMetrics:
    """A split's evaluation. Fields are None or empty if they were not requested or are undefined."""

    analysis: SplitAnalysis
    capture: Capture | None
    missing_amounts: int
    slices: dict[str, list[Slice]]
    comparison: Comparison | None


@dataclass(frozen=True)
class ModelMetrics:
    """The metrics of all splits.

    Attributes:
        best_f1_threshold: chosen on val; None where there is none.
        operating_points: two classes: by target, a threshold and what it reaches on each split.
        chosen_on: the split on which the operating points were chosen.
    """

    class_labels: tuple[int | str, ...]
    splits: dict[str, SplitMetrics]
    best_f1_threshold: float | None
    operating_points: dict[str, Threshold]
    chosen_on: str | None
    threshold: float | None

    def to_json(self) -> dict[str, Any]:
        """Return metrics.json: the content of a training job's, and `split/name` for every further number."""
        decision = Decision(threshold=None if self.threshold is None else Threshold(self.threshold))
        analyses = {name: split.analysis for name, split in self.splits.items()}
        return {
            **{f"{name}/{key}": value for name, split in self.splits.items() for key, value in _further(split).items()},
            **metrics_json(analyses, decision=decision, threshold=self.best_f1_threshold),
            "class_labels": list(self.class_labels),
        }

    def report(self) -> dict[str, Any]:
        """Return metrics_report.json: metrics.json, curves, budgets, operating points, slices and the comparison."""
        return {
            **self.to_json(),
            "operating_points": {
                "chosen_on": self.chosen_on,
                "targets": {target: asdict(threshold) for target, threshold in self.operating_points.items()},
            },
            "capture": {name: split.capture and _capture_json(split) for name, split in self.splits.items()},
            "slices": {
                name: {field: [each.to_dict() for each in groups] for field, groups in split.slices.items()}
                for name, split in self.splits.items()
            },
            "comparison": {name: split.comparison and _comparison_json(split) for name, split in self.splits.items()},
            "curves": {name: _curves_json(split.analysis) for name, split in self.splits.items()},
        }


def compute_model_metrics(inputs: Mapping[str, SplitInput], options: MetricOptions) -> ModelMetrics:
    """Analyse all splits; thresholds are chosen on val, or on the only split.

    Args:
        inputs: by split, labels numbered.
    """
    binary = len(options.class_labels) == 2
    analyses, best_f1 = analyze(
        {name: split.predictions for name, split in inputs.items()},
        class_labels=options.class_labels,
        losses={name: log_loss(split.predictions) for name, split in inputs.items()},
        class_weights=None,
        threshold=options.threshold,
    )
    chosen_on, points = None, {}
    if binary:
        chosen_on = "val" if "val" in inputs else next(iter(inputs)) if len(inputs) == 1 else None
        if chosen_on is not None and analyses[chosen_on].curves:
            points = _operating_points(inputs, chosen_on)
        else:
            chosen_on = None
    splits = {name: _of_split(split, analyses[name], options) for name, split in inputs.items()}
    threshold = options.threshold if binary else None
    return ModelMetrics(tuple(options.class_labels), splits, best_f1, points, chosen_on, threshold)


def log_loss(predictions: SplitPredictions) -> float | None:
    """Return the mean of -log p(label) over labelled records, without class weights; None if there are none."""
    known = predictions.labels >= 0
    if not known.any():
        return None
    of_label = predictions.probabilities[known, predictions.labels[known]]
    return float(-np.log(np.clip(of_label, _SMALLEST, 1.0)).mean())


def _of_split(split: SplitInput, analysis: SplitAnalysis, options: MetricOptions) -> SplitMetrics:
    predictions, binary = split.predictions, len(options.class_labels) == 2
    labels, probabilities = predictions.labels, predictions.probabilities
    known = labels >= 0
    caught, missing = None, 0
    if binary and analysis.curves:
        positive = labels == 1
        amounts = None if split.amounts is None else np.nan_to_num(split.amounts[positive], nan=0.0)
        missing = 0 if split.amounts is None else int(np.isnan(split.amounts[positive]).sum())
        caught = capture(
            rank(positive[known], probabilities[known, 1]),
            positive_scores=probabilities[positive, 1],
            positive_amounts=amounts,
            flagged_shares=options.flagged_shares,
            false_positive_rate=options.false_positive_rate,
        )
    comparison = None
    if split.previous is not None:
        both = known & ~np.isnan(split.previous).any(axis=1)
        if both.any():
            comparison = compare(
                labels[both],
                probabilities[both],
                split.previous[both],
                threshold=options.threshold if binary else None,
                previous_threshold=options.previous_threshold if binary else None,
            )
    sliced = {
        field: slices(
            groups,
            labels,
            probabilities,
            min_rows=options.min_group_rows,
            threshold=options.threshold if binary else None,
            class_labels=list(options.class_labels),
        )
        for field, groups in split.groups.items()
    }
    return SplitMetrics(analysis, caught, missing, sliced, comparison)


def _operating_points(inputs: Mapping[str, SplitInput], chosen_on: str) -> dict[str, Threshold]:
    predictions = inputs[chosen_on].predictions
    known = predictions.labels >= 0
    points = {}
    for target in TARGETS:
        chosen = choose_threshold(
            parse_threshold(target), predictions.labels[known] == 1, predictions.probabilities[known, 1]
        )
        reached = {
            name: decisions_at(chosen.value, each.predictions.labels, each.predictions.probabilities[:, 1])
            for name, each in inputs.items()
        }
        points[target] = Threshold(chosen.value, chosen.target, chosen.met, reached)
    return points


def _further(split: SplitMetrics) -> dict[str, float | None]:
    """Return further numbers: calibration, recall under budgets, differences from the previous model."""
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


def _capture_json(split: SplitMetrics) -> dict[str, Any]:
    captured = split.capture
    assert captured is not None
    curves = {"count": captured.count_curve, "dollar": captured.dollar_curve}
    return {
        "positive_amount": captured.positive_amount,
        "positives_without_amount": split.missing_amounts,
        "at_flagged_share": {f"{share:g}": asdict(point) for share, point in captured.at_shares.items()},
        "at_false_positive_rate": {
            f"{rate:g}": asdict(point) for rate, point in captured.at_false_positive_rate.items()
        },
        "curves": {
            name: {"flagged_share": thin(curve).x.tolist(), "recall": thin(curve).y.tolist()}
            for name, curve in curves.items()
            if curve is not None
        },
    }


def _comparison_json(split: SplitMetrics) -> dict[str, Any]:
    assert split.comparison is not None
    return {**asdict(split.comparison), "verdict": split.comparison.verdict}


def _curves_json(analysis: SplitAnalysis) -> list[dict[str, Any]]:
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
