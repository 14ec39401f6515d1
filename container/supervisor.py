"""One per host: contracts -> other hosts -> encoder -> prepare -> workers -> verify -> exit code. Imports no torch."""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from container.decision.feasibility import check_decidable
from container.failure import Failure, clear_failure, write_failure
from container.hosts.channels import sharded_channels
from container.hosts.control import FAILED as HOST_FAILED
from container.hosts.control import STOP as HOST_STOPS
from container.hosts.control import Control, HostTrouble
from container.hosts.gather import gather_channels
from container.hosts.topology import Topology
from container.hosts.worker_environment import sm_variables
from container.job import Job
from container.parallel.degrees import ParallelDegrees
from container.parallel.encoder_checks import check_encoders
from container.preprocessing.prepare import PreparedData, prepare_data
from container.processes import set_up_logging
from container.workers import StopRequests, StopSignal, Workers
from contracts import artifacts
from contracts.errors import ContractError
from contracts.hyperparameter_files import describe_hyperparameters, load_hyperparameters
from contracts.hyperparameters import FROM_SCRATCH, Hyperparameters
from contracts.paths import JobPaths
from contracts.unused_settings import unused_settings

logger = logging.getLogger(__name__)

_LOCK = ".lock"
_RESERVED = 1 << 15  # bytes that the lock holds until a cause has to be written
COMPLETED, FAILED, STOPPED = 0, 1, 128 + signal.SIGTERM


class AnotherJobError(ContractError):
    """The folder belongs to a job that is running."""


@dataclass(frozen=True)
class Verdict:
    """How the job ended, as the first host sees it: every host leaves with the same."""

    exit_code: int
    failure: Failure | None = None
    where: str = ""


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
    control: Control | None = None
    with _handled(stop):
        try:
            topology = Topology.read(paths)
            if not topology.trains:
                logger.info("instance group %r trains, of which %s is none: leaving", topology.group, topology.current)
                return COMPLETED
            control = Control(topology, lambda key: _hear(control, stop, key))
            with _alone_in(paths), tempfile.TemporaryDirectory(prefix="job-", ignore_cleanup_errors=True) as scratch:
                clear_failure(paths)
                return _train(paths, Path(scratch), started, stop, control)
        except AnotherJobError as error:
            print(error, file=sys.stderr, flush=True)  # the failure files are the other job's
            return FAILED
        except HostTrouble as trouble:
            stop.interrupts = False
            return _fail(paths, trouble.failure)
        except StopSignal:
            if control is not None:
                control.publish(HOST_STOPS, True)
            return _stopped(paths, "before training began")
        except BaseException as error:  # every cause belongs in the failure files
            stop.interrupts = False
            failure = Failure.from_exception(error)
            if control is not None:
                control.fail(failure)
            return _fail(paths, failure)
        finally:
            stop.interrupts = False
            if control is not None:
                control.leave()


def _hear(control: Control | None, stop: StopRequests, key: str) -> None:
    """Another host stops or failed: have the main thread know, as if a signal had come. In a thread of the control."""
    assert control is not None
    if key == HOST_FAILED and stop.trouble is None:
        stop.trouble = control.trouble
    elif key != HOST_STOPS:
        return
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _train(paths: JobPaths, scratch: Path, started: float, stop: StopRequests, control: Control) -> int:
    hp = load_hyperparameters(paths)
    num_gpus = count_gpus()
    num_workers = hp.nproc_per_node or num_gpus or 1
    topology = control.topology
    degrees = ParallelDegrees.resolve(hp, num_workers * topology.size, per_host=num_workers)
    check_encoders(paths, hp, degrees)
    for line in describe_hyperparameters(hp):
        logger.info("%s", line)
    for sentence in unused_settings(hp, degrees.features(hp)):
        logger.warning("%s", sentence)
    _check_compiler(hp)
    _say_attention_dropout(hp)
    _say_head_lr(hp)
    sharded = sharded_channels(paths, topology)
    phases = [("read contracts", time.time() - started)]
    _come_together(control, hp, num_workers, sharded)
    if topology.size > 1:
        phases.append(("meet hosts", time.time() - started - phases[0][1]))
    gathered = gather_channels(control, paths, sharded)
    if sharded:
        phases.append(("gather channels", time.time() - started - sum(seconds for _, seconds in phases)))
    prepared = prepare_data(gathered.paths, hp, contents=gathered.contents)
    check_decidable(hp, prepared.summary["splits"]["val"]["classes"])
    _check_same_data(control, prepared)
    phases.append(("prepare data", time.time() - started - sum(seconds for _, seconds in phases)))
    job = Job(paths, hp, scratch, prepared.folder, started, tuple(phases))
    stop.interrupts = False
    variables = sm_variables(paths, hp, topology, num_gpus=num_gpus)
    failure = Workers(job, control, num_workers=num_workers, stop=stop, variables=variables).run()
    verdict = _verdict(job, failure, stop) if topology.leads else None
    said = control.gather("verdict", asdict(verdict) if verdict else None)[topology.leader]
    verdict = Verdict(said["exit_code"], Failure(**said["failure"]) if said["failure"] else None, said["where"])
    if verdict.failure is not None:
        return _fail(paths, verdict.failure)
    if verdict.exit_code == STOPPED:
        return _stopped(paths, verdict.where)
    where = f"model in {paths.model}, report in {paths.output_data / artifacts.REPORT}"
    if not topology.leads:
        where = f"host {topology.leader} has the model and the report"
    logger.info("completed in %.0f s: %s", time.time() - started, where)
    return COMPLETED


def _verdict(job: Job, failure: Failure | None, stop: StopRequests) -> Verdict:
    """How the job ended, by what rank 0 left and what its workers failed of."""
    paths = job.paths
    result = json.loads(job.result_file.read_text()) if job.result_file.is_file() else {}
    if result.get("status") == "stopped" or (stop.requested and result.get("status") != "completed"):
        last = paths.checkpoints / "last.ckpt"
        where = f"checkpoint {last.read_text().strip()} is complete" if last.is_file() else "before a checkpoint"
        return Verdict(STOPPED, where=where)
    if failure is not None:
        return Verdict(FAILED, failure)
    if result.get("status") != "completed":
        return Verdict(FAILED, Failure("the workers ended without a result", "Read the log."))
    missing = _missing_artifacts(paths, result)
    if missing:
        fix = "Look for a full disk, and run again."
        return Verdict(FAILED, Failure(f"{missing} after training ended", fix))
    return Verdict(COMPLETED)


def _come_together(control: Control, hp: Hyperparameters, num_workers: int, sharded: Sequence[str]) -> None:
    """Meet the other hosts, and hold them to the same settings, number of processes and sharded channels."""
    settings = hashlib.sha256(hp.model_dump_json().encode()).hexdigest()[:16]
    said = control.connect({"processes": num_workers, "settings": settings, "sharded channels": list(sharded)})
    hosts = control.topology.hosts
    for host, about in said.items():
        for what, fix in (
            ("processes", "Use one instance type, or set nproc_per_node; INSTANCE_GROUP chooses among several groups."),
            ("settings", "Give every host the same hyperparameters."),
            ("sharded channels", "Give every host the same input/config/inputdataconfig.json."),
        ):
            if about[what] != said[hosts[0]][what]:
                raise ContractError(
                    f"{what}: host {host} has {about[what]}, but host {hosts[0]} has {said[hosts[0]][what]}", fix
                )
    if len(hosts) > 1:
        logger.info(
            "%d hosts of %d processes: %s; this is %s, rank %d", len(hosts), num_workers, ", ".join(hosts),
            control.topology.current, control.topology.rank,
        )  # fmt: skip


def _check_same_data(control: Control, prepared: PreparedData) -> None:
    """Every host prepared the same rows: what one of them has another's would train on nothing of."""
    about = {"rows": dict(prepared.rows), "digests": dict(prepared.digests), "fitted": prepared.fitted.fingerprint}
    said = control.gather("prepared", about)
    leader = said[control.topology.leader]
    for host, other in said.items():
        if other != leader:
            what = next(name for name in about if other[name] != leader[name])
            raise ContractError(
                f"channels: host {host} prepared other data than host {control.topology.leader}: {what} "
                f"{other[what]}, not {leader[what]}",
                "Give every host the whole of every channel (S3DataDistributionType FullyReplicated), or a part of it "
                "and say so (ShardedByS3Key).",
            )


def _check_compiler(hp: Hyperparameters) -> None:
    """torch.compile calls a compiler at run time, which a small image does not have."""
    if hp.compile and not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "gcc", "clang", "cc")):
        raise ContractError(
            "compile: is true, but there is no compiler on this machine: torch.compile needs one while it runs",
            "Set compile to false, or build the image on a base that has gcc and g++.",
        )


def count_gpus() -> int:
    """GPUs that this host's processes may use, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() and name.strip() != "-1"])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


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
    with contextlib.suppress(OSError):
        os.truncate(paths.root / _LOCK, 0)  # room for the cause on a disk that is full
    write_failure(paths, failure)
    print(failure.text(), file=sys.stderr, flush=True)
    return FAILED


@contextmanager
def _alone_in(paths: JobPaths) -> Iterator[None]:
    """Hold the root's lock: two jobs in one folder would remove each other's prepared data and checkpoints."""
    paths.root.mkdir(parents=True, exist_ok=True)
    with (paths.root / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AnotherJobError(
                f"{paths.root}: another training job is running in this folder",
                "Wait for it, stop it, or use another folder.",
            ) from None
        with contextlib.suppress(OSError):
            lock.truncate(0)
            lock.write("." * _RESERVED)
            lock.flush()
        yield


@contextmanager
def _handled(handler: StopRequests) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
