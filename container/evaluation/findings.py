"""What a reader of the report should know first: the main numbers in a sentence, and what is worth a look."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from container.evaluation.analysis import SplitAnalysis
from container.evaluation.charts import percent
from container.evaluation.evaluation_input import EvaluationInput
from container.evaluation.explanation import Explanation
from container.evaluation.variant_report import VariantReport

FEW_RECORDS = 30
ENOUGH_RECORDS = 200
METRIC_NAMES = {
    "loss": "Log loss",
    "auroc": "AUROC",
    "average_precision": "Average precision",
    "f1_score": "F1",
    "precision": "Precision",
    "recall": "Recall",
    "accuracy": "Accuracy",
}


@dataclass(frozen=True)
class Finding:
    """`level`: look (something may be wrong), note (good to know) or good."""

    level: str
    text: str


def headline_split(analyses: Mapping[str, SplitAnalysis]) -> SplitAnalysis:
    """test, unless only another split has labels."""
    order = sorted(analyses.values(), key=lambda a: (a.problem is not None, a.split != "test"))
    return order[0]


def headline(analysis: SplitAnalysis, class_labels: Sequence[int | str]) -> list[str]:
    """What the main numbers mean, in sentences."""
    if analysis.problem is not None:
        return [f"There is nothing to measure on {analysis.split}: {analysis.problem}."]
    if np.count_nonzero(analysis.class_counts) == 1:
        label = class_labels[int(analysis.class_counts.argmax())]
        decided = percent(analysis.metric("accuracy") or 0)
        return [
            f"All {analysis.labelled:,} labelled {analysis.split} records are of class {label}; the model decides so "
            f"for {decided} of them. How it fares on other classes cannot be told here."
        ]
    describe = _two_classes if len(class_labels) == 2 else _more_classes
    return [*describe(analysis, class_labels)]


def findings(
    evaluation: EvaluationInput, analyses: Mapping[str, SplitAnalysis], *, threshold: float | None
) -> list[Finding]:
    """Everything worth a look, the worrying first."""
    main = headline_split(analyses)
    found = [
        *_undefined(analyses),
        *_small(main, evaluation.class_labels),
        *_useless(main, evaluation.class_labels),
        *_never_decided(main),
        *_agreement(analyses),
        *_threshold(main, threshold),
        *_decision(evaluation),
        *_calibration(main, evaluation),
        *_explanation(evaluation.explanation),
        *_variants(evaluation.variants),
        *_training(evaluation),
        *_data(evaluation.data_summary),
        *_drift(evaluation.data_summary),
    ]
    return sorted(found, key=lambda finding: ("look", "note", "good").index(finding.level))


def _two_classes(analysis: SplitAnalysis, class_labels: Sequence[int | str]) -> Iterator[str]:
    negative, positive = class_labels
    share = analysis.class_counts[1] / analysis.labelled
    area = analysis.metric("auroc")
    if area is not None:
        yield (
            f"Shown one record of class {positive} and one of class {negative}, the model gives the first the higher "
            f"score {percent(area)} of the time; guessing would reach 50%."
        )
    larger = positive if share >= 0.5 else negative
    yield (
        f"Of the {analysis.labelled:,} labelled {analysis.split} records {percent(share)} are of class {positive}: "
        f"calling every record {larger} would be right {percent(max(share, 1 - share))} of the time, the model is "
        f"right {percent(analysis.metric('accuracy') or 0)} of the time."
    )


def _more_classes(analysis: SplitAnalysis, class_labels: Sequence[int | str]) -> Iterator[str]:
    commonest = class_labels[int(analysis.class_counts.argmax())]
    yield (
        f"The model names the right one of {len(class_labels)} classes for {percent(analysis.metric('accuracy') or 0)} "
        f"of {analysis.labelled:,} labelled {analysis.split} records; always answering {commonest} would be right "
        f"{percent(analysis.baselines['accuracy'] or 0)} of the time."
    )
    wrong = analysis.confusion * (1 - np.eye(len(class_labels), dtype=np.int64))
    if wrong.any():
        i, j = (int(k) for k in np.unravel_index(int(wrong.argmax()), wrong.shape))
        yield (
            f"Its most frequent mistake: {wrong[i, j]:,} of {analysis.class_counts[i]:,} records of class "
            f"{class_labels[i]} taken for {class_labels[j]}."
        )


def _undefined(analyses: Mapping[str, SplitAnalysis]) -> Iterator[Finding]:
    for analysis in analyses.values():
        reasons: dict[str, list[str]] = {}
        for name, reason in analysis.metrics.undefined.items():
            reasons.setdefault(reason, []).append(METRIC_NAMES[name])
        for reason, names in reasons.items():
            which = "every metric" if len(names) == len(METRIC_NAMES) else ", ".join(names)
            yield Finding("look", f"Undefined on {analysis.split}: {which}, because {reason}.")


def _small(analysis: SplitAnalysis, class_labels: Sequence[int | str]) -> Iterator[Finding]:
    if analysis.problem is not None:
        return
    scarce = [k for k in np.argsort(analysis.class_counts) if analysis.class_counts[k] < FEW_RECORDS]
    one_class = np.count_nonzero(analysis.class_counts) == 1  # said elsewhere, as the reason of undefined metrics
    if not scarce or (one_class and analysis.labelled >= FEW_RECORDS):
        return
    listed = ", ".join(f"{class_labels[k]} ({analysis.class_counts[k]})" for k in scarce[:6])
    more = f" and {len(scarce) - 6} more" if len(scarce) > 6 else ""
    interval = analysis.intervals.get("auroc") or analysis.intervals.get("accuracy")
    name = "AUROC" if "auroc" in analysis.intervals else "accuracy"
    reach = f" Another sample of this size could have put {name} anywhere from {interval[0]:.3f} to {interval[1]:.3f}."
    yield Finding(
        "look",
        f"Fewer than {FEW_RECORDS} {analysis.split} records of class {listed}{more}: small differences here mean "
        f"nothing.{reach if interval else ''}",
    )


def _useless(analysis: SplitAnalysis, class_labels: Sequence[int | str]) -> Iterator[Finding]:
    accuracy, guess = analysis.metric("accuracy"), analysis.baselines["accuracy"]
    if accuracy is not None and guess is not None and guess < 1 and accuracy <= guess:
        label = class_labels[int(analysis.class_counts.argmax())]
        yield Finding(
            "look",
            f"Accuracy on {analysis.split} ({percent(accuracy)}) is no better than always answering {label} "
            f"({percent(guess)}).",
        )
    f1, flag_all = analysis.metric("f1_score"), analysis.baselines["f1_score"]
    if len(class_labels) == 2 and f1 is not None and flag_all is not None and f1 < flag_all < 1:
        yield Finding(
            "look",
            f"F1 at {analysis.threshold:.4g} on {analysis.split} ({f1:.3f}) is below that of flagging every record "
            f"({flag_all:.3f}): choose another threshold.",
        )
    area, interval = analysis.metric("auroc"), analysis.intervals.get("auroc")
    if area is not None and (interval[0] <= 0.5 if interval else area <= 0.5):
        yield Finding("look", f"AUROC on {analysis.split} ({area:.3f}) cannot be told from guessing (0.5).")


def _never_decided(analysis: SplitAnalysis) -> Iterator[Finding]:
    never = [scores for scores in analysis.classes if scores.support and not scores.predicted]
    if never:
        listed = ", ".join(f"{scores.label} ({scores.support:,} records)" for scores in never[:8])
        more = f" and {len(never) - 8} more" if len(never) > 8 else ""
        yield Finding("look", f"Never decided on {analysis.split}: {listed}{more}.")


def _agreement(analyses: Mapping[str, SplitAnalysis]) -> Iterator[Finding]:
    if not {"val", "test"} <= analyses.keys():
        return
    val, test = analyses["val"].metric("auroc"), analyses["test"].metric("auroc")
    if val is None or test is None:
        return
    interval = analyses["test"].intervals.get("auroc", (test - 0.02, test + 0.02))
    if val > interval[1] and val - test > 0.01:
        yield Finding(
            "look",
            f"AUROC falls from {val:.3f} on val to {test:.3f} on test, more than chance explains: test differs from "
            "val, or val was used for too many choices.",
        )
    elif interval[0] <= val <= interval[1] and analyses["test"].labelled >= ENOUGH_RECORDS:
        yield Finding("good", f"Val and test agree: AUROC {val:.3f} and {test:.3f}.")


def _threshold(analysis: SplitAnalysis, threshold: float | None) -> Iterator[Finding]:
    if threshold is None or analysis.problem is not None:
        return
    at = {entry.threshold: entry for entry in analysis.at_thresholds}
    best, own = at[threshold].f1_score, at[analysis.threshold].f1_score
    if best is not None and own is not None and best - own > 0.005:
        yield Finding(
            "note",
            f"The threshold of the best F1 on val, {threshold:.3f}, gives F1 {best:.3f} on {analysis.split}; "
            f"{analysis.threshold:.4g} gives {own:.3f}.",
        )


def _decision(evaluation: EvaluationInput) -> Iterator[Finding]:
    threshold = evaluation.decision.threshold
    if threshold is not None and not threshold.met:
        yield Finding(
            "look", f"No threshold reaches {threshold.target} on val; {threshold.value:.4g} comes nearest and is used."
        )


def _calibration(analysis: SplitAnalysis, evaluation: EvaluationInput) -> Iterator[Finding]:
    if analysis.calibration is None or analysis.labelled < ENOUGH_RECORDS:
        return
    if evaluation.decision.prior is not None:
        target = percent(evaluation.decision.prior.target_share)
        yield Finding(
            "note",
            f"Scores are meant for a place where {target} of the records are of class {evaluation.class_labels[1]} "
            f"(target_prior), and fit {analysis.split} only if it is such a place.",
        )
        return
    error, over = analysis.calibration.expected_calibration_error, analysis.calibration.overconfidence
    if error < 0.05:
        yield Finding("good", f"Scores can be read as probabilities: they are off by {error:.3f} on average.")
        return
    direction = "too high" if over > error / 2 else "too low" if over < -error / 2 else "off in both directions"
    shifting = [name for name in ("class_weights", "label_smoothing") if evaluation.hyperparameters.get(name)]
    shifting += ["the focal loss"] if evaluation.hyperparameters.get("loss") == "focal" else []
    verb = "shifts" if shifting in (["label_smoothing"], ["the focal loss"]) else "shift"
    weighted = f" {' and '.join(shifting)} {verb} them by design." if shifting else ""
    yield Finding(
        "look",
        f"Do not read the scores as probabilities: they are {direction}, by {error:.3f} on average.{weighted} "
        "Their order is unaffected.",
    )


def _variants(variants: Sequence[VariantReport]) -> Iterator[Finding]:
    for report in variants:
        if not report.written:
            yield Finding("look", f"model.{report.name}.onnx was not written: {report.reason}.")


def _explanation(explanation: Explanation | None) -> Iterator[Finding]:
    if explanation is None or explanation.problem is not None:
        return
    name, gain = METRIC_NAMES[explanation.metric], (explanation.base or 0.5) - 0.5
    first = explanation.columns[0]
    if len(explanation.columns) > 1 and gain > 0.1 and first.drop > 0.9 * gain:
        yield Finding(
            "look",
            f"Nearly everything hangs on {first.name}: shuffled, {name} falls from {explanation.base:.3f} to "
            f"{explanation.base - first.drop:.3f}. Make sure that it is known when the model is asked.",
        )
    for entry in explanation.modalities:
        if len(explanation.modalities) > 1 and entry.drop < 0.001 * (gain > 0.05):
            yield Finding("note", f"Without {entry.name} {name} on val is as good: the model gains nothing from it.")


def _training(evaluation: EvaluationInput) -> Iterator[Finding]:
    best = best_validation(evaluation)
    validations = [entry for entry in evaluation.history if "val/loss" in entry]
    if best is not None and len(validations) > 1 and best["step"] == validations[-1]["step"]:
        yield Finding("note", f"The last validation was the best by {metric_key(evaluation)}: more epochs may help.")
    skipped = evaluation.run.get("skipped steps")
    if skipped:
        yield Finding("look", f"{skipped} optimizer steps were skipped because a gradient was not finite.")


def _data(summary: Mapping[str, Any]) -> Iterator[Finding]:
    splits: Mapping[str, Any] = summary["splits"]
    for split, described in splits.items():
        if described["dropped_unlabelled"]:
            yield Finding("note", f"{described['dropped_unlabelled']:,} {split} rows without a label were left out.")
        if described["duplicate_ids"]:
            yield Finding(
                "look",
                f"{described['duplicate_ids']:,} ids occur more than once in {split}, e.g. "
                f"{described['duplicate_id_example']}; all rows were kept.",
            )
    first = next(iter(splits.values()))
    for role, text in first["texts"].items():
        of_split = {split: described["texts"][role] for split, described in splits.items()}
        cut = {split: _share(of["truncated_records"], of["records"]) for split, of in of_split.items()}
        if any(cut.values()):
            level = "look" if max(cut.values()) > 0.05 else "note"
            lost = sum(of["cut_tokens"] for of in of_split.values())
            advice = f"{lost:,} tokens were not read; raise max_total_chunks to read them."
            yield Finding(level, f"{text['column']} was cut in {_listed(cut)}: {advice}")
        empty = {split: _share(of["empty_records"], of["records"]) for split, of in of_split.items()}
        if max(empty.values()) > 0.05:
            yield Finding("note", f"{text['column']} is empty in {_listed(empty)}.")
    for name in first["numeric"]:
        imputed = {split: _share(of["numeric"][name]["imputed"], of["rows"]) for split, of in splits.items()}
        if max(imputed.values()) > 0.2:
            yield Finding("look", f"{name} was missing, and imputed, in {_listed(imputed)}.")
    for name in first["categories"]:
        unseen = {split: _share(of["categories"][name]["unseen_rows"], of["rows"]) for split, of in splits.items()}
        if max(unseen.values()) > 0.01:
            yield Finding("look", f"{name} holds a category that train does not know in {_listed(unseen)}.")


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _listed(shares: Mapping[str, float]) -> str:
    """12.0% of train, 3.0% of test; splits with nothing are left out."""
    return ", ".join(f"{percent(share)} of {split}" for split, share in shares.items() if share)


def _drift(summary: Mapping[str, Any]) -> Iterator[Finding]:
    """Where test looks unlike train by more than sampling explains."""
    train, test = summary["splits"].get("train"), summary["splits"].get("test")
    if not train or not test or min(train["rows"], test["rows"]) < ENOUGH_RECORDS:
        return
    for name, before in train["numeric"].items():
        after = test["numeric"].get(name)
        if after and before["std"] and after["mean"] is not None:
            shift = (after["mean"] - before["mean"]) / before["std"]
            if abs(shift) > 0.25:
                yield Finding(
                    "look",
                    f"{name} is {'higher' if shift > 0 else 'lower'} in test than in train: mean {after['mean']:.4g} "
                    f"against {before['mean']:.4g}, {abs(shift):.1f} standard deviations.",
                )
    totals = [sum(described["classes"].values()) for described in (train, test)]
    if not all(totals):
        return
    labels = list(train["classes"])
    for label in labels[1:] if len(labels) == 2 else labels:  # of two, one share says both
        count = train["classes"][label]
        before, after = count / totals[0], test["classes"].get(label, 0) / totals[1]
        if abs(after - before) > max(0.05, 3 * (before * (1 - before) / totals[1]) ** 0.5):
            yield Finding("look", f"Class {label} is {percent(before)} of train and {percent(after)} of test.")


def metric_key(evaluation: EvaluationInput) -> str:
    """val/f1_score for val_f1_score."""
    name = evaluation.early_stop_metric
    return name if "/" in name else name.replace("val_", "val/", 1)


def best_validation(evaluation: EvaluationInput) -> Mapping[str, Any] | None:
    """The first history entry with the best early_stop_metric."""
    key = metric_key(evaluation)
    defined = [entry for entry in evaluation.history if entry.get(key) is not None and np.isfinite(entry[key])]
    if not defined:
        return None
    sign = -1 if key == "val/loss" else 1
    return max(defined, key=lambda entry: sign * entry[key])
