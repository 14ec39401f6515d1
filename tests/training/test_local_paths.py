"""A job saves checkpoints and curves where its request to SageMaker says, and says what an interruption costs."""

import json
import logging
import shutil

import pytest

from container.job.supervisor import _warn_about_interruptions
from container.training.checkpoint_files import complete_checkpoints
from contracts.hyperparameter_files import load_hyperparameters
from testing.jobs import ONE_LAYER, run_train, write_job

JOB = {"encoder_config": ONE_LAYER, "max_epochs": 1, "explain": 0}


@pytest.mark.slow
def test_a_job_saves_and_resumes_in_the_folders_of_its_request(tmp_path):
    paths = write_job(tmp_path / "job", overrides=JOB)
    state, curves = paths.root / "state", tmp_path / "curves"
    for name, folder in (("checkpointconfig", "/opt/ml/state"), ("tensorboardoutputconfig", str(curves))):
        (paths.config / f"{name}.json").write_text(json.dumps({"LocalPath": folder}))
    log = run_train(paths, TRAINING_JOB_NAME="claims-7")
    assert complete_checkpoints(state)
    assert list(curves.glob("events.out.tfevents.*"))
    assert not paths.checkpoints.exists()
    assert not paths.tensorboard.exists()
    assert "interruption" not in log
    assert "resuming from epoch=0-step=" in run_train(paths, TRAINING_JOB_NAME="claims-7")


@pytest.mark.parametrize(
    ("configured", "resume", "warning"),
    [
        (False, True, "has no CheckpointConfig, and SageMaker saves no checkpoints of it"),
        (True, False, "resume=false: after an interruption of spot training, the job begins again at step 0"),
        (True, True, None),
    ],
)
def test_a_job_says_that_an_interruption_would_lose_its_progress(tmp_path, caplog, configured, resume, warning):
    paths = write_job(tmp_path, overrides={**JOB, "resume": resume})
    if configured:
        paths.checkpoint_config.write_text('{"S3Uri": "s3://bucket/checkpoints"}')
    with caplog.at_level(logging.WARNING):
        _warn_about_interruptions(paths, load_hyperparameters(paths))
    assert (warning or "") in caplog.text
    assert bool(caplog.records) == (warning is not None)


@pytest.mark.slow
def test_only_jobs_of_the_service_are_told(tmp_path):
    paths = write_job(tmp_path, overrides=JOB)
    shutil.rmtree(paths.channel("val"))
    assert "CheckpointConfig" not in run_train(paths, expect=1)
    assert "CheckpointConfig" in run_train(paths, expect=1, TRAINING_JOB_NAME="claims-7")
