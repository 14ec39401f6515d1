"""The hosts of a processing job, and how its input files are divided among them."""

import json
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import ContractError
from contracts.step_contract import processing_config, processing_resources


@dataclass(frozen=True)
class Hosts:
    """The hosts of this job, in an order that they agree on."""

    names: tuple[str, ...]
    current: str

    @property
    def rank(self) -> int:
        return self.names.index(self.current)

    @property
    def several(self) -> bool:
        return len(self.names) > 1


def read_hosts(root: Path) -> Hosts:
    """Return the hosts that SageMaker names, or one where it names none, as in a local run."""
    path = processing_resources(root)
    if not path.is_file():
        return Hosts(("localhost",), "localhost")
    found = json.loads(path.read_text(encoding="utf-8"))
    names = tuple(sorted(found["hosts"]))
    if found["current_host"] not in names:
        raise ContractError(f"{path}: current_host {found['current_host']!r} is none of {list(names)}")
    return Hosts(names, found["current_host"])


def is_sharded(root: Path, input_name: str) -> bool:
    """Return whether each host has a part of an input's files instead of all of them."""
    path = processing_config(root)
    if not path.is_file():
        return False
    found = json.loads(path.read_text(encoding="utf-8"))
    for entry in found.get("ProcessingInputs", []):
        if entry.get("InputName") == input_name:
            return entry.get("S3Input", {}).get("S3DataDistributionType") == "ShardedByS3Key"
    return False
