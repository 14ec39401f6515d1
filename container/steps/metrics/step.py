"""ModelMetricsComputation: predictions in; metrics, a summary, plots and what the pipeline decides by out."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from container.evaluation.predictions import SplitPredictions
from container.preprocessing.labels import LabelMap
from container.steps.metrics.computation import MetricOptions, ModelMetrics, SplitInput, compute_model_metrics
from container.steps.metrics.joined_columns import look_up, positions
from container.steps.metrics.read_predictions import (
    PredictionFiles,
    find_labels,
    find_predictions,
    read_split,
    score_columns,
)
from container.steps.metrics.statistics import model_statistics
from container.steps.metrics.summary import metrics_summary
from container.steps.program import StepRun
from container.tables.channel_files import Origin, missing_column
from container.tables.part_files import PartFiles, data_files, open_part_files
from container.tables.values import keys, numbers
from contracts import artifacts
from contracts.errors import ContractError
from contracts.steps import EVALUATION, METRICS_REPORT, METRICS_SUMMARY, ModelMetricsSettings

logger = logging.getLogger(__name__)

DEFAULT_THRESHOLD = 0.5
_PROCESSED = "_processed_data"


@dataclass(frozen=True)
class Source:
    """Where a split's further columns come from.

    Attributes:
        processed: the table that the predictions are of; None where it was not handed over.
    """

    predictions: PartFiles
    processed: PartFiles | None


def run(step: StepRun) -> None:
    """Compute everything and write it.

    Raises:
        ContractError: a missing column, a score that is no probability, a label that is none of the classes, a previous
            model of other records, an unknown decision metric.
    """
    settings: ModelMetricsSettings = step.settings
    files = find_predictions(step.required_input("eval_output"), scratch=step.scratch)
    scores = score_columns(files, settings.score_fields)
    read = {
        name: read_split(name, parts, id_field=settings.id_field, label_field=settings.label_field, scores=scores)
        for name, parts in files.splits.items()
    }
    labels = find_labels(
        list(read.values()),
        label_field=settings.label_field,
        given=settings.class_labels or files.class_labels,
        num_classes=max(len(scores), 2),
    )
    read = {name: _numbered(split, labels, files.splits[name]) for name, split in read.items()}
    previous = _previous_files(step)
    inputs = {
        name: _split_input(step, split, files.splits[name], previous, num_classes=len(labels.labels))
        for name, split in read.items()
    }
    threshold = settings.decision_threshold or files.threshold or DEFAULT_THRESHOLD
    options = MetricOptions(
        class_labels=labels.labels,
        threshold=threshold,
        previous_threshold=(previous and previous.threshold) or threshold,
        flagged_shares=settings.flagged_shares,
        false_positive_rate=settings.false_positive_rate,
        min_group_rows=settings.min_group_rows,
    )
    _write(step, compute_model_metrics(inputs, options))


def _numbered(split: SplitPredictions, labels: LabelMap, parts: PartFiles) -> SplitPredictions:
    if split.raw_labels is None:
        return split
    try:
        return replace(split, labels=labels.encode(split.raw_labels, origin=Origin(parts.files[0])))
    except ContractError as error:
        raise ContractError(error.cause, "Correct the row, or CLASS_LABELS so that it lists every label.") from None


def _split_input(
    step: StepRun, split: SplitPredictions, parts: PartFiles, previous: PredictionFiles | None, *, num_classes: int
) -> SplitInput:
    """Bring together what is known of a split's records."""
    settings: ModelMetricsSettings = step.settings
    asked = [settings.amount_field, *settings.group_fields, settings.previous_score_field]
    columns = _columns(step, split, parts, list(dict.fromkeys(name for name in asked if name is not None)))
    amounts = None
    if settings.amount_field is not None:
        amounts = _amounts(columns[settings.amount_field], settings.amount_field, parts)
    before = None
    if settings.previous_score_field is not None:
        if previous is not None:
            raise ContractError(
                "PREVIOUS_SCORE_FIELD: is set, but previous_eval_output was handed over too", "Use one of them."
            )
        if num_classes != 2:
            raise ContractError(
                f"PREVIOUS_SCORE_FIELD: is a score of class 1, and there are {num_classes} classes",
                "Hand over the previous model's predictions as previous_eval_output.",
            )
        name = settings.previous_score_field
        score = _previous_scores(columns[name], name, parts)
        before = np.stack([1 - score, score], axis=1)
    elif previous is not None:
        before = _previous_probabilities(step, split, previous, num_classes=num_classes)
    return SplitInput(
        predictions=split,
        amounts=amounts,
        groups={name: keys(columns[name]).to_pylist() for name in settings.group_fields},
        previous=before,
    )


def _columns(
    step: StepRun, split: SplitPredictions, parts: PartFiles, names: Sequence[str]
) -> Mapping[str, pa.ChunkedArray]:
    """Further columns of a split's records: of the predictions where they have them, else of processed_data."""
    settings: ModelMetricsSettings = step.settings
    own = [name for name in names if name in parts.columns]
    found: dict[str, pa.ChunkedArray] = {}
    if own:
        table = pa.concat_tables([part.table for part in parts.iter_tables(own)])
        found.update({name: table[name] for name in own})
    lacking = [name for name in names if name not in own]
    if not lacking:
        return found
    processed = _processed_files(step, split.split)
    if processed is None:
        raise missing_column(lacking[0], parts.columns, f"{split.split} predictions, and no processed_data is there")
    for name in (settings.id_field, *lacking):
        if name not in processed.columns:
            raise missing_column(name, processed.columns, f"processed_data of {split.split}")
    joined = look_up(split.ids, processed, id_field=settings.id_field, columns=lacking)
    found.update({name: joined[name] for name in lacking})
    return found


def _processed_files(step: StepRun, split: str) -> PartFiles | None:
    """The tables of a split: its folder where there is one, else all that is there."""
    folder = step.input("processed_data")
    if folder is None:
        return None
    own = folder / split if (folder / split).is_dir() else folder
    files = [path for path in data_files(own) if not path.name.startswith("data_profile")]
    named = [path for path in files if _PROCESSED in path.name]
    return open_part_files(named or files, folder=own, scratch=step.scratch / f"processed-{split}")


def _previous_files(step: StepRun) -> PredictionFiles | None:
    folder = step.input("previous_eval_output")
    return None if folder is None else find_predictions(folder, scratch=step.scratch)


def _previous_probabilities(
    step: StepRun, split: SplitPredictions, previous: PredictionFiles, *, num_classes: int
) -> np.ndarray | None:
    """The previous model's probabilities of the same records, NaN where it has none; None of another split. [N, K]"""
    settings: ModelMetricsSettings = step.settings
    parts = previous.splits.get(split.split)
    if parts is None:
        logger.info("The previous model has no predictions of %s; they are not compared.", split.split)
        return None
    read = read_split(
        split.split,
        parts,
        id_field=settings.id_field,
        label_field=settings.label_field,
        scores=score_columns(previous, settings.score_fields),
    )
    if read.probabilities.shape[1] != num_classes:
        raise ContractError(
            f"{parts.files[0]}: the previous model has {read.probabilities.shape[1]} classes, this one {num_classes}",
            "Compare models of the same classes.",
        )
    place = positions(split.ids, read.ids)
    scored = place.is_valid().to_numpy(zero_copy_only=False)
    if not scored.any():
        raise ContractError(
            f"{parts.files[0]}: the previous model scored none of the records of {split.split}",
            f"Score the same records with it; they are told by {settings.id_field!r}.",
        )
    logger.info("%s: the previous model scored %d of %d records.", split.split, scored.sum(), len(scored))
    found = read.probabilities[place.fill_null(0).to_numpy(zero_copy_only=False)]
    found[~scored] = np.nan
    return found


def _amounts(column: pa.ChunkedArray, name: str, parts: PartFiles) -> np.ndarray:
    amounts = numbers(column, name, origin=Origin(parts.files[0]))
    wrong = np.flatnonzero(amounts < 0)
    if len(wrong):
        raise ContractError(
            f"record {wrong[0] + 1} of {parts.files[0].name}, column {name!r}: {amounts[wrong[0]]:g} is below 0",
            "Dollar recall is a share of a sum of amounts; write them as positive numbers.",
        )
    return amounts


def _previous_scores(column: pa.ChunkedArray, name: str, parts: PartFiles) -> np.ndarray:
    scores = numbers(column, name, origin=Origin(parts.files[0]))
    wrong = np.flatnonzero((scores < 0) | (scores > 1))
    if len(wrong):
        raise ContractError(
            f"record {wrong[0] + 1} of {parts.files[0].name}, column {name!r}: {scores[wrong[0]]:g} is no probability",
            "Scores are numbers from 0 to 1; correct PREVIOUS_SCORE_FIELD.",
        )
    return scores


def _write(step: StepRun, found: ModelMetrics) -> None:
    settings: ModelMetricsSettings = step.settings
    metrics = found.to_json()
    evaluation = {
        "decision": {"metric": settings.decision_metric, "value": _decision_value(metrics, settings.decision_metric)},
        "metrics": {name: value for name, value in metrics.items() if "/" in name},
        **model_statistics(found, split=settings.decision_metric.partition("/")[0]),
    }
    summary = metrics_summary(found)
    folder = step.output("metrics_output")
    _write_json(folder / artifacts.METRICS, metrics)
    _write_json(folder / METRICS_REPORT, found.report())
    _write_json(folder / EVALUATION, evaluation)
    (folder / METRICS_SUMMARY).write_text(summary, encoding="utf-8")
    if settings.generate_plots:
        from container.steps.metrics.plots import write_metric_plots  # matplotlib takes a second

        written = write_metric_plots(step.output("plots_output"), found)
        logger.info("%d plots in %s.", len(written), written[0].parent)
    logger.info("Metrics:\n%s", summary)


def _decision_value(metrics: Mapping[str, Any], name: str) -> float | None:
    """The metric that the pipeline decides by; None where it is undefined.

    Raises:
        ContractError: there is no such metric.
    """
    known = [key for key in metrics if "/" in key]
    if name not in known:
        raise ContractError(
            f"DECISION_METRIC: {name!r} is none of the metrics of these predictions", f"Use one of: {', '.join(known)}."
        )
    return metrics[name]


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False), encoding="utf-8")
