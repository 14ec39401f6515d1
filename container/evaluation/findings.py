"""Write the report's summary of the main metrics, and its findings."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from container.decision.deciding_rows import OUT_OF_FOLD, in_words
from container.decision.decision import PriorShift
from container.evaluation.analysis import SplitAnalysis
from container.evaluation.charts import percent
from container.evaluation.data_findings import ENOUGH_RECORDS, FEW_RECORDS, Finding, data_findings, listed
from container.evaluation.evaluation_input import EvaluationInput, Explanation, VariantReport
from container.evaluation.verdict import NAMED, verdict, wide_auroc_interval
from contracts.metrics import DECLARED
from contracts.monitored_metric import MonitoredMetric


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
    found = [
        *_draft(evaluation.hyperparameters),
        *_undefined(analyses),
        *_small(main, evaluation.class_labels),
        *_agreement(analyses),
        *_threshold(main, threshold, in_words(OUT_OF_FOLD in analyses)),
        *_decision(evaluation, in_words(OUT_OF_FOLD in analyses)),
        *_calibration(main, evaluation),
        *_explanation(evaluation.explanation),
        *_variants(evaluation.variants),
        *_training(evaluation),
        *data_findings(evaluation.data_summary),
        *(Finding("check", f"Of the raw table, init warned: {text}") for text in evaluation.init_warnings),
    ]
    ordered = sorted(found, key=lambda finding: ("check", "note", "good").index(finding.level))
    return [*verdict(main, evaluation.splits[main.split], evaluation.class_labels), *ordered]


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
        f"The model predicts {percent(analysis.metric('accuracy') or 0)} of them correctly; always predicting class "
        f"{larger} reaches {percent(max(share, 1 - share))}."
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
            "them, set draft to false and run the job again: only what follows training is repeated.",
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
    of_val, of_test = (wide_auroc_interval(analyses[split], area) for split, area in (("val", val), ("test", test)))
    fall = val - test
    below, above = (np.hypot(val - of_val[0], of_test[1] - test), np.hypot(of_val[1] - val, test - of_test[0]))
    if fall > max(below, 0.01):
        yield Finding(
            "check",
            f"AUROC falls from {val:.3f} on val to {test:.3f} on test, by more than the sampling error of both. Either "
            "test differs from val, or too many settings were chosen on val.",
        )
    elif -above <= fall <= below and min(analyses[split].labelled for split in ("val", "test")) >= ENOUGH_RECORDS:
        yield Finding("good", f"AUROC on val ({val:.3f}) and test ({test:.3f}) agree.")


def _threshold(analysis: SplitAnalysis, threshold: float | None, where: str) -> Iterator[Finding]:
    if threshold is None or analysis.threshold is None or analysis.problem is not None:
        return
    at = {entry.threshold: entry for entry in analysis.at_thresholds}
    best, in_use = at[threshold].f1_score, at[analysis.threshold].f1_score
    if best is not None and in_use is not None and best - in_use > 0.005:
        yield Finding(
            "note",
            f"The threshold with the best F1 {where}, {threshold:.3f}, gives F1 {best:.3f} on {analysis.split}; the "
            f"threshold in use, {analysis.threshold:.4g}, gives {in_use:.3f}.",
        )


def _decision(evaluation: EvaluationInput, where: str) -> Iterator[Finding]:
    threshold = evaluation.decision.threshold
    if threshold is not None and not threshold.met:
        yield Finding(
            "check", f"No threshold reaches {threshold.target} {where}; the closest, {threshold.value:.4g}, is in use."
        )


def _calibration(analysis: SplitAnalysis, evaluation: EvaluationInput) -> Iterator[Finding]:
    if analysis.calibration is None or analysis.labelled < ENOUGH_RECORDS:
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
    if error < 0.05:
        yield Finding("good", f"Scores can be read as probabilities: the expected calibration error is {error:.3f}.")
        return
    direction = (
        "too high" if over > error / 2 else "too low" if over < -error / 2 else "partly too high, partly too low"
    )
    shifting = [name for name in ("class_weights", "label_smoothing") if evaluation.hyperparameters.get(name)]
    shifting += ["the focal loss"] if evaluation.hyperparameters.get("loss") == "focal" else []
    verb = "shifts" if shifting in (["label_smoothing"], ["the focal loss"]) else "shift"
    weighted = f" {' and '.join(shifting)} intentionally {verb} them." if shifting else ""
    yield Finding(
        "check",
        f"Do not read the scores as probabilities: they are {direction}, by {error:.3f} on average.{weighted} "
        "The ranking of the records is unaffected.",
    )


def _variants(variants: Sequence[VariantReport]) -> Iterator[Finding]:
    for report in variants:
        if not report.written:
            level = "check" if report.possible else "note"
            yield Finding(level, f"model.{report.name}.onnx was not written: {report.reason}.")


def _explanation(explanation: Explanation | None) -> Iterator[Finding]:
    if explanation is None or explanation.problem is not None:
        return
    name, base = DECLARED[explanation.metric].title, explanation.base or 0.5
    gain = base - 0.5
    first = explanation.columns[0]
    if len(explanation.columns) > 1 and gain > 0.1 and first.drop > 0.9 * gain:
        yield Finding(
            "check",
            f"The model depends almost only on {first.name}: when it is shuffled, {name} falls from {base:.3f} to "
            f"{base - first.drop:.3f}. A single dominant column often indicates target leakage: check that its value "
            "is known at prediction time.",
        )
    for entry in explanation.modalities:
        if len(explanation.modalities) > 1 and entry.drop < 0.001 * (gain > 0.05):
            yield Finding(
                "note", f"{name} on {explanation.split} does not decrease without {entry.name}; it may be unnecessary."
            )


def _training(evaluation: EvaluationInput) -> Iterator[Finding]:
    best = best_validation(evaluation)
    steps = [entry["step"] for entry in evaluation.history if "val/loss" in entry]
    if best is not None and len(steps) > 1 and best["step"] == steps[-1]:
        yield Finding("note", f"The last validation has the best {metric_key(evaluation)}: more epochs may help.")
    skipped = evaluation.run.get("skipped steps")
    if skipped:
        yield Finding("check", f"{skipped} optimizer steps were skipped because a gradient was not finite.")


def metric_key(evaluation: EvaluationInput) -> str:
    """Return the logged name of the early_stop_metric: val/f1_score for val_f1_score."""
    return MonitoredMetric.of(evaluation.early_stop_metric).name


def best_validation(evaluation: EvaluationInput) -> Mapping[str, Any] | None:
    """Return the history entry with the best early_stop_metric."""
    return next((entry for entry in evaluation.history if entry["step"] == evaluation.best_step), None)
