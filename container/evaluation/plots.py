"""Draw roc_curve.png and pr_curve.png, the curves of val and test for TensorBoard."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from container.evaluation.analysis import ClassCurves, SplitAnalysis
from container.evaluation.plot_labels import plot_label
from contracts.atomic_files import AtomicFile

NAMED_CLASSES = 7
# Okabe and Ito's colours, which people with any kind of colour vision can distinguish.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7A6A00")
_GREY = "#9AA3AD"
_SPLITS = {"test": (_COLORS[0], "-"), "val": (_COLORS[1], (0, (5, 2)))}


def write_curves(folder: Path, analyses: Mapping[str, SplitAnalysis], *, class_labels: Sequence[int | str]) -> None:
    """Write roc_curve.png and pr_curve.png into `folder`, each complete or not at all.

    Two classes: one panel with a curve per split. More classes: a panel per split with a curve per class and their
    mean. The legend gives the reason if a split has no curves.
    """
    for name, kind in (("roc_curve", "roc"), ("pr_curve", "precision_recall")):
        figure = _draw(kind, list(analyses.values()), class_labels)
        with AtomicFile(folder / f"{name}.png") as temporary:
            FigureCanvasAgg(figure).print_png(str(temporary))


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
        _finish(axes, kind, f"{title}: {subtitle}")
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


def _finish(axes: Axes, kind: str, title: str) -> None:
    if kind == "roc":
        axes.plot([0, 1], [0, 1], color="#777777", linewidth=0.8, linestyle=":", label="chance: 0.5")
    x, y = ("false positive rate", "true positive rate (recall)") if kind == "roc" else ("recall", "precision")
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal", xlabel=x, ylabel=y)
    axes.set_title(title, fontsize=11, parse_math=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    for text in axes.legend(loc="lower right" if kind == "roc" else "lower left", fontsize=9).get_texts():
        text.set_parse_math(False)  # a label may contain a dollar sign
