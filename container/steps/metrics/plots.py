"""Draw the plots of the metrics step: calibration, scores, thresholds, recall, slices, the previous model."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from container.evaluation.findings import METRIC_NAMES
from container.evaluation.plot_labels import plot_label
from container.evaluation.plots import write_curves
from container.steps.metrics.computation import ModelMetrics, SplitMetrics
from contracts.atomic_files import AtomicFile

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # Okabe and Ito's palette
_SHOWN_GROUPS = 15
_NAME_BYTES = 150  # of a field in the name of a file


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
    axes.plot([0, 1], [0, 1], color="#777777", linewidth=0.8, linestyle=":", label="calibrated")
    axes.errorbar(
        mean, observed, yerr=reach, color=_COLORS[0], marker="o", capsize=3,
        label=f"mean error {calibration.expected_calibration_error:.4f}, Brier score {calibration.brier_score:.4f}",
    )  # fmt: skip
    axes.set(xlabel="mean score", ylabel="observed share", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))


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
    axes.axvline(split.analysis.threshold, color="#777777", linewidth=0.8, linestyle=":", label="threshold in use")
    axes.set(xlabel="threshold", xlim=(0, 1), ylim=(-0.01, 1.01))


def _recall(axes: Axes, split: SplitMetrics) -> None:
    assert split.capture is not None
    curves = {"count recall": split.capture.count_curve, "dollar recall": split.capture.dollar_curve}
    for color, (name, curve) in zip(_COLORS, curves.items()):
        if curve is not None:
            axes.plot(curve.x, curve.y, color=color, label=name)
    axes.plot([0, 1], [0, 1], color="#777777", linewidth=0.8, linestyle=":", label="by chance")
    axes.set(xlabel="share of the records flagged", ylabel="recall", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _previous(axes: Axes, split: SplitMetrics) -> None:
    comparison = split.comparison
    assert comparison is not None
    names = [name for name in comparison.values if comparison.differences[name] is not None]
    rows = np.arange(len(names))
    new, previous = (
        np.array([values[name] for name in names], float) for values in (comparison.values, comparison.previous)
    )
    axes.barh(rows - 0.2, new, height=0.38, color=_COLORS[0], label="new")
    axes.barh(rows + 0.2, previous, height=0.38, color="#9AA3AD", label="previous")
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
        axes.axvline(overall, color="#777777", linewidth=0.8, linestyle=":", label=f"all records: {overall:.4f}")
    labels = [f"{plot_label(each.group)} ({each.labelled:,})" for each in groups]
    axes.set_yticks(rows, labels, parse_math=False)
    axes.invert_yaxis()
    _finish(axes, f"{METRIC_NAMES[metric]} by {plot_label(field)}, {split.analysis.split}")
    return figure


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=11, parse_math=False)
    axes.set_axisbelow(True)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9)


def _save(figure: Figure, path: Path) -> Path:
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
