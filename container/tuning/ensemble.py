"""Train the networks of an ensemble, each as a run of its own; the job then combines them."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from container.job.failure import FailedElsewhere, Failure
from container.job.job import Fold, Member
from container.job.launch.run_queue import Run, RunQueue, Shares
from container.job.time_limit import limited
from container.preprocessing.prepare import check_folds
from container.preprocessing.prepared import PreparedData
from container.training.checkpoint_files import clear_checkpoints, newest_checkpoint
from container.training.finished import describe_finished, is_finished, state_of
from container.training.identity import check_resumable
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from contracts.program import Stopped

logger = logging.getLogger(__name__)

_POLL = 0.1  # seconds
_SEEDS = 2**63


def plan_members(
    paths: JobPaths, hp: Hyperparameters, prepared: PreparedData, *, first: Path | None = None
) -> tuple[Member, ...]:
    """Return the networks of an ensemble. Every network uses the data that is prepared for the job.

    Args:
        first: the folder of the first network, if a search has trained it.

    Raises:
        ContractError: a network was trained with other settings or data; fewer groups than folds.
    """
    if hp.cross_fit:
        check_folds(prepared, hp)
    members = [_planned(paths, hp, i) for i in range(hp.num_members)]
    if first is not None:
        members[0] = replace(members[0], folder=first)
    for member in members:
        check_resumable(member.hp, member.checkpoints, given=(), prepared=prepared)
        member.checkpoints.mkdir(parents=True, exist_ok=True)
    if hp.ensemble_model == "distill" and hp.resume:
        if first is not None:
            _forget_other_teachers(hp, paths.checkpoints)
        check_resumable(hp, paths.checkpoints, given=(), prepared=prepared)  # before hours of training
    return tuple(members)


def train_members(
    members: Sequence[Member],
    prepared: PreparedData,
    *,
    shares: Shares,
    seconds_left: Callable[[], float] = lambda: math.inf,
) -> None:
    """Train the networks that are missing, side by side on the GPUs that one leaves over.

    Args:
        seconds_left: for the training of all networks.

    Raises:
        FailedElsewhere: a network could not be trained.
        Stopped: stopped on request; the same command goes on.
    """
    missing = [member for member in members if not is_finished(member)]
    if missing:
        logger.info(
            f"{len(members) - len(missing)} of {len(members)} networks are trained; training "
            f"{min(shares.parallel, len(missing))} at a time with {shares.num_workers} processes each"
        )
    try:
        queue = RunQueue(shares, shown=shares.parallel == 1)  # the lines of several would mix
        _train(missing, queue, prepared, lambda waiting: seconds_left() / math.ceil((waiting + 1) / shares.parallel))
    except Stopped as stopped:
        stopped.where = describe_finished(members)
        raise


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


def _planned(paths: JobPaths, hp: Hyperparameters, i: int) -> Member:
    settings = _settings(hp, i)
    if hp.cross_fit:
        repeat, number = divmod(i, hp.cross_fit)
        return Member(paths.ensemble / f"fold-{i}", settings, Fold(number, hp.cross_fit, (hp.seed + repeat) % _SEEDS))
    return Member(paths.ensemble / f"seed-{settings.seed}", settings)


def _train(missing: Sequence[Member], queue: RunQueue, prepared: PreparedData, share: Callable[[int], float]) -> None:
    """Train networks; `share` returns the seconds of one, from the number of those that wait."""
    waiting = list(missing)
    by_folder = {each.folder: each for each in missing}
    with queue:
        while waiting or queue.running:
            while waiting and queue.has_room:
                planned = waiting.pop(0)
                queue.submit(
                    planned.folder,
                    limited(planned.hp, share(len(waiting))),
                    prepared=prepared.folder,
                    fold=planned.fold,
                    following=len(waiting),
                )
                logger.info("%s: training begins; its checkpoints are in %s", planned.folder.name, planned.checkpoints)
            time.sleep(_POLL)
            for run in queue.poll():
                _end(run, by_folder[run.folder])


def _end(run: Run, planned: Member) -> None:
    """Log the result of a run that has ended; raise FailedElsewhere if it has none."""
    name, state = planned.folder.name, state_of(planned)
    if not run.completed or state is None:
        failure = run.failure or Failure("the workers ended without a result", "Read the log.")
        raise FailedElsewhere(replace(failure, cause=f"{failure.cause} [{name}]"))
    value = "never defined" if state.best_value is None else f"{state.best_value:.6g}"
    logger.info("%s: %s=%s after %d steps", name, planned.hp.early_stop_metric, value, state.step)
