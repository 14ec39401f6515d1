"""Decide how a job has ended, and agree with the other hosts: on settings, data and the end of the job."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from container.job.failure import Failure
from container.job.hosts.control import Control
from container.job.job import Job
from container.preprocessing.prepared import PreparedData
from container.training.checkpoint_files import complete_checkpoints
from container.training.finished import describe_finished
from contracts import artifacts
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from contracts.program import COMPLETED, FAILED, STOPPED, StopHandler

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """The end of the job, decided by the first host for all hosts."""

    exit_code: int
    failure: Failure | None = None
    where: str = ""


def meet_hosts(control: Control, hp: Hyperparameters, num_workers: int) -> None:
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
            f"{len(hosts)} hosts with {num_workers} processes each: {', '.join(hosts)}; this is "
            f"{control.topology.current}, rank {control.topology.rank}"
        )


def check_same_data(control: Control, prepared: PreparedData) -> None:
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


def agree_on_verdict(control: Control, verdict: Verdict | None) -> Verdict:
    """Return the first host's `verdict`; the other hosts pass None."""
    content = control.gather("verdict", asdict(verdict) if verdict else None)[control.topology.leader]
    failure = Failure(**content["failure"]) if content["failure"] else None
    return Verdict(content["exit_code"], failure, content["where"])


def verdict_on(job: Job, failure: Failure | None, stop: StopHandler) -> Verdict:
    """Return the verdict, from the result of rank 0 and the failure of the workers."""
    paths = job.paths
    result_file = job.scratch.result_file
    result = json.loads(result_file.read_text()) if result_file.is_file() else {}
    # A stop kills workers that are not ready for it, and their peers lose them. Another failure has a cause to report.
    no_error = failure is None or failure.killed or failure.echo
    if result.get("status") == "stopped" or (stop.requested and no_error and result.get("status") != "completed"):
        where = describe_finished(job.members) if job.members else "before a checkpoint"
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
