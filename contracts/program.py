"""Run a program: its standard streams, SIGTERM and Ctrl-C, and its exit code, in the same way for every command."""

import ctypes
import importlib
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

COMPLETED, FAILED, STOPPED = 0, 1, 128 + signal.SIGTERM  # exit codes; a Ctrl-C gives STOPPED, too
VIOLATED = 2  # of the monitor: completed, but something is out of bounds
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
PARENT_PID = "TRAINER_PARENT_PID"  # environment variable: the process that started this one
_PR_SET_PDEATHSIG = 1
_AGAIN = "stopped on request; run the same command again\n"


def die_with_parent(parent: int | None = None) -> None:
    """Have Linux kill this process when its parent dies, so that no orphan writes into the files of the next run.

    Args:
        parent: the process ID of the parent, read in the parent, because it may have died since. None: the ID in
            $TRAINER_PARENT_PID; without it, that of the present parent.
    """
    if sys.platform != "linux":
        return
    parent = parent or int(os.environ.pop(PARENT_PID, os.getppid()))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call
        os.kill(os.getpid(), signal.SIGKILL)


class Stopped(KeyboardInterrupt):
    """SIGTERM or Ctrl-C has asked this process to stop. `except Exception` does not catch it.

    Attributes:
        where: what is complete, for the message.
    """

    where = ""


class StopHandler:
    """Handle SIGTERM and Ctrl-C: raise Stopped in the main thread.

    Attributes:
        requested: whether a signal has come.
        interrupts: False: only record signals.
    """

    def __init__(self) -> None:
        self.requested = False
        self.interrupts = True

    def __call__(self, *_: object) -> None:
        """Handle a signal."""
        self.requested = True
        if self.interrupts:
            raise Stopped


def handle_stops(handler: Callable[..., object]) -> dict[signal.Signals, Any]:
    """Have SIGTERM and Ctrl-C call `handler` in the main thread; return the handlers so far."""
    return {number: signal.signal(number, handler) for number in STOP_SIGNALS}


@contextmanager
def stops_handled(handler: Callable[..., object]) -> Iterator[None]:
    """Have SIGTERM and Ctrl-C call `handler` in the main thread during the block."""
    before = handle_stops(handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class _Output(io.FileIO):
    """A standard stream. What it cannot write is lost: the reader may have ended, or the disk may be full.

    Attributes:
        error: why the first of it was lost.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            self.error = self.error or error
            return len(data)


def open_standard_streams() -> _Output:
    """Open the standard streams that are closed, so that no other file gets their numbers; return the output.

    The streams can encode all text, and raise no errors.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - as long as the process
    output, errors = (_Output(number, "w", closefd=False) for number in (1, 2))
    encoding = getattr(sys.stdout or sys.stderr, "encoding", "utf-8")
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=True)
        for raw in (output, errors)
    )
    return output


def run_program(module: str) -> NoReturn:
    """Import `module`, run its function main and end this process with its exit code.

    SIGTERM and Ctrl-C raise Stopped in it. Without a log, the output is a result: a part that is lost is a failure.
    A program with $TRAINER_PARENT_PID ends with this process.
    """
    if PARENT_PID in os.environ:
        die_with_parent()
    output = open_standard_streams()
    sys.unraisablehook = _stop_again
    handle_stops(_end_at_once)  # an exception can be lost in an import
    program = importlib.import_module(module)
    try:
        handle_stops(StopHandler())
        code = program.main()
        handle_stops(_ignore)  # the command is complete
    except Stopped:
        handle_stops(_ignore)
        sys.stderr.write(_AGAIN)
        if "multiprocessing.util" in sys.modules:
            sys.modules["multiprocessing.util"]._run_finalizers(0)  # which remove the semaphores of pools
        end_process(STOPPED)  # without a wait for threads and pools
    sys.stdout.flush()
    if output.error is not None and not isinstance(output.error, BrokenPipeError):
        print(f"standard output: a part was lost: {output.error}", file=sys.stderr)
        is_log = any(getattr(handler, "stream", None) is sys.stdout for handler in logging.getLogger().handlers)
        code = code or (COMPLETED if is_log else FAILED)
    sys.exit(code)


def _stop_again(lost: Any) -> None:
    """Repeat a stop that was raised where Python ignores exceptions, such as in a callback."""
    if isinstance(lost.exc_value, Stopped):
        signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(lost)


def _ignore(*_: object) -> None:
    """Handle a signal: the program ends anyway."""


def _end_at_once(*_: object) -> NoReturn:
    with suppress(OSError):
        os.write(2, _AGAIN.encode())
    os._exit(STOPPED)


def end_process(code: int) -> NoReturn:
    """End this process without the interpreter's teardown, which takes a second where torch is imported."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
