"""What the supervisor hands its workers: one JSON file in a scratch folder, and the files they leave there."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from container.timeline import Timeline
from contracts.atomic_files import AtomicFile
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths


@dataclass(frozen=True)
class Restart:
    """That the workers were started again.

    Attributes:
        number: 1 for the first.
        of: max_restarts.
        cause: which worker had died, and how.
        at: when it died, in seconds since the epoch.
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
        port: where the workers of all hosts meet there; 0 on one host, which finds one itself.
    """

    number: int
    address: str
    port: int
    hosts: int = 1
    host_rank: int = 0


@dataclass(frozen=True)
class Job:
    """One training job on this host.

    Attributes:
        scratch: folder for the job's own messages between processes; gone when the job ends.
        prepared: the prepared data's folder.
        timeline: what has happened since `train` began; the workers continue it.
    """

    paths: JobPaths
    hp: Hyperparameters
    scratch: Path
    prepared: Path
    timeline: Timeline = field(default_factory=Timeline)

    def write(self) -> Path:
        """Write job.json into the scratch folder; returns its path."""
        content = {
            "root": str(self.paths.root),
            "hyperparameters": self.hp.model_dump(mode="json", exclude_unset=True),
            "prepared": str(self.prepared),
            "timeline": asdict(self.timeline),
        }
        path = self.scratch / "job.json"
        path.write_text(json.dumps(content))
        return path

    @classmethod
    def read(cls, path: Path) -> "Job":
        content = json.loads(path.read_text())
        return cls(
            paths=JobPaths(Path(content["root"])),
            hp=parse_hyperparameters(content["hyperparameters"]),
            scratch=path.parent,
            prepared=Path(content["prepared"]),
            timeline=Timeline(**content["timeline"]),
        )

    def error_file(self, rank: int) -> Path:
        return self.scratch / f"error.rank{rank}.json"

    def pid_file(self, rank: int) -> Path:
        return self.scratch / f"pid.rank{rank}"

    def error_files(self) -> list[Path]:
        """What the ranks of this attempt said they failed of, as far as they did."""
        return sorted(self.scratch.glob("error.rank*.json"))

    def pid_files(self) -> list[Path]:
        """One for each worker that hears SIGTERM."""
        return sorted(self.scratch.glob("pid.rank*"))

    def forget_workers(self) -> None:
        """Remove what the workers of an attempt left, so that the next one's files are its own."""
        for path in (*self.pid_files(), *self.error_files(), self.result_file):
            path.unlink(missing_ok=True)

    def attempt_file(self, number: int) -> Path:
        """What the workers of an attempt failed of, or null; written by their launcher when they have ended."""
        return self.scratch / f"attempt{number}.json"

    @property
    def stop_file(self) -> Path:
        """Exists when the job was asked to stop: workers are not started again."""
        return self.scratch / "stop"

    @property
    def restart_file(self) -> Path:
        """The newest restart, written by the supervisor."""
        return self.scratch / "restart.json"

    @property
    def restart(self) -> Restart | None:
        """The restart that this attempt is; None for the first attempt."""
        return Restart(**json.loads(self.restart_file.read_text())) if self.restart_file.is_file() else None

    @property
    def result_file(self) -> Path:
        """What rank 0 says at the end: the artifacts, or that it stopped on request."""
        return self.scratch / "result.json"


def write_json(path: Path, content: Any) -> None:
    """Write JSON that no other process reads in part; several may write `path` at once."""
    with AtomicFile(path, temporary=path.with_name(f".{path.name}.{os.getpid()}")) as temporary:
        temporary.write_text(json.dumps(content, indent=2))
