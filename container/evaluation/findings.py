"""Write the report's summary of the main metrics, and its findings."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from container.decision.deciding_rows import chosen_on, in_words
from container.decision.decision import PriorShift
from container.evaluation.analysis import SplitAnalysis
from container.evaluation.bootstrap import Scores, paired_differences
from container.evaluation.charts import percent
from container.evaluation.companion_report import MODEL_IS_THE_TREES, CompanionReport, kind_of
from container.evaluation.curves import moved_auroc_interval
from container.evaluation.data_findings import FEW_RECORDS, Finding, data_findings, listed
from container.evaluation.evaluation_input import EvaluationInput, Explanation, Importance, VariantReport
from container.evaluation.metrics import decided_classes
from container.evaluation.predictions import SplitPredictions
from container.evaluation.verdict import NAMED, auroc_interval_of, verdict
from contracts.metrics import DECLARED
from contracts.monitored_metric import MonitoredMetric
from contracts.presets import SMALL

_SMALL_FALL = 0.05  # of the AUROC: val and test agree if such a fall would be found
_SMALL_ERROR, _LARGE_ERROR = 0.02, 0.12  # expected calibration error: of no importance; that records should exclude
_PERFECT = 0.995  # AUROC on val and test
_SUSPICIOUS = 0.85  # AUROC that one honest column seldom reaches
_LOST = 0.8  # share of the AUROC above 0.5 without which a model guesses
_SOME_GAIN = 0.05  # AUROC above 0.5 of a model whose inputs can be judged
_UNNECESSARY = 0.02  # drop of the AUROC that a modality is not worth
_RISES = 3  # successive improvements, which validations of equal worth make once in 24 times


def headline_split(analyses: Mapping[str, SplitAnalysis]) -> SplitAnalysis:
    """Return the analysis of test, unless only another split has labels."""
    return min(analyses.values(), key=lambda a: (a.problem is not None, a.split != "test"))


def headline(analysis: SplitAnalysis, class_labels: Sequence[int | str]) -> list[str]:
    """Return sentences about the main metrics."""
    if analysis.problem is not None:
        return [f"No metric can be computed on {analysis.split}: {analysis.problem}."]
    if np.count_nonzero(analysis.class_counts) == 1:
        label = class_labels[int(analysis.class_counts.argmax())]
        predicted = percent(analysis.metric("accuracy") or 0)
        return [
            f"All {analysis.labelled:,} labelled {analysis.split} records are of class {label}; the model predicts it "
            f"for {predicted} of them. This split cannot show how the model treats other classes."
        ]
    describe = _two_classes if len(class_labels) == 2 else _more_classes
    return [*describe(analysis, class_labels)]


def findings(
    evaluation: EvaluationInput, analyses: Mapping[str, SplitAnalysis], *, threshold: float | None
) -> list[Finding]:
    """Return all findings, with those to check first."""
    main = headline_split(analyses)
    leaks = [*_leakage(analyses, evaluation.explanation)]
    found = [
        *_draft(evaluation.hyperparameters),
        *_undefined(analyses),
        *_small(main, evaluation.class_labels),
        *_agreement(analyses),
        *_threshold(main, evaluation.splits[main.split], threshold, in_words(chosen_on(analyses))),
        *_decision(evaluation, in_words(chosen_on(analyses))),
        *_calibration(main, evaluation),
        *_companion(evaluation.companion),
        *_explanation(evaluation.explanation, analyses, leaks=bool(leaks)),
        *_variants(evaluation.variants),
        *_training(evaluation),
        *data_findings(evaluation.data_summary),
        *(Finding("check", f"Of the raw table, init warned: {text}") for text in evaluation.init_warnings),
    ]
    ordered = sorted(found, key=lambda finding: ("check", "note", "good").index(finding.level))
    calibrated = evaluation.decision.method != "none"
    of_model = verdict(main, evaluation.splits[main.split], evaluation.class_labels, calibrated=calibrated)
    return [*leaks, *of_model, *ordered]


def _two_classes(analysis: SplitAnalysis, class_labels: Sequence[int | str]) -> Iterator[str]:
    negative, positive = class_labels
    share = analysis.class_counts[1] / analysis.labelled
    area = analysis.metric("auroc")
    if area is not None:
        yield (
            f"The model scores a random record of class {positive} higher than a random record of class {negative} in "
            f"{percent(area)} of cases; random guessing reaches 50%."
        )
    larger = positive if share >= 0.5 else negative
    yield (
        f"Of the {analysis.labelled:,} labelled {analysis.split} records {percent(share)} are of class {positive}. "
        f"The predicted class is right for {percent(analysis.metric('accuracy') or 0)} of all records (accuracy); "
        f"always predicting class {larger} reaches {percent(max(share, 1 - share))}."
    )


def _more_classes(analysis: SplitAnalysis, class_labels: Sequence[int | str]) -> Iterator[str]:
    commonest = class_labels[int(analysis.class_counts.argmax())]
    yield (
        f"The model predicts the correct one of {len(class_labels)} classes for "
        f"{percent(analysis.metric('accuracy') or 0)} of {analysis.labelled:,} labelled {analysis.split} records; "
        f"always predicting {commonest} reaches {percent(analysis.baselines['accuracy'] or 0)}."
    )
    wrong = analysis.confusion * (1 - np.eye(len(class_labels), dtype=np.int64))
    if wrong.any():
        i, j = (int(k) for k in np.unravel_index(int(wrong.argmax()), wrong.shape))
        yield (
            f"The most frequent error: {wrong[i, j]:,} of {analysis.class_counts[i]:,} records of class "
            f"{class_labels[i]} are predicted as {class_labels[j]}."
        )


def _draft(hyperparameters: Mapping[str, Any]) -> Iterator[Finding]:
    if hyperparameters.get("draft"):
        yield Finding(
            "check",
            "This is a draft, without companion, label issues, feature importance, examples and ONNX variants. To add "
            "them, set draft to false and run the job again: only what follows training is repeated. With a preset, a "
            f"table of fewer than {SMALL:,} labelled rows is then trained in folds.",
        )


def _undefined(analyses: Mapping[str, SplitAnalysis]) -> Iterator[Finding]:
    for analysis in analyses.values():
        reasons: dict[str, list[str]] = {}
        for name, reason in analysis.metrics.undefined.items():
            reasons.setdefault(reason, []).append(DECLARED[name].title)
        for reason, names in reasons.items():
            which = "every metric" if len(names) == len(DECLARED) else ", ".join(names)
            yield Finding("check", f"Undefined on {analysis.split}: {which}, because {reason}.")


def _small(analysis: SplitAnalysis, class_labels: Sequence[int | str]) -> Iterator[Finding]:
    if analysis.problem is not None:
        return
    scarce = [k for k in np.argsort(analysis.class_counts) if analysis.class_counts[k] < FEW_RECORDS]
    one_class = np.count_nonzero(analysis.class_counts) == 1  # _undefined reports it
    if not scarce or (one_class and analysis.labelled >= FEW_RECORDS):
        return
    classes = listed([f"{class_labels[k]} ({analysis.class_counts[k]})" for k in scarce], most=NAMED)
    interval = analysis.intervals.get("auroc") or analysis.intervals.get("accuracy")
    name = "AUROC" if "auroc" in analysis.intervals else "accuracy"
    reach = f" The 95% CI of {name} is {interval[0]:.3f} to {interval[1]:.3f}." if interval else ""
    yield Finding(
        "check",
        f"{analysis.split} has fewer than {FEW_RECORDS} records of class {classes}: small differences are not "
        f"significant.{reach}",
    )


def _agreement(analyses: Mapping[str, SplitAnalysis]) -> Iterator[Finding]:
    if not {"val", "test"} <= analyses.keys():
        return
    val, test = (analyses[split].metric("auroc") for split in ("val", "test"))
    if val is None or test is None:
        return
    of_val, of_test = (auroc_interval_of(analyses[split], area) for split, area in (("val", val), ("test", test)))
    fall = val - test
    below, above = (np.hypot(val - of_val[0], of_test[1] - test), np.hypot(of_val[1] - val, test - of_test[0]))
    if fall > max(below, 0.01):
        yield Finding(
            "check",
            f"AUROC falls from {val:.3f} on val to {test:.3f} on test, by more than the sampling error of both. Either "
            "test differs from val, or too many settings were chosen on val.",
        )
    elif -above <= fall <= below < _SMALL_FALL and min(of_val[0], of_test[0]) > 0.5:
        yield Finding("good", f"AUROC on val ({val:.3f}) and test ({test:.3f}) agree.")


def _threshold(
    analysis: SplitAnalysis, split: SplitPredictions, threshold: float | None, where: str
) -> Iterator[Finding]:
    if threshold is None or analysis.threshold in (None, threshold) or analysis.problem is not None:
        return
    given = (
        Scores(split.probabilities, decided_classes(split.probabilities, t)) for t in (analysis.threshold, threshold)
    )
    gain = paired_differences(split.labels, *given).get("f1_score")
    if gain is not None and gain.interval is not None and gain.sign == 1:
        at = {entry.threshold: entry.f1_score or 0.0 for entry in analysis.at_thresholds}
        yield Finding(
            "note",
            f"The threshold with the best F1 {where}, {threshold:.3f}, has F1 {at[threshold]:.3f} on {analysis.split}; "
            f"the threshold in use, {analysis.threshold:.4g}, gives {at[analysis.threshold]:.3f} (95% CI of the "
            f"difference {gain.interval[0]:+.3f} to {gain.interval[1]:+.3f}).",
        )


def _decision(evaluation: EvaluationInput, where: str) -> Iterator[Finding]:
    threshold = evaluation.decision.threshold
    if threshold is not None and not threshold.met:
        yield Finding(
            "check", f"No threshold reaches {threshold.target} {where}; the closest, {threshold.value:.4g}, is in use."
        )


def _calibration(analysis: SplitAnalysis, evaluation: EvaluationInput) -> Iterator[Finding]:
    if analysis.calibration is None:
        return
    if isinstance(evaluation.decision.prior, PriorShift):
        target = percent(evaluation.decision.prior.target_share)
        yield Finding(
            "note",
            f"Scores assume that {target} of the records are of class {evaluation.class_labels[1]} (target_prior). On "
            f"{analysis.split} they are calibrated only if it has this share.",
        )
        return
    error, over = analysis.calibration.expected_calibration_error, analysis.calibration.overconfidence
    most = analysis.calibration.most_if_calibrated
    limit = f"perfectly calibrated scores of so many records reach {most:.3f} in 1% of samples"
    if error <= max(most, _SMALL_ERROR):
        if most < _LARGE_ERROR:
            text = f"Scores can be read as probabilities: the expected calibration error is {error:.3f}; {limit}."
            yield Finding("good", text)
        return
    direction = (
        "too high" if over > error / 2 else "too low" if over < -error / 2 else "partly too high, partly too low"
    )
    shifting = [name for name in ("class_weights", "label_smoothing") if evaluation.hyperparameters.get(name)]
    shifting += ["the focal loss"] if evaluation.hyperparameters.get("loss") == "focal" else []
    advice = " To correct them, choose calibration." if evaluation.decision.method == "none" else ""
    verb = "shifts" if shifting in (["label_smoothing"], ["the focal loss"]) else "shift"
    weighted = f" {' and '.join(shifting)} intentionally {verb} them." if shifting else ""
    yield Finding(
        "check",
        f"Do not read the scores as probabilities: they are {direction}, by {error:.3f} on average; {limit}.{weighted} "
        f"The ranking of the records is unaffected.{advice}",
    )


def _variants(variants: Sequence[VariantReport]) -> Iterator[Finding]:
    for report in variants:
        if not report.written:
            level = "check" if report.possible else "note"
            yield Finding(level, f"model.{report.name}.onnx was not written: {report.reason}.")


def _companion(companion: CompanionReport | None) -> Iterator[Finding]:
    if companion is not None and companion.is_the_model:
        yield Finding("note", f"The model is the {kind_of(companion.models)}: {MODEL_IS_THE_TREES}.")


def _leakage(analyses: Mapping[str, SplitAnalysis], explanation: Explanation | None) -> Iterator[Finding]:
    """Yield the finding that questions everything else: a model that is too good, or that one or two columns make."""
    areas = {split: analysis.metric("auroc") for split, analysis in analyses.items() if analysis.problem is None}
    known = {split: area for split, area in areas.items() if area is not None}
    signs = []
    if known and min(known.values()) > _PERFECT:
        signs.append("AUROC is " + " and ".join(f"{area:.4f} on {split}" for split, area in known.items()))
    if explanation is not None and explanation.problem is None and _least(explanation, analyses) > _SUSPICIOUS:
        singles = explanation.columns[:1] if len(explanation.columns) > 1 else ()
        makes = [entry for entry in (*singles, explanation.pair) if entry is not None and _guesses(explanation, entry)]
        if makes and makes[0].kind != "text":
            signs.append(f"the model depends almost only on {makes[0].name}: {_fall(explanation, makes[0])}")
    if signs:
        text = f"Check for target leakage first: {'; '.join(signs)}. Is every value known at prediction time?"
        yield Finding("check", text)


def _least(explanation: Explanation, analyses: Mapping[str, SplitAnalysis]) -> float:
    """Return the lower end of the metric's 95 % interval on the explained records."""
    counts = analyses[explanation.split].class_counts
    fewer = min(explanation.records // 2, counts.min()) if len(counts) == 2 else explanation.records // 2
    return moved_auroc_interval(explanation.base or 0.5, [fewer, explanation.records - fewer])[0]


def _guesses(explanation: Explanation, without: Importance) -> bool:
    return without.drop > _LOST * ((explanation.base or 0.5) - 0.5)


def _fall(explanation: Explanation, without: Importance) -> str:
    base = explanation.base or 0.5
    return f"when shuffled, {DECLARED[explanation.metric].title} falls from {base:.3f} to {base - without.drop:.3f}"


def _explanation(
    explanation: Explanation | None, analyses: Mapping[str, SplitAnalysis], *, leaks: bool
) -> Iterator[Finding]:
    if explanation is None or explanation.problem is not None:
        return
    if _least(explanation, analyses) < 0.5 + _SOME_GAIN:
        return
    first = explanation.columns[0]
    if not leaks and len(explanation.columns) > 1 and _guesses(explanation, first):
        yield Finding("note", f"The model depends almost only on {first.name}: {_fall(explanation, first)}.")
    for entry in explanation.modalities if len(explanation.modalities) > 1 else ():
        if entry.interval is not None and entry.interval[0] <= 0 and entry.interval[1] < _UNNECESSARY:
            low, high = entry.interval
            name = f"{DECLARED[explanation.metric].title} on {explanation.split}"
            interval = f"95% CI of the decrease {low:+.3f} to {high:+.3f}"
            text = f"{name} does not clearly decrease without {entry.name} ({interval}); it may be unnecessary."
            yield Finding("note", text)


def _training(evaluation: EvaluationInput) -> Iterator[Finding]:
    metric, key = MonitoredMetric.of(evaluation.early_stop_metric), metric_key(evaluation)
    values = [entry.get(key) for entry in evaluation.history if "val/loss" in entry][-_RISES - 1 :]
    rises = [metric.rank(after) < metric.rank(before) for before, after in pairwise(values)]
    best = best_validation(evaluation)
    if len(rises) == _RISES and all(rises) and best is not None and best.get(key) == values[-1]:
        yield Finding("note", f"The last {_RISES} validations each improved {key}: more epochs may help.")
    skipped = evaluation.run.get("skipped steps")
    if skipped:
        yield Finding("check", f"{skipped} optimizer steps were skipped because a gradient was not finite.")


def metric_key(evaluation: EvaluationInput) -> str:
    """Return the logged name of the early_stop_metric: val/f1_score for val_f1_score."""
    return MonitoredMetric.of(evaluation.early_stop_metric).name


def best_validation(evaluation: EvaluationInput) -> Mapping[str, Any] | None:
    """Return the history entry with the best early_stop_metric."""
    return next((entry for entry in evaluation.history if entry["step"] == evaluation.best_step), None)
