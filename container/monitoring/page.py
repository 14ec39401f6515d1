"""Render monitor_report.html, one self-contained page."""

from collections.abc import Mapping, Sequence
from typing import Any

from container.evaluation.charts import LineChart, Series, number_axis, share_axis
from container.evaluation.companion_report import metric_titles
from container.evaluation.report import template
from container.monitoring.baseline import Baseline, Scores
from container.monitoring.checks import Check, Current

_LINES = 5  # of a trend
_STYLES = ("c1", "c2", "c3", "c4", "c5", "c6", "c7")


def render_page(
    checks: Sequence[Check],
    current: Current,
    baseline: Baseline,
    *,
    facts: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
) -> str:
    """Return the page's HTML, with everything that comes from data escaped."""
    moved = [f"{check.subject}: {check.what}" for check in checks[:_LINES]]
    scores = current.labelled or baseline.scores
    titles = metric_titles([*baseline.table.labels], scores.rarer or 0)
    shown = {name: titles[name] for name in ("auroc", "accuracy", "average_precision")}
    charts = [
        _trend("Distances", "distance from the baseline", runs, "distances", dict(zip(moved, moved))),
        _trend("Metrics", "metric on labelled records", runs, "metrics", shown),
        _calibration(baseline.scores, current.labelled),
    ]
    metrics = {} if current.labelled is None else current.labelled.metrics or {}
    return template("container.monitoring", "monitor_report.html").render(
        facts=facts,
        checks=checks,
        charts=[chart for chart in charts if chart is not None],
        metrics=[(titles[name], (baseline.scores.metrics or {}).get(name), now) for name, now in metrics.items()],
        runs=runs[-20:][::-1],
        baseline=baseline,
    )


def _trend(
    title: str, label: str, runs: Sequence[Mapping[str, Any]], key: str, titles: Mapping[str, str]
) -> LineChart | None:
    lines = []
    for (name, shown), style in zip(titles.items(), _STYLES):
        points = [(i, run[key][name]) for i, run in enumerate(runs, start=1) if run[key].get(name) is not None]
        if points:
            lines.append(Series(shown, [x for x, _ in points], [y for _, y in points], style, dots=True))
    if len(runs) < 2 or not lines:
        return None
    y = number_axis(label, [value for line in lines for value in line.y], from_zero=True)
    return LineChart(title, number_axis("run", range(1, len(runs) + 1)), y, lines)


def _calibration(then: Scores, now: Scores | None) -> LineChart | None:
    if now is None or not (then.calibration and now.calibration):
        return None
    series = [
        Series(
            name,
            [band.mean_score for band in scores.calibration],
            [band.observed for band in scores.calibration],
            style,
            dots=True,
            whiskers=[band.interval for band in scores.calibration],
        )
        for name, style, scores in (("then", "train", then), ("now", "val", now))
    ]
    return LineChart("Calibration", share_axis("mean score"), share_axis("observed share"), series)
