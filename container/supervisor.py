"""Run a training job on this host; one process per host, without torch.

Contracts -> other hosts -> prepare -> workers -> verify -> exit code.
"""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from container.decision.val_labels import check_val_labels
from container.errors import AnotherJobError, HostTrouble, MemberFailed, StoppedBeforeTraining
from container.failure import Failure, clear_failure, write_failure
from container.hosts.channels import check_channels, find_channels
from container.hosts.control import FAILED as HOST_FAILED
from container.hosts.control import STOP as HOST_STOPS
from container.hosts.control import Control
from container.hosts.gpus import count_gpus
from container.hosts.network import check_interfaces
from container.hosts.topology import Topology
from container.hosts.worker_environment import sm_variables
from container.job import Job, JobKind, Member, Scratch
from container.launch.workers import StopHandler, Workers
from container.preflight import check_before_preparing, choose_job_settings, processes_per_host
from container.preprocessing.infer_classes import with_classes_of_train
from container.preprocessing.prepare import prepare_data
from container.preprocessing.prepared import PreparedData
from container.processes import log_to_file, set_up_logging
from container.timeline import Timeline
from container.tracking.process import send_results
from container.training.checkpoint_files import clear_checkpoints, complete_checkpoints, remove_old_checkpoints
from container.training.identity import check_resumable
from container.tuning.ensemble import train_members
from contracts import artifacts
from contracts.errors import ContractError
from contracts.hyperparameter_files import TRAINING_JOB, GivenSettings, read_settings, with_own_checkpoints
from contracts.hyperparameters import Hyperparameters
from contracts.input_files import check_writable, exists
from contracts.local_paths import with_local_paths
from contracts.paths import JobPaths
from contracts.presets import DataFacts

logger = logging.getLogger(__name__)

_LOCK = ".lock"
_RESERVED = 1 << 15  # bytes of the lock file, freed for the failure files when the disk is full
COMPLETED, FAILED, STOPPED = 0, 1, 128 + signal.SIGTERM


@dataclass(frozen=True)
class Verdict:
    """The end of the job, decided by the first host for all hosts."""

    exit_code: int
    failure: Failure | None = None
    where: str = ""


def train(paths: JobPaths, *, tuning: Mapping[str, Any] | None = None, fresh: bool = False) -> int:
    """Run the training job under `paths`.

    Args:
        tuning: search for the best hyperparameters first, with these settings of the search in addition.
        fresh: start over, as with resume=false.

    Returns:
        0 if every artifact is complete; 1 after a failure, with both failure files written; 143 if stopped on request:
        the same job can be run again.
    """
    set_up_logging()
    if hasattr(os, "getuid") and os.getuid() == 0:
        os.umask(0)  # users outside the container can read and remove its files
    timeline = Timeline()
    stop = StopHandler()
    control: Control | None = None
    with _handled(stop):
        try:
            check_writable(paths.root)
            paths = with_own_checkpoints(with_local_paths(paths), os.environ)
            for folder in paths.written:
                check_writable(folder)
            topology = Topology.read(paths)
            if not topology.trains:
                logger.info("host %s is not in the training group %r: exiting with 0", topology.current, topology.group)
                return COMPLETED
            control = Control(topology, lambda key: _hear(control, stop, key))
            with _alone_in(paths), tempfile.TemporaryDirectory(prefix="job-", ignore_cleanup_errors=True) as scratch:
                clear_failure(paths)
                if topology.leads:
                    log_to_file(paths.output_data / artifacts.LOG)
                given = partial(read_settings, tuning=tuning, fresh=fresh)
                return _train(
                    paths, Scratch(Path(scratch)), timeline=timeline, stop=stop, control=control, read_given=given
                )
        except AnotherJobError as error:
            print(error, file=sys.stderr, flush=True)  # the failure files belong to the other job
            return FAILED
        except HostTrouble as trouble:
            stop.interrupts = False
            return _fail(paths, trouble.failure)
        except MemberFailed as failed:
            stop.interrupts = False
            return _fail(paths, failed.failure)
        except StoppedBeforeTraining as stopped:
            if control is not None:
                control.publish(HOST_STOPS, True)
            return _stopped(paths, stopped.where)
        except BaseException as error:  # the failure files contain every cause
            stop.interrupts = False
            failure = Failure.from_exception(error)
            if control is not None:
                control.fail(failure)
            return _fail(paths, failure)
        finally:
            stop.interrupts = False
            if control is not None:
                control.leave()


def _hear(control: Control | None, stop: StopHandler, key: str) -> None:
    """Send the main thread a signal when another host stops or fails; runs in a thread of the control."""
    assert control is not None
    if key == HOST_FAILED and stop.trouble is None:
        stop.trouble = control.trouble
    elif key != HOST_STOPS:
        return
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _train(
    paths: JobPaths,
    scratch: Scratch,
    *,
    timeline: Timeline,
    stop: StopHandler,
    control: Control,
    read_given: Callable[[JobPaths], GivenSettings],
) -> int:
    paths = find_channels(paths)
    given = with_classes_of_train(read_given(paths), paths)
    topology = control.topology
    num_gpus = count_gpus()
    check_interfaces(os.environ, num_gpus=num_gpus)
    choose = partial(choose_job_settings, paths, given, hosts=topology.size, num_gpus=num_gpus)
    hp = choose()
    if topology.leads and os.environ.get(TRAINING_JOB):
        _warn_about_interruptions(paths, hp)
    kind: JobKind = "whole"
    check_channels(paths, topology)
    if hp.tuning is not None:
        from container.tuning.search import search  # imports Optuna, which few jobs need

        hp = search(paths, hp, given, num_gpus=num_gpus, stop=stop)
        kind = "winner"
        timeline.mark("search")
    num_workers = processes_per_host(hp, num_gpus=num_gpus)
    check_before_preparing(paths, hp, hosts=topology.size, per_host=num_workers)
    resumes = hp.resume and kind == "whole" and hp.num_members == 1
    if resumes:
        check_resumable(hp, paths.checkpoints, given=given.values)
    timeline.mark("read contracts")
    _meet_hosts(control, hp, num_workers)
    if topology.size > 1:
        timeline.mark("meet hosts")
    members: tuple[Member, ...] = ()
    if hp.num_members > 1:
        prepared = prepare_data(paths, hp)
        if kind == "whole":
            hp = choose(DataFacts.read(prepared.summary))
        members = train_members(paths, hp, prepared, num_gpus=num_gpus)
        timeline.mark("train networks")
    variables = sm_variables(paths, hp, topology, num_gpus=num_gpus)
    with Workers(scratch, control, num_workers=num_workers, stop=stop, variables=variables) as workers:
        prepared = prepare_data(paths, hp, on_inputs=workers.start)
        check_val_labels(hp, prepared.summary["splits"]["val"]["classes"])
        _check_same_data(control, prepared)
        if not hp.resume:
            clear_checkpoints(paths.checkpoints)
        timeline.mark("prepare data")
        if kind == "whole":
            hp = choose(DataFacts.read(prepared.summary))
        if resumes:
            check_resumable(hp, paths.checkpoints, given=given.values, prepared=prepared)
        job = Job(paths, hp, scratch, prepared.folder, timeline, kind, members)
        stop.interrupts = False
        failure = workers.run(job)
    own = _verdict(job, failure, stop) if topology.leads else None
    if own is not None and own.exit_code == COMPLETED:
        send_results(paths, hp, stopping=lambda: stop.requested)
    verdict = _agree_verdict(control, own)
    if verdict.failure is not None:
        return _fail(paths, verdict.failure)
    if verdict.exit_code == STOPPED:
        return _stopped(paths, verdict.where)
    for folder in (paths.checkpoints, *(member.checkpoints for member in members)):
        remove_old_checkpoints(folder, keep=hp.keep_checkpoints, uploads=False)
    where = f"model in {paths.model}, report in {paths.output_data / artifacts.REPORT}"
    if not topology.leads:
        where = f"host {topology.leader} has the model and the report"
    logger.info("completed in %.0f s: %s", timeline.elapsed(), where)
    return COMPLETED


def _warn_about_interruptions(paths: JobPaths, hp: Hyperparameters) -> None:
    """Say if an interruption would lose the progress of a job of SageMaker, which cannot see whether it uses spot."""
    if not exists(paths.checkpoint_config):
        logger.warning(
            "%s does not exist: the training job has no CheckpointConfig, and SageMaker saves no checkpoints of it. "
            "After an interruption of spot training it begins again, and no other job can continue it.",
            paths.checkpoint_config,
        )
    elif not hp.resume:
        logger.warning("resume=false: after an interruption of spot training, the job begins again at step 0")


def _agree_verdict(control: Control, verdict: Verdict | None) -> Verdict:
    """Return the first host's `verdict`; the other hosts pass None."""
    content = control.gather("verdict", asdict(verdict) if verdict else None)[control.topology.leader]
    failure = Failure(**content["failure"]) if content["failure"] else None
    return Verdict(content["exit_code"], failure, content["where"])


def _verdict(job: Job, failure: Failure | None, stop: StopHandler) -> Verdict:
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


def _meet_hosts(control: Control, hp: Hyperparameters, num_workers: int) -> None:
    """Connect the hosts; check that they have the same settings and number of processes."""
    settings = hashlib.sha256(hp.model_dump_json().encode()).hexdigest()[:16]
    facts = control.connect({"processes": num_workers, "settings": settings})
    hosts = control.topology.hosts
    for host in hosts:
        for name, fix in (
            ("processes", "Use one instance type, or set nproc_per_node; INSTANCE_GROUP chooses among several groups."),
            ("settings", "Give every host the same hyperparameters."),
        ):
            value, first = facts[host][name], facts[hosts[0]][name]
            if value != first:
                raise ContractError(f"{name}: host {host} has {value}, but host {hosts[0]} has {first}", fix)
    if len(hosts) > 1:
        logger.info(
            "%d hosts with %d processes each: %s; this is %s, rank %d", len(hosts), num_workers, ", ".join(hosts),
            control.topology.current, control.topology.rank,
        )  # fmt: skip


def _check_same_data(control: Control, prepared: PreparedData) -> None:
    """Check that every host prepared the same rows."""
    facts = {"rows": dict(prepared.rows), "digests": dict(prepared.digests), "fitted": prepared.fitted.fingerprint}
    leader = control.topology.leader
    facts_of = control.gather("prepared", facts)
    for host in control.topology.hosts:
        for name in facts:
            value, first = facts_of[host][name], facts_of[leader][name]
            if value != first:
                raise ContractError(
                    f"channels: host {host} prepared other data than host {leader}: {name} are {value}, not {first}",
                    "Give every host all files of every channel (S3DataDistributionType FullyReplicated).",
                )


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


def _stopped(paths: JobPaths, where: str) -> int:
    shutil.rmtree(paths.model / artifacts.INCOMPLETE, ignore_errors=True)
    logger.info("stopped on request: %s; run the same job again to resume", where)
    return STOPPED


def _fail(paths: JobPaths, failure: Failure) -> int:
    shutil.rmtree(paths.model / artifacts.INCOMPLETE, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.truncate(paths.root / _LOCK, 0)
    write_failure(failure, *paths.failure_files)
    return FAILED


@contextmanager
def _alone_in(paths: JobPaths) -> Iterator[None]:
    """Lock the folder: two jobs would remove each other's prepared data and checkpoints."""
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
def _handled(handler: StopHandler) -> Iterator[None]:
    previous = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)
