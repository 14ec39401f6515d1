"""Commands that are stopped or killed, find a full disk, or have closed standard streams."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from contracts.atomic_files import complete_replacement
from contracts.errors import ContractError
from contracts.input_files import files_below
from contracts.other_programs import UNFINISHED_OUTPUT
from contracts.paths import JobPaths
from testing.interrupted import run_interrupted
from testing.jobs import REPOSITORY, run_python, table, wait_for, write_job
from testing.pipelines import AWS, CONFIG, write_config
from testing.step_runs import input_folder
from testing.warm import WarmProcess

pytestmark = pytest.mark.slow

STOPPED = "stopped on request; run the same command again"


@pytest.fixture
def commands(tmp_path: Path, trained_job: JobPaths) -> dict[str, list[str]]:
    """Return a command of each kind, by name; they write below tmp_path/new."""
    folder = tmp_path / "new"
    job, steps, raw = write_job(folder / "job").root, folder / "steps", tmp_path / "raw.csv"
    table(60, seed=3).to_csv(raw, index=False)
    shutil.copy(raw, input_folder(steps, "preprocess", "DATA"))
    shutil.copytree(trained_job.model, input_folder(steps, "package", "model_input"), dirs_exist_ok=True)
    lines = {
        "init": f"container init {raw} --root {job} --label label --force",
        "plan": f"container plan --root {job} --instance ml.m5.2xlarge",
        "convert": f"container convert {raw} {folder}/out.parquet",
        "predict": f"container predict --model {trained_job.model} --input {raw} --output {folder}/out.csv",
        "compare": f"container compare {trained_job.root} {trained_job.root}",
        "load-data": f"container load-data --root {steps} --rows-per-file 20",
        "preprocess": f"container preprocess --root {steps} --label-field label --into-job {job}",
        "package": f"container package --root {steps}",
        "definition": f"pipeline definition --config {write_config(folder, {**CONFIG, 'aws': AWS})}",
    }
    return {name: line.split() for name, line in lines.items()}


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name", ["init", "plan", "convert", "predict", "compare", "load-data", "preprocess", "package", "definition"]
)
@pytest.mark.parametrize("stop", [("SIGTERM", 1), ("SIGINT", 4)])
def test_a_stopped_command_prints_one_line_and_leaves_each_file_as_it_was(
    name: str, stop: tuple[str, int], commands: dict[str, list[str]], tmp_path: Path, trained_job: JobPaths
) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    before = content(tmp_path)
    folder = trained_job.root if name in ("compare", "predict") else tmp_path
    at = 1 if name == "definition" else stop[1]  # it reads one file
    code, printed = run_interrupted(*commands[name], folder=folder, by=stop[0], at=at, TMPDIR=str(temporary))
    assert (code, printed.splitlines()[-1]) == (143, STOPPED), printed
    assert "Traceback" not in printed
    assert content(tmp_path) == before
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("by", ["SIGKILL", "ENOSPC", "SIGTERM"])
@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("init", "job/input"),
        ("convert", "."),
        ("load-data", "steps/processing/output/data"),
        ("preprocess", "job/input"),
        ("preprocess", "steps/processing/output"),
        ("package", "steps/processing/output"),
    ],
)
def test_wherever_a_command_ends_its_files_are_the_old_ones_or_the_new_ones(
    name: str, written: str, by: str, commands: dict[str, list[str]], tmp_path: Path
) -> None:
    new, template = tmp_path / "new", tmp_path / "template"
    new.rename(template)
    states: list[dict[str, bytes]] = []
    for at in count(1):
        shutil.copytree(template, new)
        code, printed = run_interrupted(*commands[name], folder=new, at=at, by=by, TMPDIR=str(tmp_path))
        assert code in {"SIGKILL": (0, -9), "ENOSPC": (0, 1), "SIGTERM": (0, 143)}[by], printed
        complete_replacement(new / "job")
        with suppress(ContractError):  # the folder is incomplete
            files = files_below(new / written).files if (new / written).exists() else []
            states.append({str(path.relative_to(new / written)): path.read_bytes() for path in files})
        temporary = [path for path in content(new) if "sagemaker-ignore" in path and UNFINISHED_OUTPUT not in path]
        assert by == "SIGKILL" or not temporary
        if code == 0:
            break
        shutil.rmtree(new)
    old = content(template / written) if (template / written).exists() else {}
    assert at > 1
    assert all(state in (old, states[-1]) for state in states)
    assert old != states[-1]


def test_a_stopped_pipeline_stops_its_step(commands: dict[str, list[str]], tmp_path: Path) -> None:
    command = ["-m", "pipeline", "run", *commands["definition"][2:], "--root", str(tmp_path / "run")]
    process = WarmProcess(command, environment=dict(os.environ), output=tmp_path / "log")
    wait_for(lambda: (tmp_path / "log").exists() and re.search("Loading +running", (tmp_path / "log").read_text()))
    process.terminate()
    assert process.wait(60) == 143
    assert (tmp_path / "log").read_text().splitlines()[-1] == STOPPED


def test_signals_are_handled_before_the_modules_of_a_command_are_imported() -> None:
    code = "import sys, {0}.__main__; print({{'argparse', 'pydantic', 'numpy', '{0}.commands'}} & sys.modules.keys())"
    for program in ("container", "pipeline"):
        assert run_python(code.format(program)).stdout.strip() == "set()"


def shell(line: str, *, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Run `python LINE` with the redirections of a shell."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    command = ["bash", "-c", f"set -o pipefail; {sys.executable} {line}"]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("redirection", ["<&- >&- 2>&-", ">/dev/full"])
def test_a_job_whose_log_nobody_can_read_completes(redirection: str, tmp_path: Path) -> None:
    paths = write_job(tmp_path, overrides={"max_epochs": 1})
    assert shell(f"-m container train --root {paths.root} {redirection}").returncode == 0
    assert (paths.model / "model.pth").is_file()
    assert not any(path.exists() for path in paths.failure_files)


def test_predictions_are_written_without_standard_streams(commands: dict[str, list[str]], tmp_path: Path) -> None:
    ended = shell(f"-m {' '.join(commands['predict'])} 2>&- <&-")
    assert ended.returncode == 0
    assert "60 records predicted" in ended.stdout
    assert len((tmp_path / "new/out.csv").read_text().splitlines()) == 61


def test_a_result_that_cannot_be_printed_is_a_failure_and_a_reader_that_ends_early_is_none(
    commands: dict[str, list[str]],
) -> None:
    line = f"-m {' '.join(commands['definition'])}"
    ended = shell(f"{line} >/dev/full")
    assert ended.returncode == 1
    assert "standard output: a part was lost: [Errno 28] No space left on device" in ended.stderr
    ended = shell(f"{line} | true")
    assert (ended.returncode, ended.stderr) == (0, "")
