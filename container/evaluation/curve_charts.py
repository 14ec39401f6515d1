"""Describe the charts that both the report and the PNG plots show: curves, thresholds and calibration."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from container.evaluation.analysis import ClassCurves, SplitAnalysis
from container.evaluation.charts import LineChart, Series, mark, percent, share_axis
from contracts.metrics import AREAS

_NAMED_CLASSES = 7


def curve_charts(analyses: Sequence[SplitAnalysis], kind: str, labels: Sequence[int | str]) -> list[LineChart]:
    """Return a chart of all splits for two classes, else a chart per split with its hardest classes and the mean.

    Args:
        kind: roc or precision_recall.
    """
    title, x, y = {
        "roc": ("ROC curve", "false positive rate", "true positive rate (recall)"),
        "precision_recall": ("Precision-recall curve", "recall", "precision"),
    }[kind]
    x_axis, y_axis = share_axis(x), share_axis(y)
    measured = [analysis for analysis in analyses if analysis.curves]
    chance = [Series("chance", (0, 1), (0, 1), "reference")] if kind == "roc" else []
    if len(labels) > 2:
        order = _hardest_first(analyses)
        return [
            LineChart(f"{title}, {each.title}", x_axis, y_axis, [*chance, *_one_vs_rest(each, kind, labels, order)])
            for each in measured
        ]
    if not measured:
        return []
    if kind != "roc":
        rate = np.full(2, measured[0].baselines[AREAS[kind]])
        chance = [Series(f"chance on {measured[0].title}", (0, 1), rate, "reference")]
    lines = [
        _line(each.curves[0], kind, f"{each.title} ({_area(each.curves[0], kind):.3f})", _split_style(each))
        for each in reversed(measured)
    ]
    return [LineChart(title, x_axis, y_axis, [*chance, *lines])]


def _hardest_first(analyses: Iterable[SplitAnalysis]) -> list[int]:
    """Return the ids of the classes with curves, the lowest mean AUROC over the splits first."""
    areas: dict[int, list[float]] = {}
    for analysis in analyses:
        for curve in analysis.curves:
            areas.setdefault(curve.class_id, []).append(curve.auroc)
    return sorted(areas, key=lambda k: sum(areas[k]) / len(areas[k]))


def _area(curve: ClassCurves, kind: str) -> float:
    return getattr(curve, AREAS[kind])


def _line(curves: ClassCurves, kind: str, name: str, style: str) -> Series:
    curve = getattr(curves, kind)
    return Series(name, curve.x, curve.y, style, steps=kind != "roc")  # average precision is the area below the steps


def _one_vs_rest(analysis: SplitAnalysis, kind: str, labels: Sequence[int | str], order: Sequence[int]) -> list[Series]:
    of_class = {curve.class_id: curve for curve in analysis.curves}
    named = order if len(order) <= _NAMED_CLASSES else order[: _NAMED_CLASSES - 1]
    others = [k for k in reversed(order) if k in of_class and k not in named]
    names = [f"{len(others)} other classes", *[""] * len(others)]
    lines = [_line(of_class[k], kind, name, "muted") for k, name in zip(others, names)]
    for place, k in reversed(list(enumerate(named, start=1))):
        if k in of_class:
            lines.append(_line(of_class[k], kind, f"{labels[k]} ({_area(of_class[k], kind):.3f})", f"c{place}"))
    macro = analysis.macro_roc if kind == "roc" else analysis.macro_precision_recall
    assert macro is not None
    mean = analysis.metric(AREAS[kind])
    return [*lines, Series(f"mean of classes ({mean:.3f})", macro.x, macro.y, "strong", steps=kind != "roc")]


def threshold_chart(analysis: SplitAnalysis) -> LineChart | None:
    """Return precision, recall, F1 and the flagged share over the threshold."""
    if analysis.threshold is None or not analysis.sweep:
        return None
    x = [entry.threshold for entry in analysis.sweep]
    drawn = (
        ("precision", "c1", [entry.precision for entry in analysis.sweep]),
        ("recall", "c2 dashed", [entry.recall for entry in analysis.sweep]),
        ("F1", "strong", [entry.f1_score for entry in analysis.sweep]),
        ("share flagged", "c3 dotted", [entry.flagged_share for entry in analysis.sweep]),
    )
    lines = [Series(name, x, [math.nan if v is None else v for v in y], style) for name, style, y in drawn]
    y = share_axis("share")
    lines.append(mark(f"threshold in use: {analysis.threshold:.3g}", min(analysis.threshold, 1.0), y))
    return LineChart(f"Metrics by threshold, {analysis.title}", share_axis("threshold on the score"), y, lines)


def reliability_chart(analyses: Sequence[SplitAnalysis], labels: Sequence[int | str]) -> LineChart | None:
    """Return the observed share over the mean score, with intervals; None without a labelled record."""
    series = [Series("perfectly calibrated", (0.0, 1.0), (0.0, 1.0), "reference")]
    for analysis in reversed(analyses):
        if (calibration := analysis.calibration) is None:
            continue
        bins, total = calibration.bins, sum(entry.count for entry in calibration.bins)
        name = f"{analysis.title} (calibration error {percent(calibration.expected_calibration_error)})"
        tips = [
            f"{name}: {entry.count:,} records, mean score {percent(entry.mean_score)}, "
            f"observed {percent(entry.observed)}"
            for entry in bins
        ]
        series.append(
            Series(
                name,
                [entry.mean_score for entry in bins],
                [entry.observed for entry in bins],
                f"thin {_split_style(analysis)}",
                dots=True,
                whiskers=[entry.interval for entry in bins],
                radii=[2.5 + 7 * math.sqrt(entry.count / total) for entry in bins],
                tips=tips,
            )
        )
    if len(series) == 1:
        return None
    binary = len(labels) == 2
    return LineChart(
        "Reliability",
        share_axis(f"mean score of class {labels[1]}" if binary else "mean score of the predicted class"),
        share_axis(f"share of class {labels[1]}" if binary else "share predicted correctly"),
        series,
        note="Bars: 95% CI. Dot areas grow with the number of records. Below the diagonal, scores are too high.",
    )


def _split_style(analysis: SplitAnalysis) -> str:
    return analysis.split if analysis.split in ("val", "test") else "c3"
