"""Which hosts train, in which order, by input/config/resourceconfig.json."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contracts.errors import ContractError
from contracts.paths import JobPaths

INSTANCE_GROUP = "INSTANCE_GROUP"  # environment variable: the group that trains, where the job has several
_ALONE = "localhost"


@dataclass(frozen=True)
class Topology:
    """The hosts of a job as this one sees them.

    Attributes:
        hosts: those that train, in the order of their ranks.
        current: this host.
        interface: the network interface that the service names; it need not exist.
        group: the instance group that trains, where the job has several.
    """

    hosts: tuple[str, ...] = (_ALONE,)
    current: str = _ALONE
    interface: str | None = None
    group: str | None = None

    @classmethod
    def read(cls, paths: JobPaths) -> "Topology":
        """What the service says; one host where it says nothing.

        Raises:
            ContractError: not a resource configuration, or several instance groups of which none is chosen.
        """
        path = paths.resource_config
        if not path.is_file():
            return cls()
        try:
            content = json.loads(path.read_text())
            hosts = [str(name) for name in content.get("hosts") or [content.get("current_host") or _ALONE]]
            current = str(content.get("current_host") or hosts[0])
            groups = {str(one["instance_group_name"]): list(one["hosts"]) for one in content.get("instance_groups", ())}
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise ContractError(f"{path}: is not a resource configuration: {error!r}") from None
        if current not in hosts:
            raise ContractError(f"{path}: current_host {current!r} is none of its hosts {hosts}")
        group = _chosen_group(groups, where=str(path))
        if group is not None:
            hosts = [str(name) for name in groups[group]]
        interface = content.get("network_interface_name")
        return cls(tuple(sorted(hosts, key=natural_order)), current, interface, group)

    @property
    def trains(self) -> bool:
        """Whether this host is one of those that train."""
        return self.current in self.hosts

    @property
    def rank(self) -> int:
        return self.hosts.index(self.current)

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def leader(self) -> str:
        """The first host: it decides, and writes the artifacts."""
        return self.hosts[0]

    @property
    def leads(self) -> bool:
        return self.current == self.leader


def natural_order(name: str) -> list[Any]:
    """Sort key that puts algo-2 before algo-10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def _chosen_group(groups: Mapping[str, list[str]], *, where: str) -> str | None:
    chosen = os.environ.get(INSTANCE_GROUP)
    names = sorted(groups, key=natural_order)
    if chosen is not None and chosen not in groups:
        raise ContractError(
            f"{INSTANCE_GROUP}: is {chosen!r}, but the instance groups of the job are {names} ({where})",
            f"Set the environment variable {INSTANCE_GROUP} to one of them"
            + (", or leave it out." if len(groups) < 2 else "."),
        )
    if len(groups) > 1 and chosen is None:
        raise ContractError(
            f"{where}: the job has the instance groups {names}, and all processes of a job must be alike",
            f"Set the environment variable {INSTANCE_GROUP} to the one that trains; the hosts of the others leave.",
        )
    return chosen
