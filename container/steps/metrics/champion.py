"""Score the registered model on this execution's records, and compare it with the new model, record by record."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from container.decision.decision import Decision, Threshold
from container.evaluation.bootstrap import Scores, paired_differences
from container.evaluation.curves import NORMAL_95
from container.evaluation.model_metrics import MetricOptions, SplitInput, compute_model_metrics
from container.preprocessing.labels import LabelMap
from container.serving.predictor import Predictor
from container.steps.archives import extract_archive
from container.steps.metrics.reports import metrics_content
from contracts.errors import ContractError
from contracts.metrics import LOSSES
from contracts.steps import ARCHIVED_MODEL, NO_CHAMPION

logger = logging.getLogger(__name__)

_UNREACHABLE = -1e30


@dataclass(frozen=True)
class Lead:
    """The comparison with the registered model.

    Attributes:
        lead: the improvement of the metric, less the margin; the condition needs 0 or more.
        value: the registered model's metric; None without a registered model, or where it is undefined.
        difference: the new model's metric minus the registered model's.
        standard_error: of the difference, for sampling of the records; None for a metric without one.
        records: labelled records that both scored.
    """

    lead: float
    value: float | None = None
    difference: float | None = None
    standard_error: float | None = None
    records: int = 0


@dataclass(frozen=True)
class NewModel:
    """The new model's predictions of the split that decides.

    Attributes:
        metric: split/name.
        value: of the metric; None where it is undefined.
    """

    metric: str
    value: float | None
    split: SplitInput
    options: MetricOptions
    labels: LabelMap


def lead_over(
    champion: Path | None, new: NewModel, columns: Callable[[Sequence[str]], pa.Table], *, margin: float, scratch: Path
) -> Lead:
    """Compare the new model with the registered one.

    Args:
        champion: folder of the package, or of the file that says that there is none.
        columns: returns the given raw columns of the split's records, in the order of the predictions. [N rows]
        margin: in standard errors.

    Raises:
        ContractError: the registered model has other classes, or needs a column that the records do not have.
    """
    if champion is None or (champion / NO_CHAMPION).is_file():
        return Lead(0.0)
    if not (champion / ARCHIVED_MODEL).is_file():
        return Lead(_UNREACHABLE)
    folder = scratch / "champion"
    extract_archive(champion / ARCHIVED_MODEL, folder)
    predictor = Predictor.load(folder)
    known = LabelMap(new.labels.column, tuple(predictor.class_labels))
    if not known.keys.equals(new.labels.keys):
        raise ContractError(
            f"champion: the registered model has the classes {predictor.class_labels}, the new one "
            f"{list(new.labels.labels)}",
            "Register models of other classes in another group (registration.group), or set condition.beat to nothing.",
        )
    try:
        probabilities = predictor.predict(columns(predictor.feature_inputs))
    except ContractError as error:
        fix = "Provide the column, or set condition.beat to nothing."
        raise ContractError(f"champion: the registered model cannot score these records: {error.cause}", fix) from None
    return _compared(new, predictor, probabilities, margin=margin)


def _compared(new: NewModel, predictor: Predictor, probabilities: np.ndarray, *, margin: float) -> Lead:
    split, _, name = new.metric.partition("/")
    of_new, threshold = new.split.predictions, predictor.decision.threshold
    options = replace(new.options, threshold=threshold.value if threshold else new.options.threshold)
    champion = replace(new.split, predictions=replace(of_new, probabilities=probabilities))
    value = metrics_content(compute_model_metrics({split: champion}, options))[new.metric]
    records = int((of_new.labels >= 0).sum())
    if value is None or new.value is None:
        return Lead(0.0, value=value, records=records)  # the threshold decides
    decision = Decision(threshold=Threshold(new.options.threshold) if new.options.binary else None)
    before, after = (
        Scores(scored, by.decide(scored))
        for scored, by in ((probabilities, predictor.decision), (of_new.probabilities, decision))
    )
    found = paired_differences(of_new.labels, before, after).get(name)
    error = (found.interval[1] - found.interval[0]) / (2 * NORMAL_95) if found and found.interval else None
    difference = new.value - value
    improvement = -difference if name in LOSSES else difference
    lead = Lead(improvement - margin * (error or 0.0), value, difference, error, records)
    logger.info("%s: %.6g, the registered model %.6g on the same %d records.", new.metric, new.value, value, records)
    return lead
