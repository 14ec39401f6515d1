"""Read from resourceconfig.json, of a training or a processing job, which hosts work, and in which order."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from contracts.errors import ContractError, shown
from contracts.input_files import exists, expected_content, read_as

INSTANCE_GROUP = "INSTANCE_GROUP"  # environment variable: the group that trains, if the job has several
_ALONE = "localhost"
_FIX = 'Write {"current_host": "algo-1", "hosts": ["algo-1"]}, or remove the file: then the job has one host.'


def _each_once(hosts: list[str]) -> list[str]:
    if len(set(hosts)) < len(hosts):
        raise ValueError(f"{shown(hosts)} contains a host twice")
    return hosts


Name = Annotated[str, Field(min_length=1)]
HostNames = Annotated[list[Name], Field(min_length=1), AfterValidator(_each_once)]


@dataclass(frozen=True)
class _InstanceGroup:
    instance_group_name: Name
    hosts: HostNames


@dataclass(frozen=True)
class _Resources:
    """The content of resourceconfig.json."""

    hosts: HostNames | None = None
    current_host: Name | None = None
    instance_groups: list[_InstanceGroup] | None = None
    network_interface_name: str | None = None


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
    def read(cls, path: Path) -> "Topology":
        """Read a job's resourceconfig.json; without the file, the job has one host.

        Raises:
            ContractError: not a resource configuration, or several instance groups without INSTANCE_GROUP.
        """
        if not exists(path):
            return cls()
        resources = read_as(path, _Resources, _FIX)
        hosts = resources.hosts or [resources.current_host or _ALONE]
        current = resources.current_host or hosts[0]
        groups = {group.instance_group_name: group.hosts for group in resources.instance_groups or ()}
        with expected_content(path, _FIX):
            if resources.current_host is None and len(hosts) > 1:
                raise ValueError("current_host is missing")
            _check_listed([current, *chain(*groups.values())], hosts)
        group = _chosen_group(groups, where=str(path))
        training = hosts if group is None else groups[group]
        idle = sorted(set(hosts) - set(training), key=natural_order)
        order = tuple(sorted(training, key=natural_order))
        return cls(order, current, resources.network_interface_name, group, tuple(idle))

    @property
    def trains(self) -> bool:
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


def _check_listed(names: Iterable[str], hosts: Sequence[str]) -> None:
    """Raise ValueError where a name is not one of the hosts."""
    for name in names:
        if name not in hosts:
            raise ValueError(f"{shown(name)} is not one of the hosts {shown(hosts)}")


def natural_order(name: str) -> list[Any]:
    """Return a sort key that puts algo-2 before algo-10."""
    parts = [part.lstrip("0") if part.isdigit() else part for part in re.split(r"(\d+)", name) if part]
    return [(1, 0, part) if part and not part.isdigit() else (0, len(part), part) for part in parts]


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
