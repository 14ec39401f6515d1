"""Keep the winner of a search: its record, and its checkpoints as those of the job or of its first network."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from container.launch.run_queue import copy_curves, remove_curves, remove_run, rename_curves
from container.training.checkpoint_files import clear_checkpoints, complete_checkpoints, move_checkpoints
from container.tuning.ensemble import SEEDS, member_folder
from contracts.atomic_files import write_text_atomically
from contracts.errors import ContractError
from contracts.other_programs import remove_folder
from contracts.paths import JobPaths

_FILE = "winner.json"
_TRIALS = "trial-*"


@dataclass(frozen=True)
class Winner:
    """The best trial of a search, and what becomes the model.

    Attributes:
        value: of the search's metric.
        changes: the values that the search drew.
        seed: of the trial.
        networks: networks with these settings that become the model; the trial's is the first one.
        model: ensemble_model, if there are several.
        step: of the trial's newest checkpoint.
    """

    trial: int
    value: float
    changes: dict[str, Any]
    seed: int
    networks: int = 1
    model: str | None = None
    step: int = field(default=0)

    @property
    def folder(self) -> str:
        return trial_folder(self.trial)

    def home(self, paths: JobPaths) -> JobPaths:
        """Return the paths of the run that has the trial's checkpoints: the job, or its first network of several."""
        return paths if self.networks == 1 else JobPaths(member_folder(paths, self.seed))

    def names(self) -> list[str]:
        """Return the names of the curves of the winner's networks in the output; that of the trial is the first."""
        seeds = [(self.seed + i) % SEEDS for i in range(self.networks)]
        return [self.folder] if self.networks == 1 else [f"seed-{seed}" for seed in seeds]


def read_winner(paths: JobPaths) -> Winner | None:
    """Return the winner of a search that has ended and may now have more trials; None if it has not ended.

    Raises:
        ContractError: the folder has checkpoints of another run.
    """
    file = paths.tuning / _FILE
    newest = complete_checkpoints(paths.checkpoints)[-1:]
    if not file.is_file():
        if newest or paths.ensemble.is_dir():
            raise ContractError(
                f"tuning: {paths.checkpoints} has checkpoints of another run, which the winner would replace",
                "Use another folder, or start over with resume=false, which removes them.",
            )
        return None
    try:
        winner = Winner(**json.loads(file.read_text()))
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"{file}: is not the record of a winner: {error}", "Start over with resume=false, which removes the search."
        ) from error
    if winner.networks == 1 and newest and newest[0].step != winner.step:
        raise ContractError(
            f"tuning: {paths.checkpoints} has a checkpoint of step {newest[0].step}, and the winner of the search has "
            f"{winner.step} steps: another run went on from it",
            "Use another folder, or start over with resume=false, which removes the search.",
        )
    return winner


def install_winner(paths: JobPaths, winner: Winner, *, earlier: Winner | None) -> None:
    """Record the winner, and move the checkpoints and curves of its trial; remove those of every other trial.

    A call that was interrupted can be repeated.

    Args:
        earlier: the winner until now, whose networks stay if it is the same trial.
    """
    trial = JobPaths(paths.tuning / winner.folder)
    if earlier is not None and earlier.trial != winner.trial:
        for name in earlier.names():
            remove_folder(paths.ensemble / name)
            remove_curves(paths, name=name)
        clear_checkpoints(paths.checkpoints)
    elif earlier is not None and earlier.home(paths) != winner.home(paths):
        move_checkpoints(earlier.home(paths).checkpoints, trial.checkpoints)
        clear_checkpoints(paths.checkpoints)  # a network that was distilled from several
        rename_curves(paths, name=earlier.names()[0], to=winner.names()[0])
    write_text_atomically(paths.tuning / _FILE, json.dumps(asdict(winner), indent=1))
    move_checkpoints(trial.checkpoints, winner.home(paths).checkpoints)
    copy_curves(trial, paths, name=winner.names()[0])
    remove_trials(paths)


def trial_folder(number: int) -> str:
    """Return the name of the folder of a trial."""
    return f"trial-{number:04d}"


def remove_trials(paths: JobPaths) -> None:
    """Remove the checkpoints of every trial that is not installed."""
    for folder in paths.tuning.glob(_TRIALS):
        remove_run(folder)


def newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint; 0 if there is none."""
    return max((checkpoint.step for checkpoint in complete_checkpoints(folder)), default=0)
