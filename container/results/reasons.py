"""Explain ten records for the report with the exported model, as a server would."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from container.decision.decision import Decision
from container.errors import RecordTooLongError
from container.evaluation.explained import ExplainedRecord, chosen_records
from container.evaluation.predictions import SplitPredictions
from container.job import Job
from container.predictor import Predictor
from container.tables.channel_files import read_rows
from container.tables.data_files import find_data_files
from container.training.job_data import JobData
from contracts.errors import first_line

logger = logging.getLogger(__name__)

_SECONDS = 60.0
_TIMES = 30  # that a text divided into sentences costs a prediction, about


def explain_records(
    job: Job,
    data: JobData,
    splits: Mapping[str, SplitPredictions],
    *,
    decision: Decision,
    stopped: Callable[[], bool],
) -> Sequence[ExplainedRecord]:
    """Return records of test, of val if no record of test has a label. An error does not fail the job."""
    try:
        split = splits["test" if (splits["test"].labels >= 0).any() else "val"]
        return _explained(job, data, split, decision=decision, stopped=stopped)
    except Exception as error:  # of any type, as for the examples
        logger.exception("report: without reasons, because of %s: %s", type(error).__name__, first_line(error))
        return ()


def _explained(
    job: Job, data: JobData, predictions: SplitPredictions, *, decision: Decision, stopped: Callable[[], bool]
) -> list[ExplainedRecord]:
    fitted, probabilities = data.prepared.fitted, predictions.probabilities
    threshold = None if decision.threshold is None else decision.threshold.value
    decided = decision.decide(probabilities)
    chosen = chosen_records(predictions.labels, decided, probabilities, threshold=threshold)
    if not chosen:
        return []
    files = find_data_files(job.paths.channel(predictions.split), getattr(job.hp, f"{predictions.split}_filename"))
    rows = data.splits[predictions.split].column("row").to_numpy()[[position for _, position in chosen]]
    table = read_rows(files, fitted.feature_inputs, rows)
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
