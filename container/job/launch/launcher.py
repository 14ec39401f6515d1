"""Run this host's workers with torchrun's API, once per attempt, and report why they failed.

A separate process, because the supervisor imports no torch. Unlike torchrun's command line, its API returns which rank
failed and how. The supervisors decide together on a restart, because torchrun's agent would also restart after an error
that would occur again.
"""

import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from container.job.failure import Failure, now, root_cause
from container.job.job import Attempt, Job, Scratch, write_json
from container.job.processes import set_up_logging
from container.job.start import start_command
from container.training.checkpoint_files import clear_unfinished
from container.training.stop import LEFT_ALONE
from contracts.ports import LOOPBACK
from contracts.program import PARENT_PID, die_with_parent

_DELAY = 1.0  # seconds until the agent notices the end of a worker at the latest; its clock is rounded to this
_CLOSED = (-signal.SIGTERM, LEFT_ALONE)  # exit codes after the agent's own SIGTERM, which follows the first failure
_RENDEZVOUS_TIMEOUT = 300  # seconds; the supervisors notice a lost host sooner


@dataclass(frozen=True)
class Ended:
    """The end of a worker that failed.

    Attributes:
        exitcode: negative: the signal that ended it.
        at: time at which the agent noticed it, in seconds since the epoch, rounded down.
    """

    rank: int
    pid: int
    exitcode: int
    at: float


def main(arguments: Sequence[str]) -> int:
    """Run workers (container.job.launch.worker) for each attempt, a line of JSON on stdin.

    Writes the failure of attempt n, or null, to scratch.attempt_file(n).

    Args:
        arguments: the scratch folder and the number of workers.
    """
    scratch, num_workers = Scratch(Path(arguments[0])), int(arguments[1])
    die_with_parent()
    set_up_logging()
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # `failure_of` says what failed
    for line in sys.stdin:
        attempt = Attempt(**json.loads(line))
        try:
            command = start_command("container.job.launch.worker", str(scratch.folder))
            failure = failure_of(scratch, run_workers(command, num_workers, attempt=attempt, logs=scratch.folder))
        except SignalException as error:  # the agent's, if a stop signals every process of the job
            failure = Failure.from_exit(-error.sigval, who="the launcher of the workers", at=now())
        except Exception as error:
            failure = Failure.from_exception(error)
        if failure is not None:
            scratch.forget_workers()  # from here on, a stop request finds no worker, or a new one
            if scratch.job_file.is_file():
                clear_unfinished(Job.read(scratch).paths.checkpoints)  # of a save that a failed rank interrupted
        write_json(scratch.attempt_file(attempt.number), asdict(failure) if failure else None)
        for path in scratch.pid_files():
            path.unlink()
    return 0


def run_workers(
    arguments: Sequence[str], num_workers: int, *, attempt: Attempt | None = None, logs: Path | None = None
) -> list[Ended]:
    """Run `num_workers` of `python *arguments` as torchrun does; return the first that failed.

    After a failure, the others get a SIGTERM, at which they end at once (training/stop.py).

    Args:
        attempt: the rendezvous of the hosts; None if this is the only host.
        logs: the folder for the agent's empty log folder; None: that for temporary files.
    """
    attempt = attempt or Attempt(0, LOOPBACK, 0)
    if attempt.hosts == 1:
        settings: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": f"{LOOPBACK}:0", "local_addr": LOOPBACK}
    else:  # static: the job chooses the ranks of the hosts
        settings = {
            "rdzv_backend": "static",
            "rdzv_endpoint": f"{attempt.address}:{attempt.port}",
            "rdzv_configs": {"rank": attempt.host_rank, "timeout": _RENDEZVOUS_TIMEOUT},
        }
    os.environ[PARENT_PID] = str(os.getpid())
    try:
        # torch does not remove its default folder.
        with tempfile.TemporaryDirectory(prefix="torchelastic_", dir=logs) as log_dir:
            config = LaunchConfig(
                min_nodes=attempt.hosts,
                max_nodes=attempt.hosts,
                nproc_per_node=num_workers,
                run_id=f"attempt{attempt.number}",
                max_restarts=0,
                monitor_interval=0.1,
                logs_specs=DefaultLogsSpecs(log_dir=log_dir),
                **settings,
            )
            elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        ended = [Ended(rank, end.pid, end.exitcode, end.timestamp) for rank, end in error.failures.items()]
        return [end for end in ended if end.exitcode not in _CLOSED] or ended
    return []


def failure_of(scratch: Scratch, ended: Sequence[Ended]) -> Failure | None:
    """Return the root cause, from what the workers reported and how they ended; None if none failed."""
    if not ended:
        return None
    failures = [Failure(**json.loads(path.read_text())) for path in scratch.error_files()]
    reported = {failure.rank for failure in failures}
    for end in ended:
        if end.rank not in reported:
            who = f"worker rank {end.rank} (pid {end.pid})"
            # Peers may report the loss of this rank before the agent notices it; losing a peer can cause an abort.
            at = end.at + (_DELAY if end.exitcode == -signal.SIGABRT else -_DELAY)
            closed = end.exitcode in _CLOSED  # without a first failure, another process sent the SIGTERM
            exit_code = -signal.SIGTERM if closed else end.exitcode
            failures.append(replace(Failure.from_exit(exit_code, who=who, rank=end.rank, at=at), echo=closed))
    return root_cause(failures)
