"""Keep the winner of a search: its record, and its checkpoints as those of the job or of an ensemble."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from container.training.checkpoint_files import clear_checkpoints, complete_checkpoints, move_checkpoints
from container.tuning.ensemble import member_folder
from container.tuning.study import TuningStudy
from container.tuning.trial_workers import copy_curves, remove_curves, remove_run, rename_curves
from contracts.atomic_files import write_text_atomically
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths

_FILE = "winner.json"
_RUNS = "*-*"  # the folders of trials and seeds


def read_winner(paths: JobPaths, hp: Hyperparameters) -> dict[str, Any] | None:
    """Return the winner of a search that has ended and may now have more trials; None if it has not ended.

    Raises:
        ContractError: the search has ended with another final_model, or the folder has checkpoints of another run.
    """
    assert hp.tuning is not None
    file = paths.tuning / _FILE
    if not file.is_file():
        if complete_checkpoints(paths.checkpoints) or paths.ensemble.is_dir():
            raise ContractError(
                f"tuning: {paths.checkpoints} has checkpoints of another run, which the winner would replace",
                "Use another folder, or start over with resume=false, which removes them.",
            )
        return None
    winner = json.loads(file.read_text())
    newest = complete_checkpoints(paths.checkpoints)[-1:]
    if not winner["combined"] and newest and newest[0].step != winner.get("step", newest[0].step):
        raise ContractError(
            f"tuning: {paths.checkpoints} has a checkpoint of step {newest[0].step}, and the winner of the search has "
            f"{winner['step']} steps: another run went on from it",
            "Use another folder, or start over with resume=false, which removes the search.",
        )
    if winner["asked"] != hp.tuning.final_model:
        raise ContractError(
            f"tuning.final_model: is {hp.tuning.final_model}, but the search has ended with {winner['asked']}",
            "Set it back, or start over with resume=false.",
        )
    return winner


def install_winner(
    paths: JobPaths, study: TuningStudy, best: dict[str, Any], *, earlier: dict[str, Any] | None
) -> dict[str, Any]:
    """Move the checkpoints of the winner to those of the job, or of its ensemble, and remove the other runs.

    The curves and the profile of the winner are copied to the output.

    Args:
        best: the best run, as `Search.choose_seed` returns it.
        earlier: the winner until now.

    Returns:
        `best`, or `earlier` if it is as good, or if it combines networks and `best` should, but seeds of it failed.
    """
    incomplete = earlier is not None and earlier["combined"] and not best["combined"]
    if earlier is not None and (incomplete or _order(study, earlier) <= _order(study, best)):
        best = earlier
    else:
        newest = complete_checkpoints(_checkpoints(paths, best["folder"]))[-1:]
        best = best | ({"step": newest[0].step} if newest else {})
        if earlier is not None and earlier["trial"] != best["trial"]:
            for seed in earlier["combined"]:
                shutil.rmtree(member_folder(paths, int(seed)), ignore_errors=True)
        elif earlier is not None and not earlier["combined"]:
            # The search ended with one network, which may be one of those that are combined now.
            move_checkpoints(paths.checkpoints, _checkpoints(paths, earlier["folder"]))
        shown = _shown(paths, best)
        for folder, name in _shown(paths, earlier).items() if earlier is not None else ():
            if folder in shown:
                rename_curves(paths, name=name, to=shown[folder])
            else:
                remove_curves(paths, name=name)
        clear_checkpoints(paths.checkpoints)
        write_text_atomically(paths.tuning / _FILE, json.dumps(best, indent=1))
    for seed, folder in best["combined"].items():
        member = member_folder(paths, int(seed))
        move_checkpoints(_checkpoints(paths, folder), JobPaths(member).checkpoints)
        copy_curves(JobPaths(paths.tuning / folder), paths, name=member.name)
    if not best["combined"]:
        move_checkpoints(_checkpoints(paths, best["folder"]), paths.checkpoints)
        copy_curves(JobPaths(paths.tuning / best["folder"]), paths, name=best["folder"])
    remove_runs(paths)
    return best


def _shown(paths: JobPaths, best: Mapping[str, Any]) -> dict[str, str]:
    """Return the names under which the curves of a winner are in the output, by the folders of its runs."""
    members = {folder: member_folder(paths, int(seed)).name for seed, folder in best["combined"].items()}
    return members or {best["folder"]: best["folder"]}


def trial_folder(number: int) -> str:
    """Return the name of the folder of a trial."""
    return f"trial-{number:04d}"


def remove_runs(paths: JobPaths) -> None:
    """Remove the checkpoints of every trial and seed that is not installed."""
    for folder in paths.tuning.glob(_RUNS):
        remove_run(folder)


def _checkpoints(paths: JobPaths, folder: str) -> Path:
    """Return the folder with the checkpoints of a run."""
    return JobPaths(paths.tuning / folder).checkpoints


def _order(study: TuningStudy, winner: Mapping[str, Any]) -> tuple[Any, int]:
    """Return what orders winners: the value, then the number of networks that it combines."""
    return study.rank(winner["value"]), -len(winner["combined"])
