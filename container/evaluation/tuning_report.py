"""Describe the search of hyperparameters that chose a job's settings, for the report."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from container.evaluation import charts
from container.evaluation.bootstrap import estimate_metrics
from container.evaluation.charts import Axis, Bar, LineChart, Series
from container.evaluation.evaluation_input import EvaluationInput
from contracts.spelling import shorten

_MOST_SLICES = 8
_MODELS = {
    "average": "the average of their probabilities",
    "distill": "one more network, trained on their probabilities,",
}
_STATES = {"pruned": "muted", "complete": "c1"}  # the later covers the earlier


@dataclass(frozen=True)
class TuningSection:
    """The section of the report about a search.

    Attributes:
        sentences: the result, what pruning saved, and how certain the result is.
        names: the settings, the columns of the table of trials.
    """

    sentences: list[str]
    charts: list[LineChart | Markup]
    names: list[str]
    trials: Sequence[Mapping[str, Any]]


def tuning_section(summary: Mapping[str, Any], *, error: float | None) -> TuningSection:
    """Return the section for the summary of container/tuning/study.py.

    Args:
        error: standard error of the search's metric on val, if it is known.
    """
    trials = summary["trials"]
    names = list(dict.fromkeys(name for trial in trials for name in trial["settings"]))
    drawn: list[LineChart | Markup] = [_history(summary)]
    if summary["importance"]:
        bars = [Bar(name, share, "c1") for name, share in summary["importance"].items()]
        drawn.append(charts.bar_chart(bars, title="Importance of each setting", x="share of the metric's variation"))
    ranked = [name for name in summary["importance"] if name in names]
    for name in [*ranked, *(name for name in names if name not in ranked)][:_MOST_SLICES]:
        drawn.append(_slice(summary, name))
    return TuningSection(_sentences(summary, error), drawn, names, trials)


def standard_error(evaluation: EvaluationInput) -> float | None:
    """Return the standard error of the search's metric for the sampling of val; None without an estimate."""
    assert evaluation.tuning is not None
    name, val = evaluation.tuning["metric"].removeprefix("val/"), evaluation.splits["val"]
    weighted = name == "loss" and any(weight != 1 for weight in evaluation.class_weights or ())
    if weighted or (name == "average_precision" and len(evaluation.class_labels) == 2):
        return None  # the bootstrap has no weights, and of two classes it takes the rarer one
    scores = evaluation.uncalibrated.get("val", val.probabilities)
    logits = np.log(np.maximum(scores, np.finfo(scores.dtype).tiny))
    estimates = estimate_metrics(val.labels, logits, seed=0)
    return estimates[name].standard_error if name in estimates else None


def shown_setting(value: Any) -> str:
    """Return a value of a setting as text for a table."""
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def saved_steps(trials: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the steps that pruning and early stopping saved, and those of whole trials; failed trials do not count."""
    ran = [trial for trial in trials if trial["state"] != "fail"]
    planned = sum(trial["planned_steps"] or 0 for trial in ran)
    return planned - sum(trial["steps"] or 0 for trial in ran), planned


def _sentences(summary: Mapping[str, Any], error: float | None) -> list[str]:
    metric, winner, trials = summary["metric"], summary["winner"], summary["trials"]
    complete = sorted((trial for trial in trials if trial["state"] == "complete"), key=_order(summary))
    model = (
        f"Its network, with {winner['value']:.6g}, became the model"
        if winner["networks"] == 1
        else f"Of {winner['networks']} networks with these settings, {_MODELS[winner['model']]} became the model"
    )
    sentences = [
        f"{len(trials)} trials were compared by {metric}: {len(complete)} complete, "
        f"{sum(trial['state'] == 'pruned' for trial in trials)} pruned, "
        f"{sum(trial['state'] == 'fail' for trial in trials)} failed. The model has the settings of trial "
        f"{winner['trial']}. {model}; test had no part in the choice."
    ]
    saved, planned = saved_steps(trials)
    if planned:
        share = charts.percent(saved / planned)
        sentences.append(f"Pruning and early stopping saved {saved:,} of {planned:,} optimizer steps ({share}).")
    if len(complete) > 1:
        gap = abs(complete[0]["value"] - complete[1]["value"])
        sentence = f"The best trial is {gap:.4g} from the second (trial {complete[1]['number']})."
        if error is not None:
            meaning = "more than" if gap > error else "at most"
            sentence += (
                f" The standard error of {metric} is {error:.4g}: the difference is {meaning} one standard error."
            )
        sentences.append(sentence)
    return sentences


def _order(summary: Mapping[str, Any]) -> Any:
    sign = 1 if summary["minimizes"] else -1
    return lambda trial: sign * trial["value"]


def _dots(summary: Mapping[str, Any], at: Any) -> list[Series]:
    """Return the values of the trials as dots at the position `at(trial)`, complete and pruned ones."""
    series = []
    for state, style in _STATES.items():
        shown = [trial for trial in summary["trials"] if trial["state"] == state and trial["value"] is not None]
        if shown:
            values = [trial["value"] for trial in shown]
            series.append(Series(state, [at(trial) for trial in shown], values, style, dots=True, line=False))
    return series


def _values(summary: Mapping[str, Any]) -> list[float]:
    return [trial["value"] for trial in summary["trials"] if trial["value"] is not None]


def _history(summary: Mapping[str, Any]) -> LineChart:
    complete = [trial for trial in summary["trials"] if trial["state"] == "complete"]
    better = min if summary["minimizes"] else max
    best = list(itertools.accumulate((trial["value"] for trial in complete), better))
    numbers = [trial["number"] for trial in summary["trials"]]
    places = [trial["number"] for trial in complete]
    if complete:  # the best one stays so until the end of the search
        places, best = [*places, max(numbers)], [*best, best[-1]]
    lines = [Series("best so far", places, best, "strong", steps=True)]
    return LineChart(
        "Trials",
        charts.number_axis("trial", numbers),
        charts.number_axis(summary["metric"], _values(summary)),
        [*lines, *_dots(summary, lambda trial: trial["number"])],
        note="The value of a pruned trial is its best one until it was stopped.",
    )


def _slice(summary: Mapping[str, Any], name: str) -> LineChart:
    settings = [trial["settings"][name] for trial in summary["trials"] if name in trial["settings"]]
    numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in settings)
    if numeric:
        axis = _number_axis(name, settings)
        places = {json.dumps(value): value for value in settings}
    else:
        listed = sorted(set(map(json.dumps, settings)))
        places = {value: i for i, value in enumerate(listed)}
        ticks = tuple(map(float, range(len(listed))))
        axis = Axis(name, -0.5, len(listed) - 0.5, ticks, lambda i: shorten(listed[round(i)].strip('"'), 14))
    return LineChart(
        f"{summary['metric']} by {name}",
        axis,
        charts.number_axis(summary["metric"], _values(summary)),
        _dots(summary, lambda trial: places[json.dumps(trial["settings"][name])]),
    )


def _number_axis(name: str, values: Sequence[float]) -> Axis:
    """Return an axis, with a log scale if the values are positive and the largest is ten times the smallest."""
    low, high = min(values), max(values)
    if low <= 0 or high < 10 * low:
        return charts.number_axis(name, values)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    low, high = 10.0**first, 10.0**last
    ticks = tuple(10.0**power for power in range(first, last + 1))
    to_unit = lambda unit: math.log10((low + unit * (high - low)) / low) / (last - first)  # noqa: E731
    return Axis(f"{name} (log scale)", low, high, ticks, lambda value: f"{value:g}", to_unit)
