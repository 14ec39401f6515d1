"""The verdict on a job, from the result of rank 0, the failure of the workers and a stop request."""

from dataclasses import replace
from pathlib import Path

import pytest

from container.errors import PeerFailed
from container.job.agreement import verdict_on
from container.job.failure import Failure
from container.job.job import Job, Member, Scratch, write_json
from container.training.checkpoint_files import LAST
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.paths import JobPaths
from contracts.program import FAILED, STOPPED, StopHandler
from testing.jobs import CONFIGURATION, write_checkpoint

DISK_FULL = Failure.from_exception(OSError(28, "No space left on device"), rank=1)
KILLED = Failure.from_exit(-9, who="worker rank 1 (pid 7)", rank=1)
LOST_PEER = Failure.from_exception(PeerFailed("rank 1: it has died"), rank=0)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    scratch = Scratch(tmp_path / "scratch")
    scratch.folder.mkdir()
    return Job(JobPaths(tmp_path), parse_hyperparameters(CONFIGURATION), scratch, tmp_path / "prepared")


@pytest.fixture
def stop() -> StopHandler:
    handler = StopHandler()
    handler.requested = True
    return handler


def test_an_error_of_a_worker_during_a_stop_fails_the_job_with_its_cause(job: Job, stop: StopHandler) -> None:
    verdict = verdict_on(job, DISK_FULL, stop)
    assert (verdict.exit_code, verdict.failure) == (FAILED, DISK_FULL)


@pytest.mark.parametrize("failure", [KILLED, LOST_PEER], ids=["killed", "lost peer"])
def test_a_worker_that_a_stop_kills_does_not_fail_the_job(job: Job, stop: StopHandler, failure: Failure) -> None:
    assert verdict_on(job, failure, stop).exit_code == STOPPED


def test_an_error_of_another_host_after_the_stop_is_complete_does_not_fail_the_job(job: Job, stop: StopHandler) -> None:
    write_json(job.scratch.result_file, {"status": "stopped"})
    assert verdict_on(job, DISK_FULL, stop).exit_code == STOPPED


def test_a_stop_while_networks_train_says_how_many_are_trained(job: Job, stop: StopHandler, tmp_path: Path) -> None:
    members = tuple(Member(tmp_path / name, job.hp) for name in ("fold-0", "fold-1", "fold-2"))
    finished = {"step": 8, "epoch": job.hp.max_epochs, "validated_step": 8}
    write_checkpoint(members[0].checkpoints, {"step": 8, "state": finished})
    write_checkpoint(members[1].checkpoints, {"step": 5, "state": {**finished, "epoch": 1}})
    write_json(job.scratch.result_file, {"status": "stopped"})
    verdict = verdict_on(replace(job, members=members), None, stop)
    assert (verdict.exit_code, verdict.where) == (STOPPED, "1 of 3 networks are trained")


def test_a_stop_names_the_newest_complete_checkpoint_and_not_that_of_last_ckpt(job: Job, stop: StopHandler) -> None:
    write_checkpoint(job.paths.checkpoints, {"step": 2})
    (job.paths.checkpoints / LAST).write_text("epoch=0-step=1.ckpt\n")
    assert verdict_on(job, None, stop).where == "checkpoint epoch=0-step=2.ckpt is complete"


def test_a_stop_names_no_checkpoint_if_last_ckpt_names_one_that_is_gone(job: Job, stop: StopHandler) -> None:
    job.paths.checkpoints.mkdir()
    (job.paths.checkpoints / LAST).write_text("epoch=0-step=1.ckpt\n")
    assert verdict_on(job, None, stop).where == "before a checkpoint"
