"""Train and validate: one loop for every strategy and model class."""

import itertools
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.profiler import profile

from container.data.batch import HostCopy, PackedBatch
from container.data.loader import prefetched, step_batches
from container.data.sampler import epoch_order
from container.decision.softmax import softmax
from container.errors import StopAgreed
from container.evaluation.metrics import classification_metrics
from container.job.job import Job
from container.training.job_data import JobData
from container.training.objective import WeightedCrossEntropy
from container.training.optimizer import effective_warmup, learning_rate, step_optimizer
from container.training.predict import predict_split, weighted_log_loss
from container.training.profiling import GpuMeter, log_memory, return_freed_memory
from container.training.progress import Progress
from container.training.state import EarlyStopping, ValidationSchedule
from container.training.step_budget import StepBudget
from container.training.step_graph import StepGraphs
from container.training.stop import StopFlag
from container.training.training_run import TrainingRun
from contracts.errors import ContractError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepTotals:
    """Sums over all ranks of one optimizer step.

    Attributes:
        is_weighted: whether a record of the batch has a weight above 0; if none has, `weight` is 1.
    """

    weight: torch.Tensor
    is_weighted: bool
    stop: bool
    rows: int
    tokens: int
    computed: int


@dataclass(frozen=True)
class TakenStep:
    """An optimizer step that the host has started; it does not know yet whether the device skips it.

    Attributes:
        norm: of the gradients before clipping.
        loss: this rank's part; None if no record has a weight.
    """

    step: int
    norm: HostCopy
    loss: torch.Tensor | None


class Trainer:
    """Train on train, validate on val, and save checkpoints of `run`.

    Args:
        run: the new or resumed run.
        data: with the splits train and val.
        profiler: started; it is stepped with the optimizer.
        graphs: compute the microbatches of training; None without.
    """

    def __init__(
        self,
        job: Job,
        run: TrainingRun,
        *,
        data: JobData,
        schedule: ValidationSchedule,
        progress: Progress,
        profiler: profile | None,
        stop: StopFlag,
        graphs: StepGraphs | None = None,
    ) -> None:
        self._job = job
        self._hp = hp = job.hp
        self._run = run
        self._execution = run.execution
        self._ranks = run.execution.ranks
        self._train, self._val = data.splits["train"], data.splits["val"]
        self._val_labels = self._val.column("label").to_numpy()
        self._class_labels, self._class_weights = data.prepared.fitted.class_labels, data.class_weights
        self._schedule = schedule
        self._progress = progress
        self._profiler = profiler
        self._graphs = self._execution.graphs = graphs
        self._stop = stop
        self._objective = WeightedCrossEntropy(
            data.class_weights,
            self._ranks.device,
            focal_gamma=hp.focal_gamma if hp.loss == "focal" else 0.0,
            label_smoothing=hp.label_smoothing,
            head=run.execution.module.fusion,
        )
        self._budget = StepBudget(job, data, step=run.state.step)
        self._early = EarlyStopping.of(hp)
        self._update = partial(step_optimizer, run.optimizer) if graphs is None else graphs.update_of(run.optimizer)
        self._gpus = GpuMeter(self._ranks, self._ranks.device)
        self._loss = torch.zeros((), device=self._ranks.device)
        self._loss_steps = 0
        self._has_stepped = False
        self._next_totals: StepTotals | None = None
        self._taken: TakenStep | None = None
        self._val_logits: dict[int, np.ndarray] = {}
        self._memory_is_logged = False

    def train(self) -> dict[int, np.ndarray]:
        """Train for max_epochs, or until patience runs out.

        Returns:
            The logits of val by the step of the weights, for the best and the last of this run's validations. [N, K]

        Raises:
            StopAgreed: the ranks agreed to stop; a complete checkpoint of the last step is saved.
            ContractError: the loss stays non-finite, or every step was skipped.
        """
        state, schedule = self._run.state, self._schedule
        warmup = effective_warmup(self._hp, schedule.total_steps)
        logger.info(
            f"training on {schedule.records} records for up to {schedule.max_epochs} epochs of "
            f"{schedule.steps_per_epoch} steps (global batch {self._run.batch_plan.global_batch}), {warmup} warmup "
            "steps"
        )
        if state.epoch + (state.consumed > 0) > schedule.max_epochs:
            logger.info(
                f"max_epochs is {schedule.max_epochs}, but the checkpoint has {schedule.progress(state):.2f} epochs; "
                "they stay. resume=false starts over."
            )
        if "warmup_steps" in self._hp.model_fields_set and warmup >= schedule.total_steps:
            logger.warning("warmup_steps=%d: the run has %d steps, all of them warmup", warmup, schedule.total_steps)
        self._execution.module.train()
        # A resumed run may have another early_stop_patience, which counts up to the newest validation.
        state.stopped_early = self._early.patience_is_out(state, progress=state.validated_progress)
        try:
            if schedule.validation_due(state.step) and state.validated_step != state.step:
                self._validate()  # the previous run stopped between this step and its validation
            while state.epoch < schedule.max_epochs and not state.stopped_early:
                self._epoch()
        except StopAgreed:
            self._settle()
            if state.step:
                self._run.save()
                self._run.store.wait()
            raise
        finally:
            if self._profiler is not None:
                self._profiler.stop()
        if state.step and state.skipped + state.searched == state.step:
            self._run.store.wait()  # a caller may train again at once
            raise self._never_finite(f"in any of the {state.step} optimizer steps")
        self._job.timeline.mark("train")
        out_of_patience = self._early.patience_is_out(state, progress=state.validated_progress)
        if state.stopped_before(schedule.max_epochs) and not out_of_patience:
            logger.warning(f"max_minutes: trained {schedule.progress(state):.2f} of {schedule.max_epochs} epochs")
        elif state.stopped_before(schedule.max_epochs):
            logger.info(
                f"early stop after {schedule.progress(state):.2f} epochs: {self._early.metric.name} has not been "
                f"better than {state.best_value:.6g} (step {state.best_step}) for {self._hp.early_stop_patience} epochs"
            )
        return self._val_logits

    def _epoch(self) -> None:
        state = self._run.state
        assert state.consumed < len(self._train), "a resumed run has the rows of its checkpoint"
        order = epoch_order(len(self._train), seed=self._hp.seed, epoch=state.epoch)[state.consumed :]
        steps = step_batches(self._train, order, batch_plan=self._run.batch_plan, data_rank=self._ranks.data_rank)
        if self._graphs is not None:
            steps = map(self._graphs.fill, steps)
        with prefetched(steps, self._ranks.device) as batches:
            for packed, following in itertools.pairwise(itertools.chain(batches, [None])):
                assert packed is not None, "only the last has no following one"
                with self._ranks.threads.training.measured(packed):
                    self._step(packed, following)
                if state.consumed == len(self._train):
                    state.epoch, state.consumed = state.epoch + 1, 0
                if self._schedule.validation_due(state.step):
                    self._validate()
                elif self._hp.checkpoint_every_n_steps and state.step % self._hp.checkpoint_every_n_steps == 0:
                    self._settle()
                    self._run.save()
                if state.stopped_early:
                    return

    def _step(self, microbatches: Sequence[PackedBatch], following: Sequence[PackedBatch] | None = None) -> None:
        """Take an optimizer step on the global batch; `microbatches` are this rank's part, on the CPU.

        Args:
            following: the microbatches of the next step; None at the end of an epoch.
        """
        state = self._run.state
        totals = self._next_totals or self._totals(microbatches)
        if totals.stop:
            raise StopAgreed
        rate = learning_rate(state.step, hp=self._hp, total_steps=self._schedule.total_steps)
        for group in self._run.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        # Dropout depends on (seed, step, dropout stream) only: resuming needs no generator state, at any world size.
        torch.manual_seed(hash((self._hp.seed, state.step, *self._ranks.dropout_stream)))
        self._run.optimizer.zero_grad(set_to_none=self._graphs is None)  # graphs add to the same gradients
        loss = self._execution.forward_backward(
            [batch.to(self._ranks.device) for batch in microbatches],
            objective=self._objective,
            normaliser=totals.weight,
            scale_loss=self._run.scaler.scale,
        )
        # Ranks meet while a GPU still computes the backward pass.
        self._next_totals = None if following is None else self._totals(following)
        norm = self._execution.gradient_norm(self._hp.gradient_clip_val or math.inf, loss_scale=self._run.scaler.factor)
        self._settle()  # the step before: the average needs its weights
        self._update(norm)
        self._taken = TakenStep(state.step, HostCopy(norm.value), loss if totals.is_weighted else None)
        if self._run.scaler.enabled:
            self._settle()  # the next loss is scaled by the outcome
        state.step += 1
        state.consumed += totals.rows
        self._progress.step(rows=totals.rows, tokens=totals.tokens, computed=totals.computed)
        if self._profiler is not None:
            self._profiler.step()
        if not self._has_stepped:
            self._has_stepped = True
            self._settle()
            self._log_first_step()
        if state.step % self._hp.log_every_n_steps == 0:
            self._report(rate)

    def _log_first_step(self) -> None:
        timeline, restart = self._job.timeline, self._job.scratch.restart
        timeline.mark("first step")
        if restart is None:
            logger.info("first optimizer step done %.1f s after train began: %s", timeline.elapsed(), timeline)
        else:
            seconds = time.monotonic() - restart.at
            logger.info("training continues %.1f s later (restart %d of %d)", seconds, restart.number, restart.of)

    def _totals(self, microbatches: Sequence[PackedBatch]) -> StepTotals:
        """Return the sums over all ranks, by one all-reduce of host memory."""
        module = self._execution.module
        local = [
            float(sum(self._objective.record_weights(batch).sum() for batch in microbatches)),
            float(sum(batch.num_records for batch in microbatches)),
            float(sum(batch.num_tokens for batch in microbatches)),
            float(sum(module.computed_tokens(batch) for batch in microbatches)),
        ]
        counted = torch.tensor(local, dtype=torch.float64) * self._ranks.is_data_leader
        step = self._run.state.step
        of_rank = torch.tensor([float(self._stop.requested), *self._budget.measured(step)], dtype=torch.float64)
        sums = self._ranks.sum(torch.cat([of_rank, counted])).tolist()
        stop, seconds, left, weight, rows, tokens, computed = sums
        ranks = self._ranks.world_size
        self._schedule = self._budget.plan(self._schedule, step, seconds=seconds / ranks, left=left / ranks)
        # torch.tensor would wait for its copy to a GPU.
        normaliser = torch.full((), weight or 1.0, device=self._ranks.device)
        return StepTotals(normaliser, weight > 0, stop > 0, int(rows), int(tokens), int(computed))

    def _settle(self) -> None:
        """Wait for the last step, and count it and its loss; too many skipped ones in a row end the job on every rank.

        During training this happens one step later, when the device has the next gradients to compute.
        """
        taken, self._taken = self._taken, None
        if taken is None:
            return
        state, norm = self._run.state, taken.norm.item()
        finite, searching = math.isfinite(norm), self._run.scaler.searching
        self._run.scaler.update(finite=finite)
        if finite:
            self._run.average.update(taken.step)
            if taken.loss is not None:
                self._loss += taken.loss
                self._loss_steps += 1
        if finite or searching:
            state.nonfinite = 0
            state.searched += not finite
            return
        state.nonfinite += 1
        state.skipped += 1
        logger.warning("step %d: gradient norm is %s, step skipped", taken.step + 1, norm)
        if state.nonfinite >= self._hp.max_nonfinite_steps:
            raise self._never_finite(
                f"for {state.nonfinite} optimizer steps in a row, the last at step {taken.step + 1}"
            )

    def _never_finite(self, when: str) -> ContractError:
        return ContractError(
            f"lr: the loss or its gradient was not finite {when} (lr {self._run.optimizer.param_groups[0]['lr']:.3g})",
            "Lower lr, set gradient_clip_val, look for extreme numbers in tab_field_list, or switch fp16 to bf16. "
            "Then start over with resume=false: a checkpoint resumes only with the settings it was saved with.",
        )

    def _report(self, rate: float) -> None:
        """Report the mean loss, over all ranks, of the steps with a weight since the last report; nan without one."""
        self._settle()
        state = self._run.state
        loss = self._ranks.sum(self._loss).item()
        values = {"train/loss": loss / self._loss_steps if self._loss_steps else math.nan, "lr": rate}
        self._loss.zero_()
        self._loss_steps = 0
        self._gpus.sample()
        progress = self._schedule.progress(state)
        rates = self._progress.report(state.step, progress, values)
        state.history.append({"step": state.step, "epoch": progress, "time": time.time(), **values, **rates})  # noqa: TID251 - a date, for charts

    def _validate(self) -> None:
        """Validate, record whether the metric is the best so far, and save a checkpoint."""
        self._settle()
        state = self._run.state
        self._job.timeline.mark("train")
        self._gpus.sample()
        measured = {**self._gpus.figures(), **self._execution.figures(detail=self._memory_is_logged)}
        started = time.perf_counter()
        with self._run.average.in_place_of_weights(self._execution):
            logits = predict_split(self._execution, self._val, hp=self._hp, stop=self._stop)
        names = dict.fromkeys([*self._hp.metric_choices, self._early.metric.name.removeprefix("val/")])
        names.pop("loss", None)
        metrics = classification_metrics(
            self._val_labels, softmax(logits), list(names), class_labels=self._class_labels
        )
        values: dict[str, float | None] = {
            "val/loss": weighted_log_loss(logits, self._val_labels, self._class_weights, self._val.weights()),
            **{f"val/{name}": value for name, value in metrics.values.items()},
        }
        progress = self._schedule.progress(state)
        best = self._early.update(state, values, progress=progress, last_step=self._schedule.last_step)
        state.validated_step = state.step
        kept = {step: self._val_logits[step] for step in self._val_logits if step == state.best_step}
        self._val_logits = {**kept, state.step: logits}
        seconds = time.perf_counter() - started
        self._progress.validated(
            {"step": state.step, "epoch": round(progress, 4), **values},
            records=len(self._val),
            seconds=seconds,
            best=best,
        )
        for name, reason in metrics.undefined.items():
            logger.warning("val/%s is undefined: %s", name, reason)
        log_memory(self._ranks, detail=self._memory_is_logged)
        self._memory_is_logged = True
        return_freed_memory()
        self._progress.scalars(state.step, {**values, **measured})
        state.history.append({"step": state.step, "epoch": progress, "time": time.time(), **values, **measured})  # noqa: TID251 - a date, for charts
        self._run.save()
        self._progress.restart()
        self._job.timeline.mark("validate")


def merge_history(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the entries of each step: the values of a validation and of a progress line."""
    steps = itertools.groupby(history, key=lambda entry: entry["step"])
    return [{name: value for entry in entries for name, value in entry.items()} for _, entries in steps]
