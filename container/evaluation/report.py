"""Render report.html, one self-contained page, from the template of the same name."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from pydantic_core import PydanticUndefined, to_jsonable_python

from container.decision.deciding_rows import chosen_on, in_words
from container.evaluation import charts
from container.evaluation.analysis import SplitAnalysis
from container.evaluation.charts import Bar, LineChart, Series
from container.evaluation.companion_report import companion_sentences, metric_titles
from container.evaluation.curve_charts import curve_charts, reliability_chart, threshold_chart
from container.evaluation.evaluation_input import EvaluationInput, Explanation
from container.evaluation.findings import (
    best_validation,
    findings,
    headline,
    headline_split,
    metric_key,
)
from container.evaluation.tuning_report import shown_setting, standard_error, tuning_section
from contracts.hyperparameters import Hyperparameters
from contracts.metrics import DECLARED

SHOWN_COLUMNS = 20
_MOST_CELLS_A_SIDE = 50


@dataclass(frozen=True)
class Tile:
    """A main metric with its baseline."""

    name: str
    value: float | None
    baseline: float | None
    interval: tuple[float, float] | None
    reason: str


@dataclass(frozen=True)
class Setting:
    """One hyperparameter; `default` is None if it is required."""

    name: str
    about: str
    value: str
    default: str | None
    changed: bool


def render_report(
    evaluation: EvaluationInput, analyses: Mapping[str, SplitAnalysis], *, threshold: float | None
) -> str:
    """Return the page's HTML, with everything that comes from data escaped."""
    main = headline_split(analyses)
    labels = evaluation.class_labels
    order = sorted(analyses.values(), key=lambda analysis: analysis is not main)
    return template("container.evaluation", "report.html").render(
        evaluation=evaluation,
        run=evaluation.run,
        labels=labels,
        binary=len(labels) == 2,
        main=main,
        splits=order,
        headline=headline(main, labels),
        tiles=_tiles(main, labels),
        findings=findings(evaluation, analyses, threshold=threshold),
        metrics=DECLARED,
        best_f1_threshold=threshold,
        decision=evaluation.decision,
        deciding=in_words(chosen_on(analyses)),
        curves=[curve_charts(order, kind, labels) for kind in ("roc", "precision_recall")],
        sweep=threshold_chart(main),
        heat_maps=[_heat_map(analysis, labels) for analysis in order if analysis.problem is None],
        histograms=[_histogram(analysis, labels) for analysis in order if analysis.histograms],
        reliability=reliability_chart(order, labels),
        companion=evaluation.companion,
        companion_sentences=companion_sentences,
        metric_titles=metric_titles,
        label_issues=evaluation.label_issues,
        examples=evaluation.examples,
        explained=evaluation.explained,
        explanation=evaluation.explanation,
        importances=_importances(evaluation.explanation),
        tuning=evaluation.tuning and tuning_section(evaluation.tuning, error=standard_error(evaluation)),
        training=_training(evaluation),
        best=best_validation(evaluation),
        metric_key=metric_key(evaluation),
        data=evaluation.data_summary["splits"],
        changed=_changed(evaluation.data_summary["splits"]),
        settings=_settings(evaluation.hyperparameters),
    )


@functools.cache
def template(package: str, name: str) -> Template:
    """Return the template of a page, with the filters and the style of all pages."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(each, ".") for each in dict.fromkeys((package, "container.evaluation"))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=charts.percent, metric=_metric, count=_count, number=_number, setting=shown_setting, where=in_words
    )
    return environment.get_template(name)


def _tiles(analysis: SplitAnalysis, labels: Sequence[int | str]) -> list[Tile]:
    def tile(name: str, of: str = "") -> Tile:
        title, reason = DECLARED[name].title + of, analysis.metrics.undefined.get(name, "")
        return Tile(title, analysis.metric(name), analysis.baselines[name], analysis.intervals.get(name), reason)

    if len(labels) > 2:
        names = ("accuracy", "f1_score", "auroc", "average_precision")
        return [tile(name, "" if DECLARED[name].pooled else ", mean of classes") for name in names]
    tiles = [
        tile("auroc"),
        tile("average_precision", f" of class {labels[1]}"),
        tile("f1_score", f" of class {labels[1]} at {analysis.threshold:.4g}"),
        tile("accuracy", f" at {analysis.threshold:.4g}"),
    ]
    rare = analysis.classes[0]
    if rare.average_precision is not None and 0 < rare.support < analysis.labelled / 2:
        # The precision of a frequent class is high for any model. The rare class's differs between models.
        title, share = f"Average precision of class {labels[0]} (rarer)", rare.support / analysis.labelled
        tiles.insert(2, Tile(title, rare.average_precision, share, None, ""))
    return tiles


def _heat_map(analysis: SplitAnalysis, labels: Sequence[int | str]) -> Markup:
    rule = f" at threshold {analysis.threshold:.4g}" if len(labels) == 2 else ""
    note = "Shades show each cell's share of its row. Hover over a cell for its count." if len(labels) > 2 else ""
    matrix, supports = analysis.confusion, analysis.confusion.sum(axis=1)
    shown = np.arange(len(labels))
    if len(labels) > _MOST_CELLS_A_SIDE:
        errors = supports + matrix.sum(axis=0) - 2 * matrix.diagonal()
        shown = np.sort(np.argsort(-errors, kind="stable")[:_MOST_CELLS_A_SIDE])
        note += f" Only the {len(shown)} of {len(labels)} classes with the most errors are shown."
    return charts.heat_map(
        matrix[np.ix_(shown, shown)],
        [labels[int(k)] for k in shown],
        supports=supports[shown],
        title=f"Confusion matrix{rule}, {analysis.title}",
        note=note,
    )


def _histogram(analysis: SplitAnalysis, labels: Sequence[int | str]) -> Markup:
    binary = len(labels) == 2
    names = {
        "class 1": (f"class {labels[1]}", "up"),
        "class 0": (f"class {labels[0]}", "down"),
        "right": ("predicted correctly", "up"),
        "wrong": ("predicted wrongly", "down"),
        "unlabelled": ("unlabelled", "neutral"),
    }
    return charts.mirrored_histogram(
        [
            (f"{names[group][0]} ({int(counts.sum()):,})", counts, names[group][1])
            for group, counts in analysis.histograms.items()
        ],
        title=f"Score distribution, {analysis.title}",
        x=f"probability of class {labels[1]}" if binary else "probability of the predicted class",
        note="Share of each group's records per bin. The square-root scale makes small shares visible.",
    )


def _importances(explanation: Explanation | None) -> list[Markup]:
    if explanation is None or explanation.problem is not None:
        return []
    shown = explanation.columns[:SHOWN_COLUMNS]
    hidden = len(explanation.columns) - len(shown)
    more = f" The table lists {hidden} more columns." if hidden else ""
    styles = {"text": "c1", "numeric": "c2", "date": "c4", "categorical": "c3", "modality": "strong"}
    drawn = []
    for title, entries, note in (
        ("Columns, shuffled", shown, f"Whiskers: standard deviation over the shuffles.{more}"),
        ("Modalities, emptied", explanation.modalities, ""),
    ):
        if entries:
            bars = [Bar(entry.name, entry.drop, styles[entry.kind], entry.spread) for entry in entries]
            kinds = dict.fromkeys(entry.kind for entry in entries if entry.kind != "modality")
            legend = [(styles[kind], kind) for kind in kinds]
            x_label = f"decrease in {DECLARED[explanation.metric].title}"
            drawn.append(charts.bar_chart(bars, title=title, x=x_label, legend=legend, note=note))
    return drawn


def _training(evaluation: EvaluationInput) -> list[LineChart]:
    history = evaluation.history
    if not history:
        return []
    best = best_validation(evaluation)
    x = charts.number_axis("epochs", [entry["epoch"] for entry in history], from_zero=True)
    metrics = sorted({key for entry in history for key in entry if key.startswith("val/") and key != "val/loss"})
    variants = ["focal"] if evaluation.hyperparameters.get("loss") == "focal" else []
    variants += ["with label smoothing"] if evaluation.hyperparameters.get("label_smoothing") else []
    variant = f" ({', '.join(variants)})" if variants else ""
    losses = [
        _logged(history, "train/loss", "train", f"train{variant}, mean since the previous log entry"),
        _logged(history, "val/loss", "val", "val", dots=True),
    ]
    validated = [
        _logged(history, key, f"c{i}", DECLARED[key.removeprefix("val/")].title, dots=True)
        for i, key in enumerate(metrics, start=1)
    ]
    rates, speeds = [_logged(history, "lr", "c1", "")], [_logged(history, "rows_per_second", "c1", "")]
    drawn = []
    for title, label, lines, with_mark in (
        ("Loss", "log loss", losses, True),
        ("Validation metrics", "metric on val", validated, True),
        ("Learning rate", "learning rate", rates, False),
        ("Speed", "training rows per second", speeds, False),
    ):
        shown = [line for line in lines if len(line.x)]
        if shown:
            y = charts.number_axis(label, np.concatenate([line.y for line in shown]), from_zero=not with_mark)
            if with_mark and best is not None:
                shown.append(charts.mark(f"best, step {best['step']:,}", best["epoch"], y))
            drawn.append(LineChart(title, x, y, shown))
    return drawn


# Of data that an earlier version prepared, these counts are not known.
_REMOVALS = {
    "without_emoji": "emoji removed (emoji_remover)",
    "without_html": "HTML removed or decoded (html_normalizer)",
}


def _changed(splits: Mapping[str, Any]) -> list[tuple[str, str, list[tuple[int, int]]]]:
    """Return columns, what preprocessing changed in them, and of each split the number of changed and of all values.

    Imputed numbers, unknown categories, truncated and shortened texts, without counts that are all 0.
    """
    described = list(splits.values())
    changes = []
    for name, numeric in described[0]["numeric"].items():
        change = f"missing, imputed with {_number(numeric['imputed_with'])}"
        changes.append((name, change, [(split["numeric"][name]["imputed"], split["rows"]) for split in described]))
    for name in described[0]["categories"]:
        counts = [(split["categories"][name]["unseen_rows"], split["rows"]) for split in described]
        changes.append((name, "category unknown to the risk table, replaced by its default", counts))
    for role, text in described[0]["texts"].items():
        texts = [split["texts"][role] for split in described]
        truncated = [(entry["truncated_records"], entry["records"]) for entry in texts]
        tokens = [(entry["cut_tokens"], entry["cut_tokens"] + entry["tokens"]) for entry in texts]
        empty = [(entry["empty_records"], entry["records"]) for entry in texts]
        changes.append((text["column"], "records truncated", truncated))
        changes.append((text["column"], "tokens truncated", tokens))
        changes.append((text["column"], "empty, encoded as an empty chunk", empty))
        unknown = [(entry.get("unknown_tokens", 0), entry["tokens"]) for entry in texts]
        changes.append((text["column"], "tokens unknown to the tokenizer", unknown))
        for name, change in _REMOVALS.items():
            counts = [(entry.get(name, 0), entry["records"]) for entry in texts]
            changes.append((text["column"], change, counts))
    return [(column, change, counts) for column, change, counts in changes if any(count for count, _ in counts)]


def _settings(hyperparameters: Mapping[str, Any]) -> list[Setting]:
    """Return every hyperparameter in the order of the contract; those without a default count as changed."""
    listed = []
    for name, field in Hyperparameters.model_fields.items():
        if name in hyperparameters:
            required = field.default is PydanticUndefined
            default = None if required else to_jsonable_python(field.default)
            value, default_text = hyperparameters[name], None if required else _written(default)
            changed = required or value != default
            listed.append(Setting(name, field.description or "", _written(value), default_text, changed))
    return listed


def _written(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(_written(item) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_written(item)}" for key, item in value.items()) or "none"
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def _logged(history: Sequence[Mapping[str, Any]], key: str, style: str, name: str, *, dots: bool = False) -> Series:
    points = [
        (entry["epoch"], entry[key]) for entry in history if entry.get(key) is not None and math.isfinite(entry[key])
    ]
    x, y = charts.thin_line([a for a, _ in points], [b for _, b in points])
    return Series(name, x, y, style, dots=dots and len(points) <= 60)


def _metric(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _number(value: float | None) -> str:
    """Format four digits, without an exponent for 10,000 and more."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
