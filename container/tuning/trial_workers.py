"""Run the trials of a search, and the members of an ensemble, on the workers of ordinary jobs, several at a time."""

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from container.failure import Failure
from container.hosts.control import Control
from container.hosts.topology import Topology
from container.job import Fold, Job, Scratch
from container.preflight import processes_per_host
from container.processes import available_cores
from container.timeline import Timeline
from container.training.checkpoint_files import LAST, complete_checkpoints
from container.workers import StopHandler, Workers
from contracts import artifacts
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths

if TYPE_CHECKING:
    from optuna.trial import Trial


@dataclass(frozen=True)
class Shares:
    """The division of this machine among trials or members.

    Attributes:
        parallel: runs at the same time.
        num_workers: processes of each.
        devices: the GPUs, by the names in CUDA_VISIBLE_DEVICES.
    """

    parallel: int
    num_workers: int
    devices: tuple[str, ...] = ()

    @classmethod
    def of(cls, hp: Hyperparameters, *, num_gpus: int) -> "Shares":
        """Divide the machine among trials; raise ContractError if it has too few GPUs."""
        assert hp.tuning is not None
        given = hp.tuning.parallel
        workers = hp.nproc_per_node or max(1, num_gpus // given if given else 1)
        parallel = given or max(1, num_gpus // workers)
        if num_gpus and parallel * workers > num_gpus:
            raise ContractError(
                f"tuning.parallel: {parallel} trials of {workers} processes need {parallel * workers} GPUs, but this "
                f"machine has {num_gpus}",
                f"Set parallel to at most {num_gpus // workers}, or lower nproc_per_node."
                if num_gpus >= workers
                else "Lower nproc_per_node.",
            )
        return cls._divide(parallel, workers, num_gpus)

    @classmethod
    def of_members(cls, hp: Hyperparameters, *, num_gpus: int) -> "Shares":
        """Divide the machine among members. Each has the processes of the job, which determine its global batch."""
        workers = processes_per_host(hp, num_gpus=num_gpus)
        return cls._divide(max(1, min(hp.num_members, num_gpus // workers)), workers, num_gpus)

    @classmethod
    def _divide(cls, parallel: int, workers: int, num_gpus: int) -> "Shares":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(num_gpus)))
        return cls(parallel, workers, tuple(visible.split(",")) if num_gpus else ())

    def environment(self, slot: int) -> dict[str, str]:
        """Return the variables that limit the workers of one of the parallel trials to its share."""
        share = {}
        if self.devices:
            share["CUDA_VISIBLE_DEVICES"] = ",".join(self.devices[slot * self.num_workers :][: self.num_workers])
        if self.parallel > 1 and "OMP_NUM_THREADS" not in os.environ:
            share["OMP_NUM_THREADS"] = str(max(1, available_cores() // (self.parallel * self.num_workers)))
        return share


class TrialRun:
    """One run of the workers for a trial or a member.

    The workers start before the trial is known and import their modules, so that a trial begins at once.

    Args:
        shown: their output is that of this process; otherwise log.txt in the run's folder.

    Attributes:
        completed: whether the run, which has ended, trained to its end.
        failure: the reason why it did not.
    """

    def __init__(self, shares: Shares, slot: int, *, shown: bool = False) -> None:
        self.slot = slot
        self._folder = tempfile.TemporaryDirectory(prefix="trial-", ignore_cleanup_errors=True)
        self._scratch = Scratch(Path(self._folder.name))
        self._log = None if shown else self._scratch.folder / "log.txt"
        self._stop = StopHandler()
        control = Control(Topology(), lambda _: None)
        self._workers = Workers(
            self._scratch, control, num_workers=shares.num_workers, stop=self._stop,
            share=shares.environment(slot), log=self._log,
        )  # fmt: skip
        self._workers.start()
        self._thread: threading.Thread | None = None
        self._seen: tuple[str, int] | None = None
        self._checkpoints = Path()
        self.failure: Failure | None = None
        self.completed = False

    def train(
        self,
        folder: Path,
        hp: Hyperparameters,
        *,
        prepared: Path,
        fold: Fold | None = None,
        initial_seed: int | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        """Begin to train and validate in `folder`, or go on from its checkpoints; return at once.

        The arguments are those of `Job`.
        """
        paths = JobPaths(folder)
        self._checkpoints = paths.checkpoints
        self._checkpoints.mkdir(parents=True, exist_ok=True)
        job = Job(
            paths, hp, self._scratch, prepared, timeline or Timeline(),
            kind="trial", fold=fold, initial_seed=initial_seed,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, args=(job,), daemon=True)
        self._thread.start()

    def _run(self, job: Job) -> None:
        try:
            self.failure = self._workers.run(job)
            result = self._scratch.result_file
            self.completed = result.is_file() and json.loads(result.read_text())["status"] == "completed"
        except Exception as error:
            self.failure = Failure.from_exception(error)
        if self._log is not None:
            with (job.paths.root / "log.txt").open("ab") as log:
                log.write(self._log.read_bytes())

    @property
    def ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def new_state(self) -> dict[str, Any] | None:
        """Return the training state of the newest checkpoint; None if it has been returned before the run's end."""
        if self.ended:  # after a kill, last.ckpt may name an older one
            complete = complete_checkpoints(self._checkpoints)
            return complete[-1].content["state"] if complete else None
        try:
            name = (self._checkpoints / LAST).read_text().strip()
            file = self._checkpoints / name / "state.json"
            seen = name, file.stat().st_mtime_ns
            if seen == self._seen:
                return None
            state = json.loads(file.read_text())["state"]
        except OSError:  # there is none yet, or it is being replaced
            return None
        self._seen = seen
        return state

    def request_stop(self) -> None:
        """Have the workers finish their step, save and end, as after a SIGTERM."""
        self._stop.requested = True

    def abandon(self) -> None:
        """End the run at once, without saving."""
        self._workers.abandon()

    def close(self) -> None:
        """Wait for the end of the run, and remove its files; workers that got no trial are killed."""
        if self._thread is not None:
            self._thread.join()
        self._workers.__exit__()
        self._folder.cleanup()


@dataclass
class Running:
    """A run in progress: of a trial, or of the best settings with another seed.

    Attributes:
        reported: validations that the study has.
        spent: seconds of the earlier processes that ran the trial.
        data: the folder of its prepared data.
    """

    run: TrialRun
    folder: Path
    hp: Hyperparameters
    trial: "Trial | None"
    reported: int
    spent: float = 0.0
    data: Path = Path()
    since: float = field(default_factory=time.monotonic)
    state: dict[str, Any] = field(default_factory=dict)
    pruned: bool = False

    @property
    def seconds(self) -> float:
        return round(self.spent + time.monotonic() - self.since, 1)

    def ends_after(self, entry: Mapping[str, Any]) -> bool:
        """Return whether training ends after the validation `entry` of the history."""
        stopped = self.state.get("stopped_early", False) and entry is self.state["history"][-1]
        return stopped or entry["epoch"] >= self.hp.max_epochs

    def facts(self, entry: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return facts for the report: the steps until `entry` of the history, and those of a trial without pruning."""
        history = self.state.get("history") or [{"step": 0, "epoch": 0.0}]
        last = history[-1] if entry is None else entry
        planned = round(last["step"] / last["epoch"] * self.hp.max_epochs) if last["epoch"] else 0
        return {"seconds": self.seconds, "steps": last["step"], "epochs": last["epoch"], "planned_steps": planned}


def copy_curves(run: JobPaths, paths: JobPaths, *, name: str) -> None:
    """Copy the TensorBoard files and the profile of a run, if it has them, to folders with its name in the output."""
    for source, target in zip(_curves(run), _curves(paths)):
        if source.is_dir():
            shutil.rmtree(target / name, ignore_errors=True)  # of an earlier run with this name
            shutil.copytree(source, target / name)


def remove_curves(paths: JobPaths, *, name: str) -> None:
    """Remove what `copy_curves` copied for a run that is no longer part of the model."""
    for folder in _curves(paths):
        shutil.rmtree(folder / name, ignore_errors=True)


def rename_curves(paths: JobPaths, *, name: str, to: str) -> None:
    """Give what `copy_curves` copied for a run the name that it has as another part of the model."""
    for folder in _curves(paths):
        if (folder / name).is_dir() and name != to:
            shutil.rmtree(folder / to, ignore_errors=True)  # of an earlier run with this name
            (folder / name).rename(folder / to)


def _curves(paths: JobPaths) -> tuple[Path, Path]:
    return paths.tensorboard, paths.output_data / artifacts.PROFILE


def remove_run(folder: Path) -> None:
    """Remove what a run that is no longer needed wrote, except for its log."""
    for name in ("checkpoints", "output"):
        shutil.rmtree(folder / name, ignore_errors=True)


def validations(state: Mapping[str, Any], metric: str) -> list[dict[str, Any]]:
    """Return the entries of the validations in a training state at which the metric was defined."""
    return [entry for entry in state["history"] if entry.get(metric) is not None]
