"""Fit a job's companion after training, blend it with the network, and measure what each part is worth."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from container.companion.blend import LEAST_GAIN, BlendedCompanion, try_blend
from container.companion.fit import MOST_ROWS, Fitted, fit_companion
from container.companion.graph import predict
from container.data.folds import hash_order
from container.data.split import PreparedSplit
from container.decision.deciding_rows import OUT_OF_FOLD, chosen_on, in_words, with_val_out_of_fold
from container.errors import NotMade
from container.evaluation.bootstrap import estimate_metrics
from container.evaluation.companion_report import CompanionReport
from container.results.attempt import Attempt
from container.results.label_issues import OutOfFold
from container.training.job_data import JobData
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

_FEWEST_VAL_ROWS = 20
_FEWEST_OF_CLASS = 5  # val records of each of two classes: of fewer, one decides whether the blend helps


@dataclass(frozen=True)
class Combined:
    """The network with its companion, or alone.

    Attributes:
        companion: None if it does not help on the rows that decide.
        logits: of each split, blended if there is a companion. [N, K] each
        report: None without `hp.companion`.
        out_of_fold: probabilities of the training rows by companions that did not see them; None if the fit failed.
    """

    companion: BlendedCompanion | None
    logits: Mapping[str, np.ndarray]
    report: CompanionReport | None = None
    out_of_fold: OutOfFold | None = None


def add_companion(hp: Hyperparameters, data: JobData, network: Mapping[str, np.ndarray]) -> Combined:
    """Fit a companion and, with `hp.companion`, keep it if it helps on val. An error does not fail the job.

    Args:
        network: its logits, as `Trained.logits`. [N, K] each
    """
    began, combined = time.perf_counter(), Combined(None, network)
    with Attempt("companion") as attempt:
        train = data.splits["train"].arrays()
        fitted = fit_companion(train, hp.text_fields, class_weights=data.class_weights, seed=hp.seed)
        combined = replace(combined, out_of_fold=out_of_fold(fitted))  # label_issues needs them, whatever _blend does
        if hp.companion:
            combined = _blend(hp, data, fitted, combined)
    if attempt.problem:
        combined = replace(combined, report=CompanionReport(False, attempt.problem))
    if combined.report is None:
        return combined
    report = replace(combined.report, seconds=time.perf_counter() - began)
    logger.log(logging.WARNING if report.factors is None else logging.INFO, "%s", report)
    return replace(combined, report=report if hp.companion else None)


def _blend(hp: Hyperparameters, data: JobData, fitted: Fitted, alone: Combined) -> Combined:
    """Return `alone`, the network, with the companion if it helps, and with the report."""
    network, on = alone.logits, chosen_on(alone.logits)
    where = in_words(on)
    labels = {name: data.splits[name].column("label").to_numpy() for name in network}
    chooses, truth, weight = data.splits[on], labels[on], data.splits[on].weights()
    known = np.flatnonzero((truth >= 0) & (weight > 0) & np.isfinite(network[on]).all(axis=1))
    _check_enough(truth[known], "train and val" if on == OUT_OF_FOLD else "val")
    predicted = {name: predict(fitted.companion, data.splits[name].arrays(), hp.text_fields) for name in network}
    companion = {name: logits for name, (logits, _) in predicted.items()}
    if on == OUT_OF_FOLD:
        companion[on][fitted.rows] = fitted.held_out_logits
    known = known[hash_order(chooses.column("row").to_numpy()[known], seed=hp.seed)[:MOST_ROWS]]
    trial = try_blend(
        network[on][known],
        companion[on][known],
        truth[known],
        units=chooses.units()[known],
        weights=np.asarray(data.class_weights)[truth[known]] * weight[known],
        seed=hp.seed,
    )
    blended = {name: trial.blend(network[name], companion[name]) for name in network}
    parts = {"network": network, "network and companion": blended, "companion": companion}
    if hp.text_fields and on != OUT_OF_FOLD:
        parts["text, linear"] = {name: fitted.text_logits(scores) for name, (_, scores) in predicted.items()}
    if hp.text_fields and fitted.table is not None and on != OUT_OF_FOLD:
        parts["table"] = {name: fitted.table_logits(_tabular(data.splits[name])) for name in network}
    held_out = fitted.trees.held_out
    too_little = f"the log loss {where} improves by less than {LEAST_GAIN}, also with the standard error added"
    rarer = int(np.bincount(truth[known], minlength=len(data.class_weights)).argmin())
    report = CompanionReport(
        kept=trial.helps,
        reason="" if trial.helps else too_little,
        factors=(trial.blend.network, trial.blend.companion),
        improvement=trial.improvement,
        standard_error=trial.standard_error,
        uses_texts=fitted.uses_texts,
        rounds=held_out.rounds,
        leaves=held_out.leaves,
        rows=len(fitted.rows),
        num_bytes=fitted.companion.graph.ByteSize(),
        parts={
            part: {
                name: estimate_metrics(labels[name], values, seed=hp.seed, rarer=rarer)
                for name, values in with_val_out_of_fold(logits).items()
            }
            for part, logits in parts.items()
        },
        rarer_class=rarer,
        where=where,
        models=str(fitted.parts),
    )
    if not trial.helps:
        return replace(alone, report=report)
    companion_and_blend = BlendedCompanion(fitted.companion, trial.blend)
    return replace(alone, companion=companion_and_blend, logits=blended, report=report)


def _check_enough(labels: np.ndarray, splits: str) -> None:
    """Raise NotMade if so few records cannot choose a blend. [N]"""
    if len(labels) < _FEWEST_VAL_ROWS:
        raise NotMade(f"{len(labels)} labelled {splits} records are fewer than {_FEWEST_VAL_ROWS}")
    if np.count_nonzero(np.bincount(labels) >= _FEWEST_OF_CLASS) < 2:
        raise NotMade(f"fewer than two classes have {_FEWEST_OF_CLASS} labelled {splits} records")


def out_of_fold(fitted: Fitted) -> OutOfFold:
    """Return the probabilities of the training rows by companions that did not see them."""
    source = f"{fitted.parts} over the table" + (" and the texts" if fitted.uses_texts else "")
    return OutOfFold(source, fitted.rows, fitted.classes, fitted.labels, fitted.parts.held_out)


def _tabular(split: PreparedSplit) -> np.ndarray:
    return np.concatenate([part.tabular for part in split.arrays()])
