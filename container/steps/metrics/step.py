"""ModelMetricsComputation: read predictions; write metrics, a summary, plots and the metric of the condition."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.evaluation.model_metrics import MetricOptions, ModelMetrics, SplitInput, compute_model_metrics
from container.evaluation.predictions import SplitPredictions
from container.preprocessing.labels import LabelMap
from container.steps.metrics.champion import Lead, NewModel, lead_over
from container.steps.metrics.read_predictions import (
    PredictionFiles,
    find_labels,
    find_predictions,
    read_split,
    score_columns,
)
from container.steps.metrics.reports import metrics_content, model_statistics, report_content, version_facts
from container.steps.metrics.summary import metrics_summary
from container.steps.program import StepRun
from container.tables.data_files import data_files
from container.tables.part_files import PartFiles, open_part_files
from container.tables.table_file import Origin, check_present, missing_column
from container.tables.values import keys, numbers
from contracts import artifacts
from contracts.errors import ContractError, shown
from contracts.metrics_settings import ModelMetricsSettings
from contracts.steps import CHAMPION, EVALUATION, METRICS_REPORT, METRICS_SUMMARY, VERSION

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Records(Origin):
    """Rows of one or several files in the order of the predictions; messages name them by their ids.

    Attributes:
        file: the file, or the folder of several.
        ids: [N]
    """

    ids: pa.ChunkedArray = field(kw_only=True)
    id_field: str = field(kw_only=True)

    @classmethod
    def of(cls, parts: PartFiles, ids: pa.ChunkedArray, id_field: str) -> Self:
        """Return the rows of `parts` with these ids."""
        first, *others = parts.files
        return cls(first.parent if others else first, ids=ids, id_field=id_field)

    def row(self, index: int) -> str:
        return f"{self.file}: the record with {self.id_field} {shown(self.ids[int(index)].as_py())}"


@dataclass(frozen=True)
class Column:
    """A column of a split's records.

    Attributes:
        cells: [N]
        records: of the files that have the column.
    """

    name: str
    cells: pa.ChunkedArray
    records: Records


def look_up(ids: pa.ChunkedArray, parts: PartFiles, *, id_field: str, columns: Sequence[str]) -> pa.Table:
    """Return the columns of each id's row; null where an id has no row. [N rows]

    Tables with the same ids in the same order are joined row by row; otherwise the first row of an id is used.

    Raises:
        ContractError: the tables have none of the ids.
    """
    wanted = keys(ids)
    distinct = wanted.unique()
    rows, kept_ids = [], []
    for part in parts.iter_tables(list(dict.fromkeys([id_field, *columns]))):
        part_ids = keys(part.table[id_field])
        known = pc.call_function("is_in", [part_ids], pc.SetLookupOptions(distinct))
        rows.append(part.table.select(list(columns)).filter(known))
        kept_ids.append(part_ids.filter(known))
    known_ids = pa.chunked_array(kept_ids, pa.string())
    if not len(known_ids):
        raise ContractError(
            f"{parts.files[0].parent}: has none of the {len(wanted)} ids of the predictions in {id_field!r}",
            "Provide the tables that were scored.",
        )
    return pa.concat_tables(rows).take(positions(wanted, known_ids))


def positions(ids: pa.Array | pa.ChunkedArray, among: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return each id's position in `among`, or null. The same ids in the same order keep their order. [N] -> [N]"""
    wanted, known = keys(ids), keys(among)
    if wanted.equals(known):
        return pa.array(np.arange(len(wanted)), pa.int32())
    return pc.call_function("index_in", [wanted], pc.SetLookupOptions(known))


DEFAULT_THRESHOLD = 0.5
_PROCESSED = "_processed_data"


def run(step: StepRun) -> None:
    """Read the predictions, compute their metrics, and write them.

    Raises:
        ContractError: a missing column, a score that is not a probability, a label outside the classes, a previous
            model that scored other records, an unknown decision metric.
    """
    settings: ModelMetricsSettings = step.settings
    files = find_predictions(step.required_input("eval_output"), scratch=step.scratch)
    scores = score_columns(files, settings.score_fields)
    read = {
        name: read_split(name, parts, id_field=settings.id_field, label_field=settings.label_field, scores=scores)
        for name, parts in files.splits.items()
    }
    _check_class_labels(settings, files)
    labels = find_labels(
        list(read.values()),
        label_field=settings.label_field,
        given=settings.class_labels or files.class_labels,
        num_classes=max(len(scores), 2),
    )
    read = {
        name: _encoded(split, labels, Records.of(files.splits[name], split.ids, settings.id_field))
        for name, split in read.items()
    }
    previous_folder = step.input("previous_eval_output")
    previous = None if previous_folder is None else find_predictions(previous_folder, scratch=step.scratch)
    inputs = {
        name: _split_input(step, split, files.splits[name], previous, labels=labels) for name, split in read.items()
    }
    threshold = _first(settings.decision_threshold, files.threshold, DEFAULT_THRESHOLD)
    options = MetricOptions(
        class_labels=labels.labels,
        threshold=threshold,
        previous_threshold=_first(previous and previous.threshold, threshold),
        flagged_shares=settings.flagged_shares,
        false_positive_rate=settings.false_positive_rate,
        min_group_rows=settings.min_group_rows,
    )
    metrics = compute_model_metrics(inputs, options)
    _write(step, metrics, _lead(step, metrics, inputs, options, labels=labels))


def _lead(
    step: StepRun,
    metrics: ModelMetrics,
    inputs: Mapping[str, SplitInput],
    options: MetricOptions,
    *,
    labels: LabelMap,
) -> Lead:
    """Compare the metric of the condition with that of the registered model on the same records."""
    metric: str = step.settings.decision_metric
    split = metric.partition("/")[0]
    content = metrics_content(metrics)
    if metric not in content:
        raise ContractError(
            f"DECISION_METRIC: {metric!r} is not one of the metrics of these predictions",
            f"Use one of: {', '.join(name for name in content if '/' in name)}.",
        )
    ids = inputs[split].predictions.ids

    def columns(names: Sequence[str]) -> pa.Table:
        processed = _processed_files(step, split)
        if processed is None:
            raise ContractError("there is no processed_data", "Provide it.")
        check_present((step.settings.id_field, *names), processed.columns, f"processed_data of {split}")
        return look_up(ids, processed, id_field=step.settings.id_field, columns=names)

    new = NewModel(metric, content[metric], inputs[split], options, labels)
    margin: float = step.settings.champion_margin
    return lead_over(step.input("champion"), new, columns, margin=margin, scratch=step.scratch)


def _check_class_labels(settings: ModelMetricsSettings, files: PredictionFiles) -> None:
    """Raise ContractError if CLASS_LABELS are not those of the training job's classes: every metric would be wrong."""
    given, known, column = settings.class_labels, files.class_labels, settings.label_field
    if given and known and not LabelMap(column, tuple(given)).keys.equals(LabelMap(column, known).keys):
        raise ContractError(
            f"CLASS_LABELS: is {list(given)}, but the classes of {files.folder / artifacts.METRICS} are {list(known)}",
            "Remove CLASS_LABELS, or list the same labels in the same order.",
        )


def _first(*thresholds: float | None) -> float:
    """Return the first threshold that is given; it may be 0."""
    return next(value for value in thresholds if value is not None)


def _encoded(split: SplitPredictions, labels: LabelMap, records: Records) -> SplitPredictions:
    if split.raw_labels is None:
        return split
    try:
        return replace(split, labels=labels.encode(split.raw_labels, origin=records))
    except ContractError as error:
        raise ContractError(error.cause, "Correct the row, or list every label in CLASS_LABELS.") from None


def _split_input(
    step: StepRun, split: SplitPredictions, parts: PartFiles, previous: PredictionFiles | None, *, labels: LabelMap
) -> SplitInput:
    """Collect amounts, groups and previous scores of a split's records."""
    settings: ModelMetricsSettings = step.settings
    amount = settings.amount_field
    columns = _columns(step, split, parts, list(dict.fromkeys([*filter(None, [amount]), *settings.group_fields])))
    return SplitInput(
        predictions=split,
        amounts=None if amount is None else _amounts(columns[amount]),
        groups={name: keys(columns[name].cells).to_pylist() for name in settings.group_fields},
        previous=None if previous is None else _previous_probabilities(settings, split, previous, labels=labels),
    )


def _columns(step: StepRun, split: SplitPredictions, parts: PartFiles, names: Sequence[str]) -> Mapping[str, Column]:
    """Return further columns of a split's records, from the predictions or else from processed_data."""
    columns: dict[str, Column] = {}
    id_field = step.settings.id_field
    present = [name for name in names if name in parts.columns]
    if present:
        table = pa.concat_tables([part.table for part in parts.iter_tables(present)])
        records = Records.of(parts, split.ids, id_field)
        columns |= {name: Column(name, table[name], records) for name in present}
    missing = [name for name in names if name not in present]
    if not missing:
        return columns
    processed = _processed_files(step, split.split)
    if processed is None:
        raise missing_column(missing[0], parts.columns, f"{split.split} predictions, and there is no processed_data")
    check_present((id_field, *missing), processed.columns, f"processed_data of {split.split}")
    joined = look_up(split.ids, processed, id_field=id_field, columns=missing)
    records = Records.of(processed, split.ids, id_field)
    return columns | {name: Column(name, joined[name], records) for name in missing}


def _processed_files(step: StepRun, split: str) -> PartFiles | None:
    """Return the tables in the split's folder if it exists, else all tables of processed_data."""
    folder = step.input("processed_data")
    if folder is None:
        return None
    if (folder / split).is_dir():
        folder = folder / split
    files = [path for path in data_files(folder) if not path.name.startswith("data_profile")]
    named = [path for path in files if _PROCESSED in path.name]
    return open_part_files(named or files, folder=folder, scratch=step.scratch / f"processed-{split}")


def _previous_probabilities(
    settings: ModelMetricsSettings, split: SplitPredictions, previous: PredictionFiles, *, labels: LabelMap
) -> np.ndarray | None:
    """Return the previous model's probabilities of the same records, NaN for other records [N, K].

    Return None if the previous model has no predictions of this split.
    """
    parts = previous.splits.get(split.split)
    if parts is None:
        logger.info("The previous model has no predictions of %s; they are not compared.", split.split)
        return None
    scores = score_columns(previous, settings.score_fields)
    read = read_split(split.split, parts, id_field=settings.id_field, label_field=settings.label_field, scores=scores)
    fix = "Compare models of the same classes in the same order."
    classes, num_classes = read.probabilities.shape[1], len(labels.labels)
    if classes != num_classes:
        raise ContractError(f"{parts.files[0]}: the previous model has {classes} classes, this one {num_classes}", fix)
    known = previous.class_labels
    if known is not None and not LabelMap(labels.column, known).keys.equals(labels.keys):
        cause = f"the previous model has the classes {list(known)}, this one {list(labels.labels)}"
        raise ContractError(f"{previous.folder / artifacts.METRICS}: {cause}", fix)
    rows = positions(split.ids, read.ids)
    scored = rows.is_valid().to_numpy(zero_copy_only=False)
    if not scored.any():
        raise ContractError(
            f"{parts.files[0]}: the previous model scored none of the records of {split.split}",
            f"Score the same records with it; {settings.id_field!r} identifies them.",
        )
    logger.info("%s: the previous model scored %d of %d records.", split.split, scored.sum(), len(scored))
    probabilities = read.probabilities[rows.fill_null(0).to_numpy(zero_copy_only=False)]
    probabilities[~scored] = np.nan
    return probabilities


def _amounts(column: Column) -> np.ndarray:
    """Return a column's numbers, after a check that they are not below 0. [N]"""
    fix = "Dollar recall is a share of a sum of amounts; write them as positive numbers."
    try:
        values = numbers(column.cells, column.name, origin=column.records)
    except ContractError as error:
        raise ContractError(error.cause, fix) from None
    invalid = np.flatnonzero(values < 0)
    if len(invalid):
        where = f"{column.records.row(invalid[0])}, column {column.name!r}"
        raise ContractError(f"{where}: {values[invalid[0]]:g} is below 0", fix)
    return values


def _write(step: StepRun, metrics: ModelMetrics, lead: Lead) -> None:
    decides: str = step.settings.decision_metric
    content = metrics_content(metrics)
    values = {name: value for name, value in content.items() if "/" in name}
    evaluation = {
        "decision": {"metric": decides, "value": values[decides], CHAMPION: asdict(lead)},
        VERSION: version_facts(metrics, metric=decides, training_rows=_training_rows(step.input("processed_data"))),
        "metrics": values,
        **model_statistics(metrics, split=decides.partition("/")[0]),
    }
    summary = metrics_summary(metrics)
    folder = step.output("metrics_output")
    _write_json(folder / artifacts.METRICS, content)
    _write_json(folder / METRICS_REPORT, report_content(metrics))
    _write_json(folder / EVALUATION, evaluation)
    (folder / METRICS_SUMMARY).write_text(summary, encoding="utf-8")
    if step.settings.generate_plots:
        from container.evaluation.plots import write_metric_plots  # importing matplotlib takes a second

        written = write_metric_plots(step.output("plots_output"), metrics)
        logger.info("%d plots in %s.", len(written), written[0].parent)
    logger.info("Metrics:\n%s", summary)


def _training_rows(processed: Path | None) -> int | None:
    """Return the rows of train by the profiles of the data, of which each host of the preprocessing writes one."""
    profiles = sorted(processed.glob("data_profile*.json")) if processed else []
    rows = [json.loads(path.read_text("utf-8")).get("splits", {}).get("train", {}).get("rows") for path in profiles]
    return sum(rows) if rows and None not in rows else None


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False), encoding="utf-8")
