"""Run one command under one fault, in a process, and say whether it did what it must."""

import contextlib
import http.client
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from contracts.paths import JobPaths
from contracts.ports import free_port
from contracts.step_contract import message_file
from testing.faults import FAULTS, SHIM, Fault
from testing.jobs import ONE_LAYER, REPOSITORY, run_train, table, wait_for, write_job
from testing.locales import locale_environment
from testing.pipelines import CONFIG, write_config
from testing.warm import WarmProcess

_SECONDS = 300  # until a command counts as a hang
_DISK = "256m"
_SETTINGS = {"encoder_config": ONE_LAYER, "max_epochs": 2, "checkpoint_every_n_steps": 4, "explain": 0}
_UNDISTURBED = Fault("no fault")


@dataclass(frozen=True)
class Trial:
    """What a command did under a fault.

    Attributes:
        problem: how that differs from what it must do; None if it does not.
    """

    problem: str | None
    seconds: float


class Trials:
    """Trials in a folder; the model and the table that they need are made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, int] = {}

    def run(self, name: str, command: str) -> Trial:
        """Run a command under the fault `name`; a disk's size follows from an undisturbed run."""
        fault, root = FAULTS[name], self._folder / f"{name}-{command}"
        root.mkdir()
        try:
            if fault.room is None:
                return self._run(fault, name, command, root)
            with small_disk(root, _DISK):
                if command not in self._written:
                    before = shutil.disk_usage(root).used
                    undisturbed = self._run(_UNDISTURBED, name, command, root)
                    assert undisturbed.problem is None, undisturbed.problem
                    self._written[command] = shutil.disk_usage(root).used - before
            with small_disk(root, _DISK):
                return self._run(fault, name, command, root)
        finally:
            shutil.rmtree(root)

    def _run(self, fault: Fault, name: str, command: str, root: Path) -> Trial:
        arguments, result = self._prepare(command, root)
        if fault.room is not None:
            with (root / "filler").open("wb") as filler:
                free = shutil.disk_usage(root).free
                os.posix_fallocate(filler.fileno(), 0, max(1, free - int(self._written[command] * fault.room)))
        began = time.monotonic()
        log = self._folder / f"{name}-{command}.log"
        process = _start(fault, arguments, log)
        try:
            served = command != "serve" or _answers(process, int(arguments[-1]), log, offline=bool(fault.wrapper))
            code: int | None = process.wait(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            served, code = False, None
        finally:
            process.kill()
        printed = log.read_text(errors="replace")
        files = [file for file in (*JobPaths(root).failure_files[:1], message_file(root)) if file.exists()]
        told = "\n".join([printed, *(file.read_text() for file in files)])
        expected = fault.named.get(command)
        if expected is None:
            held = code == 0 and served and result.exists()
            held = held and (command != "init" or '"day": "%d-%b-%Y"' in result.read_text())
        else:
            held = code == 1 and expected in told and "Traceback" not in printed
        problem = None if held else f"exit code {code}: {told[-1500:]}"
        return Trial(problem, time.monotonic() - began)

    def _prepare(self, command: str, root: Path) -> tuple[list[str], Path]:
        """Write the command's input; return its arguments, and a file of its result."""
        paths = JobPaths(root)
        match command:
            case "init":
                written = paths.hyperparameter_files[-1]
                return ["container", "init", str(self._table), "--label", "label", f"--root={root}"], written
            case "train":
                write_job(root, overrides=_SETTINGS)
                return ["container", "train", f"--root={root}"], paths.model / "model.onnx"
            case "predict":
                output, model = root / "predictions.csv", self._trained / "model"
                options = [f"--model={model}", f"--root={root}", f"--input={self._table}", f"--output={output}"]
                return ["container", "predict", *options], output
            case "serve":
                shutil.copytree(self._trained / "model", paths.model)
                return ["container", "serve", f"--root={root}", "--port", str(free_port())], paths.model
        config = write_config(root, CONFIG)
        return ["pipeline", "run", f"--config={config}", f"--root={root / 'run'}"], root / "run" / "report.md"

    @cached_property
    def _trained(self) -> Path:
        """The root of a completed job."""
        paths = write_job(self._folder / "trained", overrides=_SETTINGS)
        run_train(paths)
        return paths.root

    @cached_property
    def _table(self) -> Path:
        path, frame = self._folder / "orders.csv", table(3_000, seed=1)
        frame["day"] = [f"{1 + row % 28:02d}-Oct-{2020 + row % 5}" for row in range(len(frame))]
        frame.to_csv(path, index=False)
        return path


def _start(fault: Fault, arguments: list[str], log: Path) -> Any:
    """Start the command: forked, or as a new process where the fault has a wrapper."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if fault.call is not None:
        environment |= {"PYTHONPATH": str(SHIM), "REFUSED_CALL": fault.call}
    if fault.language is not None:
        environment |= locale_environment(log.parent, fault.language)
    if fault.wrapper:
        _skip_unless_allowed([*fault.wrapper, "true"])
    else:
        return WarmProcess(["-m", *arguments], environment=environment, output=log)
    with log.open("wb") as output:
        command = [*fault.wrapper, sys.executable, "-m", *arguments]
        return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=output, stderr=output)


def _answers(process: Any, port: int, log: Path, *, offline: bool) -> bool:
    """Return whether a server predicts two records, then stop it; one in another network must only open its port."""
    body = table(2, seed=3).to_json(orient="records")

    def status() -> int:
        if offline and "on port" in log.read_text():
            return http.HTTPStatus.OK
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
            return connection.getresponse().status
        return 0

    answered = wait_for(lambda: status() or process.poll(), seconds=_SECONDS)
    process.terminate()
    return answered == http.HTTPStatus.OK


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a file system of `size` over a folder."""
    _skip_unless_allowed(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)])
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _skip_unless_allowed(command: Sequence[str]) -> None:
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip(f"{command[0]} needs root")
