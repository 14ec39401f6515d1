"""The image run by Docker over a mounted folder: no network, read-only input, little shared memory."""

import json
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from container.demo import CONFIGURATION as DEMO
from container.demo_data import write_demo_data
from contracts import artifacts
from contracts.paths import JobPaths
from testing.jobs import failure_line, metrics, write_job
from tests.docker.engine import docker

ISOLATED = ("--network", "none", "--shm-size", "64m")
LONG = {
    "max_epochs": 8, "checkpoint_every_n_steps": 3, "batch_size": 2, "nproc_per_node": 2, "load_ckpt": False,
    "early_stop_patience": 8,
}  # fmt: skip
ALL_RIGHTS = stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH


def mounts(paths: JobPaths) -> tuple[str, ...]:
    """Return the job's folder with its input read-only, as the service mounts FastFile inputs."""
    return ("--volume", f"{paths.root}:/opt/ml", "--volume", f"{paths.root / 'input'}:/opt/ml/input:ro")


def write_demo_job(root: Path, *, rows: int) -> JobPaths:
    write_demo_data(root, rows=rows, seed=7)
    paths = JobPaths(root)
    paths.config.mkdir(parents=True, exist_ok=True)
    values = {name: json.dumps(value) for name, value in {**DEMO, "max_epochs": 1}.items()}
    (paths.config / "hyperparameters.json").write_text(json.dumps(values))
    return paths


@pytest.fixture(scope="module")
def trained(image, tmp_path_factory):
    """Train the demo by `docker run IMAGE` without a command, and return its paths and its log."""
    paths = write_demo_job(tmp_path_factory.mktemp("demo"), rows=1000)
    log = docker("run", "--rm", *ISOLATED, *mounts(paths), image)
    return paths, log


def test_the_demo_trains_without_a_network_on_read_only_input_in_64_megabytes_of_shared_memory(trained):
    paths, log = trained
    assert "completed in" in log
    assert metrics(paths)["test/auroc"] > 0.6
    for folder, names in (
        (paths.model, artifacts.REQUIRED_MODEL_FILES),
        (paths.output_data, artifacts.REQUIRED_EVALUATION_FILES),
    ):
        assert not [name for name in names if not (folder / name).is_file()]


def test_the_user_outside_can_read_change_and_remove_what_the_container_wrote(trained):
    paths, _ = trained
    written = [path for name in ("model", "output", "checkpoints") for path in (paths.root / name).rglob("*")]
    assert len(written) > 20
    for path in written:
        assert path.stat().st_mode & ALL_RIGHTS == ALL_RIGHTS, path


def test_what_the_image_trained_is_served_outside_it(trained):
    from container.predictor import Predictor

    paths, _ = trained
    served = Predictor.load(paths.model)
    record = {
        **dict.fromkeys([*DEMO["tab_field_list"], *DEMO["cat_field_list"]]),
        "chat": "it never came",
        "shiptrack": "",
    }
    assert served.predict([record]).shape == (1, 2)


def test_with_train_as_the_service_appends_it_the_same_job_runs(image, trained, tmp_path):
    first, _ = trained
    paths = JobPaths(tmp_path / "job")
    shutil.copytree(first.root / "input", paths.root / "input")
    docker("run", "--rm", *ISOLATED, *mounts(paths), image, "train")
    assert metrics(paths)["val/loss"] == pytest.approx(metrics(first)["val/loss"], rel=1e-5)


def test_the_first_line_comes_within_three_seconds(image, tmp_path):
    paths = write_job(tmp_path / "job")
    command = ["docker", "run", "--rm", *ISOLATED, *mounts(paths), image]
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        line = process.stdout.readline()
        seconds = time.monotonic() - started
        process.kill()
    print(f"container start to the first line: {seconds:.1f} s ({line.strip()})")
    assert line
    assert seconds < 3


def test_the_first_optimizer_step_on_the_demo_comes_in_docker_and_outside(image, tmp_path):
    seconds = {}
    for where in ("outside Docker", "in Docker"):
        paths = write_demo_job(tmp_path / where.split()[0], rows=2000)
        outside = [sys.executable, "-m", "container", "train", "--root", str(paths.root)]
        command = outside if where == "outside Docker" else ["docker", "run", "--rm", *ISOLATED, *mounts(paths), image]
        started = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            line = next((line for line in process.stdout if "first optimizer step done" in line), None)
            seconds[where] = time.monotonic() - started
            process.terminate()
            process.stdout.read()
        assert line, where
    print(f"start to the first optimizer step: {', '.join(f'{value:.1f} s {key}' for key, value in seconds.items())}")


def test_a_failure_has_exit_code_1_and_files_with_the_cause(image, tmp_path):
    paths = write_job(tmp_path / "job", overrides={"label_name": "lable"})
    docker("run", "--rm", *ISOLATED, *mounts(paths), image, expect=1)
    assert "lable" in failure_line(paths)
    assert all(path.stat().st_mode & ALL_RIGHTS == ALL_RIGHTS for path in paths.failure_files)


@pytest.fixture(scope="module")
def uninterrupted(image, tmp_path_factory):
    paths = write_job(tmp_path_factory.mktemp("whole"), overrides=LONG)
    docker("run", "--rm", *ISOLATED, *mounts(paths), image)
    return torch.load(paths.model / "model.pth", weights_only=True)


@pytest.mark.parametrize(
    "phase",
    [
        "starting",
        "train: ",
        "Data prepared",
        "training on",
        "step 10/",
        "metrics: step=",
        "step 100/",
        "evaluating and saving",
    ],
)
def test_docker_stop_ends_the_job_and_the_next_run_on_the_same_mounts_resumes(
    image, containers, uninterrupted, tmp_path, phase
):
    paths = write_job(tmp_path / "job", overrides=LONG)
    stopped = containers(*ISOLATED, *mounts(paths), image)
    if phase == "starting":
        stopped.wait_for_handler(signal.SIGTERM)
    else:
        stopped.wait_for(phase)
    started = time.monotonic()
    stopped.stop()
    seconds = time.monotonic() - started
    exit_code, log = stopped.wait(), stopped.log
    print(f"docker stop at {phase!r}: exit code {exit_code} after {seconds:.1f} s")
    assert exit_code in ((0, 143) if phase == "evaluating and saving" else (143,)), log[-3000:]
    assert seconds < 60
    log = docker("run", "--rm", *ISOLATED, *mounts(paths), image)
    if "checkpoint epoch=" in "".join(stopped.log.splitlines()[-1:]):
        assert "resuming from" in log
    weights = torch.load(paths.model / "model.pth", weights_only=True)
    for name, value in uninterrupted.items():
        torch.testing.assert_close(weights[name], value, msg=name)
