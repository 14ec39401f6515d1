"""Start a step in a process of its own, and end it, with everything that it started, at its time limit."""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu_steps.recorder import Request

REPOSITORY = Path(__file__).parents[2]
_MODULE = [sys.executable, "-m", "benchmarks.gpu_steps.server"]
_PR_SET_CHILD_SUBREAPER = 36
_IMPORTS = 90.0  # seconds at most until the server is ready


class StepProcesses:
    """Runs one step at a time; a context manager. This process imports no torch.

    A step is a fork of the server, which has imported torch. If the server does not start, or ends, each step is a
    process that imports everything itself, so that a torch that cannot be imported is the failure of each step.
    """

    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        self._log, self._environment = log, environment
        self._server: subprocess.Popen[bytes] | None = None
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a step leaves behind becomes a child of this process

    def __enter__(self) -> "StepProcesses":
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                _MODULE, cwd=REPOSITORY, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, bufsize=0, start_new_session=True,
            )  # fmt: skip
        if self._answer(time.monotonic() + _IMPORTS) != "ready":
            self._end_server()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_server()
        kill_descendants()

    @property
    def forks(self) -> bool:
        return self._server is not None

    def run(self, request: Request) -> int | None:
        """Return the exit code of the step, negative for a signal; None if it was killed at its time limit."""
        try:
            return self._fork(request) if self._server is not None else self._start(request)
        finally:
            kill_descendants(but=self._server.pid if self._server else None)

    def _fork(self, request: Request) -> int | None:
        assert self._server is not None
        assert self._server.stdin is not None
        with suppress(BrokenPipeError):
            self._server.stdin.write(json.dumps(asdict(request)).encode() + b"\n")
        if self._answer(request.ends_at) is None:  # the pid of the step
            self._end_server()
            return self._start(request)
        code = self._answer(request.ends_at)
        if code is None:
            kill_descendants(but=self._server.pid)
            if self._answer(time.monotonic() + 10) is None:
                self._end_server()
            return None
        return int(code)

    def _start(self, request: Request) -> int | None:
        with Path(request.log).open("ab") as log:
            process = subprocess.Popen(
                [*_MODULE, json.dumps(asdict(request))],
                cwd=REPOSITORY,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        try:
            return process.wait(max(0.0, request.ends_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.kill()
            process.wait()

    def _answer(self, ends_at: float) -> str | None:
        """Return the next line of the server; None if it ended, or said nothing until then."""
        assert self._server is not None
        assert self._server.stdout is not None
        ready, _, _ = select.select([self._server.stdout], [], [], max(0.0, ends_at - time.monotonic()))
        return self._server.stdout.readline().decode().strip() or None if ready else None  # unbuffered

    def stop_forking(self) -> None:
        """Start every further step as a process that imports everything itself."""
        self._end_server()

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None


def kill_descendants(*, but: int | None = None) -> None:
    """Kill every process below this one, except `but`, until there is none: they may have sessions of their own."""
    for _ in range(50):
        pids = [pid for pid in _descendants() if pid != but]
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        for pid in pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _descendants() -> list[int]:
    """Return the processes below this one that have not ended."""
    parent, ended = {}, set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, of = path.read_text().rpartition(")")[2].split()[:2]  # the name before it may have spaces
            parent[int(path.parent.name)] = int(of)
            if state == "Z" and int(of) != os.getpid():  # its parent reaps it
                ended.add(int(path.parent.name))
    found = {os.getpid()}
    while below := {pid for pid, of in parent.items() if of in found} - found:
        found |= below
    return sorted(found - ended - {os.getpid()})
