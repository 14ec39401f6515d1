"""Train the networks of an ensemble, each as a run of its own; the job then combines them."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from container.job.failure import FailedElsewhere, Failure
from container.job.job import Fold, Member
from container.job.launch.run_queue import Run, RunQueue, Shares, show_curves
from container.preprocessing.prepared import PreparedData
from container.training.checkpoint_files import clear_checkpoints, complete_checkpoints, newest_checkpoint
from container.training.identity import check_resumable
from container.training.state import EarlyStopping, TrainingState, is_finished
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from contracts.program import Stopped

logger = logging.getLogger(__name__)

_POLL = 0.1  # seconds
_SEEDS = 2**63


@dataclass(frozen=True)
class _Planned:
    """A network to train: its folder, its settings, and its fold, as in `Job`."""

    folder: Path
    hp: Hyperparameters
    fold: Fold | None

    @property
    def checkpoints(self) -> Path:
        return JobPaths(self.folder).checkpoints

    @property
    def state(self) -> TrainingState | None:
        """The state of its newest checkpoint."""
        complete = complete_checkpoints(self.checkpoints)
        return TrainingState(**complete[-1].content["state"]) if complete else None

    @property
    def is_finished(self) -> bool:
        stopping = EarlyStopping(self.hp.monitored_metric, patience=self.hp.early_stop_patience)
        state = self.state
        return state is not None and is_finished(state, max_epochs=self.hp.max_epochs, stopping=stopping)


def train_members(
    paths: JobPaths, hp: Hyperparameters, prepared: PreparedData, *, num_gpus: int, first: Path | None = None
) -> tuple[Member, ...]:
    """Train the networks that are missing, one after the other, or side by side on the GPUs that one leaves over.

    Every network uses the data that is prepared for the job. A finished network is known by its checkpoints.

    Args:
        first: the folder of the first network, if a search has trained it.

    Raises:
        ContractError: a network was trained with other settings or data.
        FailedElsewhere: a network could not be trained.
        Stopped: stopped on request; the same command goes on.
    """
    planned = [_planned(paths, hp, i) for i in range(hp.num_members)]
    if first is not None:
        planned[0] = replace(planned[0], folder=first)
    for each in planned:
        check_resumable(each.hp, each.checkpoints, given=(), prepared=prepared)
    if hp.ensemble_model == "distill" and hp.resume:
        if first is not None:
            _forget_other_teachers(hp, paths.checkpoints)
        check_resumable(hp, paths.checkpoints, given=(), prepared=prepared)  # before hours of training
    missing = [each for each in planned if not each.is_finished]
    shares = Shares.of_members(hp, hp.num_members, num_gpus=num_gpus)
    if missing:
        logger.info(
            f"{len(planned) - len(missing)} of {len(planned)} networks are trained; training "
            f"{min(shares.parallel, len(missing))} at a time with {shares.num_workers} processes each"
        )
    try:
        _train(missing, RunQueue(shares, shown=shares.parallel == 1), prepared)  # the lines of several would mix
    except Stopped as stopped:
        finished = sum(each.is_finished for each in planned)
        stopped.where = f"{finished} of {len(planned)} networks are trained"
        raise
    show_curves(paths, [each.folder for each in planned])
    return tuple(Member(each.folder.name, each.checkpoints, each.fold) for each in planned)


def _forget_other_teachers(hp: Hyperparameters, checkpoints: Path) -> None:
    """Remove the checkpoints of a network that learned from another number of networks: final_seeds may change."""
    newest = newest_checkpoint(checkpoints)
    if newest is not None and (before := newest.content["identity"].get("ensemble")) != hp.ensemble:
        logger.info("the distilled network learned from %s networks; it is trained again by %d", before, hp.ensemble)
        clear_checkpoints(checkpoints)


def _settings(hp: Hyperparameters, i: int) -> Hyperparameters:
    """Return the settings of network `i` of an ensemble: an ordinary run with a seed of its own.

    Those of a cross-fitted network keep cross_fit, because its rows depend on it.
    """
    settings = hp.model_dump(mode="json", exclude_unset=True, exclude={"ensemble", "ensemble_model"})
    # One checkpoint and the best one: the others are of no use after the training.
    own = {"seed": (hp.seed + i) % _SEEDS, "keep_checkpoints": 1, "resume": True}
    return parse_hyperparameters({**settings, **own})


def _planned(paths: JobPaths, hp: Hyperparameters, i: int) -> _Planned:
    settings = _settings(hp, i)
    if hp.cross_fit:
        return _Planned(paths.ensemble / f"fold-{i}", settings, Fold(i, hp.cross_fit, hp.seed))
    return _Planned(paths.ensemble / f"seed-{settings.seed}", settings, None)


def _train(missing: Sequence[_Planned], queue: RunQueue, prepared: PreparedData) -> None:
    waiting = list(missing)
    by_folder = {each.folder: each for each in missing}
    with queue:
        while waiting or queue.running:
            while waiting and queue.has_room:
                planned = waiting.pop(0)
                queue.submit(
                    planned.folder,
                    planned.hp,
                    prepared=prepared.folder,
                    fold=planned.fold,
                    following=len(waiting),
                )
                logger.info("%s: training begins; its checkpoints are in %s", planned.folder.name, planned.checkpoints)
            time.sleep(_POLL)
            for run in queue.poll():
                _end(run, by_folder[run.folder])


def _end(run: Run, planned: _Planned) -> None:
    """Log the result of a run that has ended; raise FailedElsewhere if it has none."""
    name, state = planned.folder.name, planned.state
    if not run.completed or state is None:
        failure = run.failure or Failure("the workers ended without a result", "Read the log.")
        raise FailedElsewhere(replace(failure, cause=f"{failure.cause} [{name}]"))
    value = "never defined" if state.best_value is None else f"{state.best_value:.6g}"
    logger.info("%s: %s=%s after %d steps", name, planned.hp.early_stop_metric, value, state.step)
