"""Run this host's workers, several with torchrun's API, once per attempt, and report why they failed.

A separate process, because the supervisor imports no torch; with one worker, this one imports none either. The
supervisors decide together on a restart, because torchrun's agent would also restart after an error that would occur
again.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from container.job.failure import Failure, now, root_cause
from container.job.job import Attempt, Job, Scratch, write_json
from container.job.launch.ended import Ended, Signalled
from container.job.processes import set_up_logging
from container.job.start import start_command
from container.training.checkpoint_files import clear_unfinished
from container.training.stop import LEFT_ALONE
from contracts.ports import LOOPBACK, free_port
from contracts.program import PARENT_PID, die_with_parent, stops_handled

_DELAY = 1.0  # seconds until the agent notices the end of a worker at the latest; its clock is rounded to this
_CLOSED = (-signal.SIGTERM, LEFT_ALONE)  # exit codes after the agent's own SIGTERM, which follows the first failure
_GRACE = 30.0  # seconds that a worker has to end after a signal to its launcher, as with torchrun


def main(arguments: Sequence[str]) -> int:
    """Run workers (container.job.launch.worker) for each attempt, a line of JSON on stdin.

    Writes the failure of attempt n, or null, to scratch.attempt_file(n).

    Args:
        arguments: the scratch folder and the number of workers.
    """
    scratch, num_workers = Scratch(Path(arguments[0])), int(arguments[1])
    die_with_parent()
    set_up_logging()
    for line in sys.stdin:
        attempt = Attempt(**json.loads(line))
        try:
            command = start_command("container.job.launch.worker", str(scratch.folder))
            failure = failure_of(scratch, run_workers(command, num_workers, attempt=attempt, logs=scratch.folder))
        except Signalled as error:  # if a stop signals every process of the job
            failure = Failure.from_exit(-error.number, who="the launcher of the workers", at=now())
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

    Raises:
        Signalled: a signal has asked this process to end.
    """
    attempt = attempt or Attempt(0, LOOPBACK, 0)
    os.environ[PARENT_PID] = str(os.getpid())
    if num_workers == attempt.hosts == 1:
        ended = _run_alone(arguments)
    else:
        from container.job.launch.elastic import run_with_torchrun  # imports torch, which takes over a second

        ended = run_with_torchrun(arguments, num_workers, attempt=attempt, logs=logs)
    return [end for end in ended if end.exitcode not in _CLOSED] or ended


def _run_alone(arguments: Sequence[str]) -> list[Ended]:
    """Run one worker with the variables that torchrun sets."""
    variables = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": free_port(LOOPBACK)}
    environment = {**os.environ, "MASTER_ADDR": LOOPBACK, **{name: str(value) for name, value in variables.items()}}

    def end(number: int, _: object) -> None:
        raise Signalled(number)

    with stops_handled(end):
        worker = subprocess.Popen([sys.executable, *arguments], env=environment, start_new_session=True)
        try:
            code = worker.wait()
        except Signalled:
            os.killpg(worker.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired, Signalled):
                worker.wait(_GRACE)
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)  # what the worker started, too
            worker.wait()
            raise
    return [Ended(0, worker.pid, code, now())] if code else []


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
