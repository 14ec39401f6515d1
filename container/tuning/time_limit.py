"""Decide whether another run of a search can finish within max_hours."""

import math
import time

from container.tuning.study import TuningStudy
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters

_HOUR = 3600.0


class TimeLimit:
    """The time of a search, which several processes may continue one after the other.

    Args:
        parallel: runs at the same time.

    Attributes:
        spent: seconds of the earlier processes, by the duration of the trials that they ran.
    """

    def __init__(self, study: TuningStudy, hp: Hyperparameters, *, parallel: int) -> None:
        assert hp.tuning is not None
        self._study = study
        self._tuning = hp.tuning
        self._distills = hp.tuning.final_seeds > 1 and hp.ensemble_model == "distill"
        self._parallel = parallel
        self._began = time.monotonic()
        self.spent = sum(trial.seconds for trial in study.trials) / parallel

    @property
    def seconds(self) -> float:
        return self.spent + time.monotonic() - self._began

    def allows(self, max_epochs: int) -> bool:
        """Return whether a trial of `max_epochs` can finish before max_hours, and after it the winner's networks."""
        hours = self._tuning.max_hours
        if hours is None or not self._study.finished:
            return True
        return self.seconds + self._rounds() * self._estimate(max_epochs) <= hours * _HOUR

    def check(self, max_epochs: int) -> None:
        """Raise ContractError if max_hours was too short for each of the first trials, and no other has a result.

        Args:
            max_epochs: of the longest trial.
        """
        hours = self._tuning.max_hours
        taken = [trial.seconds for trial in self._study.complete]
        if hours is not None and 0 < len(taken) <= self._parallel and min(taken) > hours * _HOUR:
            enough = math.ceil(self._rounds() * self._estimate(max_epochs) / _HOUR * 100) / 100
            raise ContractError(
                f"tuning.max_hours: {hours:g} h is too short for one trial: the first took {min(taken):.0f} s",
                f"Set max_hours to at least {enough:g}, or lower max_epochs.",
            )

    def _rounds(self) -> int:
        """Return the number of runs, one after the other, of a trial, the winner's other networks, and distillation."""
        return 1 + math.ceil((self._tuning.final_seeds - 1) / self._parallel) + self._distills

    def _estimate(self, max_epochs: int) -> float:
        """Return the seconds of a run without early stopping, as slow in each epoch as the slowest complete trial."""
        each = (trial.seconds / trial.epochs * max_epochs for trial in self._study.complete if trial.epochs)
        return max(each, default=0.0)
