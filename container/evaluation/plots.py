"""Draw every PNG: the curves of an evaluation, and the other plots of the metrics step."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from container.evaluation.analysis import ClassCurves, SplitAnalysis
from container.evaluation.finding import METRIC_NAMES
from container.evaluation.model_metrics import ModelMetrics, SplitMetrics
from container.evaluation.plot_labels import plot_label
from contracts.atomic_files import AtomicFile

NAMED_CLASSES = 7
# Okabe and Ito's colours, which people with any kind of colour vision can distinguish.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A6A00")
_GREY = "#9AA3AD"
_SPLITS = {"test": (_COLORS[0], "-"), "val": (_COLORS[1], (0, (5, 2)))}
_UNIT_SQUARE: dict[str, Any] = {"xlim": (-0.01, 1.01), "ylim": (-0.01, 1.01)}
_DOTTED: dict[str, Any] = {"color": "#777777", "linewidth": 0.8, "linestyle": ":"}
_SHOWN_GROUPS = 15
_NAME_BYTES = 150  # of a field in the name of a file


def write_curves(folder: Path, analyses: Mapping[str, SplitAnalysis], *, class_labels: Sequence[int | str]) -> None:
    """Write roc_curve.png and pr_curve.png into `folder`, each complete or not at all.

    Two classes: one panel with a curve per split. More classes: a panel per split with a curve per class and their
    mean. The legend gives the reason if a split has no curves.
    """
    for name, kind in (("roc_curve", "roc"), ("pr_curve", "precision_recall")):
        _save(_draw(kind, list(analyses.values()), class_labels), folder / f"{name}.png")


def hardest_first(analyses: Iterable[SplitAnalysis]) -> list[int]:
    """Return the ids of the classes with curves, the lowest mean AUROC over the splits first."""
    areas: dict[int, list[float]] = {}
    for analysis in analyses:
        for curve in analysis.curves:
            areas.setdefault(curve.class_id, []).append(curve.auroc)
    return sorted(areas, key=lambda k: sum(areas[k]) / len(areas[k]))


def area(curve: ClassCurves, kind: str) -> float:
    return curve.auroc if kind == "roc" else curve.average_precision


def _draw_style(kind: str) -> str:
    return "default" if kind == "roc" else "steps-pre"  # average precision is the area below the steps


def _draw(kind: str, analyses: list[SplitAnalysis], class_labels: Sequence[int | str]) -> Figure:
    panels = [analyses] if len(class_labels) == 2 else [[analysis] for analysis in analyses]
    figure = Figure(figsize=(6.6 * len(panels), 6.4), dpi=120, layout="constrained")
    order = hardest_first(analyses)
    for i, shown in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), i + 1)
        title = "ROC curve" if kind == "roc" else "Precision-recall curve"
        if len(class_labels) == 2:
            _draw_two_classes(axes, kind, shown)
            subtitle = f"class {plot_label(class_labels[1])} against {plot_label(class_labels[0])}"
        else:
            _draw_one_vs_rest(axes, kind, shown[0], class_labels=class_labels, order=order)
            subtitle = f"{shown[0].split}, each class against the rest"
        _finish_curves(axes, kind, f"{title}: {subtitle}")
    return figure


def _draw_two_classes(axes: Axes, kind: str, analyses: Sequence[SplitAnalysis]) -> None:
    for analysis in analyses:
        color, dash = _SPLITS.get(analysis.split, (_COLORS[2], "-"))
        if not analysis.curves:
            reason = analysis.metrics.undefined["auroc"]
            axes.plot([], [], color=color, label=f"{analysis.split}: no curve, {reason}")
            continue
        curve = analysis.curves[0]
        shown = getattr(curve, kind)
        label = f"{analysis.split}: {'AUROC' if kind == 'roc' else 'average precision'} {area(curve, kind):.4f}"
        axes.plot(shown.x, shown.y, color=color, linestyle=dash, linewidth=2, drawstyle=_draw_style(kind), label=label)
        if kind != "roc":
            rate = analysis.baselines["average_precision"]
            assert rate is not None
            label = f"chance on {analysis.split}: {rate:.4f}"
            axes.axhline(rate, color=color, linewidth=0.8, linestyle=":", label=label)


def _draw_one_vs_rest(
    axes: Axes, kind: str, analysis: SplitAnalysis, *, class_labels: Sequence[int | str], order: Sequence[int]
) -> None:
    """Draw a curve per class; those beyond the first few of `order` share one colour and one legend entry."""
    steps = _draw_style(kind)
    if not analysis.curves:
        axes.plot([], [], " ", label=f"no curves: {analysis.metrics.undefined['auroc']}")
        return
    of_class = {curve.class_id: curve for curve in analysis.curves}
    named = order if len(order) <= NAMED_CLASSES else order[: NAMED_CLASSES - 1]
    for k in order[len(named) :]:
        if k in of_class:
            shown = getattr(of_class[k], kind)
            axes.plot(shown.x, shown.y, color=_GREY, linewidth=0.6, alpha=0.6, drawstyle=steps)
    for color, k in zip(_COLORS, named):
        if k in of_class:
            shown = getattr(of_class[k], kind)
            label = f"class {plot_label(class_labels[k])}: {area(of_class[k], kind):.3f}"
            axes.plot(shown.x, shown.y, color=color, linewidth=1.3, drawstyle=steps, label=label)
    macro = analysis.macro_roc if kind == "roc" else analysis.macro_precision_recall
    assert macro is not None
    mean = analysis.metric("auroc" if kind == "roc" else "average_precision")
    label = f"mean of {len(of_class)} classes: {mean:.3f}"
    axes.plot(macro.x, macro.y, color="black", linewidth=2.6, drawstyle=steps, label=label)
    if len(named) < len(order):
        axes.plot([], [], color=_GREY, linewidth=0.6, label=f"{len(order) - len(named)} other classes")


def _finish_curves(axes: Axes, kind: str, title: str) -> None:
    if kind == "roc":
        axes.plot([0, 1], [0, 1], **_DOTTED, label="chance: 0.5")
    x, y = ("false positive rate", "true positive rate (recall)") if kind == "roc" else ("recall", "precision")
    axes.set(**_UNIT_SQUARE, aspect="equal", xlabel=x, ylabel=y)
    _show_percent(axes)
    _finish(axes, title, legend="lower right" if kind == "roc" else "lower left")


def write_metric_plots(folder: Path, metrics: ModelMetrics) -> list[Path]:
    """Write a PNG of each kind that has data; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    analyses = {name: split.analysis for name, split in metrics.splits.items()}
    write_curves(folder, analyses, class_labels=metrics.class_labels)
    written = [folder / "roc_curve.png", folder / "pr_curve.png"]
    kinds: dict[str, tuple[str, Callable[[Axes, SplitMetrics], None], Callable[[SplitMetrics], bool]]] = {
        "calibration": ("Calibration", _calibration, lambda split: split.analysis.calibration is not None),
        "scores": ("Scores", _scores, lambda split: bool(split.analysis.histograms)),
        "thresholds": ("Thresholds", _thresholds, lambda split: bool(split.analysis.sweep)),
        "recall_by_budget": ("Recall by share of flagged records", _recall, lambda split: split.capture is not None),
        "previous_model": ("Compared with the previous model", _previous, lambda split: split.comparison is not None),
    }
    for kind, (title, draw, has) in kinds.items():
        shown = [split for split in metrics.splits.values() if has(split)]
        if shown:
            figure = Figure(figsize=(6.6 * len(shown), 5.6), dpi=110, layout="constrained")
            for i, split in enumerate(shown):
                axes = figure.add_subplot(1, len(shown), i + 1)
                draw(axes, split)
                _finish(axes, f"{title}: {split.analysis.split}")
            written.append(_save(figure, folder / f"{kind}.png"))
    for name, split in metrics.splits.items():
        for field, file_name in zip(split.slices, _file_names(list(split.slices))):
            written.append(_save(_slices(split, field), folder / f"slices_{name}_{file_name}.png"))
    return written


def _calibration(axes: Axes, split: SplitMetrics) -> None:
    calibration = split.analysis.calibration
    assert calibration is not None
    mean = np.array([entry.mean_score for entry in calibration.bins])
    observed = np.array([entry.observed for entry in calibration.bins])
    low, high = np.array([entry.interval for entry in calibration.bins]).T
    reach = np.clip([observed - low, high - observed], 0, None)
    axes.plot([0, 1], [0, 1], **_DOTTED, label="calibrated")
    axes.errorbar(
        mean, observed, yerr=reach, color=_COLORS[0], marker="o", capsize=3,
        label=f"mean error {calibration.expected_calibration_error:.4f}, Brier score {calibration.brier_score:.4f}",
    )  # fmt: skip
    axes.set(xlabel="mean score", ylabel="observed share", **_UNIT_SQUARE)


def _scores(axes: Axes, split: SplitMetrics) -> None:
    for color, (group, counts) in zip(_COLORS, split.analysis.histograms.items()):
        edges = np.linspace(0, 1, len(counts) + 1)
        axes.stairs(counts / counts.sum(), edges, color=color, label=f"{group} ({counts.sum():,})", linewidth=1.6)
    axes.set(xlabel="score", ylabel="share of the group", xlim=(0, 1))


def _thresholds(axes: Axes, split: SplitMetrics) -> None:
    sweep = split.analysis.sweep
    at = [entry.threshold for entry in sweep]
    for color, name in zip(_COLORS, ("precision", "recall", "f1_score", "flagged_share")):
        values = [getattr(entry, name) for entry in sweep]
        label = METRIC_NAMES.get(name, "share flagged")
        axes.plot(at, [np.nan if value is None else value for value in values], color=color, label=label)
    assert split.analysis.threshold is not None
    axes.axvline(split.analysis.threshold, **_DOTTED, label="threshold in use")
    axes.set(xlabel="threshold", xlim=(0, 1), ylim=(-0.01, 1.01))


def _recall(axes: Axes, split: SplitMetrics) -> None:
    assert split.capture is not None
    curves = {"count recall": split.capture.count_curve, "dollar recall": split.capture.dollar_curve}
    for color, (name, curve) in zip(_COLORS, curves.items()):
        if curve is not None:
            axes.plot(curve.x, curve.y, color=color, label=name)
    axes.plot([0, 1], [0, 1], **_DOTTED, label="by chance")
    axes.set(xlabel="share of the records flagged", ylabel="recall", **_UNIT_SQUARE)
    _show_percent(axes)


def _previous(axes: Axes, split: SplitMetrics) -> None:
    comparison = split.comparison
    assert comparison is not None
    names = [name for name in comparison.values if comparison.differences[name] is not None]
    rows = np.arange(len(names))
    new, previous = (
        np.array([values[name] for name in names], float) for values in (comparison.values, comparison.previous)
    )
    axes.barh(rows - 0.2, new, height=0.38, color=_COLORS[0], label="new")
    axes.barh(rows + 0.2, previous, height=0.38, color=_GREY, label="previous")
    axes.set_yticks(rows, [METRIC_NAMES[name] for name in names])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.01))


def _slices(split: SplitMetrics, field: str) -> Figure:
    groups = split.slices[field][:_SHOWN_GROUPS]
    figure = Figure(figsize=(7.5, 1.4 + 0.34 * len(groups)), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    rows = np.arange(len(groups))
    metric = "auroc" if any(each.metrics.values["auroc"] is not None for each in groups) else "accuracy"
    values = [each.metrics.values[metric] for each in groups]
    axes.plot(
        [np.nan if value is None else value for value in values], rows, "o", color=_COLORS[0],
        label=METRIC_NAMES[metric],
    )  # fmt: skip
    for i, each in enumerate(groups):
        if metric == "auroc" and each.auroc_interval is not None:
            axes.plot(each.auroc_interval, [i, i], color=_COLORS[0], linewidth=1.4)
    overall = split.analysis.metrics.values[metric]
    if overall is not None:
        axes.axvline(overall, **_DOTTED, label=f"all records: {overall:.4f}")
    labels = [f"{plot_label(each.group)} ({each.labelled:,})" for each in groups]
    axes.set_yticks(rows, labels, parse_math=False)
    axes.invert_yaxis()
    _finish(axes, f"{METRIC_NAMES[metric]} by {plot_label(field)}, {split.analysis.split}")
    return figure


def _show_percent(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))


def _finish(axes: Axes, title: str, *, legend: Literal["best", "lower right", "lower left"] = "best") -> None:
    axes.set_title(title, fontsize=11, parse_math=False)
    axes.set_axisbelow(True)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    for text in axes.legend(loc=legend, fontsize=9).get_texts():
        text.set_parse_math(False)  # a label may contain a dollar sign


def _save(figure: Figure, path: Path) -> Path:
    """Write a figure, complete or not at all."""
    with AtomicFile(path) as temporary:
        FigureCanvasAgg(figure).print_png(str(temporary))
    return path


def _file_names(fields: Sequence[str]) -> list[str]:
    """Return a different name for each field, short enough for a file system; a number follows where two are alike."""
    names: list[str] = []
    for field in fields:
        plain = "".join(character if character.isalnum() or character in "-_" else "_" for character in field)
        short = plain.encode()[:_NAME_BYTES].decode(errors="ignore")
        candidates = (short, *(f"{short}_{number}" for number in range(2, len(fields) + 2)))
        names.append(next(name for name in candidates if name not in names))
    return names
