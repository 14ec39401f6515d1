"""Compute the numbers of a split that metrics.json, the plots and the report show."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from container.decision.deciding_rows import chosen_on
from container.decision.decision import Decision
from container.evaluation.choose_threshold import choose_threshold
from container.evaluation.curves import (
    Confusion,
    Curve,
    Ranking,
    areas,
    auroc_interval,
    confusion_at,
    mean_curve,
    moved_auroc_interval,
    precision_recall,
    rank,
    ratio,
    roc,
    thin,
    wilson_interval,
)
from container.evaluation.metrics import MetricValues, classification_metrics, decided_classes, of_counts, one_vs_rest
from container.evaluation.predictions import SplitPredictions
from container.evaluation.reliability import Calibration, calibrate
from contracts.metrics import DECLARED, METRICS
from contracts.threshold_targets import BEST_F1, ThresholdTarget

THRESHOLDS = tuple(round(0.1 * i, 1) for i in range(1, 10))
HISTOGRAM_BINS = 40
_SWEEP = np.linspace(0.0, 1.0, 101)


@dataclass(frozen=True)
class ClassCurves:
    """One class against the rest; for two classes, class 1."""

    class_id: int
    auroc: float
    average_precision: float
    roc: Curve
    precision_recall: Curve


@dataclass(frozen=True)
class ClassScores:
    """One class's scores when each record gets its predicted class; a ratio over 0 is None."""

    label: int | str
    support: int
    predicted: int
    precision: float | None
    recall: float | None
    f1_score: float | None
    auroc: float | None
    average_precision: float | None


@dataclass(frozen=True)
class SplitAnalysis:
    """The evaluation of a split. K classes, N rows, of which L are labelled.

    Attributes:
        metrics: all that are declared in contracts/metrics.py.
        baselines: the same metrics without a model: every record gets the same score, or the same class.
        intervals: 95 % intervals of some metrics, for sampling of the records.
        class_counts: labelled records per class. [K]
        curves: of every class that has curves.
        macro_roc, macro_precision_recall: mean of the classes' curves; None for two classes or without curves.
        threshold: decides between two classes; None for more, where the most probable class is predicted.
        confusion: records by (label, predicted class). [K, K]
        at_thresholds: decisions at THRESHOLDS, at `threshold` and at the threshold with the best F1 on val, ascending;
            empty for more than two classes.
        sweep: likewise, at 101 thresholds from 0 to 1.
        histograms: records per bin of the score, by group: `class 1`, `class 0` (two classes: class 1's probability),
            `right`, `wrong` (more: the predicted class's), and `unlabelled`; groups without records are omitted.
        uncalibrated: calibration of the softmax; None if the probabilities are the softmax.
        problem: why nothing can be measured; None otherwise.
    """

    split: str
    rows: int
    metrics: MetricValues
    baselines: dict[str, float | None]
    intervals: dict[str, tuple[float, float]]
    class_counts: np.ndarray
    classes: tuple[ClassScores, ...]
    curves: tuple[ClassCurves, ...]
    macro_roc: Curve | None
    macro_precision_recall: Curve | None
    threshold: float | None
    confusion: np.ndarray
    at_thresholds: tuple[Confusion, ...]
    sweep: tuple[Confusion, ...]
    histograms: dict[str, np.ndarray]
    calibration: Calibration | None
    uncalibrated: Calibration | None
    problem: str | None
    weighted: MetricValues | None = None

    @property
    def title(self) -> str:
        """Return the name of the split as words."""
        return self.split.replace("_", " ")

    @property
    def labelled(self) -> int:
        return int(self.class_counts.sum())

    def metric(self, name: str) -> float | None:
        return self.metrics.values[name]


def analyze(
    splits: Mapping[str, SplitPredictions],
    *,
    class_labels: Sequence[int | str],
    threshold: float = 0.5,
    uncalibrated: Mapping[str, np.ndarray] | None = None,
) -> tuple[dict[str, SplitAnalysis], float | None]:
    """Analyse every split; choose the best-F1 threshold on val or out of fold, and apply it to all splits.

    Args:
        threshold: decides between two classes.
        uncalibrated: probabilities by split before calibration and prior correction, if any. [N, K] each

    Returns:
        The analyses and the best-F1 threshold, which is the one in use if both decide val alike. It is None for more
        than two classes, or if val has no ranking.
    """
    ranked = {name: _rank(split) for name, split in splits.items()}
    chosen = None
    on = chosen_on(splits)
    if len(class_labels) == 2 and ranked.get(on):
        chosen = _best_f1_threshold(splits[on], in_use=threshold)
    analyses = {
        name: _analyze_split(
            split,
            rankings=ranked[name],
            class_labels=class_labels,
            threshold=threshold if len(class_labels) == 2 else None,
            chosen=chosen,
            uncalibrated=(uncalibrated or {}).get(name),
        )
        for name, split in splits.items()
    }
    return analyses, chosen


def metrics_json(
    analyses: Mapping[str, SplitAnalysis], *, decision: Decision, threshold: float | None
) -> dict[str, Any]:
    """Return the content of metrics.json about the splits; `threshold` has the best F1 on val."""
    items = analyses.items()
    return {
        **{f"{split}/{name}": value for split, a in items for name, value in a.metrics.values.items()},
        "undefined": {
            f"{split}/{prefix}{name}": why
            for split, a in items
            for prefix, found in (("", a.metrics), ("weighted/", a.weighted))
            for name, why in (found.undefined if found else {}).items()
        },
        **{
            f"{split}/weighted/{name}": value
            for split, a in items
            for name, value in (a.weighted.values if a.weighted else {}).items()
        },
        "records": {split: {"rows": a.rows, "labelled": a.labelled} for split, a in items},
        "baselines": {split: a.baselines for split, a in items},
        "intervals_95": {split: {name: list(pair) for name, pair in a.intervals.items()} for split, a in items},
        "best_f1_threshold": None if threshold is None else {"threshold": threshold, "chosen_on": chosen_on(analyses)},
        "thresholds": {split: [entry.to_dict() for entry in a.at_thresholds] for split, a in items},
        "classes": {split: [asdict(scores) for scores in a.classes] for split, a in items},
        "confusion_matrix": {split: _confusion_without_zeros(a) for split, a in items},
        "decision": decision.to_json(),
        "uncalibrated": {split: a.uncalibrated and asdict(a.uncalibrated) for split, a in items},
        "calibration": {split: a.calibration and asdict(a.calibration) for split, a in items},
    }


def _confusion_without_zeros(analysis: SplitAnalysis) -> dict[str, dict[str, int]]:
    """Return the records by label and predicted class; with thousands of classes, nearly all of the K x K are 0."""
    labels = [str(scores.label) for scores in analysis.classes]
    found: dict[str, dict[str, int]] = {label: {} for label in labels}
    for i, j in np.argwhere(analysis.confusion):
        found[labels[i]][labels[j]] = int(analysis.confusion[i, j])
    return found


def _best_f1_threshold(val: SplitPredictions, *, in_use: float) -> float:
    """Return the threshold with the best F1 on val: the one in use, if both make the same decisions there.

    A job with decision_threshold best_f1 chooses it from 32-bit scores, so that it differs in the last digits.
    """
    known = val.labels >= 0
    scores = val.probabilities[known, 1]
    best = choose_threshold(ThresholdTarget(BEST_F1), val.labels[known] == 1, scores).value
    return in_use if np.array_equal(scores >= best, scores >= in_use) else best


def _problem(split: SplitPredictions) -> str | None:
    if len(split.labels) == 0:
        return "the split has no records"
    not_finite = int((~np.isfinite(split.probabilities)).any(axis=1).sum())
    if not_finite:
        return f"{not_finite} of {len(split.labels)} records have a probability that is not a number"
    return None if (split.labels >= 0).any() else "no record has a label"


def _rank(split: SplitPredictions) -> dict[int, Ranking]:
    """Return a ranking per class that has one; none if metrics are undefined."""
    if _problem(split):
        return {}
    known = split.labels >= 0
    labels, probabilities = split.labels[known], split.probabilities[known]
    return {
        k: rank(is_class, scores)
        for k, is_class, scores in one_vs_rest(labels, probabilities)
        if 0 < is_class.sum() < len(is_class)
    }


def _analyze_split(
    split: SplitPredictions,
    *,
    rankings: dict[int, Ranking],
    class_labels: Sequence[int | str],
    threshold: float | None,
    chosen: float | None,
    uncalibrated: np.ndarray | None,
) -> SplitAnalysis:
    num_classes, problem = len(class_labels), _problem(split)
    known = split.labels >= 0 if problem is None else np.zeros(len(split.labels), bool)
    labels, probabilities = split.labels[known].astype(np.int64), split.probabilities[known]  # [L], [L, K]
    counts = np.bincount(labels, minlength=num_classes)
    binary = num_classes == 2
    decided = decided_classes(probabilities, threshold)
    flat = np.bincount(labels * num_classes + decided, minlength=num_classes**2)
    confusion = flat.reshape(num_classes, num_classes)
    weights = None if problem else split.weights
    given = {"problem": problem, "class_labels": class_labels, "threshold": threshold}
    metrics = _metrics(labels, probabilities, **given)
    at_thresholds: tuple[Confusion, ...] = ()
    sweep: tuple[Confusion, ...] = ()
    if threshold is not None and problem is None:
        scores = {
            "positive_scores": np.sort(probabilities[labels == 1, 1]),
            "negative_scores": np.sort(probabilities[labels == 0, 1]),
        }
        thresholds = {*THRESHOLDS, threshold, threshold if chosen is None else chosen}
        at_thresholds = tuple(confusion_at(value, **scores) for value in sorted(thresholds))
        sweep = tuple(confusion_at(value, **scores) for value in _SWEEP.tolist())
    curves = tuple(
        ClassCurves(k, *areas(ranking), thin(roc(ranking)), thin(precision_recall(ranking)))
        for k, ranking in rankings.items()
    )
    macro = len(curves) > 0 and not binary
    return SplitAnalysis(
        split=split.split,
        rows=len(split.labels),
        metrics=metrics,
        baselines=_baselines(counts),
        intervals=_intervals(metrics, labels, probabilities),
        class_counts=counts,
        classes=_class_scores(confusion, class_labels, _areas_per_class(curves, labels, probabilities)),
        curves=curves,
        macro_roc=mean_curve([curve.roc for curve in curves], steps=False) if macro else None,
        macro_precision_recall=mean_curve([curve.precision_recall for curve in curves], steps=True) if macro else None,
        threshold=threshold,
        confusion=confusion,
        at_thresholds=at_thresholds,
        sweep=sweep,
        histograms=_histograms(split),
        calibration=calibrate(labels, probabilities) if problem is None else None,
        uncalibrated=None if uncalibrated is None or problem else calibrate(labels, uncalibrated[known]),
        problem=problem,
        weighted=None if weights is None else _metrics(labels, probabilities, weights[known], **given),
    )


def _metrics(
    labels: np.ndarray,
    probabilities: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    problem: str | None,
    class_labels: Sequence[int | str],
    threshold: float | None,
) -> MetricValues:
    if problem is not None:
        return MetricValues(dict.fromkeys(DECLARED), dict.fromkeys(DECLARED, problem))
    given = {"class_labels": class_labels, "threshold": threshold, "weights": weights}
    computed = classification_metrics(labels, probabilities, METRICS, **given)
    of_label = np.maximum(probabilities[np.arange(len(labels)), labels], np.finfo(np.float64).tiny)
    loss = float(np.average(-np.log(of_label), weights=weights))
    return MetricValues({"loss": loss, **computed.values}, computed.undefined)


def _baselines(counts: np.ndarray) -> dict[str, float | None]:
    """Return each metric without a model.

    Two classes: flag every record. More: always predict the most frequent class. Loss: always predict the class shares.
    """
    total, occurring = int(counts.sum()), int((counts > 0).sum())
    if total == 0:
        return dict.fromkeys(DECLARED)
    shares, commonest = counts / total, int(counts.argmax())
    binary = len(counts) == 2
    baselines: dict[str, float | None] = {"loss": float(abs((shares[shares > 0] * np.log(shares[shares > 0])).sum()))}
    chance = {"roc": 0.5, "precision_recall": float(shares[1]) if binary else 1 / occurring}
    for metric in DECLARED.values():
        if metric.curve:
            baselines[metric.name] = None if occurring == 1 else chance[metric.curve]
        elif metric.ratio:
            always = np.arange(len(counts)) == (1 if binary and not metric.pooled else commonest)
            baselines[metric.name] = of_counts(counts * always, counts, total * always)[metric.name]
    return baselines | ({"recall": None} if binary else {})


def _intervals(metrics: MetricValues, labels: np.ndarray, probabilities: np.ndarray) -> dict[str, tuple[float, float]]:
    intervals = {}
    for name, metric in DECLARED.items():
        value = metrics.values[name]
        if metric.interval == "DeLong" and probabilities.shape[1] > 2 and value is not None:
            intervals[name] = moved_auroc_interval(value, np.bincount(labels))
        elif metric.interval == "DeLong" and probabilities.shape[1] == 2:
            if (interval := auroc_interval(labels == 1, probabilities[:, 1])) is not None:
                intervals[name] = interval
        elif metric.interval == "Wilson" and value is not None:
            intervals[name] = wilson_interval(value * len(labels), len(labels))
    return intervals


def _areas_per_class(
    curves: tuple[ClassCurves, ...], labels: np.ndarray, probabilities: np.ndarray
) -> dict[int, tuple[float, float]]:
    """Return (auroc, average precision) per class; of two classes, also for class 0, which is often the rare one."""
    found = {curve.class_id: (curve.auroc, curve.average_precision) for curve in curves}
    if probabilities.shape[1] == 2 and found:
        found[0] = (found[1][0], areas(rank(labels == 0, probabilities[:, 0]))[1])
    return found


def _class_scores(
    confusion: np.ndarray, class_labels: Sequence[int | str], areas: dict[int, tuple[float, float]]
) -> tuple[ClassScores, ...]:
    scores = []
    for k, label in enumerate(class_labels):
        hit, support, predicted = int(confusion[k, k]), int(confusion[k].sum()), int(confusion[:, k].sum())
        area, precision_area = areas.get(k, (None, None))
        scores.append(
            ClassScores(
                label=label,
                support=support,
                predicted=predicted,
                precision=ratio(hit, predicted),
                recall=ratio(hit, support),
                f1_score=ratio(2 * hit, support + predicted) if support else None,
                auroc=area,
                average_precision=precision_area,
            )
        )
    return tuple(scores)


def _histograms(split: SplitPredictions) -> dict[str, np.ndarray]:
    finite = np.isfinite(split.probabilities).all(axis=1)
    labels, probabilities = split.labels[finite], split.probabilities[finite]
    if probabilities.shape[1] == 2:
        scores = probabilities[:, 1]
        groups = {"class 1": labels == 1, "class 0": labels == 0}
    else:
        scores, decided = probabilities.max(axis=1), probabilities.argmax(axis=1)
        groups = {"right": labels == decided, "wrong": (labels >= 0) & (labels != decided)}
    groups["unlabelled"] = labels < 0
    return {
        name: np.histogram(scores[members], bins=HISTOGRAM_BINS, range=(0.0, 1.0))[0]
        for name, members in groups.items()
        if members.any()
    }
