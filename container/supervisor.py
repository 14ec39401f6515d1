"""One per host: contracts -> encoder -> prepare -> torchrun -> verify -> exit code. Imports no torch."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from container.failure import Failure, clear_failure, root_cause, write_failure
from container.job import Job
from container.parallel.degrees import ParallelDegrees
from container.preprocessing.prepare import prepare_data
from container.processes import set_up_logging
from contracts import artifacts
from contracts.consistency import unused_settings
from contracts.hyperparameter_files import load_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths

logger = logging.getLogger(__name__)

COMPLETED, FAILED, STOPPED = 0, 1, 128 + signal.SIGTERM
STOP_GRACE = 110  # seconds; SageMaker kills 120 s after its SIGTERM
_POLL = 0.1


class StopSignal(BaseException):
    """SIGTERM or Ctrl-C reached the supervisor."""


def train(paths: JobPaths) -> int:
    """Run the training job under `paths`.

    Returns:
        0 when every artifact is in place; 1 after a failure, with both failure files written; 143 when stopped on
        request, to be run again.
    """
    set_up_logging()
    os.umask(0)  # what a root container writes, the user outside can read and remove
    started = time.time()
    clear_failure(paths)
    with _signals_raise():
        try:
            with tempfile.TemporaryDirectory(prefix="job-", ignore_cleanup_errors=True) as scratch:
                return _train(paths, Path(scratch), started)
        except StopSignal:
            logger.info("stopped on request before training began; run the same job again")
            return STOPPED
        except BaseException as error:
            return _fail(paths, Failure.from_exception(error))


def _train(paths: JobPaths, scratch: Path, started: float) -> int:
    hp = load_hyperparameters(paths)
    for sentence in unused_settings(hp):
        logger.warning("%s", sentence)
    num_workers = hp.nproc_per_node or count_gpus() or 1
    ParallelDegrees.resolve(hp, num_workers)
    _say_attention_dropout(hp)
    phases = [("read contracts", time.time() - started)]
    prepared = prepare_data(paths, hp)
    phases.append(("prepare data", time.time() - started - phases[0][1]))
    job = Job(paths, hp, scratch, prepared.folder, started, tuple(phases))
    exit_code, asked_to_stop = _run_workers(job, num_workers)
    result = json.loads(job.result_file.read_text()) if job.result_file.is_file() else {}
    if result.get("status") == "stopped" or (asked_to_stop and result.get("status") != "completed"):
        last = paths.checkpoints / "last.ckpt"
        at = (
            f"the checkpoint {last.read_text().strip()} is complete"
            if last.is_file()
            else "before the first checkpoint"
        )
        logger.info("stopped on request: %s; run the same job again to go on", at)
        return STOPPED
    if exit_code != 0 or result.get("status") != "completed":
        return _fail(paths, _failure_of_workers(job, exit_code))
    missing = _missing_artifacts(paths, result["files"])
    if missing:
        return _fail(paths, Failure(f"{missing} after training ended", "Look for a full disk, and run again."))
    logger.info("completed in %.0f s: model in %s, report in %s", time.time() - started, paths.model,
                paths.output_data / artifacts.REPORT)  # fmt: skip
    return COMPLETED


def count_gpus() -> int:
    """GPUs that this host's processes may use, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() and name.strip() != "-1"])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _say_attention_dropout(hp: Hyperparameters) -> None:
    if any(name.startswith("attention") and value for name, value in hp.encoder_config.items() if "drop" in name):
        logger.warning("attention dropout is 0 on every path: packed attention has none; encoder_config's is not used")


def _run_workers(job: Job, num_workers: int) -> tuple[int, bool]:
    """Start the workers and wait; a stop signal goes to the ranks first. Returns (exit code, asked to stop)."""
    job_file = job.write()
    environment = {
        "OMP_NUM_THREADS": str(max(1, available_cores() // num_workers)),
        # Threads that spin while they wait starve each other when processes share cores: 2 rows/s became 20 beside a
        # busy neighbour.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
        "HF_HUB_OFFLINE": "1",  # the encoder is resolved: no worker asks a hub again
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]).strip(":"),
    }
    launcher = subprocess.Popen(
        [sys.executable, "-m", "container.training.launch", str(job_file), str(num_workers)],
        env=environment,
        start_new_session=True,  # Ctrl-C reaches the supervisor alone, which decides
    )
    deadline: float | None = None
    while True:
        try:
            while launcher.poll() is None:
                if deadline is not None and time.time() > deadline:
                    logger.warning("the workers did not stop within %d s: killing them", STOP_GRACE)
                    _kill_all(job, launcher)
                time.sleep(_POLL)
            return launcher.returncode, deadline is not None
        except StopSignal:
            deadline = time.time() + STOP_GRACE
            ranks = _worker_pids(job)
            logger.info("asked to stop: %d workers finish their step and save", len(ranks))
            if len(ranks) < num_workers:  # still starting: nothing to save
                _kill_all(job, launcher)
            for pid in ranks.values():
                _signal(pid, signal.SIGTERM)


def _worker_pids(job: Job) -> dict[int, int]:
    return {
        int(path.suffix.removeprefix(".rank")): int(path.read_text() or 0) for path in job.scratch.glob("pid.rank*")
    }


def _kill_all(job: Job, launcher: subprocess.Popen) -> None:
    for pid in _worker_pids(job).values():
        _signal(pid, signal.SIGKILL)
    launcher.kill()  # the kernel ends workers that have no pid file yet: they die with their parent


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _failure_of_workers(job: Job, exit_code: int) -> Failure:
    failures = [Failure.read_json(path) for path in sorted(job.scratch.glob("error.rank*.json"))]
    if job.launch_file.is_file():
        spoken = {failure.rank for failure in failures}
        for ended in json.loads(job.launch_file.read_text()):
            if ended["exitcode"] < 0 and ended["rank"] not in spoken:
                failures.append(Failure.from_signal(-ended["exitcode"], rank=ended["rank"], pid=ended["pid"]))
    if not failures:
        return Failure(f"the workers ended with exit code {exit_code} and said no cause", "Read the log above.")
    return root_cause(failures)


def _missing_artifacts(paths: JobPaths, files: dict[str, int]) -> str | None:
    for name in artifacts.REQUIRED_MODEL_FILES:
        if name not in files:
            return f"model/{name} was not written"
    for name, size in files.items():
        path = paths.model / name
        if not path.is_file() or path.stat().st_size != size:
            return f"model/{name} is missing or incomplete"
    for name in artifacts.REQUIRED_EVALUATION_FILES:
        if not (paths.output_data / name).is_file():
            return f"output/data/{name} is missing"
    return None


def _fail(paths: JobPaths, failure: Failure) -> int:
    shutil.rmtree(paths.model / ".incomplete", ignore_errors=True)
    write_failure(paths, failure)
    print(failure.text(), file=sys.stderr, flush=True)
    return FAILED


@contextmanager
def _signals_raise() -> Iterator[None]:
    def raise_stop(*_: object) -> None:
        raise StopSignal

    before = {number: signal.signal(number, raise_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
