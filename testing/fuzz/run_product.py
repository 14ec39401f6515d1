"""Run commands of the product in this process, which is a fork for one input."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping

from container.commands import main
from container.job import supervisor
from container.job.failure import Failure
from container.job.job import Job
from container.job.launch.workers import Workers
from contracts.paths import JobPaths
from testing import warm
from testing.fuzz.outcome import Case
from testing.step_runs import VARIABLES

REACHED = "the stage of the workers is reached"


class ReachedWorkers(Workers):
    """Stand in for the workers: the data is prepared."""

    def start(self, number: int = 0) -> None:
        pass

    def run(self, job: Job) -> Failure:
        return Failure(REACHED)


def ended_training(case: Case, paths: JobPaths, *, whole: bool) -> tuple[int, bool]:
    """Run a training job, to its end or up to its workers; return the exit code, and whether it came so far."""
    case.begin()
    if whole:
        with _forked_programs():
            code = supervisor.train(paths)
        return code, code == 0
    workers = supervisor.Workers
    supervisor.Workers = ReachedWorkers  # type: ignore[misc, assignment]
    try:
        code = supervisor.train(paths)
    finally:
        supervisor.Workers = workers  # type: ignore[misc]
    failure = paths.failure_files[0]
    return code, failure.is_file() and failure.read_bytes().startswith(REACHED.encode())


def ended_step(case: Case, command: str, settings: Mapping[str, str], *arguments: str) -> int:
    """Run a step's program below job/, with only `settings` as variables of steps; return its exit code."""
    case.begin()
    root = case.folder / "job"
    with environment(settings), _forked_programs():
        return main([command, "--root", str(root), *arguments])


@contextlib.contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    for name in VARIABLES:
        os.environ.pop(name, None)
    for name, value in settings.items():
        os.environb[name.encode()] = value.replace("\0", "").encode("utf-8", "surrogateescape")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _forked_programs() -> Iterator[None]:
    """Fork the project's programs instead of starting them."""
    before = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    subprocess.Popen._execute_child = warm._execute_child  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess.Popen._execute_child = before  # type: ignore[attr-defined]
