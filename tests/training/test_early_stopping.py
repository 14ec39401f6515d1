import logging
import math

import pytest

from container.errors import StopAgreed
from container.training import loop
from container.training.state import EarlyStopping, TrainingState, ValidationSchedule
from contracts.monitored_metric import MonitoredMetric
from testing.jobs import ONE_LAYER, write_hyperparameters, write_job
from testing.one_rank import prepared_job, train_job


def test_patience_counts_epochs_not_validations():
    early, state = EarlyStopping(MonitoredMetric.of("val_auroc"), patience=1), TrainingState()
    history = [(0.25, 0.9), (0.5, 0.8), (1.0, 0.8), (1.25, 0.8)]
    stopped = []
    for progress, value in history:
        early.update(state, {"val/auroc": value}, progress=progress)
        stopped.append(state.stopped_early)
    assert stopped == [False, False, False, True]
    assert state.best_progress == 0.25


def test_a_lower_loss_is_better_and_a_higher_score_is():
    for metric, better in (("val/loss", 0.1), ("val/auroc", 0.9)):
        early, state = EarlyStopping(MonitoredMetric(metric), patience=9), TrainingState()
        assert early.update(state, {metric: 0.5}, progress=1)
        assert early.update(state, {metric: better}, progress=2)
        assert not early.update(state, {metric: 0.5}, progress=3)


def test_of_two_equal_values_that_with_the_lower_loss_is_better_and_patience_starts_again():
    early, state = EarlyStopping(MonitoredMetric("val/f1_score"), patience=1), TrainingState()
    better = []
    for step, loss in enumerate([0.6, 0.4, 0.5, 0.5], start=1):
        state.step = step
        better.append(early.update(state, {"val/f1_score": 0.0, "val/loss": loss}, progress=step / 2))
        state.history.append({"step": step, "epoch": step / 2, "val/f1_score": 0.0, "val/loss": loss})
    assert (better, state.best_step, state.stopped_early) == ([True, True, False, False], 2, True)


def test_an_undefined_metric_is_never_the_best():
    early, state = EarlyStopping(MonitoredMetric("val/auroc"), patience=1), TrainingState()
    assert not early.update(state, {"val/auroc": None}, progress=5)
    assert (state.best_step, state.stopped_early) == (None, False)


def test_a_loss_that_is_no_number_is_never_the_best():
    early, state = EarlyStopping(MonitoredMetric("val/loss"), patience=1), TrainingState()
    assert not early.update(state, {"val/loss": math.nan}, progress=1)
    assert early.update(state, {"val/loss": 0.7}, progress=2)


def test_a_run_that_stops_between_two_validations_has_the_same_patience_left(one_rank, tmp_path, monkeypatch):
    settings = {"encoder_config": ONE_LAYER, "val_check_interval": 5, "max_epochs": 3, "early_stop_patience": 1}
    paths = write_job(tmp_path, overrides={**settings, "early_stop_metric": "val/loss"})
    job = prepared_job(paths)
    losses = iter([0.5, 0.6, 0.4, 0.3, 0.2])  # after 5, 10, ... steps of 8 per epoch; the second is worse
    monkeypatch.setattr(loop, "weighted_log_loss", lambda *_: next(losses))
    step = loop.Trainer._step

    def stop_once(trainer, *batches):
        if trainer._run.state.step == 13:  # one epoch after step 5
            monkeypatch.setattr(loop.Trainer, "_step", step)
            raise StopAgreed
        step(trainer, *batches)

    monkeypatch.setattr(loop.Trainer, "_step", stop_once)
    with pytest.raises(StopAgreed):
        train_job(job)
    state = train_job(job).state
    assert (state.step, state.stopped_early) == (24, False)


def test_the_log_says_that_a_checkpoint_has_more_epochs_than_a_lower_max_epochs(one_rank, tmp_path, caplog):
    paths = write_job(tmp_path)
    sentence = "max_epochs is 1, but the checkpoint has 2.00 epochs; they stay. resume=false starts over."
    for epochs, is_said in ((2, False), (1, True)):
        write_hyperparameters(paths, {"encoder_config": ONE_LAYER, "max_epochs": epochs})
        with caplog.at_level(logging.INFO):
            train_job(prepared_job(paths))
        assert (sentence in caplog.messages) == is_said


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(("max_epochs", "stopped"), [(2, False), (3, True)])
def test_patience_that_ends_with_the_last_epoch_is_no_early_stop(tmp_path, monkeypatch, caplog, max_epochs, stopped):
    caplog.set_level("INFO")
    settings = {"encoder_config": ONE_LAYER, "val_check_interval": 1.0, "early_stop_patience": 1}
    paths = write_job(tmp_path, overrides={**settings, "max_epochs": max_epochs, "early_stop_metric": "val/loss"})
    losses = iter([0.5, 0.6])
    monkeypatch.setattr(loop, "weighted_log_loss", lambda *_: next(losses))
    state = train_job(prepared_job(paths)).state
    assert (state.epoch, state.stopped_before(max_epochs)) == (2, stopped)
    assert ("early stop after" in caplog.text) == stopped


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(1.0, [10, 20]), (0.5, [5, 10, 15, 20]), (0.25, [3, 5, 8, 10, 13, 15, 18, 20]), (7, [7, 14, 20])],
)
def test_validation_falls_on_even_parts_of_an_epoch_or_every_n_steps(interval, expected):
    schedule = ValidationSchedule(records=80, steps_per_epoch=10, max_epochs=2, val_check_interval=interval)
    assert [step for step in range(21) if schedule.validation_due(step)] == expected
