"""Run a step's program by its contract: check inputs before and outputs after, and report the cause of a failure.

A program is a module with a function `run(step: StepRun) -> int | None`, an exit code if it is not 0; PROGRAMS lists
them.
"""

import difflib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

from container.job.failure import Failure, write_failure
from container.job.hosts.topology import Topology
from container.job.processes import set_up_logging
from container.tables.data_files import data_files, listed
from contracts.atomic_files import temporary_path
from contracts.errors import ContractError
from contracts.file_systems import naming_full_disk
from contracts.input_files import exists, expected_content, files_below, read_as, read_object
from contracts.other_programs import UNFINISHED_OUTPUT
from contracts.paths import SETTINGS_FILE
from contracts.program import COMPLETED, FAILED
from contracts.spelling import did_you_mean, letters
from contracts.step_contract import (
    ProcessingSettings,
    StepContract,
    StepFolder,
    StepSettings,
    message_file,
    processing_config,
    processing_resources,
)
from contracts.steps import PROCESSING_STEPS

logger = logging.getLogger(__name__)

_FIX = "Keep the file that the service writes, or remove it: then the job has one host with all files."


def is_sharded(root: Path, input_name: str) -> bool:
    """Return whether each host has a part of an input's files instead of all of them."""
    path = processing_config(root)
    request = read_object(path, _FIX) if exists(path) else {}
    with expected_content(path, _FIX):
        listed = {each["InputName"]: each for each in request.get("ProcessingInputs") or []}
        source = listed.get(input_name, {})
        place = source.get("S3Input") or source.get("DatasetDefinition") or {}
        return place.get("S3DataDistributionType") == "ShardedByS3Key"


_NEARLY = 0.9  # similarity of the letters of two names, from which one is a misspelling of the other

PROGRAMS = {
    "load-data": "container.steps.load_data",
    "preprocess": "container.steps.preprocess.step",
    "send-results": "container.tracking.step",
    "metrics": "container.steps.metrics.step",
    "package": "container.steps.packaging",
    "payload": "container.steps.payload",
    "monitor": "container.steps.monitor",
}
assert PROGRAMS.keys() == PROCESSING_STEPS.keys(), "every processing job has a program"


@dataclass(frozen=True)
class StepRun:
    """The run of a step, as its program receives it.

    Attributes:
        settings: of the contract's type.
        arguments: command line arguments by name.
        scratch: an empty folder on the job's volume, removed when the program ends.
    """

    contract: StepContract
    root: Path
    settings: Any
    arguments: Mapping[str, str]
    scratch: Path

    def input(self, name: str) -> Path | None:
        """Return the folder of an input; None for an optional input without files."""
        return _input_folder(self.contract, self.contract.input(name), self.root)

    def required_input(self, name: str) -> Path:
        """Return the folder of a required input."""
        folder = self.input(name)
        assert folder is not None, f"{name} is not required by the contract of {self.contract.name}"
        return folder

    def output(self, name: str) -> Path:
        """Return the folder of an output, created if necessary."""
        folder = self.contract.output(name).path(self.root)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def run_step(command: str, root: Path, arguments: Mapping[str, str], environment: Mapping[str, str]) -> int:
    """Run the program of `command` under `root`; return 0 (completed), 1 (failed) or the program's own exit code.

    The first line of output/message is the cause of a failure. No other step reads incomplete outputs.

    Args:
        command: a key of PROGRAMS.
        root: the folder with the layout of /opt/ml.
        arguments: command line arguments by name, as in the step's contract.
        environment: the settings of the step; other variables are ignored.

    Example:
        >>> run_step("load-data", root, {}, {"GENERATE_ROWS": "100"})
        0
        >>> sorted(path.name for path in (root / "processing" / "output").iterdir())
        ['data', 'metadata', 'signature']
        >>> run_step("load-data", root, {}, {"GENERATE_ROWS": "many"})
        1
        >>> (root / "output" / "message").read_text().partition(": Input")[0]
        "environment variable GENERATE_ROWS: 'many' is invalid"
    """
    set_up_logging()
    if os.getuid() == 0:
        os.umask(0)  # so that the user outside the container can read and remove its files
    contract = PROCESSING_STEPS[command]
    message = message_file(root)
    message.unlink(missing_ok=True)
    try:
        with _whole_outputs(contract, root):
            settings = contract.settings.from_environment(_variables(contract, root, environment))
            if isinstance(settings, ProcessingSettings) and settings.data_key:
                logger.info("data key: %s", settings.data_key)
            if _all_files_are_elsewhere(contract, root):
                logger.info("%s: no input file with data was assigned to this host.", contract.name)
                return COMPLETED
            with naming_full_disk(root):
                code = _run(command, contract, root, settings, arguments)
            _check_outputs(contract, root)
    except Exception as error:
        failure = Failure.from_exception(error)
        if isinstance(error, ContractError):
            failure = replace(failure, detail="")  # a traceback does not help to correct the input
        _remove_outputs(contract, root)  # first: the disk may be full
        write_failure(failure, message)
        return FAILED
    return code


def _variables(contract: StepContract, root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the input settings, overridden by those that the environment sets."""
    path = contract.input("settings").path(root) / SETTINGS_FILE
    given = read_as(path, dict[str, str], 'Write an object of texts, e.g. {"SEED": "3"}.') if exists(path) else {}
    known = contract.settings.variables()
    for name in given:
        if name not in known:
            raise ContractError(
                f"{path}: {name} is not a variable of {contract.name}{did_you_mean(name, known)}",
                f"Use one of: {', '.join(known)}.",
            )
    _refuse_misspelt(contract, environment)
    return {**given, **{name: value for name, value in environment.items() if value.strip()}}


def _refuse_misspelt(contract: StepContract, environment: Mapping[str, str]) -> None:
    """Raise ContractError for a variable whose name nearly is one of this step; others belong to other programs."""
    of_steps = {name for step in PROCESSING_STEPS.values() for name in step.settings.variables()}
    known = {letters(name): name for name in contract.settings.variables()}
    for name in environment:
        if name not in of_steps:
            close = difflib.get_close_matches(letters(name), known, n=1, cutoff=_NEARLY)
            if close:
                meant = known[close[0]]
                raise ContractError(
                    f"environment variable {name}: is not a variable of {contract.name}; did you mean {meant}?",
                    f"Set {meant}, or the flag --{meant.lower().replace('_', '-')}; --help lists all.",
                )


def _run(command: str, contract: StepContract, root: Path, settings: StepSettings, arguments: Mapping[str, str]) -> int:
    for folder in contract.inputs:
        _input_folder(contract, folder, root)
    volume = root / "processing"  # the job's storage; the container's other file systems may be small
    volume.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".scratch-", dir=volume) as scratch:
        program = import_module(PROGRAMS[command])
        return program.run(StepRun(contract, root, settings, arguments, Path(scratch))) or COMPLETED


def _input_folder(contract: StepContract, folder: StepFolder, root: Path) -> Path | None:
    """Return the input's folder; None for an optional input without files.

    Raises:
        ContractError: a required input is missing, or an input has no file of its kind, or only empty files.
    """
    path = folder.path(root)
    files = _files(path)
    matching = [file for file in files if any(fnmatch(file.name.lower(), pattern) for pattern in folder.files)]
    if not files:
        if not folder.required:
            return None
        problem = f"is missing: the folder {path} {'is empty' if path.is_dir() else 'does not exist'}"
    elif not matching:
        problem = f"has no file that is named {' or '.join(folder.files)}; {path} contains {listed(path, files)}"
    elif all(file.stat().st_size == 0 for file in matching):
        problem = f"is empty: {matching[0]} has 0 bytes"
    else:
        return path
    raise ContractError(f"{contract.name}: input {folder.name} {problem}", f"Provide {folder.name}: {folder.about}")


def _files(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted, without foreign ones; none if there is no folder."""
    return files_below(folder).files if exists(folder) else []


def _all_files_are_elsewhere(contract: StepContract, root: Path) -> bool:
    """Return whether this host received no file with data because there are fewer of them than hosts."""
    sharded = [folder for folder in contract.inputs if folder.sharded and is_sharded(root, folder.name)]
    if not sharded or Topology.read(processing_resources(root)).size == 1:
        return False
    folders = [folder.path(root) for folder in sharded if exists(folder.path(root))]
    return not any(path.stat().st_size for folder in folders for path in data_files(folder))


def _check_outputs(contract: StepContract, root: Path) -> None:
    if any(folder.sharded for folder in contract.inputs) and Topology.read(processing_resources(root)).size > 1:
        return  # another host may have written the missing files
    for folder in contract.outputs:
        for pattern in folder.files if folder.required else ():
            assert any(folder.path(root).glob(pattern)), f"{contract.name} wrote no {pattern} into {folder.name}"


@contextmanager
def _whole_outputs(contract: StepContract, root: Path) -> Iterator[None]:
    """Remove the outputs of an earlier run, and those of the block if it fails; a kill leaves them marked."""
    markers = [folder.path(root) / UNFINISHED_OUTPUT for folder in contract.outputs]
    try:
        for marker in markers:
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        _remove_outputs(contract, root)
        yield
    except BaseException:
        _remove_outputs(contract, root)
        raise
    finally:
        for marker in markers:
            marker.unlink(missing_ok=True)


def _remove_outputs(contract: StepContract, root: Path) -> None:
    """Remove complete and incomplete files of the outputs, and no other file in their folders."""
    for folder in contract.outputs:
        for pattern in folder.files:
            incomplete = str(temporary_path(PurePath(pattern)))
            for path in [*folder.path(root).glob(pattern), *folder.path(root).glob(incomplete)]:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
