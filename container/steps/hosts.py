"""Read the hosts of a processing job, its folders, and how its input files are divided among the hosts."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from container.hosts.topology import HostNames, check_listed
from contracts.input_files import exists, expected_content, read_as, read_object
from contracts.local_paths import local_path
from contracts.step_contract import StepContract, StepFolder, processing_config, processing_resources

logger = logging.getLogger(__name__)

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
    with expected_content(processing_config(root), _FIX):
        return _inputs(_request(root)).get(input_name, {}).get("S3DataDistributionType") == "ShardedByS3Key"


def with_local_paths(contract: StepContract, root: Path) -> StepContract:
    """Return the contract with the folders that the job's request chooses for inputs and outputs of these names."""
    request = _request(root)
    with expected_content(processing_config(root), _FIX):
        listed = (request.get("ProcessingOutputConfig") or {}).get("Outputs") or []
        outputs = {each["OutputName"]: each.get("S3Output") or {} for each in listed}
        return replace(
            contract,
            inputs=_placed(contract.inputs, _inputs(request), root),
            outputs=_placed(contract.outputs, outputs, root),
        )


def _request(root: Path) -> dict[str, Any]:
    path = processing_config(root)
    return read_object(path, _FIX) if exists(path) else {}


def _inputs(request: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    inputs = request.get("ProcessingInputs") or []
    return {each["InputName"]: each.get("S3Input") or each.get("DatasetDefinition") or {} for each in inputs}


def _placed(folders: tuple[StepFolder, ...], given: Mapping[str, Any], root: Path) -> tuple[StepFolder, ...]:
    file = processing_config(root)
    chosen = {name: local_path(each, file, root) for name, each in given.items()}
    defaults = {folder.path(root): folder.name for folder in folders}
    for name, path in chosen.items():
        if name not in defaults.values() and path is not None and path not in defaults:
            known = ", ".join(defaults.values())
            logger.warning("%s: %s in %s has none of the names %s, and is not used", file.name, name, path, known)
    return tuple(replace(each, folder=str(chosen.get(each.name) or each.folder)) for each in folders)
