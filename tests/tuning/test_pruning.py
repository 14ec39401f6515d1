"""A search ends trials that are worse than others after a ninth or a third of the validations, and only those."""

from typing import ClassVar

import pytest

import container.tuning.search as module
from container.job.failure import Failure
from container.job.launch import run_queue
from container.tuning.search import search
from container.tuning.study import TuningStudy
from contracts.hyperparameter_files import load_hyperparameters, read_settings
from testing.jobs import write_job

NINE = {"val_check_interval": 1 / 9, "max_epochs": 1}


class Run:
    """Stands for the workers of a run: each look at it finds one more validation."""

    curves: ClassVar[dict[int, list[float]]] = {}  # of the trials
    failing: ClassVar[set[int]] = set()
    metric: ClassVar[str] = "val/auroc"

    def __init__(self, shares, slot, *, shown):
        self.failure, self.completed, self.abandoned, self.seen = None, False, False, 0

    def train(self, folder, hp, *, prepared, fold, timeline):
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        number = int(folder.name.removeprefix("trial-"))
        self.values = self.curves[number]
        self.failure = Failure("it diverged", "") if number in self.failing else None
        self.completed = self.failure is None
        self.validations = round(hp.max_epochs / hp.val_check_interval)

    @property
    def ended(self):
        return self.abandoned or self.seen == len(self.values)

    def new_state(self):
        if self.ended:
            return None
        self.seen += 1
        seen = self.values[: self.seen]
        epochs = [{"step": i, "epoch": i / self.validations} for i in range(1, 1 + self.seen)]
        return {
            "history": [{**entry, self.metric: value} for entry, value in zip(epochs, seen, strict=True)],
            "best_value": min(seen) if self.metric == "val/loss" else max(seen),
            "stopped_early": self.completed and self.seen == len(self.values),
        }

    def request_stop(self):
        pass

    def abandon(self):
        self.abandoned = True

    def close(self):
        pass


@pytest.fixture(params=["val/auroc", "val/loss"])
def curves(request, monkeypatch):
    """A function that searches with runs that have these values, of which higher is better, at their validations."""
    metric = request.param

    def ran(root, *values, failing=(), begun=None, **settings):
        sign = -1 if metric == "val/loss" else 1
        monkeypatch.setattr(Run, "curves", {i: [sign * each for each in curve] for i, curve in enumerate(values)})
        monkeypatch.setattr(Run, "failing", set(failing))
        tuning = {"metric": metric, "trials": len(values), "final_seeds": 1, "space": {"lr": {"low": 1e-4, "high": 1}}}
        paths = write_job(root, overrides={**NINE, "tuning": tuning, **settings})
        hp = load_hyperparameters(paths)
        if begun is not None:
            begun(TuningStudy(paths, hp, num_workers=1), sign)
        search(paths, hp, read_settings(paths), num_gpus=0)
        return TuningStudy(paths, hp, num_workers=1).trials

    monkeypatch.setattr(run_queue, "Run", Run)
    monkeypatch.setattr(module, "_POLL", 0)
    monkeypatch.setattr(Run, "metric", metric)
    return ran


def states(trials):
    return [trial.state for trial in trials]


COMPLETE, PRUNED, FAIL = "complete", "pruned", "fail"


def test_a_trial_that_is_worse_after_a_ninth_or_a_third_is_pruned_there_and_a_better_one_is_not(tmp_path, curves):
    trials = curves(tmp_path, [0.5] * 9, [0.4] * 9, [0.6] * 9, [0.6, 0.6, *[0.7] * 7], [0.6] * 9)
    assert states(trials) == [COMPLETE, PRUNED, COMPLETE, COMPLETE, PRUNED]
    assert [len(trial.best_values) for trial in trials] == [9, 1, 9, 9, 3]
    assert trials[1].reason.endswith("after 0.111 epochs")


def test_a_trial_that_is_worse_only_at_its_last_validation_is_complete(tmp_path, curves):
    trials = curves(tmp_path, [*[0.5] * 8, 0.9], [0.6] * 9)
    assert states(trials) == [COMPLETE, COMPLETE]


def test_a_trial_that_has_trained_to_its_end_at_a_rung_is_complete(tmp_path, curves):
    trials = curves(tmp_path, [0.5], [0.4], val_check_interval=1.0)
    assert states(trials) == [COMPLETE, COMPLETE]


def test_a_trial_that_has_stopped_early_at_a_rung_is_complete(tmp_path, curves):
    trials = curves(tmp_path, [0.5] * 9, [0.4])
    assert states(trials) == [COMPLETE, COMPLETE]


def test_a_failed_trial_prunes_no_other_one(tmp_path, curves):
    trials = curves(tmp_path, [0.9], [0.5] * 9, [0.6] * 9, failing=[0])
    assert states(trials) == [FAIL, COMPLETE, COMPLETE]


def test_a_losing_trial_that_was_killed_before_its_end_was_recorded_is_pruned_when_the_search_goes_on(tmp_path, curves):
    def killed(study, sign):
        first = study.begin()
        study.report(first, sign * 0.5)
        study.finish(first, COMPLETE, value=sign * 0.5, seconds=1.0, epochs=1.0)
        study.report(study.begin(), sign * 0.4)

    trials = curves(tmp_path, [0.5] * 9, [0.4, *[0.9] * 8], begun=killed)
    assert states(trials) == [COMPLETE, PRUNED]
    assert len(trials[1].best_values) == 1


def test_the_time_of_a_trial_includes_that_before_a_kill(tmp_path, curves):
    def killed(study, sign):
        study.begin().seconds = 100.0
        study.save()

    (trial,) = curves(tmp_path, [0.5] * 9, begun=killed)
    assert trial.seconds >= 100
