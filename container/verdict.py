"""Decide how a job has ended: completed, failed or stopped on request."""

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from container.failure import Failure
from container.job import Job
from container.launch.workers import StopHandler
from container.training.checkpoint_files import complete_checkpoints
from contracts import artifacts
from contracts.paths import JobPaths

COMPLETED, FAILED, STOPPED = 0, 1, 128 + signal.SIGTERM


@dataclass(frozen=True)
class Verdict:
    """The end of the job, decided by the first host for all hosts."""

    exit_code: int
    failure: Failure | None = None
    where: str = ""


def verdict_on(job: Job, failure: Failure | None, stop: StopHandler) -> Verdict:
    """Return the verdict, from the result of rank 0 and the failure of the workers."""
    paths = job.paths
    result_file = job.scratch.result_file
    result = json.loads(result_file.read_text()) if result_file.is_file() else {}
    # A stop kills workers that are not ready for it, and their peers lose them. Another failure has a cause to report.
    no_error = failure is None or failure.killed or failure.echo
    if result.get("status") == "stopped" or (stop.requested and no_error and result.get("status") != "completed"):
        where = "every network is trained" if job.members else "before a checkpoint"
        complete = complete_checkpoints(paths.checkpoints) if job.trains else []
        if complete:
            where = f"checkpoint {complete[-1].folder.name} is complete"
        return Verdict(STOPPED, where=where)
    if failure is not None:
        return Verdict(FAILED, failure)
    if result.get("status") != "completed":
        return Verdict(FAILED, Failure("the workers ended without a result", "Read the log."))
    missing = _missing_artifacts(paths, result)
    if missing:
        failure = Failure(f"{missing} after training ended", "Check whether the disk is full, and run again.")
        return Verdict(FAILED, failure)
    return Verdict(COMPLETED)


def _missing_artifacts(paths: JobPaths, result: Mapping[str, Mapping[str, int]]) -> str | None:
    """Return the first artifact that is missing in the result of rank 0 or on disk; None if all are complete."""
    for folder, required, written in (
        (paths.model, artifacts.REQUIRED_MODEL_FILES, result["model"]),
        (paths.output_data, artifacts.REQUIRED_EVALUATION_FILES, result["output"]),
    ):
        for name in required:
            if name not in written:
                return f"{folder / name} was not written"
        for name, size in written.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != size:
                return f"{path} is missing or incomplete"
    return None
