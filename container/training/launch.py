"""torchrun, through its own API: runs this host's workers once each time it is asked to, and says why they failed.

A process of its own, because the supervisor shall need no torch. API calls keep what the command line loses: which rank
failed and how. Restarting is decided by the supervisors, together, not by torchrun's agent, which would also try again
what fails of an error that says its cause and would be met again.
"""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from container.failure import Failure, root_cause
from container.job import Attempt, Job, write_json
from container.processes import PARENT_PID, die_with_parent, set_up_logging
from container.training.checkpoint import clear_checkpoints, clear_unfinished
from container.training.stop import LEFT_ALONE

_NOTICED = 1.0  # seconds after which a worker's end is noticed at the latest, and what the agent's clock is rounded to
_CLOSED = (-signal.SIGTERM, LEFT_ALONE)  # what the agent's own SIGTERM, after the first failure, makes of the others
_MEETING = 300  # seconds for the agents of all hosts to meet; their supervisors notice sooner who is gone
_LOOPBACK = "127.0.0.1"  # by number: no name has to resolve


@dataclass(frozen=True)
class Ended:
    """How a worker failed.

    Attributes:
        exitcode: negative: the signal that ended it.
        at: when it was noticed, in seconds since the epoch, rounded down.
    """

    rank: int
    pid: int
    exitcode: int
    at: float


def main(job_file: Path, num_workers: int) -> int:
    """Run `num_workers` of container.training.worker for each attempt that stdin asks for, a line of JSON each.

    The answer to attempt n is job.attempt_file(n): what the workers failed of, or null.
    """
    die_with_parent()
    set_up_logging()
    job = Job.read(job_file)
    for line in sys.stdin:
        attempt = Attempt(**json.loads(line))
        if attempt.number == 0 and not job.hp.resume:
            clear_checkpoints(job.paths.checkpoints)  # a restart resumes all the same
        try:
            ended = run_workers(["-m", "container.training.worker", str(job_file)], num_workers, attempt=attempt)
            failure = failure_of(job, ended)
        except Exception as error:
            failure = Failure.from_exception(error)
        if failure is not None:
            job.forget_workers()  # from here on a stop request finds no worker, or a new one
            clear_unfinished(job.paths.checkpoints)  # what a rank that raised left of a save under way
        write_json(job.attempt_file(attempt.number), asdict(failure) if failure else None)
        for path in job.pid_files():
            path.unlink()
    return 0


def run_workers(arguments: Sequence[str], num_workers: int, *, attempt: Attempt | None = None) -> list[Ended]:
    """Run `num_workers` of `python *arguments` as torchrun does; returns the first that failed, none if all went well.

    When one fails the others get a SIGTERM, at which workers end at once (training/stop.py).

    Args:
        attempt: where the hosts meet; without one, this is the only host.
    """
    attempt = attempt or Attempt(0, _LOOPBACK, 0)
    if attempt.hosts == 1:
        meeting: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": f"{_LOOPBACK}:0", "local_addr": _LOOPBACK}
    else:  # the ranks of hosts are ours to give: by natural order
        meeting = {
            "rdzv_backend": "static",
            "rdzv_endpoint": f"{attempt.address}:{attempt.port}",
            "rdzv_configs": {"rank": attempt.host_rank, "timeout": _MEETING},
        }
    os.environ[PARENT_PID] = str(os.getpid())
    try:
        with tempfile.TemporaryDirectory(prefix="torchelastic_") as logs:  # torch's default is left behind
            config = LaunchConfig(
                min_nodes=attempt.hosts,
                max_nodes=attempt.hosts,
                nproc_per_node=num_workers,
                run_id=f"attempt{attempt.number}",
                max_restarts=0,
                monitor_interval=0.1,
                logs_specs=DefaultLogsSpecs(log_dir=logs),
                **meeting,
            )
            elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        ended = [Ended(rank, one.pid, one.exitcode, one.timestamp) for rank, one in error.failures.items()]
        return [end for end in ended if end.exitcode not in _CLOSED] or ended
    return []


def failure_of(job: Job, ended: Sequence[Ended]) -> Failure | None:
    """What the workers failed of, by what they wrote and how they ended; None where all ended well."""
    if not ended:
        return None
    failures = [Failure(**json.loads(path.read_text())) for path in job.error_files()]
    spoken = {failure.rank for failure in failures}
    for end in ended:
        if end.rank not in spoken:
            who = f"worker rank {end.rank} (pid {end.pid})"
            # Peers may say that it is gone before its end is noticed here; an abort is what losing a peer can lead to.
            at = end.at + (_NOTICED if end.exitcode == -signal.SIGABRT else -_NOTICED)
            told = Failure.from_exit(end.exitcode, who=who, rank=end.rank, at=at)
            failures.append(replace(told, echo=end.exitcode in _CLOSED))
    return root_cause(failures)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
