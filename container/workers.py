"""The workers of this host: started together with the other hosts', asked to stop, restarted when one is killed."""

import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from container.failure import Failure, root_cause
from container.hosts.control import STOP, Control, HostTrouble
from container.hosts.network import network_environment
from container.job import Attempt, Job, Restart, write_json
from container.processes import PARENT_PID, available_cores

logger = logging.getLogger(__name__)

STOP_GRACE = 110  # seconds; SageMaker kills 120 s after its SIGTERM
_POLL = 0.1
_QUIET_PORTS = range(20_000, 32_768)  # below the ephemeral ports of Linux, and above what services are given
_LAST_WORDS = 15.0  # seconds that workers have to end after those of another host failed


class StopHandler:
    """What SIGTERM and Ctrl-C do, on this host or on another one, and the failure of another host: end the preparation
    at once; once workers run, be noted for them to be told."""

    def __init__(self) -> None:
        self.requested = False
        self.interrupts = True
        self.trouble: Failure | None = None

    def __call__(self, *_: object) -> None:
        if self.trouble is None:
            self.requested = True
        if self.interrupts:
            self.interrupts = False  # a second signal must not interrupt the clearing up after the first
            raise HostTrouble(self.trouble) if self.trouble is not None else StoppedBeforeTraining


class StoppedBeforeTraining(BaseException):
    """SIGTERM or Ctrl-C reached the supervisor before it had workers."""


class Workers:
    """Runs the workers of `job`, with the other hosts', to their end.

    Args:
        num_workers: of this host.
        variables: their environment, beside this process's own, which prevails.
    """

    def __init__(
        self, job: Job, control: Control, *, num_workers: int, stop: StopHandler, variables: Mapping[str, str]
    ) -> None:
        self._job = job
        self._control = control
        self._num_workers = num_workers
        self._stop = stop
        self._variables = variables
        self._launcher: subprocess.Popen[str] | None = None
        self._kill_at: float | None = None

    def run(self) -> Failure | None:
        """Run the workers, again and again where that can help; returns what they failed of in the end.

        Every host returns the same. A stop request goes to the ranks first.

        Raises:
            HostTrouble: another host is gone, or failed of something else than its workers.
        """
        number = 0
        try:
            while True:
                failure, stopping = self._agree(number, self._attempt(number))
                if failure is None:
                    self._dismiss()
                    return None
                if stopping or not failure.killed or number == self._job.hp.max_restarts:
                    return failure.after(number)
                number += 1
                self._announce(Restart(number, of=self._job.hp.max_restarts, cause=failure.cause, at=failure.at))
        finally:
            self._kill_all()

    def _attempt(self, number: int) -> Failure | None:
        """Run the workers of this host once; returns what they failed of."""
        launcher = self._running_launcher()
        assert launcher.stdin is not None
        attempt = self._meeting(number)
        with suppress(BrokenPipeError):  # its exit code is noticed below
            launcher.stdin.write(json.dumps(asdict(attempt)) + "\n")
            launcher.stdin.flush()
        answer = self._job.attempt_file(number)
        asked, given_up_at = False, None
        while not answer.is_file():
            if launcher.poll() is not None:
                return Failure.from_exit(launcher.returncode, who="the launcher of the workers", at=time.time())
            self._control.raise_trouble()
            if self._stop.requested and not asked:
                asked = True
                self._kill_at = self._kill_at or time.time() + STOP_GRACE
                self._ask_to_stop()
            elif self._failed_elsewhere(number):
                given_up_at = given_up_at or time.time() + _LAST_WORDS
                self._end_attempt(kill=self._stop.requested or time.time() > given_up_at)
            if self._kill_at is not None and time.time() > self._kill_at:
                logger.warning("the workers did not stop within %d s: killing them", STOP_GRACE)
                self._kill_all()
                self._kill_at = float("inf")
            time.sleep(_POLL)
        content = json.loads(answer.read_text())
        return Failure(**content) if content else None

    def _agree(self, number: int, own: Failure | None) -> tuple[Failure | None, bool]:
        """The cause, of all hosts, and whether any was asked to stop."""
        said = self._control.gather(
            _ended(number), {"failure": asdict(own) if own else None, "stop": self._stop.requested}
        )
        failures = []
        for host, one in said.items():
            if one["failure"]:
                failure = Failure(**one["failure"])
                where = f"{failure.cause} [host {host}]" if self._control.topology.size > 1 else failure.cause
                failures.append(replace(failure, cause=where))
        stopping = any(one["stop"] for one in said.values()) or self._job.stop_file.exists()
        return (root_cause(failures) if failures else None), stopping

    def _meeting(self, number: int) -> Attempt:
        """Where the workers of all hosts meet, which the first host says."""
        topology = self._control.topology
        if topology.size == 1:
            return Attempt(number, self._control.address(), 0)
        meeting = None
        if topology.leads:
            meeting = [self._control.address(), _free_port()]
        address, port = self._control.gather(f"start {number}", meeting)[topology.leader]
        return Attempt(number, address, port, hosts=topology.size, host_rank=topology.rank)

    def _failed_elsewhere(self, number: int) -> bool:
        said = self._control.seen(_ended(number))
        return any(one["failure"] for host, one in said.items() if host != self._control.topology.current)

    def _announce(self, restart: Restart) -> None:
        write_json(self._job.restart_file, asdict(restart))
        last = self._job.paths.checkpoints / "last.ckpt"
        where = f"checkpoint {last.read_text().strip()}" if last.is_file() else "the beginning: there is no checkpoint"
        logger.warning("%s; restart %d of %d, from %s", restart.cause, restart.number, restart.of, where)

    def _running_launcher(self) -> subprocess.Popen[str]:
        if self._launcher is None or self._launcher.poll() is not None:
            self._job.forget_workers()
            self._launcher = subprocess.Popen(
                [sys.executable, "-m", "container.training.launch", str(self._job.write()), str(self._num_workers)],
                env=self._environment(),
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C reaches the supervisor alone, which decides
            )
        return self._launcher

    def _environment(self) -> dict[str, str]:
        code = str(Path(__file__).parent.parent)
        return {
            "OMP_NUM_THREADS": str(max(1, available_cores() // self._num_workers)),
            # Threads that spin while they wait starve each other when processes share cores: 2 rows/s became 20 beside
            # a busy neighbour.
            "OMP_WAIT_POLICY": "PASSIVE",
            "TOKENIZERS_PARALLELISM": "false",
            **network_environment(self._control.topology, self._control.address()),
            **self._variables,
            **os.environ,
            PARENT_PID: str(os.getpid()),
            "HF_HUB_OFFLINE": "1",  # the encoder is resolved: no worker asks a hub again
            "PYTHONPATH": os.pathsep.join([code, os.environ.get("PYTHONPATH", "")]).strip(":"),
        }

    def _ask_to_stop(self) -> None:
        self._job.stop_file.touch()
        self._control.publish(STOP, True)
        pids = self._pids()
        if len(pids) < self._num_workers:
            logger.info("asked to stop: the workers are still starting, there is nothing to save")
            self._kill_all()
            return
        logger.info("asked to stop: %d workers finish their step and save", len(pids))
        for pid in pids:
            _signal(pid, signal.SIGTERM)

    def _end_attempt(self, *, kill: bool) -> None:
        """End the workers because those of another host failed; some may still be starting, so this is repeated."""
        if kill:
            self._kill_all()
            return
        for pid in self._pids():
            _signal(pid, signal.SIGTERM)

    def _pids(self) -> list[int]:
        pids = []
        for path in self._job.pid_files():
            with suppress(FileNotFoundError):  # the launcher is just removing those of workers that died
                pids.append(json.loads(path.read_text()))
        return pids

    def _dismiss(self) -> None:
        if self._launcher is not None and self._launcher.stdin is not None:
            self._launcher.stdin.close()
            self._launcher.wait()

    def _kill_all(self) -> None:
        if self._launcher is None or self._launcher.poll() is not None:
            return
        for pid in self._pids():
            _signal(pid, signal.SIGKILL)
        self._launcher.kill()  # the kernel ends workers that have no pid file yet: they die with their parent
        self._launcher.wait()


def _ended(number: int) -> str:
    return f"ended {number}"


def _free_port() -> int:
    """A port that nobody listens on, of those that the kernel gives to no outgoing connection by itself: the launcher
    opens it seconds later."""
    for port in random.sample(_QUIET_PORTS, len(_QUIET_PORTS)):
        with suppress(OSError), socket.create_server(("", port)):
            return port
    raise OSError(f"no free port from {_QUIET_PORTS.start} to {_QUIET_PORTS.stop - 1}")


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
