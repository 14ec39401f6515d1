"""max_minutes: a job ends with all artifacts in time, and its log says what was left out."""

import logging
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from container.commands import main
from container.job.job import Member
from container.job.time_limit import allows, check_time_to_train, seconds_left, seconds_to_train
from container.job.timeline import Timeline
from container.training.state import EarlyStopping, TrainingState, ValidationSchedule
from container.training.step_budget import StepBudget
from container.tuning import ensemble
from contracts.errors import ContractError
from contracts.monitored_metric import MonitoredMetric
from testing.encoder_families import hyperparameters
from testing.jobs import write_job

SCHEDULE = ValidationSchedule(1000, 100, 10, 0.25)


def limited(minutes, *, elapsed):
    return hyperparameters(max_minutes=minutes), Timeline(started=time.monotonic() - elapsed)


def test_a_fifth_of_the_time_is_kept_for_what_follows_the_training():
    assert seconds_to_train(*limited(10, elapsed=60)) == pytest.approx(540 - 120, abs=1)
    assert seconds_to_train(*limited(1, elapsed=10)) == pytest.approx(50 - 25, abs=1)
    assert seconds_left(*limited(None, elapsed=10)) == math.inf


def test_a_limit_that_preparing_the_data_used_up_is_an_error_that_names_enough():
    check_time_to_train(*limited(3, elapsed=60))
    with pytest.raises(ContractError, match="max_minutes: 1 is too short: 3 min have passed") as raised:
        check_time_to_train(*limited(1, elapsed=180))
    assert "Set at least 5" in raised.value.fix
    check_time_to_train(*limited(5, elapsed=180))


def test_a_result_that_would_end_late_is_left_out_and_named(caplog):
    assert allows(*limited(1, elapsed=10), what="the companion", seconds=30)
    assert not allows(*limited(1, elapsed=30), what="the companion", seconds=30)
    assert "max_minutes=1: without the companion, which would take about 30 s; 18 s are left for it" in caplog.text


def planned(minutes, *, step, seconds, left, first=0):
    data = SimpleNamespace(splits={"train": range(1000), "val": range(150), "test": range(150)})
    budget = StepBudget(SimpleNamespace(hp=hyperparameters(max_minutes=minutes)), data, step=first)
    return budget.plan(SCHEDULE, step, seconds=seconds, left=left)


def test_the_plan_has_the_steps_that_the_measured_rate_allows(caplog):
    # 10 steps take 20 s. Of 200 s, predicting 300 records takes as long as training 100: 20 s.
    assert planned(10, step=11, seconds=20.0, left=200.0).last_step == 12 + 90
    assert "max_minutes: about 1.02 of 10 epochs end in the 3 min that are left" in caplog.text
    assert planned(10, step=11, seconds=20.0, left=-5.0).last_step == 12
    assert planned(10, step=11, seconds=20.0, left=1e6) == SCHEDULE
    assert planned(10, step=3, seconds=20.0, left=1.0) == SCHEDULE, "two steps show no rate"
    assert planned(None, step=11, seconds=0.0, left=0.0) == SCHEDULE


def test_the_last_step_of_a_plan_is_validated_and_stops_the_training_early():
    schedule, state = replace(SCHEDULE, last_step=102), TrainingState(step=102)
    assert schedule.validation_due(102)
    assert schedule.total_steps == 102, "the learning rate decays to it"
    early = EarlyStopping(MonitoredMetric("val/loss"), patience=9)
    early.update(state, {"val/loss": 0.5}, progress=1.02)
    assert not state.stopped_early
    early.update(state, {"val/loss": 0.4}, progress=1.02, last_step=schedule.last_step)
    assert state.stopped_before(10)


def test_the_networks_of_an_ensemble_share_the_time(tmp_path, monkeypatch):
    submitted = []

    class Queue:
        running, has_room = (), True

        def submit(self, folder, hp, **_):
            submitted.append(hp.max_minutes)

        def poll(self):
            return []

        __enter__, __exit__ = lambda self: self, lambda *_: None

    monkeypatch.setattr(ensemble, "RunQueue", lambda *_, **__: Queue())
    members = [Member(tmp_path / f"seed-{i}", hyperparameters(max_minutes=10)) for i in range(3)]
    left = iter([300.0, 200.0, 100.0])
    shares = SimpleNamespace(parallel=2, num_workers=1)
    prepared = SimpleNamespace(folder=tmp_path)
    ensemble.train_members(members, prepared, shares=shares, seconds_left=lambda: next(left))
    assert submitted == pytest.approx([150 / 60, 200 / 60, 100 / 60])


@pytest.mark.slow
def test_a_job_that_needs_longer_ends_in_time_with_all_artifacts(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    paths = write_job(tmp_path, overrides={"max_epochs": 100_000, "early_stop_patience": 100_000, "nproc_per_node": 1})
    began = time.monotonic()
    assert main(["train", "--root", str(paths.root), "--minutes", "1"]) == 0
    assert time.monotonic() - began < 66
    assert (paths.output_data / "report.html").is_file()
    log = (paths.output_data / "log.txt").read_text()
    assert "of 100000 epochs end in the" in log
    assert "max_minutes: trained" in log
