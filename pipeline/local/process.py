"""Run programs, `python -m container ...`: a step's, with its own root, and report the cause of a failure."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from contracts.file_systems import link_folder, link_or_copy
from contracts.paths import DEFAULT_ROOT, SETTINGS_FILE, JobPaths
from contracts.program import PARENT_PID
from contracts.step_contract import StepContract, message_file
from contracts.steps import STEPS
from pipeline.local.cache import REPOSITORY, StepDirectory
from pipeline.local.docker import start_container
from pipeline.plan import StepPlan

GRACE_SECONDS = 110  # a stopped training saves a checkpoint; the service gives 120


class StepFailed(Exception):
    """A step's program failed."""

    def __init__(self, step: str, cause: str, log: Path) -> None:
        super().__init__(f"{step} failed: {cause}\nIts log: {log}")


def run_step(
    plan: StepPlan,
    directory: StepDirectory,
    inputs: Mapping[str, Path],
    hyperparameters: Mapping[str, str],
    *,
    image: str | None = None,
    network: bool = False,
) -> None:
    """Create the step's root as SageMaker does, and run its program, which checks its outputs.

    Args:
        inputs: folder or file of each input, by logical name.
        hyperparameters: as the service delivers them; for a training.
        image: of the container that runs it; None for a process.
        network: whether a container has a network.

    Raises:
        StepFailed: the program's exit code is not 0.
    """
    _create_root(plan, directory, inputs, hyperparameters, linked=image is None)
    variables = plan.sent(plan.environment)
    with directory.log.open("ab") as log:
        if image is None:
            process = start_program([*plan.command, "--root", str(directory.ml)], variables, log)
        else:
            folders = {f"{plan.contract.input(name).container_path}:ro": path for name, path in inputs.items()}
            volumes = {DEFAULT_ROOT: directory.ml, **{name: path for name, path in folders.items() if path.is_dir()}}
            isolated = () if network else ("--network=none",)
            process = start_container(image, plan.command, variables, log, volumes=volumes, options=isolated)
        exit_code = finish(process)
    if exit_code != 0:
        raise StepFailed(plan.contract.name, _cause(plan.contract, directory, exit_code), directory.log)


def last_line(log: Path) -> str:
    """Return the last line of a step's log, for the progress table."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4000))
            lines = [line for line in file.read().decode(errors="replace").replace("\r", "\n").split("\n") if line]
    except OSError:
        return ""
    return lines[-1] if lines else ""


def _create_root(
    plan: StepPlan,
    directory: StepDirectory,
    inputs: Mapping[str, Path],
    hyperparameters: Mapping[str, str],
    *,
    linked: bool = True,
) -> None:
    """Write everything that the program reads.

    Args:
        linked: whether folders of inputs are links; otherwise they are empty, and a container mounts them.
    """
    contract, training = plan.contract, plan.contract.kind == "training"
    if not training:  # a training resumes from its checkpoints; other steps start again
        shutil.rmtree(directory.ml, ignore_errors=True)
    for name, origin in inputs.items():
        link = contract.input(name).path(directory.ml)
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink():
            link.unlink()
        if origin.is_file():
            link.mkdir(exist_ok=True)
            (link / origin.name).unlink(missing_ok=True)
            link_or_copy(origin, link / origin.name)
        elif linked:
            link_folder(origin, link)
        else:
            link.mkdir(exist_ok=True)
    if plan.in_file:
        folder = contract.input("settings").path(directory.ml)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SETTINGS_FILE).write_text(plan.settings_file, encoding="utf-8")
    if training:
        paths = JobPaths(directory.ml)
        paths.config.mkdir(parents=True, exist_ok=True)
        (paths.config / "hyperparameters.json").write_text(json.dumps(plan.sent(hyperparameters), indent=1))
        for failure in paths.failure_files:
            failure.unlink(missing_ok=True)
    else:
        for folder in contract.outputs:
            folder.path(directory.ml).mkdir(parents=True, exist_ok=True)


def start_program(
    arguments: Sequence[str], variables: Mapping[str, str], log: IO[bytes] | None, *, folder: Path | None = None
) -> subprocess.Popen:
    """Start `python -m container ARGUMENTS`, which the kernel kills when this process dies.

    Args:
        variables: replace every step's variables of this process.
        log: receives the output; None: this process's output does.
        folder: the working directory; None: this process's.
    """
    named = {variable for step in STEPS for variable in step.settings.variables()}
    kept = {name: value for name, value in os.environ.items() if name not in named}
    kept["PYTHONPATH"] = os.pathsep.join(part for part in (str(REPOSITORY), kept.get("PYTHONPATH", "")) if part)
    return subprocess.Popen(
        [sys.executable, "-m", "container", *arguments],
        env={**kept, **variables, PARENT_PID: str(os.getpid())},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that a Ctrl-C reaches it once, from this process
    )


def finish(process: subprocess.Popen) -> int:
    """Wait for the end of a process, and return its exit code; an interrupt stops it, with time to save its state."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def _cause(contract: StepContract, directory: StepDirectory, exit_code: int) -> str:
    """Return the cause that the program wrote, as the service shows it."""
    message = JobPaths(directory.ml).failure_files[0] if contract.kind == "training" else message_file(directory.ml)
    if message.is_file() and (text := message.read_text(encoding="utf-8", errors="replace").strip()):
        return "\n".join(text.splitlines()[:2])
    return f"exit code {exit_code}, without a message. The last line of its log: {last_line(directory.log)}"
