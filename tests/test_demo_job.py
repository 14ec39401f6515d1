"""The demo's job with other settings, and the commands of docs/gpu.md that run it."""

import re
import shlex

import pytest

from container.parallel.degrees import ParallelDegrees
from contracts.hyperparameter_files import load_hyperparameters
from contracts.paths import JobPaths
from testing import demo_job
from testing.jobs import REPOSITORY

COMMANDS = re.findall(
    r"python -m testing.demo_job (gpu/[^`]+)`", re.sub(r"\n +", " ", (REPOSITORY / "docs" / "gpu.md").read_text())
)


@pytest.fixture
def configured(monkeypatch, tmp_path):
    """Return a function that returns the paths of the job of a command, which is not run."""
    monkeypatch.setattr(demo_job, "train", lambda paths: found.append(paths) or 0)
    monkeypatch.setattr(demo_job, "ROWS", 20)
    monkeypatch.chdir(tmp_path)
    found: list[JobPaths] = []

    def configure(command: str) -> JobPaths:
        assert demo_job.main(shlex.split(command)) == 0
        return found[-1]

    return configure


@pytest.mark.parametrize("command", COMMANDS)
def test_the_settings_of_every_job_in_the_list_of_gpu_checks_are_valid(configured, command):
    hp = load_hyperparameters(configured(command))
    ParallelDegrees.resolve(hp, hp.nproc_per_node or 8)


def test_settings_replace_those_of_the_demo_or_remove_them(configured):
    hp = load_hyperparameters(configured("gpu/a bf16=false strategy=ddp early_stop_metric=null"))
    assert (hp.bf16, hp.strategy, hp.nproc_per_node) == (False, "ddp", None)
    assert "early_stop_metric" not in hp.model_fields_set


def test_a_second_run_leaves_the_data_as_it_is(configured):
    files = [path for path in configured("gpu/a").channel("train").iterdir() if path.is_file()]
    before = [path.stat().st_mtime_ns for path in files]
    configured("gpu/a bf16=false")
    assert [path.stat().st_mtime_ns for path in files] == before
    assert len(COMMANDS) > 1
