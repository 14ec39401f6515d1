"""Draw every PNG: the curves of an evaluation, and the other plots of the metrics step."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from container.evaluation.analysis import SplitAnalysis
from container.evaluation.charts import LineChart, Series, share_axis
from container.evaluation.curve_charts import curve_charts, reliability_chart, threshold_chart
from container.evaluation.model_metrics import ModelMetrics, SplitMetrics
from container.job.log_once import log_once
from contracts.atomic_files import AtomicFile
from contracts.metrics import DECLARED
from contracts.spelling import shorten

logger = logging.getLogger(__name__)

# Okabe and Ito's colours, which people with any kind of colour vision can distinguish.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A6A00")
_GREY = "#9AA3AD"
_DOTTED: dict[str, Any] = {"color": "#777777", "linewidth": 0.8, "linestyle": ":"}
# By the words of Series.style.
_STYLES: dict[str, dict[str, Any]] = {
    **{f"c{number}": {"color": color} for number, color in enumerate(_COLORS, start=1)},
    "test": {"color": _COLORS[0]},
    "val": {"color": _COLORS[1], "linestyle": (0, (5, 2))},
    "strong": {"color": "black", "linewidth": 2.6},
    "muted": {"color": _GREY, "linewidth": 0.6, "alpha": 0.6},
    "reference": _DOTTED,
    "dashed": {"linestyle": "--"},
    "dotted": {"linestyle": ":"},
    "thin": {"linewidth": 1},
}
_LABEL = 80  # characters
_SHOWN_GROUPS = 15
_NAME_BYTES = 150  # of a field in the name of a file
_BOXES = "Last Resort"  # matplotlib's font with a box for every character
_NO_FONT = (
    "plots: no installed font has every character of the labels; the images have escapes instead. Install a font with "
    "these characters, such as the Debian package fonts-wqy-microhei for Chinese."
)

Draw = Callable[[Axes], None]


def write_curves(folder: Path, analyses: Mapping[str, SplitAnalysis], *, class_labels: Sequence[int | str]) -> None:
    """Write roc_curve.png and pr_curve.png into `folder`, each complete or not at all.

    The legend gives the reason if a split has no curves.
    """
    for name, kind in (("roc_curve", "roc"), ("pr_curve", "precision_recall")):
        charts = curve_charts(list(analyses.values()), kind, class_labels)
        for each in analyses.values():
            if not each.curves:
                reason = Series(f"{each.title}: no curve, {each.metrics.undefined['auroc']}", (), (), "reference")
                charts.append(LineChart(f"{name}, {each.title}", share_axis(""), share_axis(""), [reason]))
        _save(folder / f"{name}.png", [partial(_lines, chart) for chart in charts])


def _lines(chart: LineChart, axes: Axes) -> None:
    for line in chart.series:
        style = {key: value for word in line.style.split() for key, value in _STYLES[word].items()}
        label = plot_label(line.name, _LABEL) if line.name else None
        steps = "steps-pre" if line.steps else "default"
        axes.plot(line.x, line.y, label=label, drawstyle=steps, marker="o" if line.dots else None, **style)
        for x, (low, high) in zip(line.x, line.whiskers):
            axes.plot([x, x], [low, high], **style)
    for axis, scale in ((axes.xaxis, chart.x), (axes.yaxis, chart.y)):
        axis.set_ticks(scale.ticks, [scale.text(tick) for tick in scale.ticks])
        axis.set_label_text(plot_label(scale.label, _LABEL), parse_math=False)
    axes.set(xlim=(chart.x.low - 0.01, chart.x.high + 0.01), ylim=(chart.y.low - 0.01, chart.y.high + 0.01))
    axes.set_box_aspect(1)
    _finish(axes, chart.title)


def write_metric_plots(folder: Path, metrics: ModelMetrics) -> list[Path]:
    """Write a PNG of each kind that has data; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    analyses = {name: split.analysis for name, split in metrics.splits.items()}
    write_curves(folder, analyses, class_labels=metrics.class_labels)
    splits = list(metrics.splits.values())
    calibration = reliability_chart(list(analyses.values()), metrics.class_labels)
    thresholds = map(threshold_chart, analyses.values())
    plots: dict[str, list[Draw]] = {
        "calibration": [] if calibration is None else [partial(_lines, calibration)],
        "scores": [partial(_scores, split.analysis) for split in splits if split.analysis.histograms],
        "thresholds": [partial(_lines, chart) for chart in thresholds if chart is not None],
        "recall_by_budget": [partial(_lines, _recall(split)) for split in splits if split.capture is not None],
        "previous_model": [partial(_previous, split) for split in splits if split.comparison is not None],
    }
    for name, split in metrics.splits.items():
        for field, file_name in zip(split.slices, _file_names(list(split.slices))):
            plots[f"slices_{name}_{file_name}"] = [partial(_slices, split, field)]
    written = [_save(folder / f"{name}.png", drawn) for name, drawn in plots.items() if drawn]
    return [folder / "roc_curve.png", folder / "pr_curve.png", *written]


def _scores(analysis: SplitAnalysis, axes: Axes) -> None:
    for color, (group, counts) in zip(_COLORS, analysis.histograms.items()):
        edges = np.linspace(0, 1, len(counts) + 1)
        axes.stairs(counts / counts.sum(), edges, color=color, label=f"{group} ({counts.sum():,})", linewidth=1.6)
    axes.set(xlabel="score", ylabel="share of the group", xlim=(0, 1))
    _finish(axes, f"Scores: {analysis.title}")


def _recall(split: SplitMetrics) -> LineChart:
    assert split.capture is not None
    curves = (("count recall", "c1", split.capture.count_curve), ("dollar recall", "c2", split.capture.dollar_curve))
    lines = [Series(name, curve.x, curve.y, style) for name, style, curve in curves if curve is not None]
    title = f"Recall by share of flagged records: {split.analysis.title}"
    chance = Series("by chance", (0, 1), (0, 1), "reference")
    return LineChart(title, share_axis("share of the records flagged"), share_axis("recall"), [*lines, chance])


def _previous(split: SplitMetrics, axes: Axes) -> None:
    comparison = split.comparison
    assert comparison is not None
    names = [name for name in comparison.values if comparison.differences[name] is not None]
    rows = np.arange(len(names))
    new, previous = (
        np.array([values[name] for name in names], float) for values in (comparison.values, comparison.previous)
    )
    axes.barh(rows - 0.2, new, height=0.38, color=_COLORS[0], label="new")
    axes.barh(rows + 0.2, previous, height=0.38, color=_GREY, label="previous")
    axes.set_yticks(rows, [DECLARED[name].title for name in names])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.01))
    _finish(axes, f"Compared with the previous model: {split.analysis.title}")


def _slices(split: SplitMetrics, field: str, axes: Axes) -> None:
    groups = split.slices[field][:_SHOWN_GROUPS]
    rows = np.arange(len(groups))
    metric = "auroc" if any(group.metrics.values["auroc"] is not None for group in groups) else "accuracy"
    values = [group.metrics.values[metric] for group in groups]
    shown = [np.nan if value is None else value for value in values]
    axes.plot(shown, rows, "o", color=_COLORS[0], label=DECLARED[metric].title)
    for i, group in enumerate(groups):
        if metric == "auroc" and group.auroc_interval is not None:
            axes.plot(group.auroc_interval, [i, i], color=_COLORS[0], linewidth=1.4)
    overall = split.analysis.metrics.values[metric]
    if overall is not None:
        axes.axvline(overall, **_DOTTED, label=f"all records: {overall:.4f}")
    labels = [f"{plot_label(group.group)} ({group.labelled:,})" for group in groups]
    axes.set_yticks(rows, labels, parse_math=False)
    axes.invert_yaxis()
    _finish(axes, f"{DECLARED[metric].title} by {plot_label(field)}, {split.analysis.title}")


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=11, parse_math=False)
    axes.set_axisbelow(True)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a label may contain a dollar sign


def _save(path: Path, panels: Sequence[Draw]) -> Path:
    """Write a figure with a panel for each function, complete or not at all."""
    figure = Figure(figsize=(6.6 * len(panels), 6.0), dpi=110, layout="constrained")
    for i, draw in enumerate(panels):
        draw(figure.add_subplot(1, len(panels), i + 1))
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


def plot_label(text: object, length: int = 30) -> str:
    """Cut a text of the user, and add the fonts that it needs to matplotlib's; escape what no installed font has."""
    label = shorten(str(text), length)
    families = list(matplotlib.rcParams["font.family"])
    missing = set(label) - _characters(font_manager.findfont(font_manager.FontProperties(family=families)))
    for font in sorted(font_manager.fontManager.ttflist, key=lambda font: (font.name, font.fname)):
        if not missing:
            break
        found = missing & _characters(font.fname)
        if found and not font.name.startswith(_BOXES):
            missing -= found
            families += [] if font.name in families else [font.name]
    matplotlib.rcParams["font.family"] = families
    if missing:
        log_once(logger, logging.WARNING, _NO_FONT)
    return "".join(each.encode("unicode_escape").decode() if each in missing else each for each in label)


@cache
def _characters(font: str) -> frozenset[str]:
    return frozenset(map(chr, font_manager.get_font(Path(font)).get_charmap()))
