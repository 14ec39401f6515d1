"""Define what the supervisor and its workers exchange: files in a scratch folder."""

import json
import os
import pickle
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from container.job.timeline import Timeline
from contracts.atomic_files import AtomicFile
from contracts.hyperparameters import Hyperparameters
from contracts.paths import SPLITS, JobPaths

JobKind = Literal["whole", "trial", "winner"]
_POLL = 0.02  # seconds


@dataclass(frozen=True)
class Restart:
    """A restart of the workers.

    Attributes:
        number: 1 for the first.
        of: max_restarts.
        cause: which worker died, and how.
        at: time at which it was noticed, by the monotonic clock of this host.
    """

    number: int
    of: int
    cause: str
    at: float


@dataclass(frozen=True)
class Attempt:
    """One run of the workers of all hosts.

    Attributes:
        number: 0 for the first.
        address: of the first host.
        port: of the rendezvous on that host; 0 in a job on one host, where torchrun chooses one.
    """

    number: int
    address: str
    port: int
    hosts: int = 1
    host_rank: int = 0


@dataclass(frozen=True)
class Scratch:
    """The folder with the files that the processes of a job exchange; removed at the end of the job."""

    folder: Path

    @property
    def job_file(self) -> Path:
        """The file with the job, which workers wait for: the supervisor starts them before the data is prepared."""
        return self.folder / "job.pickle"

    def error_file(self, rank: int) -> Path:
        return self.folder / f"error.rank{rank}.json"

    def pid_file(self, rank: int) -> Path:
        return self.folder / f"pid.rank{rank}"

    def error_files(self) -> list[Path]:
        """Return the files of the failures that ranks of this attempt reported."""
        return sorted(self.folder.glob("error.rank*.json"))

    def pid_files(self) -> list[Path]:
        """Return one file for each worker that handles SIGTERM."""
        return sorted(self.folder.glob("pid.rank*"))

    def forget_workers(self) -> None:
        """Remove the files that the workers of an attempt wrote."""
        for path in (*self.pid_files(), *self.error_files(), self.result_file):
            path.unlink(missing_ok=True)

    def attempt_file(self, number: int) -> Path:
        """Return the path of the failure of an attempt's workers, or null; their launcher writes it when they end."""
        return self.folder / f"attempt{number}.json"

    @property
    def stop_file(self) -> Path:
        """The file that exists once the job was requested to stop: workers are not restarted."""
        return self.folder / "stop"

    @property
    def restart_file(self) -> Path:
        """The file of the newest restart, written by the supervisor."""
        return self.folder / "restart.json"

    @property
    def restart(self) -> Restart | None:
        """The restart that started this attempt; None for the first attempt."""
        return Restart(**json.loads(self.restart_file.read_text())) if self.restart_file.is_file() else None

    @property
    def result_file(self) -> Path:
        """The file in which rank 0 lists the artifacts, or reports that it stopped on request."""
        return self.folder / "result.json"


@dataclass(frozen=True)
class Fold:
    """A fold of the rows of train, which a network of a cross-fitted ensemble does not train on.

    Attributes:
        number: 0..of - 1.
        seed: with the numbers and labels of the rows, it determines the folds.
    """

    number: int
    of: int
    seed: int


@dataclass(frozen=True)
class Member:
    """A network of an ensemble.

    Attributes:
        folder: of its training, which is that of a job.
        hp: its settings.
        fold: the rows of train that it does not train on.
    """

    folder: Path
    hp: Hyperparameters
    fold: Fold | None = None

    @property
    def name(self) -> str:
        """Return its name in the log and the report."""
        return self.folder.name

    @property
    def checkpoints(self) -> Path:
        """Return the folder of its checkpoints."""
        return JobPaths(self.folder).checkpoints


@dataclass(frozen=True)
class InitialModel:
    """A model folder of an earlier job.

    Attributes:
        source: what the user named. digest: of the weights.
    """

    source: Path
    folder: Path
    digest: str


@dataclass(frozen=True)
class Job:
    """One training job on this host, with prepared data.

    Attributes:
        prepared: folder of the prepared data.
        timeline: the phases since `train` began; the workers continue it.
        kind: trial = trains and validates only, as a trial of a search or a member of an ensemble; winner = continues
            the best run of a search.
        members: networks, of which hp.ensemble_model makes the model; the workers train those that are not finished.
        fold: rows of train that are left out.
        initial: the model from whose weights the training starts.
    """

    paths: JobPaths
    hp: Hyperparameters
    scratch: Scratch
    prepared: Path
    timeline: Timeline = field(default_factory=Timeline)
    kind: JobKind = "whole"
    members: tuple[Member, ...] = ()
    fold: Fold | None = None
    initial: InitialModel | None = None

    @property
    def trains(self) -> bool:
        """Return whether the job trains the network that becomes the model, rather than using only its members."""
        return not self.members or self.hp.ensemble_model == "distill"

    def of_member(self, member: Member) -> "Job":
        """Return the job that trains `member`, in its folder."""
        paths = JobPaths(member.folder)
        return replace(self, paths=paths, hp=member.hp, kind="trial", members=(), fold=member.fold)

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the splits that the workers read; a trial never reads test."""
        return SPLITS[:2] if self.kind == "trial" else SPLITS

    def write(self) -> None:
        """Write the job file, for which the workers wait."""
        with AtomicFile(self.scratch.job_file) as temporary:
            temporary.write_bytes(pickle.dumps(self))

    @classmethod
    def read(cls, scratch: Scratch) -> "Job":
        """Wait for the job file and return its content."""
        while not scratch.job_file.is_file():
            time.sleep(_POLL)
        return pickle.loads(scratch.job_file.read_bytes())


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically; several processes may write `path` at once."""
    with AtomicFile(path, temporary=path.with_name(f".{path.name}.{os.getpid()}")) as temporary:
        temporary.write_text(json.dumps(content, indent=2))
