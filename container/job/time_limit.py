"""Divide the time of a job (max_minutes) between its training and what follows."""

import logging
import math

from container.job.timeline import Timeline, duration
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

EXPORT_SECONDS = 12.0  # of the export, the report and the end of the processes, with a small model
_SHARE = 0.2  # of the time for what follows the training, at least
_LEAST = 25.0  # seconds
_FEWEST = 5.0  # seconds of a training


def seconds_left(hp: Hyperparameters, timeline: Timeline) -> float:
    """Return the seconds until max_minutes after `train` began; infinite without a limit."""
    return math.inf if hp.max_minutes is None else 60 * hp.max_minutes - timeline.elapsed()


def seconds_to_train(hp: Hyperparameters, timeline: Timeline) -> float:
    """Return the seconds until the last training must end."""
    return seconds_left(hp, timeline) - max(_LEAST, _SHARE * 60 * (hp.max_minutes or 0))


def limited(hp: Hyperparameters, seconds: float) -> Hyperparameters:
    """Return the settings of a network that may train until so many seconds after its job began."""
    if math.isinf(seconds):
        return hp
    return hp.model_copy(update={"max_minutes": max(1.0, seconds) / 60})


def check_time_to_train(hp: Hyperparameters, timeline: Timeline) -> None:
    """Raise ContractError if the job cannot end in time, once its data is prepared."""
    lacking = _FEWEST - seconds_to_train(hp, timeline)
    if lacking > 0:
        needed = math.ceil((60 * (hp.max_minutes or 0) + lacking) / 60 / (1 - _SHARE))
        raise ContractError(
            f"max_minutes: {hp.max_minutes:g} is too short: {duration(timeline.elapsed())} have passed before the "
            "training, which the export and the report follow",
            f"Set at least {needed}, or run again: the prepared data stays.",
        )


def allows(hp: Hyperparameters, timeline: Timeline, *, what: str, seconds: float) -> bool:
    """Return whether there is time to compute `what` after the training; log a warning if not."""
    left = seconds_left(hp, timeline) - EXPORT_SECONDS
    if seconds <= left:
        return True
    logger.warning(
        f"max_minutes={hp.max_minutes:g}: without {what}, which would take about {duration(seconds)}; "
        f"{duration(max(0.0, left))} are left for it"
    )
    return False
