"""Read the hosts of a processing job, and how its input files are divided among them."""

import json
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import ContractError
from contracts.step_contract import processing_config, processing_resources


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
    if not path.is_file():
        return Hosts(("localhost",), "localhost")
    resources = json.loads(path.read_text(encoding="utf-8"))
    names, current = tuple(sorted(resources["hosts"])), resources["current_host"]
    if current not in names:
        raise ContractError(f"{path}: current_host {current!r} is not one of {list(names)}", "Correct the file.")
    return Hosts(names, current)


def is_sharded(root: Path, input_name: str) -> bool:
    """Return whether each host has a part of an input's files instead of all of them."""
    path = processing_config(root)
    if not path.is_file():
        return False
    inputs = json.loads(path.read_text(encoding="utf-8")).get("ProcessingInputs", [])
    by_name = {entry.get("InputName"): entry.get("S3Input", {}) for entry in inputs}
    return by_name.get(input_name, {}).get("S3DataDistributionType") == "ShardedByS3Key"
