"""Find training rows whose label is probably wrong, from probabilities of models that did not see the row."""

import csv
import functools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from container.cores import threads_for
from container.evaluation.evaluation_input import LabelIssuesReport
from container.results.attempt import Attempt
from container.training.job_data import JobData
from contracts.artifacts import LABEL_ISSUES
from contracts.atomic_files import AtomicFile

logger = logging.getLogger(__name__)

_SHOWN = 20
_COLUMNS = ("row", "id", "given_label", "suggested_label", "score", "split")


@dataclass(frozen=True)
class OutOfFold:
    """Probabilities of training rows by models that were fitted without them.

    Attributes:
        source: the models, for the log and the report.
        rows: positions in train. [N]
        classes: ids of the M classes. [M]
        labels: index in `classes` of each row's label. [N]
        probabilities: [N, M]
    """

    source: str
    rows: np.ndarray
    classes: np.ndarray
    labels: np.ndarray
    probabilities: np.ndarray

    def without_weights(self, class_weights: np.ndarray) -> Self:
        """Return the probabilities of models that were fitted without weights of the classes. [K]

        With a weighted loss, a probability has its class's weight as a factor, and too many rows of rare classes would
        be flagged.
        """
        unweighted = self.probabilities / class_weights[self.classes]
        return replace(self, probabilities=unweighted / unweighted.sum(axis=1, keepdims=True))

    def of_weighted(self, weights: np.ndarray) -> Self:
        """Return the rows with a weight above 0: the user has left the others out. [rows of train]"""
        kept = weights[self.rows] > 0
        return replace(self, rows=self.rows[kept], labels=self.labels[kept], probabilities=self.probabilities[kept])

    def log_loss(self, rows: np.ndarray, classes: np.ndarray) -> float:
        """Return the mean negative logarithm of the probabilities of the given labels of `rows`, among `classes`."""
        chosen = np.isin(self.rows, rows)
        given = np.take_along_axis(self.probabilities, self.labels[:, None], axis=1)[chosen, 0]
        share = given / self.probabilities[np.ix_(chosen, np.isin(self.classes, classes))].sum(axis=1)
        return float(-np.log(np.maximum(share, 1e-12)).mean())


def best_source(sources: Sequence[OutOfFold]) -> OutOfFold:
    """Return the source with the lowest log loss on the rows and among the classes that all of them have."""
    rows = functools.reduce(np.intersect1d, (each.rows for each in sources))
    classes = functools.reduce(np.intersect1d, (each.classes for each in sources))
    return min(sources, key=lambda each: np.nan_to_num(each.log_loss(rows, classes), nan=np.inf))


@dataclass(frozen=True)
class LabelIssues:
    """Rows of train whose label is probably wrong, the most suspicious first. I issues.

    Attributes:
        source: see OutOfFold.
        examined: number of rows with probabilities.
        positions: in train. [I]
        suggested: class ids. [I]
        scores: confidence in the given label, from 0 to 1. [I]
    """

    source: str
    examined: int
    positions: np.ndarray
    suggested: np.ndarray
    scores: np.ndarray

    def __str__(self) -> str:
        return (
            f"label_issues: {len(self.positions)} of {self.examined} training rows have a label that is probably "
            f"wrong, by out-of-fold probabilities of {self.source}; where these are often wrong, so is this list"
        )


@Attempt("label_issues")
def report_label_issues(
    folder: Path, data: JobData, *sources: OutOfFold | None, networks: np.ndarray | None = None
) -> LabelIssuesReport | None:
    """Write label_issues.csv into `folder`, and return the content of the report; None after an error.

    Args:
        sources: the one with the lowest log loss on their common rows is used.
        networks: probabilities of every row of train by cross-fitted networks, another source. [N, K]
    """
    weights = np.asarray(data.class_weights)
    train, found = data.splits["train"], (*sources, None if networks is None else _of_networks(data, networks))
    known = [each.without_weights(weights).of_weighted(train.weights()) for each in found if each is not None]
    if not known:
        logger.warning("label_issues: none, because there are no out-of-fold probabilities")
        return None
    issues = find_label_issues(best_source(known))
    logger.info("%s", issues)
    folder.mkdir(parents=True, exist_ok=True)
    return write_label_issues(
        folder / LABEL_ISSUES,
        issues,
        places=data.places,
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


def find_label_issues(found: OutOfFold) -> LabelIssues:
    """Return the issues that confident learning finds (Northcutt, Jiang & Chuang, 2021, by cleanlab)."""
    from cleanlab.filter import find_label_issues as confident_learning
    from cleanlab.rank import get_label_quality_scores

    scores = get_label_quality_scores(found.labels, found.probabilities, method="normalized_margin")
    with threads_for(found.probabilities.size):
        flagged = np.flatnonzero(confident_learning(found.labels, found.probabilities, n_jobs=1))
    flagged = flagged[np.argsort(scores[flagged], kind="stable")]
    suggested = found.classes[found.probabilities[flagged].argmax(axis=1)]
    return LabelIssues(found.source, len(found.rows), found.rows[flagged], suggested, scores[flagged])


def write_label_issues(
    path: Path,
    issues: LabelIssues,
    *,
    places: Mapping[str, np.ndarray],
    ids: pa.ChunkedArray,
    given: pa.ChunkedArray,
    class_labels: Sequence[int | str],
) -> LabelIssuesReport:
    """Write the CSV file, atomically; return the content of the report's section.

    Args:
        places: the number and the split of every training row.
        ids, given: its id and raw label.
        class_labels: in the order of the class ids.
    """
    chosen = pa.array(issues.positions)
    columns = (
        places["row"][issues.positions].tolist(),
        ids.take(chosen).to_pylist(),
        given.take(chosen).to_pylist(),
        [class_labels[k] for k in issues.suggested.tolist()],
        [round(score, 6) for score in issues.scores.tolist()],
        places["split"][issues.positions].tolist(),
    )
    rows = list(zip(*columns))
    with AtomicFile(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        writer.writerows(rows)
    shown: list[dict[str, Any]] = [dict(zip(_COLUMNS, map(_for_json, values))) for values in rows[:_SHOWN]]
    return LabelIssuesReport(issues.source, issues.examined, len(rows), shown)


def _for_json(value: Any) -> Any:
    is_finite = isinstance(value, float) and math.isfinite(value)
    return value if value is None or is_finite or isinstance(value, int | str) else str(value)
