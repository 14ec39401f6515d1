"""Say whether a model is better than guessing, by how much and how certainly, and what to do next."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from container.evaluation.analysis import SplitAnalysis
from container.evaluation.bootstrap import Difference, Scores, paired_differences
from container.evaluation.curves import moved_auroc_interval
from container.evaluation.data_findings import Finding, listed
from container.evaluation.metrics import decided_classes
from container.evaluation.predictions import SplitPredictions
from contracts.metrics import COMPARED, DECLARED

NAMED = 6
_FEWEST_NEVER = 5  # records of a class, of which a model that finds half of them misses all once in 32 times
_FEW_TO_JUDGE = 200  # records, with which an accuracy of 0.8 has a 95 % interval of 0.11


def verdict(
    analysis: SplitAnalysis, split: SplitPredictions, class_labels: Sequence[int | str], *, calibrated: bool = False
) -> list[Finding]:
    """Return the first findings: the model against its baseline in every metric that has one, and the next step."""
    if analysis.problem is not None or np.count_nonzero(analysis.class_counts) < 2:
        return []
    found = against_baseline(analysis, split)
    signs = {name: -each.sign if DECLARED[name].minimizes else each.sign for name, each in found.items()}
    better = [name for name in COMPARED if signs.get(name) == 1]
    # A perfect average precision has no interval, as no sample varies it: it is neither shown nor doubted.
    perfect = [name for name, each in found.items() if each.interval is None and analysis.metric(name) == 1]
    other = [name for name in COMPARED if name in found and signs[name] != 1 and name not in perfect]
    commonest = class_labels[int(analysis.class_counts.argmax())]
    facts = [_fact(analysis, name, found[name]) for name in [*other, *better, *perfect]]
    never = _never_predicted(analysis)
    if not better:
        title = f"Not shown to be better than always predicting {commonest}"
        return [
            Finding("check", f"{title}, on {analysis.split}: {'; '.join([*facts, *never])}."),
            *_next(0, analysis, calibrated),
        ]
    if other:
        names = ", ".join(DECLARED[name].title for name in better)
        title = f"Better than guessing in {names}, not shown in {', '.join(DECLARED[name].title for name in other)}"
        return [
            Finding("check", f"{title}, on {analysis.split}: {'; '.join([*facts, *never])}."),
            *_next(1, analysis, calibrated),
        ]
    first = Finding("good", f"Better than guessing in every metric, on {analysis.split}: {'; '.join(facts)}.")
    return [
        first,
        *(Finding("check", f"{text[0].upper()}{text[1:]}.") for text in never),
        *_next(2, analysis, calibrated),
    ]


def against_baseline(analysis: SplitAnalysis, split: SplitPredictions) -> dict[str, Difference]:
    """Return the model's metrics minus those without a model, as in `SplitAnalysis.baselines`."""
    counts = analysis.class_counts
    shares = np.tile(counts / counts.sum(), (len(split.labels), 1))  # [N, K]
    commonest = np.full(len(split.labels), counts.argmax())
    model = Scores(split.probabilities, decided_classes(split.probabilities, analysis.threshold))
    found = paired_differences(split.labels, Scores(shares, commonest), model)
    if len(counts) == 2:  # flagging every record has the best F1 of all that ignore the record
        flagged = Scores(shares, np.ones(len(split.labels), np.int64))
        found |= {"f1_score": paired_differences(split.labels, flagged, model)["f1_score"]}
    area = analysis.metric("auroc")
    if area is not None and found:
        low, high = auroc_interval_of(analysis, area)
        found["auroc"] = Difference(area - 0.5, (low - 0.5, high - 0.5))
    return {name: _in_range(name, each, analysis.baselines[name] or 0.0) for name, each in found.items()}


def _in_range(name: str, difference: Difference, baseline: float) -> Difference:
    """Return the difference with an interval in which the metric is at least 0 and, except a loss, at most 1."""
    if difference.interval is None:
        return difference
    highest = math.inf if DECLARED[name].minimizes else 1 - baseline
    low, high = difference.interval
    return Difference(difference.value, (max(low, -baseline), min(high, highest)))


def auroc_interval_of(analysis: SplitAnalysis, area: float) -> tuple[float, float]:
    """Return the 95 % interval, also of a perfect ranking."""
    return analysis.intervals.get("auroc") or moved_auroc_interval(area, analysis.class_counts)


def _fact(analysis: SplitAnalysis, name: str, difference: Difference) -> str:
    value, baseline = analysis.metric(name), analysis.baselines[name]
    numbers = DECLARED[name].title + ("" if value is None else f" {value:.3f} against {baseline:.3f}")
    if difference.interval is None:
        return f"{numbers} ({difference.value:+.3f})"
    low, high = difference.interval
    return f"{numbers} ({difference.value:+.3f}, 95% CI {low:+.3f} to {high:+.3f})"


def _never_predicted(analysis: SplitAnalysis) -> list[str]:
    never = [scores for scores in analysis.classes if scores.support >= _FEWEST_NEVER and not scores.predicted]
    if not never:
        return []
    classes = listed([f"{scores.label} ({scores.support:,} records)" for scores in never], most=NAMED)
    return [f"never predicted: {classes}, of {len(analysis.classes)} classes"]


def _next(level: int, analysis: SplitAnalysis, calibrated: bool) -> Iterator[Finding]:
    """Yield what to do next; level 0: no better than guessing, 1: better in some metrics, 2: in every metric."""
    few = analysis.labelled < _FEW_TO_JUDGE
    if level == 0:
        text = "check the columns and labels for errors; then add records, columns or epochs, or try another encoder"
    elif few:
        text = f"test on more records than {analysis.labelled:,} before you rely on these numbers"
    elif level == 1 and analysis.threshold is not None:
        text = "choose a decision_threshold for your costs (section Decisions)"
        text += "" if calibrated else ", and calibration if scores are used"
    else:
        text = "look at the most confident errors and at the classes with the lowest F1; compare another setting"
    yield Finding("note", f"What to do next: {text}.")
