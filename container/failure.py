"""Says why a job failed: the cause in a person's words, what to change, the traceback; in both failure files."""

import contextlib
import errno
import json
import signal
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.errors import ContractError
from contracts.paths import JobPaths

SERVICE_LIMIT = 1024  # characters of output/failure that SageMaker shows

_OUT_OF_MEMORY = "Lower batch_size (raise accumulate_grad_batches to keep the global batch), or take a larger machine."
_MEMORY_SIGNS = ("out of memory", "can't allocate memory", "not enough memory")
_PEER_SIGNS = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "broken pipe",
    "socket timeout",
    "timed out waiting",
    "application timeout",
    "remote process exited",
    "communicator was aborted",
    "ncclremoteerror",
    "connection was likely closed",
    "watchdog",
)


class PeerFailed(RuntimeError):
    """Another rank failed, in a part of the work that no rank can finish alone; says which rank, and of what."""


@dataclass(frozen=True)
class Failure:
    """Why a process ended.

    Attributes:
        cause: one line, for a person.
        fix: what to change.
        detail: traceback, or whatever else helps.
        rank: the worker it came from; None for the supervisor.
        echo: whether it merely follows from another process's failure.
        killed: the process was ended by a signal, without a word of its own.
        at: when, in seconds since the epoch.
    """

    cause: str
    fix: str = ""
    detail: str = ""
    rank: int | None = None
    echo: bool = False
    killed: bool = False
    at: float = 0.0

    @classmethod
    def from_exception(cls, error: BaseException, *, rank: int | None = None) -> "Failure":
        """The failure that `error` stands for; known kinds get advice."""
        detail = "".join(traceback.format_exception(error))
        cause, fix = _explain(error)
        echo = isinstance(error, PeerFailed) or any(sign in detail.lower() for sign in _PEER_SIGNS)
        return cls(" ".join(cause.split()), fix, detail, rank, echo, at=time.time())

    @classmethod
    def from_exit(cls, exit_code: int, *, who: str, rank: int | None = None, at: float = 0.0) -> "Failure":
        """A process that ended without a word of its own; a negative exit code is the signal that ended it.

        Args:
            who: what to call the process, e.g. "worker rank 1 (pid 7)".
        """
        if exit_code >= 0:
            return cls(f"{who} ended with exit code {exit_code} and said no cause", "Read the log.", rank=rank, at=at)
        usual = {
            9: ("usually the machine ran out of memory", _OUT_OF_MEMORY),
            7: ("usually /dev/shm or the disk is full", "Give the container more shared memory or disk."),
        }
        why, fix = usual.get(-exit_code, ("a crash in native code", "Run again; if it repeats, report the log."))
        name = signal.Signals(-exit_code).name
        return cls(f"{who} was ended by {name}: {why}", fix, rank=rank, killed=True, at=at)

    @classmethod
    def read_json(cls, path: Path) -> "Failure":
        return cls(**json.loads(path.read_text()))

    def after(self, restarts: int) -> "Failure":
        """The same, saying how often the workers had been restarted before."""
        times = f"{restarts} restart{'s' if restarts > 1 else ''}"
        return replace(self, cause=f"{self.cause} (after {times})") if restarts else self

    def text(self) -> str:
        """First line the cause, then what to change, then the detail."""
        where = f" [rank {self.rank}]" if self.rank is not None and f"rank {self.rank}" not in self.cause else ""
        lines = [self.cause + where, f"What to change: {self.fix}" if self.fix else "", "", self.detail]
        return "\n".join(line for i, line in enumerate(lines) if line or i == 2).strip() + "\n"


def root_cause(failures: list[Failure]) -> Failure:
    """The failure that the others follow from: the earliest that is no echo."""
    assert failures
    return min(failures, key=lambda failure: (failure.echo, failure.at))


def write_failure(paths: JobPaths, failure: Failure) -> None:
    """Write both failure files; a disk that refuses one does not keep the other from being written."""
    for path in paths.failure_files:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(failure.text(), encoding="utf-8")
        except OSError as error:
            print(f"could not write {path}: {error}", flush=True)
            with contextlib.suppress(OSError):
                path.unlink()  # empty it would say that there is no cause


def clear_failure(paths: JobPaths) -> None:
    """Remove what an earlier run left."""
    for path in paths.failure_files:
        path.unlink(missing_ok=True)


def _explain(error: BaseException) -> tuple[str, str]:
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    for link in reversed(chain):
        if isinstance(link, MemoryError) or any(sign in str(link).lower() for sign in _MEMORY_SIGNS):
            return f"out of memory: {str(link) or type(link).__name__}", _OUT_OF_MEMORY
    contract = next((link for link in chain if isinstance(link, ContractError)), None)
    if contract is not None:
        return contract.cause, contract.fix
    text = " ".join(str(link) for link in chain)
    full = next((link for link in chain if isinstance(link, OSError) and link.errno == errno.ENOSPC), None)
    if full is not None or "No space left on device" in text or "ENOSPC" in text:
        where = f" while writing {full.filename}" if full is not None and full.filename else ""
        return f"the disk is full{where}", "Give the job a larger volume, or lower keep_checkpoints."
    if isinstance(error, KeyboardInterrupt):
        return "stopped by the keyboard", "Run again: it goes on from the last checkpoint."
    if isinstance(error, PeerFailed):
        return str(error), ""
    message = str(error) or type(error).__name__
    return f"{type(error).__name__}: {message.splitlines()[0]}", ""
