"""Plan the optimizer steps that max_minutes allows, from the measured rate."""

import logging
import time
from dataclasses import replace

from container.job.job import Job
from container.job.time_limit import seconds_left, seconds_to_train
from container.job.timeline import duration
from container.training.job_data import JobData
from container.training.state import ValidationSchedule

logger = logging.getLogger(__name__)

_FEWEST_STEPS = 3  # measured; the first is slow
_PREDICTING = 1 / 3  # time of a record's prediction, of that of its training


class StepBudget:
    """The last step that ends in time; every rank plans alike, because the ranks average what they measured.

    Args:
        step: at which this run begins.
    """

    def __init__(self, job: Job, data: JobData, *, step: int) -> None:
        self._job, self._data = job, data
        self._first, self._began = step + 1, 0.0
        self._is_logged = False

    def measured(self, step: int) -> tuple[float, float]:
        """Return the seconds since the second step of the run began, and those until the last one must end."""
        if self._job.hp.max_minutes is None:
            return 0.0, 0.0
        if step <= self._first:
            self._began = time.monotonic()
        left = seconds_left if self._job.kind == "trial" else seconds_to_train
        return time.monotonic() - self._began, left(self._job.hp, self._job.timeline)

    def plan(self, schedule: ValidationSchedule, step: int, *, seconds: float, left: float) -> ValidationSchedule:
        """Return the schedule that ends in time; the arguments are the ranks' means of `measured` at `step`."""
        steps = step - self._first
        if self._job.hp.max_minutes is None or steps < _FEWEST_STEPS:
            return schedule
        rate = seconds / steps
        evaluated = sum(len(split) for name, split in self._data.splits.items() if name != "train")
        evaluation = rate * evaluated * _PREDICTING * schedule.steps_per_epoch / schedule.records
        last, whole = step + 1 + max(0, int((left - evaluation) / rate)), replace(schedule, last_step=None)
        if last >= whole.total_steps:
            return whole
        if not self._is_logged:
            self._is_logged = True
            epochs = last / schedule.steps_per_epoch
            logger.warning(
                f"max_minutes: about {epochs:.2f} of {schedule.max_epochs} epochs end in the "
                f"{duration(max(0.0, left))} that are left"
            )
        return replace(schedule, last_step=last)
