"""Define the input of a job's evaluation and report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from container.decision.decision import Decision
from container.evaluation.companion_report import CompanionReport
from container.evaluation.examples import Examples
from container.evaluation.explained import ExplainedRecord
from container.evaluation.predictions import SplitPredictions
from container.job.timeline import Timeline


@dataclass(frozen=True)
class VariantReport:
    """A variant of model.onnx compared with the model, on val records.

    Attributes:
        name: fused or int8.
        written: whether the variant was kept.
        reason: why the variant was not kept; empty if it was.
        num_bytes: size of the file.
        records: number of labelled val records compared.
        max_difference, mean_difference: of a probability; None if they could not be measured.
        auroc, auroc_difference: AUROC on these records (macro), and its difference from the model's.
        seconds: time to write and measure it.
        possible: False if the variant could not be faster than model.onnx, so that there is none.
    """

    name: str
    written: bool
    reason: str = ""
    num_bytes: int = 0
    records: int = 0
    max_difference: float | None = None
    mean_difference: float | None = None
    auroc: float | None = None
    auroc_difference: float | None = None
    seconds: float = 0.0
    possible: bool = True

    def __str__(self) -> str:
        if self.max_difference is None:
            return f"model.{self.name}.onnx is not written: {self.reason}"
        measured = (
            f"{self.num_bytes / 1e6:.1f} MB; on {self.records} val records probabilities differ by at most "
            f"{self.max_difference:.1e}, {self.mean_difference:.1e} on average, AUROC by {self.auroc_difference:+z.5f}"
        )
        return f"model.{self.name}.onnx{'' if self.written else f' is not written: {self.reason}'} ({measured})"


@dataclass(frozen=True)
class Importance:
    """The decrease of the metric without a column or a modality.

    Attributes:
        name: the column, or a description of the modality.
        kind: text, numeric, date or categorical; `modality` for an ablation.
        drop: the metric with all inputs minus the metric without this input; mean over the shuffles.
        spread: standard deviation over the shuffles; None for an ablation, which is deterministic.
        interval: of an ablation, the 95 % interval of `drop` for the sampling of records; None where it is undefined.
    """

    name: str
    kind: str
    drop: float
    spread: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Explanation:
    """Feature importance on val records, or on those of test if the networks trained on val.

    Permutation importance (Breiman, 2001, Random Forests, section 10) shuffles a column's values between the records.
    Columns with the same information hide each other's importance.

    Attributes:
        metric: macro average over the classes for more than two.
        base: the metric with all inputs.
        records: number of records used, sampled to balance the classes.
        shuffles: number of shuffles of each column.
        columns, modalities: the largest drop first.
        pair: the two columns with the largest drops, shuffled together; None with fewer than three columns.
        problem: why importance was not measured; None otherwise.
    """

    metric: str
    base: float | None
    records: int
    shuffles: int
    seconds: float
    columns: tuple[Importance, ...] = ()
    modalities: tuple[Importance, ...] = ()
    pair: Importance | None = None
    problem: str | None = None
    split: str = "val"


@dataclass(frozen=True)
class LabelIssuesReport:
    """The content of the report's section.

    Attributes:
        rows: the first of label_issues.csv, by column.
    """

    source: str
    examined: int
    issues: int
    rows: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class LearningCurve:
    """The AUROC of rows of train by models that were fitted on parts of train without them.

    Attributes:
        source: the models, for the report.
        points: by number of rows, the AUROC and its 95 % interval; None where it is undefined.
        doubling: the gain from half of the rows to all, on the rows of both, and its 95 % interval.
        problem: why it was not measured; empty otherwise.
    """

    source: str
    points: Mapping[int, tuple[float, tuple[float, float] | None]] = field(default_factory=dict)
    doubling: tuple[float, tuple[float, float] | None] | None = None
    problem: str = ""

    def __str__(self) -> str:
        value, interval = self.doubling or (0.0, None)
        if self.problem or interval is None:
            return f"learning curve: not measured, because {self.problem or 'the AUROC is undefined'}"
        low, high = interval
        helps = "more rows would probably help" if low > 0 else "more rows are not shown to help"
        return (
            f"learning curve: from half of the rows to all, the AUROC of {self.source} changes by {value:+.4f} "
            f"(95% CI {low:+.4f} to {high:+.4f}): {helps}"
        )


@dataclass(frozen=True)
class EvaluationInput:
    """The results of a finished job that its evaluation and report use.

    Attributes:
        splits: predictions by split, usually val and test; with choose_on=out_of_fold, also OUT_OF_FOLD.
        class_labels: labels as the user wrote them, in the order of the class ids. [K]
        input_format: the name of a format, e.g. csv; also the format of the predictions.
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
        learning_curve: None if it was not requested.
        examples: None in a draft, or if the channels could not be read again.
        explained: records with the reasons for their predictions.
        tuning: the summary of the search that chose the settings; None without a search.
        ensemble: for metrics.json: early_stop_metric on val of each network, and what serving costs; None if the job
            trained one network.
        init_warnings: what init warned of when it made the job.
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
    learning_curve: LearningCurve | None = None
    examples: Examples | None = None
    explained: Sequence[ExplainedRecord] = ()
    tuning: Mapping[str, Any] | None = None
    ensemble: Mapping[str, Any] | None = None
    init_warnings: Sequence[str] = ()
