"""Run trainings side by side on this machine: the trials of a search and the members of an ensemble."""

import json
import os
import re
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from container.cores import available_cores, share_of_cores
from container.job.failure import Failure
from container.job.hosts.control import Control
from container.job.hosts.topology import Topology
from container.job.job import Fold, Job, Scratch
from container.job.launch.workers import Workers
from container.job.preflight import processes_per_host
from container.job.timeline import Timeline
from container.training.checkpoint_files import LAST, complete_checkpoints
from contracts import artifacts
from contracts.errors import ContractError
from contracts.file_systems import copy_folder
from contracts.hyperparameters import Hyperparameters
from contracts.other_programs import MARKERS, remove_folder
from contracts.paths import JobPaths
from contracts.program import StopHandler

_FEWEST_CORES = 2
NETWORKS = "networks"  # folder in that of a trial: the other networks with its settings
_NAME = re.compile(r"(trial|seed|fold)-\d+")  # of a run's folder


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
    def of_members(cls, hp: Hyperparameters, networks: int, *, num_gpus: int) -> "Shares":
        """Divide the machine among a model's networks. Each has the job's processes, which decide its global batch.

        On CPUs, a process has at least _FEWEST_CORES: on fewer, one more process costs as much as it saves.
        """
        workers = processes_per_host(hp, num_gpus=num_gpus)
        places = num_gpus or available_cores() // _FEWEST_CORES
        return cls._divide(max(1, min(networks, places // workers)), workers, num_gpus)

    @classmethod
    def _divide(cls, parallel: int, workers: int, num_gpus: int) -> "Shares":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(num_gpus)))
        return cls(parallel, workers, tuple(visible.split(",")) if num_gpus else ())

    def environment(self, slot: int) -> dict[str, str]:
        """Return the variables that limit the workers of one of the parallel trials to its share."""
        share = share_of_cores(self.parallel * self.num_workers)
        if self.devices:
            share["CUDA_VISIBLE_DEVICES"] = ",".join(self.devices[slot * self.num_workers :][: self.num_workers])
        return share


class Run:
    """One run of the workers for a trial or a member.

    The workers start before the run is known and import their modules, so that it begins at once.

    Args:
        shown: their output is that of this process; otherwise log.txt in the run's folder.

    Attributes:
        folder: of the run; its checkpoints are in it.
        completed: whether the run, which has ended, trained to its end.
        failure: the reason why it did not.
    """

    def __init__(self, shares: Shares, slot: int, *, shown: bool = False) -> None:
        self.folder = Path()
        self._files = tempfile.TemporaryDirectory(prefix="trial-", ignore_cleanup_errors=True)
        self._scratch = Scratch(Path(self._files.name))
        self._log = None if shown else self._scratch.folder / "log.txt"
        self._stop = StopHandler()
        control = Control(Topology(), lambda _: None)
        self._workers = Workers(
            self._scratch,
            control,
            num_workers=shares.num_workers,
            stop=self._stop,
            share=shares.environment(slot),
            log=self._log,
        )
        self._workers.start()
        self._thread: threading.Thread | None = None
        self._seen: tuple[str, int] | None = None
        self.failure: Failure | None = None
        self.completed = False

    def train(
        self, folder: Path, hp: Hyperparameters, *, prepared: Path, fold: Fold | None, timeline: Timeline
    ) -> None:
        """Begin to train and validate in `folder`, or go on from its checkpoints; return at once.

        The arguments are those of `Job`.
        """
        self.folder = folder
        paths = JobPaths(folder)
        paths.checkpoints.mkdir(parents=True, exist_ok=True)
        job = Job(paths, hp, self._scratch, prepared, timeline, kind="trial", fold=fold)
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
            with suppress(OSError), (job.paths.root / "log.txt").open("ab") as log:  # the disk may be full
                log.write(self._log.read_bytes())

    @property
    def ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def new_state(self) -> dict[str, Any] | None:
        """Return the training state of the newest checkpoint; None if it has been returned before the run's end."""
        if self.ended:  # after a kill, last.ckpt may name an older one
            complete = complete_checkpoints(JobPaths(self.folder).checkpoints)
            return complete[-1].content["state"] if complete else None
        try:
            checkpoints = JobPaths(self.folder).checkpoints
            file = checkpoints / (checkpoints / LAST).read_text().strip() / "state.json"
            seen = str(file), file.stat().st_mtime_ns
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
        """Wait for the end of the run, and remove its files; workers that got no run are killed."""
        if self._thread is not None:
            self._thread.join()
        self._workers.__exit__()
        self._files.cleanup()


class RunQueue:
    """The runs in progress on this machine, `shares.parallel` at a time; a context manager that stops them at its end.

    The workers of the next run of a slot can start while an earlier run trains.
    """

    def __init__(self, shares: Shares, *, shown: bool = False) -> None:
        self.shares = shares
        self._shown = shown
        self._running: dict[int, Run] = {}
        self._spares: dict[int, Run] = {}

    def __enter__(self) -> "RunQueue":
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._running.values():
            run.request_stop()
        for run in (*self._running.values(), *self._spares.values()):
            run.close()

    @property
    def running(self) -> list[Run]:
        return list(self._running.values())

    @property
    def has_room(self) -> bool:
        return len(self._running) < self.shares.parallel

    def warm_up(self) -> None:
        """Start the workers of the next run, if they have not started."""
        self._add_spare(self._free_slot())

    def submit(
        self,
        folder: Path,
        hp: Hyperparameters,
        *,
        prepared: Path,
        fold: Fold | None = None,
        timeline: Timeline | None = None,
        following: int = 0,
    ) -> Run:
        """Begin a run; there must be room.

        Args:
            following: the number of runs that will be submitted after it; the workers of one of them start already.
        """
        slot = self._free_slot()
        self._add_spare(slot)
        run = self._running[slot] = self._spares.pop(slot)
        run.train(folder, hp, prepared=prepared, fold=fold, timeline=timeline or Timeline())
        if len(self._spares) < following:
            self._add_spare(slot)
        return run

    def poll(self) -> list[Run]:
        """Return the runs that have ended since the last call."""
        ended = [slot for slot, run in self._running.items() if run.ended]
        runs = [self._running.pop(slot) for slot in ended]
        for run in runs:
            run.close()
        return runs

    def _free_slot(self) -> int:
        return min(set(range(self.shares.parallel)) - self._running.keys())

    def _add_spare(self, slot: int) -> None:
        if slot not in self._spares:
            self._spares[slot] = Run(self.shares, slot, shown=self._shown)


def show_curves(paths: JobPaths, runs: Sequence[Path]) -> None:
    """Copy the TensorBoard files and the profiles of runs to folders with their names in the job's output.

    Those of earlier runs, which are no longer part of the model, are removed.
    """
    for target, sources in (
        (paths.tensorboard, [JobPaths(run).tensorboard for run in runs]),
        (_profile(paths), [_profile(JobPaths(run)) for run in runs]),
    ):
        for shown in target.glob("*-*"):
            if _NAME.fullmatch(shown.name):
                remove_folder(shown)
        for run, source in zip(runs, sources, strict=True):
            if source.is_dir():
                copy_folder(source, target / run.name, ignored=lambda name: name.endswith(MARKERS))


def _profile(paths: JobPaths) -> Path:
    return paths.output_data / artifacts.PROFILE


def remove_run(folder: Path) -> None:
    """Remove what a run that is no longer needed wrote, except for its log, and the networks trained after it."""
    for name in ("checkpoints", "output", NETWORKS):
        remove_folder(folder / name)
