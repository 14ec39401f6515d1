"""Compare the hosts of a job: they have the same settings and data, and the job ends in the same way on each."""

import hashlib
import logging
from dataclasses import asdict

from container.failure import Failure
from container.hosts.control import Control
from container.preprocessing.prepared import PreparedData
from container.verdict import Verdict
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)


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
            "%d hosts with %d processes each: %s; this is %s, rank %d", len(hosts), num_workers, ", ".join(hosts),
            control.topology.current, control.topology.rank,
        )  # fmt: skip


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
