"""Write a job's label issues."""

import logging
from pathlib import Path

import numpy as np

from container.evaluation.label_issues import (
    LabelIssuesReport,
    OutOfFold,
    best_source,
    find_label_issues,
    write_label_issues,
)
from container.training.job_data import JobData
from contracts.artifacts import LABEL_ISSUES
from contracts.errors import first_line

logger = logging.getLogger(__name__)


def report_label_issues(
    folder: Path, data: JobData, *sources: OutOfFold | None, networks: np.ndarray | None = None
) -> LabelIssuesReport | None:
    """Write label_issues.csv into `folder`, and return the content of the report. An error does not fail the job.

    Args:
        sources: the one with the lowest log loss on their common rows is used.
        networks: probabilities of every row of train by cross-fitted networks, another source. [N, K]
    """
    try:
        return _write(folder, data, *sources, None if networks is None else _of_networks(data, networks))
    except Exception as error:  # of any type, e.g. out of memory: the model is complete
        logger.exception("label_issues: none, because of %s: %s", type(error).__name__, first_line(error))
        return None


def _write(folder: Path, data: JobData, *sources: OutOfFold | None) -> LabelIssuesReport | None:
    weights = np.asarray(data.class_weights)
    train = data.splits["train"]
    known = [each.without_weights(weights).of_weighted(train.weights()) for each in sources if each is not None]
    if not known:
        logger.warning("label_issues: none, because there are no out-of-fold probabilities")
        return None
    issues = find_label_issues(best_source(known))
    logger.info("%s", issues)
    folder.mkdir(parents=True, exist_ok=True)
    return write_label_issues(
        folder / LABEL_ISSUES,
        issues,
        row=train.column("row").to_numpy(),
        ids=train.column("id"),
        given=train.column("raw_label"),
        class_labels=list(data.prepared.fitted.class_labels),
    )


def _of_networks(data: JobData, probabilities: np.ndarray) -> OutOfFold:
    """Return the out-of-fold probabilities of cross-fitted networks.

    Args:
        probabilities: of every row of train. [N, K]
    """
    labels = data.splits["train"].column("label").to_numpy()
    rows = np.flatnonzero(labels >= 0)
    classes, indices = np.unique(labels[rows], return_inverse=True)
    known = probabilities[np.ix_(rows, classes)]
    known /= known.sum(axis=1, keepdims=True)
    source = "the networks of cross_fit, each over the rows that it did not train on"
    return OutOfFold(source, rows, classes, indices, known)
