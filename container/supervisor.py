"""One per host: contracts -> encoder -> prepare -> workers -> verify -> exit code. Imports no torch."""

import fcntl
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from container.decision.feasibility import check_decidable
from container.failure import Failure, clear_failure, write_failure
from container.job import Job
from container.parallel.degrees import ParallelDegrees
from container.parallel.feasibility import check_encoders
from container.preprocessing.prepare import prepare_data
from container.processes import PARENT_PID, available_cores, set_up_logging
from contracts import artifacts
from contracts.consistency import unused_settings
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters
from contracts.hyperparameters import FROM_SCRATCH, Hyperparameters
from contracts.paths import JobPaths

logger = logging.getLogger(__name__)

COMPLETED, FAILED, STOPPED = 0, 1, 128 + signal.SIGTERM
STOP_GRACE = 110  # seconds; SageMaker kills 120 s after its SIGTERM
_POLL = 0.1


class StopSignal(BaseException):
    """SIGTERM or Ctrl-C reached the supervisor before it had workers."""


class AnotherJobError(ContractError):
    """The folder belongs to a job that is running."""


class StopRequests:
    """What SIGTERM and Ctrl-C do: end the preparation at once; once workers run, be noted for them to be told."""

    def __init__(self) -> None:
        self.requested = False
        self.interrupts = True

    def __call__(self, *_: object) -> None:
        self.requested = True
        if self.interrupts:
            self.interrupts = False  # a second signal must not interrupt the clearing up after the first
            raise StopSignal


def train(paths: JobPaths) -> int:
    """Run the training job under `paths`.

    Returns:
        0 when every artifact is in place; 1 after a failure, with both failure files written; 143 when stopped on
        request, to be run again.
    """
    set_up_logging()
    if hasattr(os, "getuid") and os.getuid() == 0:
        os.umask(0)  # what a root container writes, the user outside can read and remove
    started = time.time()
    stop = StopRequests()
    with _handled(stop):
        try:
            with _alone_in(paths), tempfile.TemporaryDirectory(prefix="job-", ignore_cleanup_errors=True) as scratch:
                clear_failure(paths)
                return _train(paths, Path(scratch), started, stop)
        except AnotherJobError as error:
            print(error, file=sys.stderr, flush=True)  # the failure files are the other job's
            return FAILED
        except StopSignal:
            return _stopped(paths, "before training began")
        except BaseException as error:  # every cause belongs in the failure files
            stop.interrupts = False
            return _fail(paths, Failure.from_exception(error))


def _train(paths: JobPaths, scratch: Path, started: float, stop: StopRequests) -> int:
    hp = load_hyperparameters(paths)
    _check_hosts(paths)
    num_workers = hp.nproc_per_node or count_gpus() or 1
    degrees = ParallelDegrees.resolve(hp, num_workers)
    check_encoders(paths, hp, degrees)
    for sentence in unused_settings(hp, degrees.features(hp)):
        logger.warning("%s", sentence)
    _say_attention_dropout(hp)
    _say_head_lr(hp)
    phases = [("read contracts", time.time() - started)]
    prepared = prepare_data(paths, hp)
    check_decidable(hp, prepared.summary["splits"]["val"]["classes"])
    phases.append(("prepare data", time.time() - started - phases[0][1]))
    job = Job(paths, hp, scratch, prepared.folder, started, tuple(phases))
    stop.interrupts = False
    exit_code = _run_workers(job, num_workers, stop)
    result = json.loads(job.result_file.read_text()) if job.result_file.is_file() else {}
    if result.get("status") == "stopped" or (stop.requested and result.get("status") != "completed"):
        last = paths.checkpoints / "last.ckpt"
        found = last.is_file()
        return _stopped(paths, f"checkpoint {last.read_text().strip()} is complete" if found else "before a checkpoint")
    if exit_code != 0 or result.get("status") != "completed":
        return _fail(paths, _failure_of_workers(job, exit_code))
    missing = _missing_artifacts(paths, result)
    if missing:
        return _fail(paths, Failure(f"{missing} after training ended", "Look for a full disk, and run again."))
    report = paths.output_data / artifacts.REPORT
    logger.info("completed in %.0f s: model in %s, report in %s", time.time() - started, paths.model, report)
    return COMPLETED


def count_gpus() -> int:
    """GPUs that this host's processes may use, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() and name.strip() != "-1"])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def _check_hosts(paths: JobPaths) -> None:
    """Several hosts would each train alone and overwrite each other's model: refuse them."""
    if not paths.resource_config.is_file():
        return
    try:
        hosts = json.loads(paths.resource_config.read_text()).get("hosts", [])
    except (ValueError, AttributeError) as error:
        raise ContractError(f"{paths.resource_config}: is not a resource configuration: {error}", "") from None
    if len(hosts) > 1:
        raise ContractError(
            f"{paths.resource_config}: names {len(hosts)} hosts {hosts}, but this version trains on one",
            "Set the instance count to 1; one host may have several GPUs.",
        )


def _say_attention_dropout(hp: Hyperparameters) -> None:
    if any(name.startswith("attention") and value for name, value in hp.encoder_config.items() if "drop" in name):
        logger.warning("attention dropout is 0 on every path: packed attention has none; encoder_config's is not used")


def _say_head_lr(hp: Hyperparameters) -> None:
    pretrained = [field.tokenizer for field in hp.text_fields if field.tokenizer != FROM_SCRATCH]
    if pretrained and hp.head_lr is None and hp.lr < 2e-4:
        logger.info(
            "head_lr is not set: everything learns at lr=%g. Beside a pretrained encoder, head_lr=1e-3 usually gives a "
            "much better model.", hp.lr,
        )  # fmt: skip


def _run_workers(job: Job, num_workers: int, stop: StopRequests) -> int:
    """Start the workers and wait for them; a stop request goes to the ranks first. Returns the launcher's exit code."""
    job_file = job.write()
    environment = {
        "OMP_NUM_THREADS": str(max(1, available_cores() // num_workers)),
        # Threads that spin while they wait starve each other when processes share cores: 2 rows/s became 20 beside a
        # busy neighbour.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
        PARENT_PID: str(os.getpid()),
        "HF_HUB_OFFLINE": "1",  # the encoder is resolved: no worker asks a hub again
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]).strip(":"),
    }
    launcher = subprocess.Popen(
        [sys.executable, "-m", "container.training.launch", str(job_file), str(num_workers)],
        env=environment,
        start_new_session=True,  # Ctrl-C reaches the supervisor alone, which decides
    )
    deadline: float | None = None
    while launcher.poll() is None:
        if stop.requested and deadline is None:
            deadline = time.time() + STOP_GRACE
            _ask_to_stop(job, launcher, num_workers)
        if deadline is not None and time.time() > deadline:
            logger.warning("the workers did not stop within %d s: killing them", STOP_GRACE)
            _kill_all(job, launcher)
            deadline = float("inf")
        time.sleep(_POLL)
    return launcher.returncode


def _ask_to_stop(job: Job, launcher: subprocess.Popen, num_workers: int) -> None:
    job.stop_file.touch()
    pids = _worker_pids(job)
    if len(pids) < num_workers:
        logger.info("asked to stop: the workers are still starting, there is nothing to save")
        _kill_all(job, launcher)
        return
    logger.info("asked to stop: %d workers finish their step and save", len(pids))
    for pid in pids:
        _signal(pid, signal.SIGTERM)


def _worker_pids(job: Job) -> list[int]:
    pids = []
    for path in job.pid_files():
        with suppress(FileNotFoundError):  # the launcher is just removing those of workers that died
            pids.append(json.loads(path.read_text()))
    return pids


def _kill_all(job: Job, launcher: subprocess.Popen) -> None:
    for pid in _worker_pids(job):
        _signal(pid, signal.SIGKILL)
    launcher.kill()  # the kernel ends workers that have no pid file yet: they die with their parent


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _failure_of_workers(job: Job, exit_code: int) -> Failure:
    if job.launch_file.is_file():
        return Failure.read_json(job.launch_file)
    return Failure.from_exit(exit_code, who="the launcher of the workers")


def _missing_artifacts(paths: JobPaths, result: Mapping[str, Mapping[str, int]]) -> str | None:
    """What rank 0 says it wrote, against the contract and against the disk."""
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


def _stopped(paths: JobPaths, where: str) -> int:
    shutil.rmtree(paths.model / artifacts.INCOMPLETE, ignore_errors=True)
    logger.info("stopped on request: %s; run the same job again to go on", where)
    return STOPPED


def _fail(paths: JobPaths, failure: Failure) -> int:
    shutil.rmtree(paths.model / artifacts.INCOMPLETE, ignore_errors=True)
    write_failure(paths, failure)
    print(failure.text(), file=sys.stderr, flush=True)
    return FAILED


@contextmanager
def _alone_in(paths: JobPaths) -> Iterator[None]:
    """Hold the root's lock: two jobs in one folder would remove each other's prepared data and checkpoints."""
    paths.root.mkdir(parents=True, exist_ok=True)
    with (paths.root / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AnotherJobError(
                f"{paths.root}: another training job is running in this folder",
                "Wait for it, stop it, or use another folder.",
            ) from None
        yield


@contextmanager
def _handled(handler: StopRequests) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
