"""Finish a trained job on rank 0: fit the decision, export and explain the model, evaluate, write output/data/."""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from container.companion.blend import BlendedCompanion
from container.companion.fit import MOST_ROWS
from container.cores import threads_for
from container.data.records import RecordArrays
from container.decision.deciding_rows import OUT_OF_FOLD
from container.decision.decision import Decision
from container.decision.softmax import softmax
from container.errors import StopAgreed
from container.evaluation.evaluation_input import EvaluationInput, Explanation, LearningCurve, VariantReport
from container.evaluation.fit_decision import describe, fit_decision
from container.evaluation.predictions import SplitPredictions, write_out_of_fold
from container.export.artifacts import export_model
from container.job.job import Job, write_json
from container.job.time_limit import EXPORT_SECONDS, allows, seconds_left
from container.models.ensemble import Network
from container.monitoring.baseline import SAMPLE_ROWS, Scores, hashed_rows, write_baseline
from container.parallel.mesh import RankMesh
from container.preprocessing.scan import TableColumns
from container.results.companion import Combined, add_companion
from container.results.explain import Measured
from container.results.label_issues import report_label_issues
from container.results.learning_curve import learning_curve
from container.results.members import trained_model
from container.results.onnx_graphs import OnnxCost, measure_costs, write_variants
from container.results.shown_records import explain_records, find_examples
from container.training.job_data import JobData
from container.training.loop import merge_history
from container.training.progress import metric_line, summary_writer
from container.training.stop import StopFlag
from container.training.train import Trained
from contracts import artifacts
from contracts.atomic_files import AtomicFile
from contracts.errors import first_line
from contracts.hyperparameters import Hyperparameters
from contracts.monitored_metric import shown_values
from contracts.paths import JobPaths

logger = logging.getLogger(__name__)

NOT_IN_A_DRAFT: dict[str, Any] = {
    "companion": False,
    "label_issues": False,
    "explain": 0,
    "onnx_variants": [],
    "learning_curve": False,
}

_COMPANION, _COMPANION_ROW = 2.0, 0.001  # seconds; for a row and class on two cores
_VARIANTS, _EXPLANATION = 20.0, 10.0  # seconds that are worth a beginning


def finish(job: Job, ranks: RankMesh, trained: Trained, *, data: JobData, stop: StopFlag) -> None:
    """Write every artifact of the job, then the result file."""
    hp, val = _without_skipped(job, data), data.splits["val"]
    _remove_optional(job.paths.output_data)
    combined = Combined(None, trained.logits)
    if stop.requested:
        raise StopAgreed
    if hp.companion or hp.label_issues:
        combined = add_companion(hp, data, trained.logits)
        trained = replace(trained, logits=dict(combined.logits))
        job.timeline.mark("companion")
    companion, issues = combined.companion, None
    if hp.label_issues:
        folder, networks = job.paths.output_data, trained.out_of_fold
        issues = report_label_issues(folder, data, combined.out_of_fold, networks=networks)
        job.timeline.mark("label issues")
    curve = _learning_curve(job, hp, data)
    if stop.requested:  # what follows the export is soon complete
        raise StopAgreed
    decision = _fit_decision(job, trained, data)
    served, trained = trained.logits, replace(trained, logits=trained.honest_logits)
    model = trained_model(hp, data.prepared, trained)
    variants: list[VariantReport] = []
    costs: dict[str, OnnxCost] = {}
    served_with: dict[str, Any] = {"decision": decision, "companion": companion, "of_ensemble": []}

    def add_variants(folder: Path) -> None:
        if trained.values and not hp.draft:
            costs.update(measure_costs(folder, model, hp, val=val, **served_with))
        expected, labels = decision.probabilities(served["val"]), data.prepared.fitted.class_labels
        if not hp.onnx_variants or allows(hp, job.timeline, what="ONNX variants", seconds=_VARIANTS):
            variants.extend(write_variants(folder, model, hp, val=val, expected=expected, class_labels=labels))
        _write_baseline(folder, data, trained.logits["test"], decision)

    files = export_model(job, model, data=data.prepared, samples=val, **served_with, add=add_variants)
    job.timeline.mark("export")
    explanation = None
    if hp.explain and allows(hp, job.timeline, what="feature importance and reasons", seconds=_EXPLANATION):
        explanation = _explanation(job, model, data, companion, device=ranks.device, stop=stop)
    evaluation = _evaluation_input(
        job,
        trained,
        data=data,
        decision=decision,
        explanation=explanation,
        variants=variants,
        run=_run_facts(job, ranks, trained, model, costs),
        ensemble=_ensemble_facts(job, trained, costs),
        companion=combined.report,
        label_issues=issues,
        learning_curve=curve,
    )
    evaluation = _with_records(job, evaluation, data, stop=stop)
    metrics, written = _write_results(job, evaluation, trained, data=data)
    logger.info("%s", metric_line(metrics))
    job.timeline.mark("report")
    logger.info("time of each phase: %s", job.timeline)
    write_json(job.scratch.result_file, {"status": "completed", "model": files, "output": written, "metrics": metrics})


def _explanation(
    job: Job,
    model: Network,
    data: JobData,
    companion: BlendedCompanion | None,
    *,
    device: torch.device,
    stop: StopFlag,
) -> Explanation:
    split, seconds = _explained_split(job.hp, data), (seconds_left(job.hp, job.timeline) - EXPORT_SECONDS) / 2
    of_job = (job.paths, job.hp, companion, device, lambda: stop.requested)
    found = Measured(model, data.prepared, data.splits[split], *of_job, split).explain(seconds)
    job.timeline.mark("explain")
    return found


def _learning_curve(job: Job, hp: Hyperparameters, data: JobData) -> LearningCurve | None:
    seconds = 2.5 * _companion_seconds(hp, data)
    if not hp.learning_curve or not allows(hp, job.timeline, what="learning curve", seconds=seconds):
        return None
    curve = learning_curve(hp, data)
    job.timeline.mark("learning curve")
    return curve


def _remove_optional(folder: Path) -> None:
    """Remove the files of an earlier run that this one may not write."""
    for optional in (artifacts.LABEL_ISSUES, artifacts.OUT_OF_FOLD, f"{OUT_OF_FOLD}_predictions.*"):
        for path in folder.glob(optional):
            path.unlink()


def _explained_split(hp: Hyperparameters, data: JobData) -> str:
    """Return the split on which importance is measured: test if the networks trained on val, and test has labels."""
    return "test" if hp.pools_val and (data.splits["test"].column("label").to_numpy() >= 0).any() else "val"


def _write_baseline(folder: Path, data: JobData, logits: np.ndarray, decision: Decision) -> None:
    held_out = [data.splits[name] for name in ("val", "test")]
    sampled = RecordArrays.joined([split.take(hashed_rows(len(split), SAMPLE_ROWS // 2)) for split in held_out])
    probabilities, labels = np.exp(decision.log_probabilities(logits)), data.prepared.fitted.class_labels
    scores = Scores.of(probabilities, held_out[1].column("label").to_numpy(), labels)
    write_baseline(folder, data.prepared, sampled, scores)


def _with_records(job: Job, evaluation: EvaluationInput, data: JobData, *, stop: StopFlag) -> EvaluationInput:
    hp, splits, decision = job.hp, evaluation.splits, evaluation.decision
    if not hp.draft:
        evaluation = replace(evaluation, examples=find_examples(job, data, splits, decision=decision))
    if evaluation.explanation is not None:
        late = partial(seconds_left, hp, job.timeline)
        stopped: Callable[[], bool] = lambda: stop.requested or late() < EXPORT_SECONDS / 2  # noqa: E731
        explained = explain_records(job, data, splits, decision=decision, stopped=stopped)
        evaluation = replace(evaluation, explained=explained or ())
        job.timeline.mark("reasons")
    return evaluation


def _without_skipped(job: Job, data: JobData) -> Hyperparameters:
    """Return the settings without those that a draft skips, and without a companion that would not end in time."""
    hp = job.hp
    if not hp.draft:
        seconds = _companion_seconds(hp, data)
        wanted = hp.companion or hp.label_issues
        if not wanted or allows(hp, job.timeline, what="companion and label issues", seconds=seconds):
            return hp
        return hp.model_copy(update={"companion": False, "label_issues": False})
    logger.info("draft: without %s", ", ".join(NOT_IN_A_DRAFT))
    return hp.model_copy(update=NOT_IN_A_DRAFT)


def _companion_seconds(hp: Hyperparameters, data: JobData) -> float:
    if hp.max_minutes is None:
        return 0.0
    return _COMPANION + _COMPANION_ROW * min(len(data.splits["train"]), MOST_ROWS) * hp.num_classes


def _fit_decision(job: Job, trained: Trained, data: JobData) -> Decision:
    labels = {name: split.column("label").to_numpy() for name, split in data.splits.items()}
    counted = labels["train"] >= 0
    with threads_for(trained.logits["val"].size):
        decision = fit_decision(
            job.hp,
            logits=trained.honest_logits,
            labels=labels,
            weights={name: data.splits[name].weights() for name in trained.logits} if job.hp.weight_name else None,
            train_counts=np.bincount(
                labels["train"][counted], data.splits["train"].weights()[counted], minlength=job.hp.num_classes
            ),
            class_weights=np.asarray(data.class_weights),
            on=trained.chooses,
        )
    logger.info("decisions: %s", describe(decision))
    return decision


def _run_facts(
    job: Job, ranks: RankMesh, trained: Trained, model: Network, costs: Mapping[str, OnnxCost]
) -> dict[str, Any]:
    state = trained.state
    metric = job.hp.monitored_metric
    where = ", out of fold" if job.hp.pools_val else ""
    compared = {f"{metric.name} of each network{where}": shown_values(trained.values)} if trained.values else {}
    return {
        "model class": job.hp.architecture.name,
        **compared,
        **{name: str(cost) for name, cost in costs.items()},
        "encoders": ", ".join(field.tokenizer for field in job.hp.text_fields),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "processes": ranks.world_size,
        "device": ranks.device.type,
        "parallelism": ranks.degrees.in_words,
        "optimizer steps": state.step,
        "epochs": state.history[-1]["epoch"] if state.history else state.epoch,
        "stopped early": state.stopped_before(job.hp.max_epochs),
        "skipped steps": state.skipped,
        "weights": trained.weights,
        "seconds": round(job.timeline.elapsed(), 1),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


def _ensemble_facts(job: Job, trained: Trained, costs: Mapping[str, OnnxCost]) -> dict[str, Any] | None:
    if not trained.values:
        return None
    onnx = {name: asdict(cost) for name, cost in costs.items()}
    return {"metric": job.hp.monitored_metric.name, "values": trained.values, "onnx": onnx}


def _evaluation_input(
    job: Job, trained: Trained, *, data: JobData, decision: Decision, **results: Any
) -> EvaluationInput:
    splits = {}
    for name, logits in trained.logits.items():
        split, scores = data.splits[name], decision.log_probabilities(logits)
        labels = split.column("label").to_numpy()
        ids, raw_labels = split.column("id"), split.column("raw_label")
        weights = split.weights() if job.hp.weight_name else None
        splits[name] = SplitPredictions(name, ids, raw_labels, labels, np.exp(scores), weights)
    return EvaluationInput(
        splits=splits,
        class_labels=list(data.prepared.fitted.class_labels),
        id_name=job.hp.id_name or artifacts.ROW_NUMBER,
        label_name=job.hp.label_name,
        input_format=data.prepared.input_format,
        early_stop_metric=job.hp.early_stop_metric,
        best_step=None if job.hp.pools_val else trained.state.best_step,
        history=merge_history(trained.state.history),
        data_summary=data.prepared.summary,
        hyperparameters=job.hp.model_dump(mode="json"),
        class_weights=data.class_weights,
        decision=decision,
        timeline=job.timeline,
        uncalibrated={name: softmax(logits) for name, logits in trained.logits.items()},
        tuning=_search_summary(job),
        init_warnings=init_warnings(job.paths, job.hp),
        **results,
    )


def init_warnings(paths: JobPaths, hp: Hyperparameters) -> list[str]:
    """Return what init warned of, without sentences on columns that the model does not read."""
    file, read = paths.init_record, set(TableColumns.of(hp).transformed)
    try:
        doubts = json.loads(file.read_text(encoding="utf-8"))["warnings"]
        return [doubt["text"] for doubt in doubts if read.issuperset(doubt["inputs"])]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s: cannot be read (%s), so the report lacks what init warned of.", file, first_line(error))
        return []


def _search_summary(job: Job) -> dict[str, Any] | None:
    if job.kind != "winner":
        return None
    return json.loads((job.paths.output_data / artifacts.TUNING / artifacts.TUNING_SUMMARY).read_text())


def _write_results(
    job: Job, evaluation: EvaluationInput, trained: Trained, *, data: JobData
) -> tuple[dict[str, float | None], dict[str, int]]:
    """Write output/data/; return the flat metrics, and the size in bytes of each file by its path in output/data/."""
    from container.evaluation.evaluate import write_evaluation  # imports matplotlib, which training does not need

    out = job.paths.output_data
    out.mkdir(parents=True, exist_ok=True)
    with threads_for(sum(logits.size for logits in trained.logits.values())):
        found = write_evaluation(out, evaluation)
    metrics: dict[str, float | None] = {
        name: value
        for name, value in found.items()
        if name.split("/")[0] in evaluation.splits and (value is None or isinstance(value, (int, float)))
    }
    _write_predict_results(out / artifacts.PREDICT_RESULTS, evaluation.splits)
    _write_tensorboard(out / artifacts.TENSORBOARD_EVAL, metrics, step=trained.state.step)
    predictions = (f"{name}_predictions.{evaluation.input_format}" for name in evaluation.splits)
    written = {name: (out / name).stat().st_size for name in (*artifacts.REQUIRED_EVALUATION_FILES, *predictions)}
    if trained.out_of_fold is not None:
        path, labels = out / artifacts.OUT_OF_FOLD, data.splits["train"].column("label").to_numpy()
        write_out_of_fold(path, places=data.places, labels=labels, probabilities=trained.out_of_fold)
        written[artifacts.OUT_OF_FOLD] = path.stat().st_size
    return metrics, written


def _write_predict_results(path: Path, splits: Mapping[str, SplitPredictions]) -> None:
    """Write y_true and y_pred of test, val_y_true and val_y_pred of val; y_pred is [N] for two classes, else [N, K]."""
    content = {}
    for name, prefix in (("test", ""), ("val", "val_")):
        scores = torch.from_numpy(splits[name].probabilities)
        content[f"{prefix}y_true"] = torch.from_numpy(np.array(splits[name].labels))
        content[f"{prefix}y_pred"] = scores[:, 1] if scores.shape[1] == 2 else scores
    with AtomicFile(path) as temporary:
        torch.save(content, temporary)


def _write_tensorboard(folder: Path, metrics: Mapping[str, float | None], *, step: int) -> None:
    import matplotlib.image

    with summary_writer(folder) as writer:
        for name, value in metrics.items():
            if value is not None:
                writer.add_scalar(name, value, step)
        for name in ("roc_curve", "pr_curve"):
            if (folder / f"{name}.png").is_file():
                image = matplotlib.image.imread(folder / f"{name}.png")[..., :3]
                writer.add_image(name, image, step, dataformats="HWC")
