"""Send a job's results to its tracking server when it has finished, without delaying or failing the job."""

import logging
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths

logger = logging.getLogger(__name__)

LIMIT = 120.0  # seconds
_POLL = 0.1
_CODE = Path(__file__).parent.parent.parent


def forward_results(
    paths: JobPaths, hp: Hyperparameters, *, stopping: Callable[[], bool], limit: float = LIMIT
) -> None:
    """Run `track` in another process for at most `limit` seconds, if the job has a tracking server.

    A failure is a warning that names the command with which the results can be sent later.

    Args:
        stopping: tells whether the job was requested to stop.
    """
    if hp.mlflow_tracking_uri is None:
        return
    arguments = ["-m", "container", "track", "--root", str(paths.root)]
    logger.info("mlflow: sending the results to %s", hp.mlflow_tracking_uri)
    try:
        process = subprocess.Popen([sys.executable, *arguments], cwd=_CODE)
    except OSError as error:
        problem: str | None = f"the process did not start: {error}"
    else:
        problem = _problem(process, stopping, limit)
    if problem is not None:
        logger.warning(
            "mlflow_tracking_uri: %s. The job and its results are complete. To send them later: python %s",
            problem, shlex.join(arguments),
        )  # fmt: skip


def _problem(process: "subprocess.Popen[bytes]", stopping: Callable[[], bool], limit: float) -> str | None:
    """Wait for the process; return why it did not send everything, or None."""
    deadline = time.monotonic() + limit
    while process.poll() is None:
        if stopping() or time.monotonic() > deadline:
            process.kill()
            process.wait()
            return "the job was requested to stop" if stopping() else f"the results were not sent within {limit:g} s"
        time.sleep(_POLL)
    return f"the results were not sent (exit code {process.returncode})" if process.returncode else None
