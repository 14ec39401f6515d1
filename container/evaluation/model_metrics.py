"""Compute metrics per split, with thresholds chosen on one split and measured on all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from container.decision.decision import Threshold
from container.evaluation.analysis import SplitAnalysis, analyze
from container.evaluation.capture import Capture, capture
from container.evaluation.choose_threshold import choose_threshold, decisions_at
from container.evaluation.comparison import Comparison, compare
from container.evaluation.curves import rank
from container.evaluation.predictions import SplitPredictions
from container.evaluation.slices import Slice, slices
from contracts.threshold_targets import parse_threshold

TARGETS = ("best_f1", "precision>=0.8", "precision>=0.9", "recall>=0.8", "recall>=0.9")


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
        threshold: for two classes. previous_threshold: likewise, of the previous model.
    """

    class_labels: Sequence[int | str]
    threshold: float
    previous_threshold: float
    flagged_shares: Sequence[float]
    false_positive_rate: float
    min_group_rows: int

    @property
    def binary(self) -> bool:
        return len(self.class_labels) == 2


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


def compute_model_metrics(inputs: Mapping[str, SplitInput], options: MetricOptions) -> ModelMetrics:
    """Analyse all splits; thresholds are chosen on val, or on the only split.

    Args:
        inputs: by split, with encoded labels.
    """
    analyses, best_f1 = analyze(
        {name: split.predictions for name, split in inputs.items()},
        class_labels=options.class_labels,
        threshold=options.threshold,
    )
    chosen_on = "val" if "val" in inputs else next(iter(inputs)) if len(inputs) == 1 else None
    points = {}
    if options.binary and chosen_on is not None and analyses[chosen_on].curves:
        points = _operating_points(inputs, chosen_on)
    return ModelMetrics(
        class_labels=tuple(options.class_labels),
        splits={name: _of_split(split, analyses[name], options) for name, split in inputs.items()},
        best_f1_threshold=best_f1,
        operating_points=points,
        chosen_on=chosen_on if points else None,
        threshold=options.threshold if options.binary else None,
    )


def _of_split(split: SplitInput, analysis: SplitAnalysis, options: MetricOptions) -> SplitMetrics:
    labels, probabilities = split.predictions.labels, split.predictions.probabilities
    known = labels >= 0
    threshold = options.threshold if options.binary else None
    recall, missing = None, 0
    if options.binary and analysis.curves:
        positive = labels == 1
        amounts = None
        if split.amounts is not None:
            amounts = np.nan_to_num(split.amounts[positive], nan=0.0)
            missing = int(np.isnan(split.amounts[positive]).sum())
        recall = capture(
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
                threshold=threshold,
                previous_threshold=options.previous_threshold if options.binary else None,
            )
    by_field = {
        field: slices(
            groups,
            labels,
            probabilities,
            min_rows=options.min_group_rows,
            threshold=threshold,
            class_labels=options.class_labels,
        )
        for field, groups in split.groups.items()
    }
    return SplitMetrics(analysis, recall, missing, by_field, comparison)


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
        points[target] = replace(chosen, reached=reached)
    return points
