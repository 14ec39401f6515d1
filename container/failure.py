"""Describe why a job failed: the cause, what to change and the traceback; write both failure files."""

import contextlib
import errno
import signal
import time
import traceback
from dataclasses import dataclass, replace

from contracts.errors import ContractError
from contracts.paths import JobPaths

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
    """Another rank failed in a collective operation; the message names the rank and the cause."""


@dataclass(frozen=True)
class Failure:
    """The reason why a process ended.

    Attributes:
        cause: one line.
        fix: what to change.
        detail: the traceback.
        rank: rank of the worker; None for the supervisor.
        echo: whether it follows from another process's failure.
        killed: a signal ended the process before it could report a cause.
        at: time, in seconds since the epoch.
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
        """Return the failure for `error`; known kinds get a fix."""
        detail = "".join(traceback.format_exception(error))
        cause, fix = _explain(error)
        echo = isinstance(error, PeerFailed) or any(sign in detail.lower() for sign in _PEER_SIGNS)
        return cls(" ".join(cause.split()), fix, detail, rank, echo, at=time.time())

    @classmethod
    def from_exit(cls, exit_code: int, *, who: str, rank: int | None = None, at: float = 0.0) -> "Failure":
        """Return the failure of a process that reported no cause; a negative exit code is the signal that ended it.

        Args:
            who: name of the process, e.g. "worker rank 1 (pid 7)".
        """
        if exit_code >= 0:
            return cls(f"{who} ended with exit code {exit_code}, without a cause", "Read the log.", rank=rank, at=at)
        number = signal.Signals(-exit_code)
        reason, fix = {
            signal.SIGKILL: ("usually the machine ran out of memory", _OUT_OF_MEMORY),
            signal.SIGBUS: ("usually /dev/shm or the disk is full", "Give the container more shared memory or disk."),
        }.get(number, ("a crash in native code", "Run again; if it repeats, report the log."))
        return cls(f"{who} was ended by {number.name}: {reason}", fix, rank=rank, killed=True, at=at)

    def after(self, restarts: int) -> "Failure":
        """Return the failure with the number of earlier restarts in its cause."""
        times = f"{restarts} restart{'s' if restarts > 1 else ''}"
        return replace(self, cause=f"{self.cause} (after {times})") if restarts else self

    def text(self) -> str:
        """Return the text of a failure file: the cause in the first line, what to change, the detail."""
        where = f" [rank {self.rank}]" if self.rank is not None and f"rank {self.rank}" not in self.cause else ""
        fix = f"\nWhat to change: {self.fix}" if self.fix else ""
        return f"{self.cause}{where}{fix}\n\n{self.detail}".strip() + "\n"


def root_cause(failures: list[Failure]) -> Failure:
    """Return the failure that the others follow from: the earliest that is no echo."""
    assert failures
    return min(failures, key=lambda failure: (failure.echo, failure.at))


def write_failure(paths: JobPaths, failure: Failure) -> None:
    """Write both failure files; the second one also if writing the first one fails."""
    for path in paths.failure_files:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(failure.text(), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            print(f"could not write {path}: {error}", flush=True)
            with contextlib.suppress(OSError):
                path.unlink()  # an empty file would hide the failure


def clear_failure(paths: JobPaths) -> None:
    """Remove the failure files of an earlier run."""
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
    if full or "No space left on device" in text or "ENOSPC" in text:
        where = f" while writing {full.filename}" if full and full.filename else ""
        return f"the disk is full{where}", "Give the job a larger volume, or lower keep_checkpoints."
    if isinstance(error, KeyboardInterrupt):
        return "interrupted from the keyboard", "Run the same job again: it resumes from the last checkpoint."
    if isinstance(error, PeerFailed):
        return str(error), ""
    return f"{type(error).__name__}: {(str(error) or type(error).__name__).splitlines()[0]}", ""
