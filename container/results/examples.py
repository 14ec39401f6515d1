"""Read the records that the report shows again: their prepared rows have no raw text and no category."""

import logging
from collections.abc import Mapping

from container.decision.decision import Decision
from container.evaluation.examples import ConfidentError, Examples, metrics_of_values, most_confident_errors, shortened
from container.evaluation.predictions import SplitPredictions
from container.job import Job
from container.tables.channel_files import read_rows
from container.tables.data_files import find_data_files
from container.tables.values import keys, texts
from container.training.job_data import JobData
from contracts.errors import first_line

logger = logging.getLogger(__name__)

_MOST_DISTINCT = 50  # categories of a column that is read
_MOST_COLUMNS = 20  # that are read: each takes about a second for 200,000 records


def find_examples(
    job: Job, data: JobData, splits: Mapping[str, SplitPredictions], *, decision: Decision
) -> Examples | None:
    """Return the examples of test, of val if no record of test has a label. An error does not fail the job."""
    try:
        return _examples(job, data, splits["test" if (splits["test"].labels >= 0).any() else "val"], decision)
    except Exception as error:  # of any type, e.g. a channel that can be read only once: the model is complete
        logger.exception("report: without examples, because of %s: %s", type(error).__name__, first_line(error))
        return None


def _examples(job: Job, data: JobData, predictions: SplitPredictions, decision: Decision) -> Examples:
    split, fitted = predictions.split, data.prepared.fitted
    files = find_data_files(job.paths.channel(split), getattr(job.hp, f"{split}_filename"))
    rows, labels, names = data.splits[split].column("row").to_numpy(), predictions.labels, fitted.class_labels
    decided = decision.decide(predictions.probabilities)
    wrong = most_confident_errors(labels, decided, predictions.probabilities)
    read = read_rows(files, fitted.text_columns, rows[wrong])
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
    categories = read_rows(files, chosen[:_MOST_COLUMNS], rows)
    values = metrics_of_values(
        {name: keys(categories[name], fitted.kinds[name]).to_pylist() for name in categories.column_names},
        predictions,
        threshold=0.5 if decision.threshold is None else decision.threshold.value,
        class_labels=names,
    )
    return Examples(split, errors, values)
