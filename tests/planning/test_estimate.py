"""Tests of what a job says about its memory."""

import json
import logging
from pathlib import Path

import pytest

from container.job.failure import Failure
from container.planning import estimate
from container.planning.estimate import warn_if_too_large, with_estimate
from container.preprocessing.prepare import prepare_data
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.paths import JobPaths
from tests.planning.test_plan import SETTINGS

HP = parse_hyperparameters(SETTINGS)


@pytest.mark.slow
def test_lack_of_memory_names_the_largest_part_and_three_settings(tmp_path):
    paths = JobPaths(tmp_path)
    for split in ("train", "val", "test"):
        folder = paths.channel(split)
        folder.mkdir(parents=True)
        rows = [f"{i},{i % 2},the quick brown fox jumps {i} times" for i in range(100)]
        (folder / "rows.csv").write_text("\n".join(["id,label,text", *rows]) + "\n")
    prepared = prepare_data(paths, HP).folder
    failure = with_estimate(Failure("out of memory: CUDA", "Lower it."), HP, prepared, hosts=1, per_host=2)
    assert failure.fix.startswith("A step needs about ")
    assert "most are " in failure.fix
    assert failure.fix.count(" needs about ") == 4  # of the step, and of three settings
    assert '{"strategy": "fsdp"} needs about' in failure.fix


def test_other_failures_stay_as_they_are():
    failure = Failure("row 3: label", "Correct it.")
    assert with_estimate(failure, HP, Path("nowhere"), hosts=1, per_host=1) is failure


def test_a_failed_estimate_leaves_the_failure_as_it_is(tmp_path):
    failure = Failure("out of memory: CUDA", "Lower it.")
    assert with_estimate(failure, HP, tmp_path, hosts=1, per_host=1) is failure


def test_a_host_without_memory_for_the_estimate_keeps_the_failure(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(estimate.subprocess, "run", refuse)
    failure = Failure("out of memory: CUDA", "Lower it.")
    assert with_estimate(failure, HP, tmp_path, hosts=1, per_host=1) is failure


def test_a_job_above_the_gpu_is_warned_of_before_its_model_is_loaded(monkeypatch, caplog):
    parts = {"weights": 6.0, "gradients": 6.0, "optimizer": 12.0, "activations": 4.0, "total": 28.0}
    answer = {
        "memory_gib": parts,
        "gpu_gib": 22.0,
        "suggestions": [[json.dumps({"activation_checkpointing": 1}), 25.0]],
    }
    monkeypatch.setattr(estimate, "_ask", lambda *_, **__: answer)
    with caplog.at_level(logging.WARNING):
        warn_if_too_large(HP, Path("prepared"), hosts=1, per_host=1).join()
    assert "a step needs about 28.0 GiB, and the GPU has 22.0 GiB" in caplog.text
    assert '{"activation_checkpointing": 1} needs about 25.00 GiB' in caplog.text
