"""The training jobs of SageMaker's tuner have one folder of checkpoints in S3: each uses a part of its own."""

import os

import pytest

from container.job import supervisor
from container.job.job import Job, Scratch
from contracts.hyperparameter_files import TUNER_METRIC, load_hyperparameters
from testing.jobs import write_job

NAME = "claims-260101-1200-007-1a2b3c"


def paths_of_job(paths, monkeypatch):
    """Return the paths with which the supervisor would train."""
    seen = []
    monkeypatch.setattr(supervisor, "set_up_logging", lambda: None)
    monkeypatch.setattr(os, "umask", lambda _mask: 0)
    monkeypatch.setattr(supervisor, "_run", lambda used, *_, **__: seen.append(used) or 0)
    assert supervisor.train(paths) == 0
    return seen[0]


@pytest.mark.parametrize(
    ("hyperparameters", "job", "folder"),
    [
        ({TUNER_METRIC: "val/auroc", "lr": "0.001"}, NAME, f"checkpoints/{NAME}"),
        ({"lr": "0.001"}, NAME, "checkpoints"),
        ({TUNER_METRIC: "val/auroc"}, None, "checkpoints"),
    ],
)
def test_a_job_of_the_tuner_has_checkpoints_of_its_own(hyperparameters, job, folder, tmp_path, monkeypatch):
    if job is not None:
        monkeypatch.setenv("TRAINING_JOB_NAME", job)
    paths = write_job(tmp_path, overrides=hyperparameters)
    used = paths_of_job(paths, monkeypatch)
    assert used.checkpoints == tmp_path / folder
    assert used.model == paths.model


def test_the_workers_of_a_job_use_its_folder_of_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINING_JOB_NAME", NAME)
    paths = paths_of_job(write_job(tmp_path, overrides={TUNER_METRIC: "val/auroc"}), monkeypatch)
    scratch = Scratch(tmp_path)
    Job(paths, load_hyperparameters(paths), scratch, tmp_path).write()
    assert Job.read(scratch).paths.checkpoints == tmp_path / "checkpoints" / NAME
