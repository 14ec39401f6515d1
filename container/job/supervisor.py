"""Run a training job on this host; one process per host, without torch.

The phases: resolve the settings, meet the other hosts, prepare the data, produce the model, finish, agree on the end.
"""

import contextlib
import logging
import math
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from container.decision.val_labels import check_val_labels
from container.errors import AnotherJobError
from container.job.agreement import Verdict, agree_on_verdict, check_same_data, meet_hosts, verdict_on
from container.job.failure import FailedElsewhere, Failure, clear_failure, write_failure
from container.job.hosts.channels import check_channels, find_channels
from container.job.hosts.control import FAILED as HOST_FAILED
from container.job.hosts.control import STOP as HOST_STOPS
from container.job.hosts.control import Control
from container.job.hosts.gpus import count_gpus
from container.job.hosts.network import check_interfaces
from container.job.hosts.topology import Topology
from container.job.initial_model import check_encoders, check_settings, find_initial_model, warn_of_val
from container.job.job import InitialModel, Job, JobKind, Member, Scratch
from container.job.launch.run_queue import NETWORKS, Shares, show_curves
from container.job.launch.workers import JobStopHandler, Workers
from container.job.preflight import check_before_preparing, choose_job_settings, processes_per_host
from container.job.processes import log_to_file, set_up_logging
from container.job.time_limit import check_time_to_train, seconds_to_train
from container.job.timeline import Timeline
from container.planning.estimate import warn_if_too_large, with_estimate
from container.preprocessing.infer_classes import with_classes_of_train
from container.preprocessing.prepare import discard_prepared, prepare_data
from container.preprocessing.prepared import PreparedData
from container.tracking.process import send_results
from container.training.checkpoint_files import clear_checkpoints, remove_old_checkpoints
from container.training.identity import check_resumable
from container.tuning.ensemble import plan_members, train_members
from contracts import artifacts
from contracts.atomic_files import settle_replacement
from contracts.errors import ContractError
from contracts.file_systems import LOCK, alone_in, naming_full_disk
from contracts.hyperparameter_files import TRAINING_JOB, GivenSettings, read_settings, with_own_checkpoints
from contracts.hyperparameters import Hyperparameters
from contracts.input_files import check_writable, exists
from contracts.local_paths import with_local_paths
from contracts.other_programs import remove_folder
from contracts.paths import JobPaths
from contracts.presets import DataFacts, class_totals
from contracts.program import COMPLETED, FAILED, STOPPED, Stopped, stops_handled

logger = logging.getLogger(__name__)

_ENDING_SECONDS = 2  # in which a job that was killed ends, on a busy machine
_RESERVED = 1 << 15  # bytes of the lock file, freed for the failure files when the disk is full


@dataclass(frozen=True)
class _Host:
    """What every phase of the job uses on this host."""

    scratch: Scratch
    control: Control
    stop: JobStopHandler
    timeline: Timeline

    @property
    def topology(self) -> Topology:
        return self.control.topology


@dataclass(frozen=True)
class _Plan:
    """The settings of the job, and what a search has trained.

    Attributes:
        given: what the user set; a preset chooses other settings.
        hosts: number of hosts.
        first: the folder of the best trial, which is the first network of several.
        initial: the model from whose weights the training starts.
    """

    paths: JobPaths
    given: GivenSettings
    hp: Hyperparameters
    hosts: int
    num_gpus: int
    kind: JobKind = "whole"
    first: Path | None = None
    initial: InitialModel | None = None

    @property
    def num_workers(self) -> int:
        return processes_per_host(self.hp, num_gpus=self.num_gpus)

    def check(self) -> None:
        """Run every check of the settings of the training that needs no data."""
        check_before_preparing(self.paths, self.hp, hosts=self.hosts, per_host=self.num_workers)

    def check_checkpoints(self, prepared: PreparedData | None = None) -> None:
        """Compare the settings, and the data once it is prepared, with the checkpoints that one network resumes."""
        if self.hp.resume and self.hp.num_members == 1:
            check_resumable(self.hp, self.paths.checkpoints, given=self.given.values, prepared=prepared)

    def with_facts(self, prepared: PreparedData) -> "_Plan":
        """Return the plan with the settings that a preset chooses by the data; those of a trial have been chosen."""
        if self.kind == "winner":
            return self
        facts = DataFacts.read(prepared.summary)
        also = partial(check_settings, self.initial) if self.initial is not None else lambda _: None
        hp = choose_job_settings(self.paths, self.given, facts, hosts=self.hosts, num_gpus=self.num_gpus, also=also)
        return replace(self, hp=hp)


def train(
    paths: JobPaths,
    *,
    tuning: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    initial_model: Path | None = None,
) -> int:
    """Run the training job under `paths`.

    Args:
        tuning: search for the best hyperparameters first, with these settings of the search in addition.
        options: settings of the command line, whatever the files set.
        initial_model: the folder of an earlier job, or its model, from whose weights the training starts.

    Returns:
        0 if every artifact is complete; 1 after a failure, with both failure files written; 143 if stopped on request:
        the same job can be run again.

    Raises:
        AnotherJobError: another job is running in the folder.
    """
    set_up_logging()
    if hasattr(os, "getuid") and os.getuid() == 0:
        os.umask(0)  # users outside the container can read and remove its files
    timeline = Timeline()
    stop = JobStopHandler()
    control: Control | None = None
    with stops_handled(stop), contextlib.ExitStack() as at_end:
        try:
            check_writable(paths.root)
            paths = with_own_checkpoints(with_local_paths(paths), os.environ)
            for folder in paths.written:
                check_writable(folder)
            topology = Topology.read(paths.resource_config)
            if not topology.trains:
                logger.info("host %s is not in the training group %r: exiting with 0", topology.current, topology.group)
                return COMPLETED
            control = Control(topology, lambda key: _hear(control, stop, key))
            at_end.callback(control.leave)
            with _alone_in(paths), tempfile.TemporaryDirectory(prefix="job-", ignore_cleanup_errors=True) as scratch:
                clear_failure(paths)
                if topology.leads:
                    log_to_file(paths.output_data / artifacts.LOG)
                host = _Host(Scratch(Path(scratch)), control, stop, timeline)
                try:
                    with naming_full_disk(*paths.written, Path(scratch)):
                        paths = find_channels(paths)
                        initial = find_initial_model(paths, initial_model, scratch=host.scratch.folder)
                        return _run(paths, host, partial(read_settings, tuning=tuning, options=options), initial)
                finally:
                    settle_replacement(paths.model)
        except AnotherJobError:
            raise  # the failure files belong to the other job
        except BaseException as error:
            stop.interrupts = False
            return _end_early(paths, control, error)


def _end_early(paths: JobPaths, control: Control | None, error: BaseException) -> int:
    """Tell the other hosts, and write or log, why the job ends before they agree on its end; return its exit code."""
    if isinstance(error, Stopped):
        if control is not None:
            control.publish(HOST_STOPS, True)
        return _stopped(error.where or "before training began")
    failure = Failure.from_exception(error)
    if control is not None and not isinstance(error, FailedElsewhere):
        control.fail(failure)
    return _fail(paths, failure)


def _hear(control: Control | None, stop: JobStopHandler, key: str) -> None:
    """Send the main thread a signal when another host stops or fails; runs in a thread of the control."""
    assert control is not None
    if key == HOST_FAILED and stop.trouble is None:
        stop.trouble = control.trouble
    elif key != HOST_STOPS:
        return
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _run(
    paths: JobPaths,
    host: _Host,
    read_given: Callable[[JobPaths], GivenSettings],
    initial: InitialModel | None,
) -> int:
    plan = _resolve(paths, host, read_given, initial)
    meet_hosts(host.control, plan.hp, plan.num_workers)
    if host.topology.size > 1:
        host.timeline.mark("meet hosts")
    if not plan.hp.resume:
        discard_prepared(plan.paths)
    if plan.hp.tuning is not None:
        plan = _search(plan, host)
        host.timeline.mark("search")
    job, failure = _produce(plan, host)
    return _end(job, host, agree_on_verdict(host.control, _finish(job, host, failure)))


def _resolve(
    paths: JobPaths,
    host: _Host,
    read_given: Callable[[JobPaths], GivenSettings],
    initial: InitialModel | None,
) -> _Plan:
    """Read the settings, and check all that needs no data."""
    given_settings = with_classes_of_train(read_given(paths), paths)
    hosts, num_gpus = host.topology.size, count_gpus()
    check_interfaces(os.environ, num_gpus=num_gpus)
    hp = choose_job_settings(paths, given_settings, hosts=hosts, num_gpus=num_gpus)
    plan = _Plan(paths, given_settings, hp, hosts, num_gpus, initial=initial)
    if initial is not None:
        check_settings(initial, hp)
        warn_of_val(initial)
    if host.topology.leads and os.environ.get(TRAINING_JOB):
        _warn_about_interruptions(paths, plan.hp)
    check_channels(paths, host.topology)
    if plan.hp.tuning is None:
        plan.check()
        if initial is None:  # otherwise, other settings start over
            plan.check_checkpoints()
    host.timeline.mark("read contracts")
    return plan


def _search(plan: _Plan, host: _Host) -> _Plan:
    """Search for the best settings; return the plan of the job that makes the model, in the folder of the best trial.

    The job goes on from the trial's checkpoints, and has no step left; or the trial is the first of several networks.
    """
    from container.tuning.search import search  # imports Optuna, which few jobs need

    hp, settings, left = plan.hp, plan.given, seconds_to_train(plan.hp, host.timeline)
    if hp.max_minutes is not None and hp.tuning is not None:
        check_time_to_train(hp, host.timeline)
        hours = min(hp.tuning.max_hours or math.inf, left / 3600)
        hp = hp.model_copy(update={"tuning": hp.tuning.model_copy(update={"max_hours": hours})})
        settings = settings._replace(values={**settings.values, "max_minutes": left / 60})  # of a trial
    best = search(plan.paths, hp, settings, num_gpus=plan.num_gpus)
    best = replace(best, hp=best.hp.model_copy(update={"max_minutes": plan.hp.max_minutes}))
    several = best.hp.num_members > 1
    checkpoints = best.folder / NETWORKS if several else JobPaths(best.folder).checkpoints
    show_curves(plan.paths, [best.folder])
    paths = replace(plan.paths, checkpoint_folder=checkpoints, trial="")
    winner = replace(plan, paths=paths, hp=best.hp, kind="winner", first=best.folder if several else None)
    winner.check()
    return winner


def _prepare(plan: _Plan, host: _Host, *, on_inputs: Callable[[], None]) -> tuple[_Plan, PreparedData]:
    """Prepare the data, or find it; remove the checkpoints of earlier runs if the job starts over.

    Args:
        on_inputs: see `prepare_data`.
    """
    prepared = prepare_data(plan.paths, plan.hp, on_inputs=on_inputs)
    plan = plan.with_facts(prepared)
    if not plan.hp.pools_val:
        check_val_labels(plan.hp, class_totals(prepared.summary["splits"]["val"]))
    check_same_data(host.control, prepared)
    if not plan.hp.resume:
        clear_checkpoints(plan.paths.checkpoints)
        if plan.hp.num_members > 1:
            remove_folder(plan.paths.ensemble)
    if plan.initial is not None:
        check_encoders(plan.initial, plan.hp, prepared)
        prepared = prepared.starting_from(plan.initial.digest)
        try:
            plan.check_checkpoints(prepared)
        except ContractError as error:
            logger.info("starting from %s; the checkpoints are removed: %s", plan.initial.source, error.cause)
            clear_checkpoints(plan.paths.checkpoints)
    else:
        plan.check_checkpoints(prepared)
    host.timeline.mark("prepare data")
    if plan.kind == "whole":  # a search has trained
        check_time_to_train(plan.hp, host.timeline)
    return plan, prepared


def _produce(plan: _Plan, host: _Host) -> tuple[Job, Failure | None]:
    """Train the model and write its artifacts; return the job, and the failure of the workers.

    The workers start while the data is prepared. They train the networks of an ensemble one after the other, unless
    several fit on the GPUs side by side, which then train first.
    """
    members: tuple[Member, ...] = ()
    with Workers(host.scratch, host.control, num_workers=plan.num_workers, stop=host.stop) as workers:
        plan, prepared = _prepare(plan, host, on_inputs=workers.start)
        several = plan.hp.num_members > 1
        if several:
            members = plan_members(plan.paths, plan.hp, prepared, first=plan.first)
            shares = Shares.of_members(plan.hp, len(members), num_gpus=plan.num_gpus)
            if shares.parallel > 1:
                left = partial(seconds_to_train, plan.hp, host.timeline)
                train_members(members, prepared, shares=shares, seconds_left=left)
                host.timeline.mark("train networks")
        job = Job(
            plan.paths, plan.hp, host.scratch, prepared.folder, host.timeline, plan.kind, members, initial=plan.initial
        )
        host.stop.interrupts = False
        ranks = {"hosts": plan.hosts, "per_host": plan.num_workers}
        if plan.num_gpus and host.topology.leads and not several:
            warn_if_too_large(plan.hp, prepared.folder, **ranks)
        failure = workers.run(job)
    return job, failure and with_estimate(failure, plan.hp, prepared.folder, **ranks)


def _finish(job: Job, host: _Host, failure: Failure | None) -> Verdict | None:
    """Verify the artifacts and send the results to MLflow; return the verdict, or None on all hosts but the first."""
    if not host.topology.leads:
        return None
    verdict = verdict_on(job, failure, host.stop)
    if verdict.exit_code == COMPLETED:
        send_results(job.paths, job.hp, stopping=lambda: host.stop.requested)
    return verdict


def _end(job: Job, host: _Host, verdict: Verdict) -> int:
    """Write or log how the job has ended; return its exit code."""
    paths = job.paths
    if verdict.failure is not None:
        return _fail(paths, verdict.failure)
    if verdict.exit_code == STOPPED:
        return _stopped(verdict.where)
    for folder in (paths.checkpoints, *(member.checkpoints for member in job.members)):
        remove_old_checkpoints(folder, keep=job.hp.keep_checkpoints, uploads=False)
    where = f"model in {paths.model}, report in {paths.output_data / artifacts.REPORT}"
    if not host.topology.leads:
        where = f"host {host.topology.leader} has the model and the report"
    logger.info("completed in %.0f s: %s", host.timeline.elapsed(), where)
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


def _stopped(where: str) -> int:
    logger.info("stopped on request: %s; run the same job again to resume", where)
    return STOPPED


def _fail(paths: JobPaths, failure: Failure) -> int:
    with contextlib.suppress(OSError):
        os.truncate(paths.root / LOCK, 0)
    write_failure(failure, *paths.failure_files)
    return FAILED


@contextmanager
def _alone_in(paths: JobPaths) -> Iterator[None]:
    """Lock the folder: two jobs would remove each other's prepared data and checkpoints.

    A job that was just killed may take a moment to end.
    """
    cause = f"{paths.root}: another training job is running in this folder"
    busy = AnotherJobError(cause, "Wait for it, stop it, or use another folder.")
    with alone_in(paths.root, seconds=_ENDING_SECONDS, busy=busy) as lock:
        with contextlib.suppress(OSError):
            lock.truncate(0)
            lock.write("." * _RESERVED)
            lock.flush()
        yield
