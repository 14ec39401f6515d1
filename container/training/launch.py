"""Starts this host's workers, restarts them when one is killed, and writes down why they failed.

What torchrun does on one host, with the environment that it gives a worker, but for what its agent leaves open: which
rank ended first and how; that ranks left alone in a collective have seconds to say so, not half a minute; that only a
death by a signal is answered with a restart, because an error that says its cause would be met again. A process of its
own, because it hosts the workers' rendezvous and the supervisor shall need no torch.
"""

import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torch.distributed import TCPStore

from container.failure import Failure, root_cause
from container.job import Job, Restart, write_json_aside
from container.processes import PARENT_PID, die_with_parent, set_up_logging
from container.training.checkpoint import clear_checkpoints

logger = logging.getLogger(__name__)

LAST_WORDS = 5.0  # seconds that the ranks left alone have to report an error of their own before they are killed
_NOTICED = 1.0  # seconds after which a worker's end is noticed at the latest
_LOOPBACK = "127.0.0.1"  # by number: no name has to resolve


@dataclass(frozen=True)
class Ended:
    """How a worker ended.

    Attributes:
        exitcode: negative: the signal that ended it.
        at: when, in seconds since the epoch.
        left_alone: the launcher killed it, after another one had failed.
    """

    rank: int
    pid: int
    exitcode: int
    at: float
    left_alone: bool = False


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
        failure = failure_of(job, _run_once(job_file, num_workers, restarts))
        if failure is None:
            return None
        job.forget_workers()  # from here on a stop request finds no worker, or a new one
        if job.stop_file.exists() or not failure.killed or restarts == job.hp.max_restarts:
            return failure.after(restarts)
        restarts += 1
        restart = Restart(restarts, of=job.hp.max_restarts, cause=failure.cause, at=failure.at)
        write_json_aside(job.restart_file, asdict(restart))
        last = job.paths.checkpoints / "last.ckpt"
        where = f"checkpoint {last.read_text().strip()}" if last.is_file() else "the beginning: there is no checkpoint"
        logger.warning("%s; restart %d of %d, from %s", failure.cause, restarts, restart.of, where)


def _run_once(job_file: Path, num_workers: int, restarts: int) -> list[Ended]:
    store = TCPStore(_LOOPBACK, 0, is_master=True, wait_for_workers=False)
    workers = []
    for rank in range(num_workers):
        environment = {
            **os.environ,
            PARENT_PID: str(os.getpid()),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": "0",
            "WORLD_SIZE": str(num_workers),
            "LOCAL_WORLD_SIZE": str(num_workers),
            "MASTER_ADDR": _LOOPBACK,
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 hosts no store: the others outlive it to say that it died
            "TORCHELASTIC_RESTART_COUNT": str(restarts),
        }
        command = [sys.executable, "-m", "container.training.worker", str(job_file)]
        workers.append(subprocess.Popen(command, env=environment))
    return wait_for_all(workers)


def wait_for_all(workers: Sequence[subprocess.Popen], *, last_words: float = LAST_WORDS) -> list[Ended]:
    """How the workers ended, first to last; `last_words` seconds after the first failure the rest are killed."""
    ends: queue.SimpleQueue[Ended] = queue.SimpleQueue()

    def wait_for(rank: int) -> None:
        exitcode = workers[rank].wait()
        ends.put(Ended(rank, workers[rank].pid, exitcode, time.time()))

    for rank in range(len(workers)):
        threading.Thread(target=wait_for, args=(rank,), daemon=True).start()
    ended: list[Ended] = []
    deadline: float | None = None
    killed: set[int] = set()
    while len(ended) < len(workers):
        try:
            end = ends.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            killed = set(range(len(workers))) - {end.rank for end in ended}
            for rank in killed:
                workers[rank].kill()
            deadline = None
            continue
        ended.append(replace(end, left_alone=end.rank in killed and end.exitcode < 0))
        if end.exitcode != 0 and deadline is None and not killed:
            deadline = time.monotonic() + last_words
    return ended


def failure_of(job: Job, ended: Sequence[Ended]) -> Failure | None:
    """What the workers failed of, by what they wrote and how they ended; None where all ended well."""
    if all(end.exitcode == 0 for end in ended):
        return None
    failures = [Failure.read_json(path) for path in job.error_files()]
    spoken = {failure.rank for failure in failures}
    for end in ended:
        if end.exitcode != 0 and not end.left_alone and end.rank not in spoken:
            who = f"worker rank {end.rank} (pid {end.pid})"
            # Peers may say that it is gone before its end is noticed here; an abort is what losing a peer can lead to.
            at = end.at - (_NOTICED if end.exitcode != -signal.SIGABRT else 0.0)
            failures.append(Failure.from_exit(end.exitcode, who=who, rank=end.rank, at=at))
    return root_cause(failures)


if __name__ == "__main__":
    # The workers talk over loopback; a proxy or another interface must not come between.
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
