"""Track the progress of training: all state that a resumed run needs, except weights and optimizer."""

from dataclasses import dataclass, field
from typing import Any, Self

from contracts.hyperparameters import Hyperparameters
from contracts.monitored_metric import LOSS, MonitoredMetric


@dataclass
class TrainingState:
    """The progress of training; saved in every checkpoint, independent of strategy and world size.

    Attributes:
        step: optimizer steps taken.
        epoch: epochs completed.
        consumed: records of the current epoch used so far.
        validated_step: step of the newest validation; None before the first.
        best_value: early_stop_metric at best_step; None before the first defined value.
        best_progress: epochs (fractional) trained at best_step.
        stopped_early: patience ran out.
        nonfinite: consecutive steps skipped for a non-finite gradient.
        skipped: all steps skipped for that reason.
        searched: steps skipped to find the scale of the loss in float16.
        history: logged values: {"step", "epoch", "time", "train/loss", ...}.
    """

    step: int = 0
    epoch: int = 0
    consumed: int = 0
    validated_step: int | None = None
    best_value: float | None = None
    best_step: int | None = None
    best_progress: float = 0.0
    stopped_early: bool = False
    nonfinite: int = 0
    skipped: int = 0
    searched: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def validated_progress(self) -> float:
        """Return the epochs (fractional) trained at the newest validation; 0 before the first."""
        return next((entry["epoch"] for entry in reversed(self.history) if entry["step"] == self.validated_step), 0.0)

    @property
    def best_loss(self) -> float | None:
        """Return val/loss at best_step; None if it is not known."""
        losses = (entry.get(LOSS) for entry in self.history if entry["step"] == self.best_step)
        return next((loss for loss in losses if loss is not None), None)

    def stopped_before(self, max_epochs: int) -> bool:
        """Return whether patience ended training before its last epoch."""
        return self.stopped_early and self.epoch < max_epochs


@dataclass(frozen=True)
class ValidationSchedule:
    """The number of steps of a run, and the steps after which to validate.

    Attributes:
        records: records of an epoch.
        steps_per_epoch: optimizer steps of an epoch.
        val_check_interval: up to 1, a fraction of an epoch; above 1, a number of steps.
        last_step: the last one that ends before max_minutes; None: all steps do.
    """

    records: int
    steps_per_epoch: int
    max_epochs: int
    val_check_interval: float
    last_step: int | None = None

    @property
    def total_steps(self) -> int:
        return self.steps_per_epoch * self.max_epochs if self.last_step is None else self.last_step

    def validation_due(self, step: int) -> bool:
        """Return whether to validate after `step` steps: at even parts of each epoch and its end, or every n steps."""
        if step == 0:
            return False
        if step >= self.total_steps:
            return True
        if self.val_check_interval > 1:
            return step % round(self.val_check_interval) == 0
        in_epoch = (step - 1) % self.steps_per_epoch + 1
        interval = self.steps_per_epoch * self.val_check_interval
        parts = (in_epoch - 1) / interval, in_epoch / interval
        return in_epoch == self.steps_per_epoch or int(parts[1] + 1e-9) > int(parts[0] + 1e-9)

    def progress(self, state: TrainingState) -> float:
        """Return the epochs trained, fractional."""
        return state.epoch + state.consumed / self.records


class EarlyStopping:
    """Watch one metric: record the best validation, and end training after `patience` epochs without a better one."""

    def __init__(self, metric: MonitoredMetric, *, patience: int) -> None:
        self.metric = metric
        self._patience = patience

    @classmethod
    def of(cls, hp: Hyperparameters) -> Self:
        """Return that of a job; with choose_on=out_of_fold, no record that a network has not seen ends its training."""
        return cls(hp.monitored_metric, patience=hp.max_epochs if hp.pools_val else hp.early_stop_patience)

    def update(
        self, state: TrainingState, values: dict[str, float | None], *, progress: float, last_step: int | None = None
    ) -> bool:
        """Record a validation in `state`; return whether it is the best so far.

        Sets stopped_early after `patience` epochs without a better one, and at the last step of the schedule. An
        undefined metric is never better.
        """
        value, rank = values.get(self.metric.name), self.metric.rank
        better = rank(value, values.get(LOSS)) < rank(state.best_value, state.best_loss)
        if better:
            state.best_value, state.best_step, state.best_progress = value, state.step, progress
        out_of_time = last_step is not None and state.step >= last_step
        state.stopped_early = out_of_time or self.patience_is_out(state, progress=progress)
        return better

    def patience_is_out(self, state: TrainingState, *, progress: float) -> bool:
        """Return whether `patience` epochs have passed since the best validation."""
        return state.best_step is not None and progress - state.best_progress >= self._patience - 1e-9


def is_finished(state: TrainingState, *, max_epochs: int, stopping: EarlyStopping) -> bool:
    """Return whether training from `state` would take no step and validate nothing."""
    if not state.step or state.validated_step != state.step:
        return False
    return state.epoch >= max_epochs or stopping.patience_is_out(state, progress=state.validated_progress)
