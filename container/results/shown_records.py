"""Read the records that the report shows again: their prepared rows have no raw text and no category."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from container.decision.decision import Decision
from container.errors import RecordTooLongError
from container.evaluation.examples import ConfidentError, Examples, metrics_of_values, most_confident_errors, shortened
from container.evaluation.explained import ExplainedRecord, chosen_records
from container.evaluation.predictions import SplitPredictions
from container.job.job import Job
from container.results.attempt import Attempt
from container.serving.predictor import Predictor
from container.tables.channel_files import read_rows
from container.tables.data_files import find_data_files
from container.tables.values import keys, texts
from container.training.job_data import JobData

logger = logging.getLogger(__name__)

_MOST_DISTINCT = 50  # categories of a column that is read
_MOST_COLUMNS = 20  # that are read: each takes about a second for 200,000 records
_SECONDS = 60.0
_TIMES = 30  # that a text divided into sentences costs a prediction, about


@Attempt("examples")  # a channel may be readable only once
def find_examples(
    job: Job, data: JobData, splits: Mapping[str, SplitPredictions], *, decision: Decision
) -> Examples | None:
    """Return the examples of test, of val if no record of test has a label; None after an error."""
    predictions, fitted = _shown_split(splits), data.prepared.fitted
    split, labels, names = predictions.split, predictions.labels, fitted.class_labels
    decided = decision.decide(predictions.probabilities)
    wrong = most_confident_errors(labels, decided, predictions.probabilities)
    read = _read(job, data, split, fitted.text_columns, wrong)
    columns = {name: texts(read[name]) for name in fitted.text_columns}
    errors = [
        ConfidentError(
            id=predictions.ids[position].as_py(),
            label=names[labels[position]],
            decided=names[decided[position]],
            probability=float(predictions.probabilities[position, decided[position]]),
            text=shortened({name: column[i] for name, column in columns.items()}),
        )
        for i, position in enumerate(wrong.tolist())
    ]
    described = data.prepared.summary["splits"][split]["categories"]
    chosen = [name for name, column in described.items() if 2 <= column["distinct"] <= _MOST_DISTINCT]
    categories = _read(job, data, split, chosen[:_MOST_COLUMNS])
    values = metrics_of_values(
        {name: keys(categories[name], fitted.kinds[name]).to_pylist() for name in categories.column_names},
        predictions,
        threshold=0.5 if decision.threshold is None else decision.threshold.value,
        class_labels=names,
    )
    return Examples(split, errors, values)


@Attempt("reasons")
def explain_records(
    job: Job,
    data: JobData,
    splits: Mapping[str, SplitPredictions],
    *,
    decision: Decision,
    stopped: Callable[[], bool],
) -> Sequence[ExplainedRecord] | None:
    """Explain ten records of the same split with the exported model, as a server would; None after an error."""
    predictions, fitted = _shown_split(splits), data.prepared.fitted
    probabilities = predictions.probabilities
    threshold = None if decision.threshold is None else decision.threshold.value
    decided = decision.decide(probabilities)
    chosen = chosen_records(predictions.labels, decided, probabilities, threshold=threshold)
    if not chosen:
        return []
    table = _read(job, data, predictions.split, fitted.feature_inputs, [position for _, position in chosen])
    predictor = Predictor.load(job.paths.model)
    began = time.perf_counter()
    records = []
    for i, (group, position) in enumerate(chosen):
        if stopped():
            break
        reasons = _reasons(predictor, table.slice(i, 1), until=began + _SECONDS)
        label = fitted.class_labels.index(reasons["class"])
        records.append(
            ExplainedRecord(
                group=group,
                id=predictions.ids[position].as_py(),
                label=fitted.class_labels[predictions.labels[position]],
                decided=fitted.class_labels[decided[position]],
                probability=float(probabilities[position, label]),
                reasons=reasons,
                texts=fitted.text_columns,
            )
        )
    return records


def _shown_split(splits: Mapping[str, SplitPredictions]) -> SplitPredictions:
    return splits["test" if (splits["test"].labels >= 0).any() else "val"]


def _read(
    job: Job, data: JobData, split: str, columns: Sequence[str], positions: Sequence[int] | np.ndarray | None = None
) -> pa.Table:
    """Return raw columns of the records of a split at these positions; None: of all."""
    files = find_data_files(job.paths.channel(split), getattr(job.hp, f"{split}_filename"))
    rows = data.splits[split].column("row").to_numpy()
    return read_rows(files, columns, rows if positions is None else rows[positions])


def _reasons(predictor: Predictor, record: Any, *, until: float) -> dict[str, Any]:
    """Explain the sentences of a record, or its columns if that could take too long."""
    began = time.perf_counter()
    (reasons,) = predictor.explain(record)
    now = time.perf_counter()
    if now + _TIMES * (now - began) < until:
        try:
            (reasons,) = predictor.explain(record, level="text")
        except RecordTooLongError as error:
            logger.info("report: a record is explained by columns: %s", error.cause)
    return reasons
