"""Define the input of a job's evaluation and report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from container.decision.decision import Decision
from container.evaluation.companion_report import CompanionReport
from container.evaluation.examples import Examples
from container.evaluation.explained import ExplainedRecord
from container.evaluation.explanation import Explanation
from container.evaluation.label_issues import LabelIssuesReport
from container.evaluation.predictions import SplitPredictions
from container.evaluation.variant_report import VariantReport
from container.timeline import Timeline


@dataclass(frozen=True)
class EvaluationInput:
    """The results of a finished job that its evaluation and report use.

    Attributes:
        splits: predictions by split, usually val and test.
        class_labels: labels as the user wrote them, in the order of the class ids. [K]
        input_format: csv, tsv or parquet; also the format of the predictions.
        early_stop_metric: the metric that chose the best weights, e.g. val/f1_score.
        best_step: step of the validation with the best early_stop_metric; None if none is defined.
        history: training's log entries: {"step", "epoch", "time", "train/loss", "lr", "val/loss", ...}.
        data_summary: summary of every split, see container/preprocessing/data_summary.py.
        hyperparameters: all values, as JSON.
        run: facts to show, in order; `weights` says which weights were evaluated, and why.
        class_weights: weights of the loss; None if all are 1. [K]
        uncalibrated: the softmax by split. [N, K] each
        explanation: feature importance; None if it was not requested.
        variants: of model.onnx, written or not.
        timeline: of the job.
        companion: of the network, used or not; None if it was not requested.
        label_issues: None if they were not requested, or could not be found.
        examples: None in a draft, or if the channels could not be read again.
        explained: records with the reasons for their predictions.
        tuning: the summary of the search that chose the settings; None without a search.
        ensemble: for metrics.json: early_stop_metric on val of each network, and what serving costs; None if the job
            trained one network.
    """

    splits: Mapping[str, SplitPredictions]
    class_labels: Sequence[int | str]
    id_name: str
    label_name: str
    input_format: str
    early_stop_metric: str
    best_step: int | None
    history: Sequence[Mapping[str, Any]]
    data_summary: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]
    run: Mapping[str, Any]
    class_weights: Sequence[float] | None = None
    decision: Decision = field(default_factory=Decision)
    uncalibrated: Mapping[str, np.ndarray] = field(default_factory=dict)
    explanation: Explanation | None = None
    variants: Sequence[VariantReport] = ()
    timeline: Timeline = field(default_factory=Timeline)
    companion: CompanionReport | None = None
    label_issues: LabelIssuesReport | None = None
    examples: Examples | None = None
    explained: Sequence[ExplainedRecord] = ()
    tuning: Mapping[str, Any] | None = None
    ensemble: Mapping[str, Any] | None = None
