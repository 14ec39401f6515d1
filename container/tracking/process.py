"""Send a job's results to its tracking server when it has finished, without delaying or failing the job."""

import logging
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths

logger = logging.getLogger(__name__)

LIMIT = 120.0  # seconds
_POLL = 0.1
_TRACK = ("-m", "container", "track")
_CODE = Path(__file__).parent.parent.parent


def send_results(paths: JobPaths, hp: Hyperparameters, *, stopping: Callable[[], bool], limit: float = LIMIT) -> None:
    """Run `track` in another process for at most `limit` seconds, if the job has a tracking server.

    A failure is a warning that names the command with which the results can be sent later.

    Args:
        stopping: tells whether the job was requested to stop.
    """
    if hp.mlflow_tracking_uri is None:
        return
    logger.info("mlflow: sending the results to %s", hp.mlflow_tracking_uri)
    arguments = ["--root", str(paths.root)]
    problem = send_in_process(arguments, stopping=stopping, limit=limit)
    if problem is not None:
        logger.warning(
            f"mlflow_tracking_uri: {problem}. The job and its results are complete. To send them later: "
            f"{shlex.join(['python', *_TRACK, *arguments])}"
        )


def send_in_process(arguments: Sequence[str], *, stopping: Callable[[], bool], limit: float) -> str | None:
    """Run `track` with these arguments in another process; return why it did not send everything, or None."""
    try:
        process = subprocess.Popen([sys.executable, *_TRACK, *arguments], cwd=_CODE, start_new_session=True)
    except OSError as error:
        return f"the process did not start: {error}"
    deadline = time.monotonic() + limit
    try:
        while process.poll() is None:
            if stopping():
                return "the job was requested to stop"
            if time.monotonic() > deadline:
                return f"the results were not sent within {limit:g} s"
            time.sleep(_POLL)
    finally:
        process.kill()
        process.wait()
    return f"the results were not sent (exit code {process.returncode})" if process.returncode else None
