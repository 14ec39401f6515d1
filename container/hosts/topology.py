"""Read from input/config/resourceconfig.json which hosts train, and in which order."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from contracts.errors import ContractError, shown
from contracts.input_files import exists, expected_content, read_object
from contracts.paths import JobPaths

INSTANCE_GROUP = "INSTANCE_GROUP"  # environment variable: the group that trains, if the job has several
_ALONE = "localhost"
_FIX = 'Write {"current_host": "algo-1", "hosts": ["algo-1"]}, or remove the file: then the job has one host.'


@dataclass(frozen=True)
class Topology:
    """The hosts of a job.

    Attributes:
        hosts: the hosts that train, in the order of their ranks.
        current: this host.
        interface: the network interface in resourceconfig.json, which may not exist.
        group: the instance group that trains, if the job has several.
        idle: the hosts that do not train.
    """

    hosts: tuple[str, ...] = (_ALONE,)
    current: str = _ALONE
    interface: str | None = None
    group: str | None = None
    idle: tuple[str, ...] = ()

    @classmethod
    def read(cls, paths: JobPaths) -> "Topology":
        """Read resourceconfig.json; without the file, the job has one host.

        Raises:
            ContractError: not a resource configuration, or several instance groups without INSTANCE_GROUP.
        """
        path = paths.resource_config
        if not exists(path):
            return cls()
        content = read_object(path, _FIX)
        with expected_content(path, _FIX):
            hosts = host_names(content.get("hosts") or [content.get("current_host") or _ALONE])
            current = content.get("current_host") or hosts[0]
            listed = content.get("instance_groups") or ()
            groups = {str(group["instance_group_name"]): host_names(group["hosts"]) for group in listed}
            interface = content.get("network_interface_name")
            if not isinstance(interface, str | None):
                raise ValueError(f"the network interface {shown(interface)} is not a name")
            for name in (current, *chain(*groups.values())):
                if name not in hosts:
                    raise ValueError(f"{shown(name)} is not one of the hosts {shown(hosts)}")
        group = _chosen_group(groups, where=str(path))
        training = hosts if group is None else groups[group]
        idle = sorted(set(hosts) - set(training), key=natural_order)
        return cls(tuple(sorted(training, key=natural_order)), current, interface, group, tuple(idle))

    @property
    def trains(self) -> bool:
        """Return whether this host trains."""
        return self.current in self.hosts

    @property
    def rank(self) -> int:
        return self.hosts.index(self.current)

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def leader(self) -> str:
        """Return the first host, which decides and writes the artifacts."""
        return self.hosts[0]

    @property
    def leads(self) -> bool:
        return self.current == self.leader


def natural_order(name: str) -> list[Any]:
    """Return a sort key that puts algo-2 before algo-10."""
    parts = [part.lstrip("0") if part.isdigit() else part for part in re.split(r"(\d+)", name) if part]
    return [(1, 0, part) if part and not part.isdigit() else (0, len(part), part) for part in parts]


def host_names(names: Any) -> list[str]:
    """Return a resource configuration's list of hosts; raise ValueError for anything else, or a host twice."""
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{shown(names)} is not a list of host names")
    if len(set(names)) < len(names):
        raise ValueError(f"{shown(names)} contains a host twice")
    return names


def _chosen_group(groups: Mapping[str, list[str]], *, where: str) -> str | None:
    chosen = os.environ.get(INSTANCE_GROUP)
    names = sorted(groups, key=natural_order)
    if chosen is not None and chosen not in groups:
        remove = ", or remove it" if len(groups) < 2 else ""
        raise ContractError(
            f"{INSTANCE_GROUP}: is {chosen!r}, but the instance groups of the job are {names} ({where})",
            f"Set the environment variable {INSTANCE_GROUP} to one of them{remove}.",
        )
    if len(groups) > 1 and chosen is None:
        raise ContractError(
            f"{where}: the job has several instance groups, {names}, but only one can train",
            f"Set the environment variable {INSTANCE_GROUP} to the group that trains. Other hosts exit with code 0.",
        )
    return chosen
