"""SageMaker's uploader marks and copies the files of checkpoints/ during a job: no progress is lost."""

import json
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from container.training.checkpoint_files import complete_checkpoints
from contracts.other_programs import MARKERS, NOT_UPLOADED
from contracts.paths import JobPaths
from testing.jobs import ONE_LAYER, run_train, start_until, write_job
from testing.uploader import SECONDS, uploading
from tests.training.test_interruptions import assert_same_weights

pytestmark = pytest.mark.slow

JOB = {
    "encoder_config": ONE_LAYER, "max_epochs": 3, "batch_size": 4, "checkpoint_every_n_steps": 1, "explain": 0,
    "load_ckpt": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The weights of a job without an uploader."""
    paths = write_job(tmp_path_factory.mktemp("alone"), overrides=JOB)
    run_train(paths)
    return torch.load(paths.model / "model.pth", weights_only=True)


def killed(paths: JobPaths, line: str) -> None:
    """Run a job until its log has the line, and until what it has saved then is uploaded; then kill it."""
    process = start_until(paths, line)
    time.sleep(3 * SECONDS)
    process.kill()
    process.wait()


def restored(bucket: Path, root: Path, overrides: dict) -> JobPaths:
    """A job on another instance, with what the bucket has of the checkpoints."""
    paths = write_job(root, overrides=overrides)
    shutil.copytree(bucket, paths.checkpoints)
    assert not [path for path in paths.checkpoints.rglob("*") if path.name.endswith(MARKERS)]
    return paths


def test_a_job_with_many_saves_keeps_the_newest_checkpoints_and_no_other(tmp_path, weights):
    paths = write_job(tmp_path / "job", overrides=JOB)
    with uploading(paths.checkpoints, tmp_path / "bucket", everywhere=True):
        run_train(paths)
    assert_same_weights(paths, weights)
    complete = complete_checkpoints(paths.checkpoints)
    best = (paths.checkpoints / "best.ckpt").read_text().strip()
    assert [each.step for each in complete if each.folder.name != best or each.step > 43] == [44, 45]
    folders = [path.name for path in paths.checkpoints.iterdir() if path.is_dir() and path.name != NOT_UPLOADED]
    assert sorted(folders) == sorted(each.folder.name for each in complete)
    listed = [name for each in complete for name in json.loads((each.folder / "manifest.json").read_text())]
    assert not [name for name in listed if name.endswith(MARKERS)]
    assert list(paths.checkpoints.rglob("*.sagemaker-uploaded")), "the uploader was at work"


def test_a_job_goes_on_from_the_uploaded_checkpoints_after_it_was_killed(tmp_path, weights):
    paths, bucket = write_job(tmp_path / "job", overrides=JOB), tmp_path / "bucket"
    with uploading(paths.checkpoints, bucket):
        killed(paths, "step 25/")
    assert not [path for path in bucket.rglob("*") if NOT_UPLOADED in str(path)]
    other = restored(bucket, tmp_path / "other", JOB)
    with uploading(other.checkpoints, tmp_path / "other-bucket"):
        log = run_train(other)
    assert "resuming from epoch=" in log
    assert_same_weights(other, weights)


def test_a_job_starts_over_while_the_uploader_runs(tmp_path, weights):
    paths = write_job(tmp_path / "job", overrides={**JOB, "resume": False})
    with uploading(paths.checkpoints, tmp_path / "bucket", everywhere=True):
        killed(paths, "step 20/")
        log = run_train(paths)
    assert "resuming from" not in log
    assert_same_weights(paths, weights)


ENSEMBLE = {**JOB, "max_epochs": 1, "ensemble": 2}
SEARCH = {
    **JOB, "max_epochs": 1, "load_ckpt": True,
    "tuning": {"trials": 3, "final_seeds": 1, "space": {"lr": {"low": 1e-3, "high": 1e-2, "scale": "log"}}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "line", "found"),
    [
        (ENSEMBLE, "seed-43: training begins", "1 of 2 networks are trained"),
        (SEARCH, "trial 1 complete", "2 of 3 trials are finished"),
    ],
)
def test_an_ensemble_and_a_search_go_on_from_what_was_uploaded(tmp_path, overrides, line, found):
    paths, bucket = write_job(tmp_path / "job", overrides=overrides), tmp_path / "bucket"
    with uploading(paths.checkpoints, bucket), uploading(paths.tensorboard, tmp_path / "curves"):
        killed(paths, line)
    other = restored(bucket, tmp_path / "other", overrides)
    with uploading(other.checkpoints, tmp_path / "other-bucket"), uploading(other.tensorboard, tmp_path / "curves"):
        log = run_train(other)
    assert found in log
    shown = [path.name for path in other.tensorboard.rglob("*") if not path.name.endswith(MARKERS)]
    assert any("tfevents" in name for name in shown)


def test_an_ensemble_starts_over_while_the_uploader_runs(tmp_path):
    paths = write_job(tmp_path / "job", overrides={**ENSEMBLE, "resume": False})
    with uploading(paths.checkpoints, tmp_path / "bucket", everywhere=True):
        killed(paths, "step 8/")
        log = run_train(paths)
    assert log.count("seed-42: training begins") == 2


def test_a_stopped_job_goes_on_from_its_last_step_without_the_markers(tmp_path, weights):
    paths = write_job(tmp_path / "job", overrides=JOB)
    with uploading(paths.checkpoints, tmp_path / "bucket"):
        process = start_until(paths, "step 20/")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
    step = complete_checkpoints(paths.checkpoints)[-1].step
    other = write_job(tmp_path / "other", overrides=JOB)
    shutil.copytree(
        paths.checkpoints, other.checkpoints, ignore=shutil.ignore_patterns(*(f"*{ending}" for ending in MARKERS))
    )
    assert f"after {step} steps" in run_train(other)
    assert_same_weights(other, weights)
