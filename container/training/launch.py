"""torchrun, through its own API: starts this host's workers, restarts them when one is killed, says why they failed.

A process of its own, because the supervisor shall need no torch. API calls keep what the command line loses: which rank
failed and how. Restarting is decided here, not by torchrun's agent, which would also try again what fails of an error
that says its cause and would be met again.
"""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from container.failure import Failure, root_cause
from container.job import Job, Restart, write_json_aside
from container.processes import PARENT_PID, die_with_parent, set_up_logging
from container.training.checkpoint import clear_checkpoints, clear_unfinished
from container.training.stop import LEFT_ALONE

logger = logging.getLogger(__name__)

_NOTICED = 1.0  # seconds after which a worker's end is noticed at the latest, and what the agent's clock is rounded to
_CLOSED = (-signal.SIGTERM, LEFT_ALONE)  # what the agent's own SIGTERM, after the first failure, makes of the others
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
    """Run `num_workers` of container.training.worker; returns 0 when all ended well, 1 with job.launch_file written."""
    die_with_parent()
    set_up_logging()
    job = Job.read(job_file)
    try:
        failure = _run(job, job_file, num_workers)
    except Exception as error:
        failure = Failure.from_exception(error)
    if failure is None:
        return 0
    write_json_aside(job.launch_file, asdict(failure))
    return 1


def _run(job: Job, job_file: Path, num_workers: int) -> Failure | None:
    """Run the workers, again and again where that can help; returns what they failed of in the end."""
    if not job.hp.resume:
        clear_checkpoints(job.paths.checkpoints)  # here, because a restart resumes all the same
    restarts = 0
    while True:
        failure = failure_of(job, run_workers(["-m", "container.training.worker", str(job_file)], num_workers))
        if failure is None:
            return None
        job.forget_workers()  # from here on a stop request finds no worker, or a new one
        clear_unfinished(job.paths.checkpoints)  # what a rank that raised left of a save under way
        if job.stop_file.exists() or not failure.killed or restarts == job.hp.max_restarts:
            return failure.after(restarts)
        restarts += 1
        restart = Restart(restarts, of=job.hp.max_restarts, cause=failure.cause, at=failure.at)
        write_json_aside(job.restart_file, asdict(restart))
        last = job.paths.checkpoints / "last.ckpt"
        where = f"checkpoint {last.read_text().strip()}" if last.is_file() else "the beginning: there is no checkpoint"
        logger.warning("%s; restart %d of %d, from %s", failure.cause, restarts, restart.of, where)


def run_workers(arguments: Sequence[str], num_workers: int) -> list[Ended]:
    """Run `num_workers` of `python *arguments` as torchrun does; returns the first that failed, none if all went well.

    When one fails the others get a SIGTERM, at which workers end at once (training/stop.py).
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_workers,
        run_id="job",
        rdzv_backend="c10d",
        rdzv_endpoint=f"{_LOOPBACK}:0",
        local_addr=_LOOPBACK,
        max_restarts=0,
        monitor_interval=0.1,
    )
    os.environ[PARENT_PID] = str(os.getpid())
    try:
        elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        ended = [Ended(rank, one.pid, one.exitcode, one.timestamp) for rank, one in error.failures.items()]
        return [end for end in ended if end.exitcode not in _CLOSED] or ended
    return []


def failure_of(job: Job, ended: Sequence[Ended]) -> Failure | None:
    """What the workers failed of, by what they wrote and how they ended; None where all ended well."""
    if not ended:
        return None
    failures = [Failure.read_json(path) for path in job.error_files()]
    spoken = {failure.rank for failure in failures}
    for end in ended:
        if end.rank not in spoken:
            who = f"worker rank {end.rank} (pid {end.pid})"
            # Peers may say that it is gone before its end is noticed here; an abort is what losing a peer can lead to.
            at = end.at + (_NOTICED if end.exitcode == -signal.SIGABRT else -_NOTICED)
            failures.append(Failure.from_exit(end.exitcode, who=who, rank=end.rank, at=at))
    return root_cause(failures)


if __name__ == "__main__":
    # The workers talk over loopback; a proxy or another interface must not come between.
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
