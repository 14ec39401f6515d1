"""Read the hosts of a processing job, and how its input files are divided among them."""

from dataclasses import dataclass
from pathlib import Path

from container.hosts.topology import HostNames, check_listed
from contracts.input_files import exists, expected_content, read_as, read_object
from contracts.step_contract import processing_config, processing_resources

_FIX = "Keep the file that the service writes, or remove it: then the job has one host with all files."


@dataclass(frozen=True)
class _Resources:
    """The content of resourceconfig.json."""

    hosts: HostNames
    current_host: str


@dataclass(frozen=True)
class Hosts:
    """The hosts of this job, in the same order on every host."""

    names: tuple[str, ...]
    current: str

    @property
    def rank(self) -> int:
        return self.names.index(self.current)

    @property
    def several(self) -> bool:
        return len(self.names) > 1


def read_hosts(root: Path) -> Hosts:
    """Return the hosts that SageMaker lists; a local run has one host."""
    path = processing_resources(root)
    if not exists(path):
        return Hosts(("localhost",), "localhost")
    resources = read_as(path, _Resources, _FIX)
    with expected_content(path, _FIX):
        check_listed([resources.current_host], resources.hosts)
    return Hosts(tuple(sorted(resources.hosts)), resources.current_host)


def is_sharded(root: Path, input_name: str) -> bool:
    """Return whether each host has a part of an input's files instead of all of them."""
    path = processing_config(root)
    if not exists(path):
        return False
    content = read_object(path, _FIX)
    with expected_content(path, _FIX):
        by_name = {entry["InputName"]: entry.get("S3Input") or {} for entry in content.get("ProcessingInputs", [])}
        return by_name.get(input_name, {}).get("S3DataDistributionType") == "ShardedByS3Key"
