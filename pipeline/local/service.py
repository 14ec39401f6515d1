"""The commands of an operator on the registry of `run`: the counterparts of pipeline/aws/ on this machine."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from contracts import artifacts
from contracts.atomic_files import write_text_atomically
from contracts.errors import ContractError
from contracts.file_systems import alone_in, naming_full_disk
from contracts.fingerprint import digest_of_file
from contracts.input_files import check_writable, read_as, read_object
from contracts.other_programs import remove_folder
from contracts.paths import JobPaths
from contracts.spelling import did_you_mean
from contracts.steps import ARCHIVED_MODEL, PAYLOAD_ARCHIVE, PAYLOAD_CHECK, PYTORCH_TRAINING
from pipeline.answers import Sample, read_samples, require_answers
from pipeline.comparison import unpack
from pipeline.config import PipelineConfig
from pipeline.local.cache import StepDirectory
from pipeline.local.process import StepFailed
from pipeline.local.registry import PACKAGE_FILE, LocalRegistry, RegisteredModel
from pipeline.local.run import STATE
from pipeline.local.server import ask, serving
from pipeline.plan import make_plan
from pipeline.progress import Progress, StepState
from pipeline.versions import DECISIONS, table

_POLL_SECONDS = 1.0
_LINES = 100  # of a log
_ANSWER_SECONDS = 60.0
_FIX = "Run the pipeline: python -m pipeline run"
_DAMAGED = "Restore the file, or deploy another version."


@dataclass(frozen=True)
class Deployed:
    """A version that was deployed. A number can be that of another model after its folder was deleted."""

    version: int
    package_digest: str

    @classmethod
    def of(cls, version: RegisteredModel) -> Self:
        return cls(version.number, version.properties.get("package_digest", ""))


@dataclass(frozen=True)
class _Record:
    """The content of service.json."""

    deployed: list[Deployed]


@dataclass(frozen=True)
class LocalService:
    """The registry below a root, and the record of the versions that were in service.

    Attributes:
        dry_run: whether changes are only printed.
    """

    config: PipelineConfig
    root: Path
    dry_run: bool = False

    @property
    def registry(self) -> LocalRegistry:
        return LocalRegistry(self.root, self.config.group)

    @property
    def folder(self) -> Path:
        """The unpacked versions that were deployed."""
        return self.root / "service" / self.config.group

    def deployed(self) -> list[Deployed]:
        """Return the versions that were deployed, one after the other; the last is in service."""
        file = self.folder / "service.json"
        return read_as(file, _Record, "Delete the file, and deploy again.").deployed if file.is_file() else []

    def _serves(self, version: RegisteredModel) -> bool:
        """Return whether this version is in service, and not another one that had its number."""
        model = JobPaths(self.folder / str(version.number) / "ml").model
        return self.deployed()[-1:] == [Deployed.of(version)] and (model / artifacts.HYPERPARAMETERS).is_file()

    def versions(self) -> str:
        """Return the table of versions; those that are damaged are named on stderr."""
        found = []
        for number in self.registry.numbers():
            try:
                found.append(self.registry.version(number))
            except ContractError as error:
                print(error, file=sys.stderr)
        in_service = next((version.number for version in found if self._serves(version)), None)
        return table(found, group=self.config.group, in_service=in_service, service=str(self.root))

    def decide(self, command: str, number: int, *, why: str) -> None:
        """Approve or reject a version."""
        with self._alone():
            version, status = self.registry.version(number), DECISIONS[command]
            if (version.approval, version.reason) == (status, why):
                print(f"Version {number} is {status.lower()} already.")
            elif self._changes(f"{command} version {number} of {self.config.group}"):
                check_writable(version.folder)
                file = version.folder / PACKAGE_FILE
                package = {**read_object(file, _FIX), "ModelApprovalStatus": status, "ApprovalDescription": why}
                write_text_atomically(file, json.dumps(package, indent=1))

    def deploy(self, number: int) -> None:
        """Serve a version with a process; it is in service if it answers the samples as it was registered."""
        with self._alone():
            version = self.registry.version(number)
            version.require_approved()
            if self._serves(version):
                self._print_served(number)
            elif self._changes(f"start version {number}, and ask it for the registered answers"):
                self._ask(version)
                self._record([*self.deployed(), Deployed.of(version)])

    def rollback(self) -> None:
        """Put the version before into service again."""
        with self._alone():
            before = self.deployed()[:-1]
            if not before:
                fix = "Deploy a version: python -m pipeline deploy"
                raise ContractError(f"{self.folder}: has no earlier version", fix)
            version = self.registry.version(before[-1].version)
            if Deployed.of(version) != before[-1]:
                cause = f"version {version.number}: is another model than the one that was in service"
                raise ContractError(cause, "Deploy a version: python -m pipeline deploy")
            version.require_approved()
            if self._changes(f"go back to version {version.number}"):
                self._ask(version)
                self._record(before)

    def delete(self) -> None:
        """Take the service away: its record and the unpacked versions; the registry stays."""
        with self._alone():
            if not self.folder.is_dir():
                print(f"{self.folder} does not exist.")
            elif self._changes(f"delete {self.folder}"):
                remove_folder(self.folder)

    def fetch(self, number: int, folder: Path) -> None:
        """Write model/ and output/data/ of a version to a folder."""
        version, paths = self.registry.version(number), JobPaths(folder)
        step = StepDirectory(self.root / version.properties.get("training_job", "a training that is not known"))
        predictions = step.output(PYTORCH_TRAINING, "evaluation_output")
        if not predictions.is_dir():
            raise ContractError(f"version {number}: {predictions} does not exist", "Train again, without deleting it.")
        unpack(version.folder / ARCHIVED_MODEL, paths.model)
        paths.output_data.parent.mkdir(parents=True)
        paths.output_data.symlink_to(predictions)

    def status(self, *, wait: bool, logs: str | None) -> int:
        """Print the newest run, or the tail of the log of a step; as executions.status on AWS."""
        progress = Progress()
        while True:
            run = read_object(self.root / STATE, _FIX)
            steps = [StepState(**step) for step in run["steps"]]
            if not wait or logs or "ended" in run or not _is_locked(self.root):
                break
            running = next((step.name for step in steps if step.state == "running"), "the next step")
            progress.show(f"running: {running}")
            time.sleep(_POLL_SECONDS)
        progress.end()
        if logs is not None:
            self._print_log(run["logs"], logs)
            return 0
        interrupted = "running" if _is_locked(self.root) else "interrupted; run it again"
        state = ("failed" if run["failed"] else "succeeded") if "ended" in run else interrupted
        print(f"run of {self.config.name} in {self.root}: {state}")
        for step in steps:
            print("\n".join(step.lines()))
        if run.get("ended"):
            print(run["ended"])
        return int(wait and state != "succeeded")

    def _print_log(self, logs: dict[str, str], name: str) -> None:
        if name not in logs:
            cause = f"--logs {name}: the run has no log of such a step{did_you_mean(name, logs)}"
            raise ContractError(cause, f"Use one of: {', '.join(logs)}.")
        lines = Path(logs[name]).read_text("utf-8", errors="replace").splitlines()
        print("\n".join([logs[name], *lines[-_LINES:]]))

    def _changes(self, what: str) -> bool:
        """Print what changes; return whether it does."""
        print(f"{'would ' if self.dry_run else ''}{what}", flush=True)
        return not self.dry_run

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Do something that no other command may do at the same time."""
        if self.dry_run:
            yield
            return
        folder = self.root / "service"
        busy = ContractError(f"{folder}: another command changes the service", "Wait for it.")
        check_writable(folder)
        with alone_in(folder, seconds=0, busy=busy), naming_full_disk(self.root):
            yield

    def _record(self, deployed: list[Deployed]) -> None:
        write_text_atomically(self.folder / "service.json", json.dumps(asdict(_Record(deployed))))
        self._print_served(deployed[-1].version)

    def _print_served(self, number: int) -> None:
        root = self.folder / str(number) / "ml"
        print(f"Version {number} is in service. To serve it:\npython -m container serve --root {root}")

    def _ask(self, version: RegisteredModel) -> None:
        """Start the server of a version, and compare its answers."""
        archive, payload, check = (version.folder / name for name in (ARCHIVED_MODEL, PAYLOAD_ARCHIVE, PAYLOAD_CHECK))
        for file in (archive, payload):
            if not file.is_file():
                raise ContractError(f"version {version.number}: {file} does not exist", _DAMAGED)
        if version.archive_digest not in (None, digest_of_file(archive)):
            raise ContractError(f"version {version.number}: {archive} is not the file that was registered", _DAMAGED)
        content = check.read_bytes() if check.is_file() else None
        samples = read_samples(payload.read_bytes(), content, where=str(version.folder))
        plan, directory = make_plan(self.config, self.config.inputs), StepDirectory(self.folder / str(version.number))
        directory.folder.mkdir(parents=True, exist_ok=True)
        package = read_object(version.folder / PACKAGE_FILE, _FIX)
        variables = package["InferenceSpecification"]["Containers"][0]["Environment"]
        step = f"version {version.number}"
        try:
            with serving(archive, directory, variables, step=step) as port:
                require_answers(samples, lambda sample: _answer(port, sample), plan, version=version.number)
        except (StepFailed, ConnectionError, TimeoutError) as error:
            cause = str(error).partition("\n")[0]
            raise ContractError(f"{step}: the server gave no answer: {cause}", f"Its log: {directory.log}") from None


def _answer(port: int, sample: Sample) -> str:
    media = {"content_type": sample.content_type, "accept": sample.accept}
    return ask(port, "/invocations", sample.body, **media, seconds=_ANSWER_SECONDS)[1].decode()


def _is_locked(root: Path) -> bool:
    """Return whether a run uses the root."""
    busy = ContractError("busy")
    try:
        with alone_in(root, seconds=0, busy=busy):
            return False
    except ContractError as error:
        if error is not busy:
            raise
        return True
