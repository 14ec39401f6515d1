"""Declare each metric of a classifier once: its name, direction, formula, intervals, and words for the report."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

MetricName = Literal["auroc", "average_precision", "f1_score", "precision", "recall", "accuracy"]
METRICS: tuple[str, ...] = get_args(MetricName)


@dataclass(frozen=True)
class Metric:
    """A metric; it is computed from a curve, from decisions, or (loss) from the probability of the true class.

    Attributes:
        name: in metrics.json and in settings.
        title, meaning: in the report.
        minimizes: whether a lower value is better.
        curve: it is the area below this curve, of one class against the rest.
        ratio: from the records of a class that are decided as it, its records, and the records that are decided as it,
            to a numerator and a denominator; numbers or arrays over the classes.
        pooled: divide the sums over the classes, instead of averaging the ratios of the classes (macro).
        interval: of the value: DeLong's (of several classes: Hanley and McNeil's), or Wilson's, of a share of records.
        compared: with a baseline and with other models, by an interval of the paired difference.
    """

    name: MetricName | Literal["loss"]
    title: str
    meaning: str
    minimizes: bool = False
    curve: Literal["roc", "precision_recall"] | None = None
    ratio: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None
    pooled: bool = False
    interval: Literal["DeLong", "Wilson"] | None = None
    compared: bool = True


_DECLARED = (
    Metric("loss", "Log loss", "Mean negative log probability of the true class. Lower is better.", minimizes=True),
    Metric(
        "auroc",
        "AUROC",
        "Probability that a random record of the class scores higher than a random record of another class.",
        curve="roc",
        interval="DeLong",
    ),
    Metric(
        "average_precision",
        "Average precision",
        "Mean precision over all recalls. The most informative metric when the class is rare.",
        curve="precision_recall",
    ),
    Metric(
        "f1_score",
        "F1",
        "Harmonic mean of precision and recall.",
        ratio=lambda hits, records, decided: (2 * hits, records + decided),
    ),
    Metric(
        "precision",
        "Precision",
        "Share of the records predicted as the class that are of the class.",
        ratio=lambda hits, _, decided: (hits, decided),
        compared=False,
    ),
    Metric(
        "recall",
        "Recall",
        "Share of the records of the class that are predicted as the class.",
        ratio=lambda hits, records, _: (hits, records),
        compared=False,
    ),
    Metric(
        "accuracy",
        "Accuracy",
        "Share of the records that are predicted correctly.",
        ratio=lambda hits, records, _: (hits, records),
        pooled=True,
        interval="Wilson",
    ),
)
DECLARED: dict[str, Metric] = {metric.name: metric for metric in _DECLARED}
COMPARED = tuple(metric.name for metric in _DECLARED if metric.compared)
AREAS: dict[str, str] = {metric.curve: metric.name for metric in _DECLARED if metric.curve}
LOSSES = (*(metric.name for metric in _DECLARED if metric.minimizes), "brier_score", "expected_calibration_error")
assert tuple(DECLARED) == ("loss", *METRICS)
