"""Describe why a job failed: the cause, what to change and the traceback; write both failure files."""

import contextlib
import errno
import re
import signal
import sys
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from container.errors import PeerFailed
from contracts.errors import ContractError, chain_of
from contracts.file_systems import disk_full
from contracts.paths import JobPaths

_OUT_OF_MEMORY = (
    "Lower batch_size (raise accumulate_grad_batches to keep the global batch), set max_tokens_per_batch, or take a "
    "larger machine."
)
FIX = "What to change: "  # begins the line of a failure file that says what to do
_OUT = "out of memory: "  # the beginning of a cause
_SHOWN_BYTES = 1024  # of a failure file, which the service shows
_DETAIL_BYTES = 12_000  # both failure files fit into the space that the supervisor reserves

# Messages of torch, by their beginning: the text of a message may also come from the data.
_TORCH_MEMORY = ("[enforce fail at alloc_cpu", "CUDA error: out of memory", "std::bad_alloc")
_GLOO = re.compile(r"\[[^\]]*\bgloo\b")
_STAGE = re.compile(r"\[Stage (\d+)\] failed to run forward|Failed to run stage backward")  # raised from any exception
_LOST_PEER = (
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


def now() -> float:
    """Return the time of a failure, in seconds since the epoch: the failures of several hosts are compared."""
    return time.time()  # noqa: TID251 - hosts share no monotonic clock


@dataclass(frozen=True)
class Failure:
    """The reason why a process ended.

    Attributes:
        cause: one line.
        fix: what to change.
        detail: the traceback.
        rank: rank of the worker; None for the supervisor.
        echo: whether it follows from another process's failure.
        is_known: whether the user can correct it by its cause and fix: the log needs no traceback.
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
    is_known: bool = False

    def __post_init__(self) -> None:
        """Replace what UTF-8 cannot encode, such as the bytes of a file name in another encoding."""
        for name in ("cause", "fix", "detail"):
            text = getattr(self, name).encode("utf-8", "backslashreplace").decode("utf-8")
            object.__setattr__(self, name, text)

    @classmethod
    def from_exception(cls, error: BaseException, *, rank: int | None = None) -> "Failure":
        """Return the failure for `error`; known kinds get a fix."""
        if isinstance(error, FailedElsewhere):
            return error.failure
        detail = "".join(traceback.format_exception(error))
        cause, fix = _explain(error)
        echo = any(_lost_peer(link) for link in chain_of(error))
        is_known = any(isinstance(link, ContractError) for link in chain_of(error))
        return cls(" ".join(cause.split()), fix, detail, rank, echo, at=now(), is_known=is_known)

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
            signal.SIGTERM: ("another program sent it to this process", "Find it: for example a monitor of memory."),
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
        fix = f"\n{FIX}{_shorten(self.fix, _SHOWN_BYTES // 2)}" if self.fix else ""
        cause = _shorten(self.cause, _SHOWN_BYTES - len(f"{where}{fix}\n".encode()))
        cut = "" if cause == self.cause else f"{self.cause}\n"
        return f"{cause}{where}{fix}\n\n{_shorten(cut + self.detail, _DETAIL_BYTES)}".strip() + "\n"


class FailedElsewhere(BaseException):
    """Another host failed or was lost, or the training of one of several networks failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


def is_out_of_memory(failure: Failure) -> bool:
    """Return whether a process reported that memory ran out."""
    return failure.cause.startswith(_OUT)


def root_cause(failures: list[Failure]) -> Failure:
    """Return the failure that the others follow from: the earliest that is no echo."""
    assert failures
    return min(failures, key=lambda failure: (failure.echo, failure.at))


def write_failure(failure: Failure, *paths: Path) -> None:
    """Write a failure to each of `paths`, and to stderr, without the traceback of a known one.

    None of them prevents the others.
    """
    for path in paths:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(failure.text(), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            with contextlib.suppress(OSError):
                print(f"could not write {path}: {error}", file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):
                path.unlink()  # an empty file would hide the failure
    with contextlib.suppress(OSError):
        shown = replace(failure, detail="") if failure.is_known else failure
        print(shown.text(), file=sys.stderr, flush=True)


def clear_failure(paths: JobPaths) -> None:
    """Remove the failure files of an earlier run."""
    for path in paths.failure_files:
        path.unlink(missing_ok=True)


def _explain(error: BaseException) -> tuple[str, str]:
    chain = chain_of(error)
    for link in reversed(chain):
        if _out_of_memory(link):
            return f"{_OUT}{_message(link)}", _OUT_OF_MEMORY
    contract = next((link for link in chain if isinstance(link, ContractError)), None)
    contract = contract or disk_full(error)
    if contract is not None:
        return contract.cause, contract.fix
    if isinstance(error, PeerFailed):
        return str(error), ""
    stage = _STAGE.match(_message(error)) if isinstance(error, RuntimeError) else None
    if stage is not None and error.__cause__ is not None:
        where = f"stage {stage[1]}" if stage[1] else "backward pass of a stage"
        cause, fix = _explain(error.__cause__)
        return f"{where}: {cause}", fix
    return f"{type(error).__name__}: {_message(error).splitlines()[0]}", ""


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return (
        isinstance(error, MemoryError)
        or _is_a(error, "OutOfMemoryError")
        or (isinstance(error, RuntimeError) and _message(error).startswith(_TORCH_MEMORY))
    )


def _lost_peer(error: BaseException) -> bool:
    """Return whether an error follows from the end of another process."""
    if isinstance(error, (PeerFailed, ConnectionError)):
        return True
    from_torch = _is_a(error, "DistError") or (isinstance(error, RuntimeError) and _GLOO.match(_message(error)))
    return bool(from_torch) and any(sign in _message(error).lower() for sign in _LOST_PEER)


def _is_a(error: BaseException, name: str) -> bool:
    """Return whether an error is of the class `name`, of torch, which this module must not import."""
    return any(kind.__name__ == name for kind in type(error).__mro__)


def _message(error: BaseException) -> str:
    try:
        return str(error).strip() or type(error).__name__
    except Exception:  # of a library's own __str__
        return type(error).__name__


def _shorten(text: str, limit: int) -> str:
    """Return the beginning and the end of `text`, in at most `limit` bytes."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    first, last = encoded[: limit // 2 - 5], encoded[-(limit // 2 - 5) :]
    return f"{first.decode(errors='ignore')} ... {last.decode(errors='ignore')}"
