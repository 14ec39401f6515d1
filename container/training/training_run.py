"""Save and resume a model in training."""

import logging
from dataclasses import asdict

from container.data.sampler import BatchPlan
from container.parallel.execution import Execution
from container.training.average import WeightAverage
from container.training.checkpoint import CheckpointStore
from container.training.identity import check_identity, resume_batch_plan
from container.training.optimizer import build_optimizer
from container.training.precision import LossScaler
from container.training.state import TrainingState
from contracts.fingerprint import Fingerprint
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)


class TrainingRun:
    """A model in training: its weights, all state that changes with each step, and its checkpoints.

    Args:
        execution: the parallelized model, before its first step.
        identity: the settings and data that a checkpoint and the run that resumes it must share.

    Attributes:
        average: moving average of the weights, used for validation.
        batch_plan: how the global batch is divided among ranks and microbatches.
    """

    def __init__(
        self, hp: Hyperparameters, execution: Execution, store: CheckpointStore, *, identity: Fingerprint
    ) -> None:
        self.execution = execution
        self.optimizer = build_optimizer(hp, execution.module)
        self.average = WeightAverage(execution.module, decay=hp.ema_decay)
        self.scaler = LossScaler.start(enabled=hp.fp16)
        self.batch_plan = BatchPlan.of(
            hp,
            data_parallel_size=execution.ranks.data_size,
            per_pass=execution.num_microbatches,
            passes=hp.accumulate_grad_batches,
        )
        self.store = store
        self.identity = identity
        self.state = TrainingState()

    def save(self) -> None:
        """Save a checkpoint in the background; called by all ranks together."""
        state = self.state
        epoch = state.epoch - (state.consumed == 0 and state.epoch > 0)
        self.store.save(
            self.execution.module,
            self.optimizer,
            name=f"epoch={epoch}-step={state.step}.ckpt",
            content={
                "step": state.step,
                "state": asdict(state),
                "scaler": asdict(self.scaler),
                "global_batch": self.batch_plan.global_batch,
                "identity": dict(self.identity.parts),
            },
            best_step=state.best_step,
            average=self.average.state,
        )

    def resume(self) -> None:
        """Restore the newest checkpoint that is complete on every host, if there is one. Called by all ranks together.

        The global batch stays that of the checkpoint, on any number of ranks. The best validation counts only if its
        checkpoint is complete too, because its weights are those to save at the end.

        Raises:
            ContractError: the checkpoint has other settings or data, or its global batch does not fit these ranks.
        """
        checkpoint = self.store.newest()
        if checkpoint is None:
            return
        content = checkpoint.content
        check_identity(content["identity"], self.identity, folder=checkpoint.folder)
        self.batch_plan = resume_batch_plan(content["global_batch"], self.batch_plan)
        self.store.load(checkpoint, self.execution.module, self.optimizer, average=self.average.state)
        self.scaler = LossScaler(**content["scaler"])
        self.state = TrainingState(**content["state"])
        logger.info("resuming from %s after %d steps", checkpoint.folder.name, self.state.step)
        forget_missing_best(self.state, self.store, name="checkpoints")


def forget_missing_best(state: TrainingState, store: CheckpointStore, *, name: str) -> None:
    """Let the validations of a run compete anew if the weights of its best one are lost."""
    if state.best_step is not None and store.at_step(state.best_step) is None:
        logger.warning(
            f"{name}: the best checkpoint, of step {state.best_step}, is missing or damaged: later validations compete "
            "anew, and without one the last weights are used"
        )
        state.best_value = state.best_step = None
