"""Start, stop and restart the workers of this host, together with the workers of the other hosts."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

from container.cores import share_of_cores
from container.job.failure import FailedElsewhere, Failure, now, root_cause
from container.job.hosts.control import STOP, Control
from container.job.hosts.gpus import cuda_compat
from container.job.hosts.network import network_environment
from container.job.job import Attempt, Job, Restart, Scratch, write_json
from container.job.log_once import log_once
from container.job.start import start_command
from container.training.checkpoint_files import complete_checkpoints
from contracts.ports import free_port
from contracts.program import PARENT_PID, StopHandler, Stopped
from contracts.spelling import counted

logger = logging.getLogger(__name__)

# Environment variables of workers that the user did not set. Batches differ in shape: oneDNN, and torch's layer around
# it, keep a kernel for each shape, by default the last 1,024, which take a gigabyte; torch's allocator would fragment
# the memory of a GPU. Threads spin about a tenth of a millisecond before they sleep: without spinning, a step takes 4
# to 9 % longer in a job alone on its cores. With libgomp's default of milliseconds, two jobs on the same cores train at
# a seventh of their speed. NCCL's flight recorder keeps the last collectives, and writes them if one waits too long
# (docs/parallelism.md).
DEFAULTS = MappingProxyType(
    {
        "TOKENIZERS_PARALLELISM": "false",
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32",
        "LRU_CACHE_CAPACITY": "32",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "GOMP_SPINCOUNT": "10000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
    }
)
_REPLACES = {"PYTORCH_ALLOC_CONF": "PYTORCH_CUDA_ALLOC_CONF", "GOMP_SPINCOUNT": "OMP_WAIT_POLICY"}
STOP_GRACE = 110  # seconds; SageMaker kills 120 s after its SIGTERM
_POLL = 0.1
_REPORT_GRACE = 15.0  # seconds that workers have to report a cause after those of another host failed


class JobStopHandler(StopHandler):
    """Handle SIGTERM and Ctrl-C on any host, and the failure of another host.

    They interrupt the preparation of data. Once workers run, they are only recorded, and `Workers` acts on them.
    """

    trouble: Failure | None = None

    def __call__(self, *_: object) -> None:
        interrupts, self.interrupts = self.interrupts, False  # a second signal must not interrupt the cleanup
        self.requested = self.requested or self.trouble is None
        if interrupts:
            raise Stopped if self.trouble is None else FailedElsewhere(self.trouble)


class Workers:
    """Run the workers of a job to their end, together with those of the other hosts; a context manager.

    The workers can start before the job is known: they import their modules and wait for the job file.

    Args:
        num_workers: number of workers on this host.
        share: variables with precedence over those of this process: the share of the machine that the workers get.
        log: file for their output. Default: that of this process.
    """

    def __init__(
        self,
        scratch: Scratch,
        control: Control,
        *,
        num_workers: int,
        stop: StopHandler,
        share: Mapping[str, str] = MappingProxyType({}),
        log: Path | None = None,
    ) -> None:
        self._scratch = scratch
        self._control = control
        self._num_workers = num_workers
        self._stop = stop
        self._share = share
        self._log = log
        self._launcher: subprocess.Popen[str] | None = None
        self._kill_at: float | None = None
        self._abandoned = False

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_all()

    def start(self, number: int = 0) -> None:
        """Start the workers of this host, together with the other hosts."""
        launcher = self._running_launcher()
        assert launcher.stdin is not None
        attempt = self._agreed_attempt(number)
        with suppress(BrokenPipeError):  # waiting for the attempt detects its exit
            launcher.stdin.write(json.dumps(asdict(attempt)) + "\n")
            launcher.stdin.flush()

    def run(self, job: Job) -> Failure | None:
        """Give the started workers their job, and restart them after one was killed; return their last failure.

        Every host returns the same.

        Raises:
            FailedElsewhere: another host was lost, or failed outside its workers.
        """
        job.write()
        number, most = 0, job.hp.max_restarts
        while True:
            failure, stopping = self._agree(number, self._attempt(number))
            if failure is None:
                self._dismiss()
                return None
            if stopping or not failure.killed or number == most:
                return failure.after(number)
            number += 1
            self._announce(Restart(number, of=most, cause=failure.cause, at=time.monotonic()), job.paths.checkpoints)
            self.start(number)

    def abandon(self) -> None:
        """Kill the workers, whose result is not needed; `run`, in another thread, returns a failure."""
        self._abandoned = self._stop.requested = True

    def _attempt(self, number: int) -> Failure | None:
        """Wait until the workers of this host end; return their failure."""
        launcher = self._launcher
        assert launcher is not None
        result = self._scratch.attempt_file(number)
        stop_requested, report_by = False, None
        while not result.is_file():
            if launcher.poll() is not None:
                return Failure.from_exit(launcher.returncode, who="the launcher of the workers", at=now())
            self._control.raise_trouble()
            if self._abandoned:
                self._kill_all()
                return Failure("the run was abandoned", at=now())
            if self._stop.requested and not stop_requested:
                stop_requested = True
                self._kill_at = self._kill_at or time.monotonic() + STOP_GRACE
                self._request_stop()
            elif self._failed_elsewhere(number):
                report_by = report_by or time.monotonic() + _REPORT_GRACE
                if self._stop.requested or time.monotonic() > report_by:
                    self._kill_all()
                else:  # repeated in every pass: some workers may still be starting
                    _signal(self._pids(), signal.SIGTERM)
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                logger.warning("the workers did not stop within %d s: killing them", STOP_GRACE)
                self._kill_all()
                self._kill_at = float("inf")
            time.sleep(_POLL)
        content = json.loads(result.read_text())
        return Failure(**content) if content else None

    def _agree(self, number: int, failure: Failure | None) -> tuple[Failure | None, bool]:
        """Return the root cause over all hosts, and whether any host was requested to stop."""
        result = {"failure": asdict(failure) if failure else None, "stop": self._stop.requested}
        results = self._control.gather(_ended(number), result)
        failures = {host: Failure(**result["failure"]) for host, result in results.items() if result["failure"]}
        if self._control.topology.size > 1:
            failures = {host: replace(each, cause=f"{each.cause} [host {host}]") for host, each in failures.items()}
        stopping = any(result["stop"] for result in results.values()) or self._scratch.stop_file.exists()
        return (root_cause(list(failures.values())) if failures else None), stopping

    def _agreed_attempt(self, number: int) -> Attempt:
        """Return the attempt with the rendezvous of all workers, which the first host chooses."""
        topology = self._control.topology
        if topology.size == 1:
            return Attempt(number, self._control.address(), 0)
        rendezvous = [self._control.address(), free_port()] if topology.leads else None
        address, port = self._control.gather(f"start {number}", rendezvous)[topology.leader]
        return Attempt(number, address, port, hosts=topology.size, host_rank=topology.rank)

    def _failed_elsewhere(self, number: int) -> bool:
        results = self._control.seen(_ended(number))
        return any(result["failure"] for host, result in results.items() if host != self._control.topology.current)

    def _announce(self, restart: Restart, checkpoints: Path) -> None:
        write_json(self._scratch.restart_file, asdict(restart))
        complete = complete_checkpoints(checkpoints)
        where = f"checkpoint {complete[-1].folder.name}" if complete else "the beginning: there is no checkpoint"
        logger.warning("%s; restart %d of %d, from %s", restart.cause, restart.number, restart.of, where)

    def _running_launcher(self) -> subprocess.Popen[str]:
        if self._launcher is None or self._launcher.poll() is not None:
            self._scratch.forget_workers()
            arguments = (str(self._scratch.folder), str(self._num_workers))
            with self._log.open("ab") if self._log else nullcontext() as log:
                self._launcher = subprocess.Popen(
                    [sys.executable, *start_command("container.job.launch.launcher", *arguments)],
                    env=self._environment(),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    text=True,
                    start_new_session=True,  # only the supervisor receives Ctrl-C
                )
        return self._launcher

    def _environment(self) -> dict[str, str]:
        code = str(Path(__file__).parents[3])  # the folder of container and contracts
        return {
            **unset_defaults(os.environ),
            **network_environment(self._control.topology, self._control.address()),
            **os.environ,
            **_cuda_libraries(os.environ),
            **share_of_cores(self._num_workers),
            **self._share,
            PARENT_PID: str(os.getpid()),
            "HF_HUB_OFFLINE": "1",  # the supervisor has downloaded the encoder
            "PYTHONPATH": os.pathsep.join([code, os.environ.get("PYTHONPATH", "")]).strip(":"),
        }

    def _request_stop(self) -> None:
        self._scratch.stop_file.touch()
        self._control.publish(STOP, True)
        pids = self._pids()
        if len(pids) < self._num_workers:
            logger.info("stop requested: the workers are still starting; there is nothing to save")
            self._kill_all()
            return
        logger.info(
            "stop requested: %s save a checkpoint; if only the report is missing, they complete it",
            counted(len(pids), "worker"),
        )
        _signal(pids, signal.SIGTERM)

    def _pids(self) -> list[int]:
        pids = []
        for path in self._scratch.pid_files():
            with suppress(FileNotFoundError):  # the launcher removes the files of workers that ended
                pids.append(json.loads(path.read_text()))
        return pids

    def _dismiss(self) -> None:
        if self._launcher is not None and self._launcher.stdin is not None:
            self._launcher.stdin.close()
            self._launcher.wait()

    def _kill_all(self) -> None:
        if self._launcher is None:
            return
        if self._launcher.poll() is None:
            _signal(self._pids(), signal.SIGKILL)
            self._launcher.kill()  # workers that have no pid file yet die with their parent
            self._launcher.wait()
        assert self._launcher.stdin is not None
        with suppress(BrokenPipeError):  # of an attempt that it did not read
            self._launcher.stdin.close()


def unset_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Return DEFAULTS without those that would replace what the user set under another name."""
    return {name: value for name, value in DEFAULTS.items() if _REPLACES.get(name, "") not in environment}


def _cuda_libraries(environment: Mapping[str, str]) -> dict[str, str]:
    """Return where workers find CUDA's driver libraries, if those of the image replace the host's older ones."""
    compat = cuda_compat()
    if compat is None:
        return {}
    log_once(logger, logging.INFO, f"the driver of this host is older than {compat}, whose libraries are used instead")
    return {"LD_LIBRARY_PATH": os.pathsep.join([str(compat), environment.get("LD_LIBRARY_PATH", "")]).strip(":")}


def _ended(number: int) -> str:
    return f"ended {number}"


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
