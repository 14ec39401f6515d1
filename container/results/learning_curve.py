"""Measure on parts of train how the companion grows with the rows: would more rows help?"""

import logging

import numpy as np

from container.companion.fit import Fitted, fit_companion
from container.evaluation.bootstrap import Scores, estimate_metrics, paired_differences
from container.evaluation.curves import NORMAL_95
from container.evaluation.evaluation_input import LearningCurve
from container.preprocessing.risk_tables import fold_of
from container.results.attempt import Attempt
from container.training.job_data import JobData
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

_SHARES = (0.25, 0.5, 0.75, 1.0)
_HASHES = 2**31


def learning_curve(hp: Hyperparameters, data: JobData) -> LearningCurve:
    """Fit companions on nested parts of train, which hold groups of rows together; an error does not fail the job."""
    source, points = "boosted trees over the table and the texts", {}
    parts = data.splits["train"].arrays()
    hashes = [fold_of(part.unit, seed=hp.seed, num_folds=_HASHES) / _HASHES for part in parts]
    by_share: dict[float, dict[int, tuple[int, np.ndarray]]] = {}
    doubling = None
    with Attempt("learning_curve") as attempt:
        for share in _SHARES:
            kept = [np.flatnonzero(of_part < share) for of_part in hashes]
            chosen = [part.take(rows) for part, rows in zip(parts, kept, strict=True) if len(rows)]
            fitted = fit_companion(chosen, hp.text_fields, class_weights=data.class_weights, seed=hp.seed)
            numbers = np.concatenate([part.row for part in chosen])[fitted.rows]
            by_share[share] = dict(zip(numbers.tolist(), _predictions(fitted, len(data.class_weights)), strict=True))
            points[len(numbers)] = _auroc(by_share[share], seed=hp.seed)
        doubling = _doubling(by_share[0.5], by_share[1.0])
    curve = LearningCurve(source, points, doubling, problem=attempt.problem)
    logger.info("%s", curve)
    return curve


def _predictions(fitted: Fitted, num_classes: int) -> list[tuple[int, np.ndarray]]:
    """Return the label of each row, and its probabilities by trees that did not see it. [N]"""
    probabilities = np.full((len(fitted.rows), num_classes), 1e-12)
    probabilities[:, fitted.classes] = fitted.trees.held_out.out_of_fold
    return list(zip(fitted.classes[fitted.labels].tolist(), probabilities, strict=True))


def _auroc(rows: dict[int, tuple[int, np.ndarray]], *, seed: int) -> tuple[float, tuple[float, float] | None]:
    labels, probabilities = (np.array(each) for each in zip(*rows.values(), strict=True))
    found = estimate_metrics(labels, np.log(np.maximum(probabilities, 1e-12)), seed=seed)["auroc"]
    value, reach = found.value or 0.5, NORMAL_95 * (found.standard_error or 0.0)
    return value, (value - reach, value + reach) if found.standard_error else None


def _doubling(
    half: dict[int, tuple[int, np.ndarray]], whole: dict[int, tuple[int, np.ndarray]]
) -> tuple[float, tuple[float, float] | None] | None:
    common = [row for row in half if row in whole]
    labels = np.array([whole[row][0] for row in common])
    scores = (np.stack([of[row][1] for row in common]) for of in (half, whole))
    found = paired_differences(labels, *(Scores(each, each.argmax(axis=1)) for each in scores)).get("auroc")
    return None if found is None else (found.value, found.interval)
