"""A search that has ended goes on with more trials, seeds or hours, and keeps its winner until another is better."""

import csv
import json
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from container.job.launch.run_queue import Run
from container.tuning.search import Search, TimeLimit, search
from container.tuning.study import TuningStudy
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters, read_settings
from contracts.paths import JobPaths
from testing.jobs import write_checkpoint, write_hyperparameters, write_job

CHECKPOINT = "epoch=0-step=1.ckpt"
HOUR = 3600.0  # of each run
RATES = {"lr": {"low": 1e-3, "high": 3e-3}}


@pytest.fixture
def values(monkeypatch):
    """Replace the runs by values of the metric, in order; None is a failed run, an exception is raised."""
    left = []

    def start(self, trial, hp):
        value = left.pop(0)
        if callable(value):
            value()
            raise ContractError("a trial cannot begin")
        if isinstance(value, Exception):
            raise value
        self._learn(self._prepare(hp))
        self._time.spent += HOUR
        write_checkpoint(self._paths.tuning / trial.folder / "checkpoints", {"step": 1}, run=trial.folder)
        length = {"seconds": HOUR, "epochs": hp.max_epochs, "steps": 2, "planned_steps": 2}
        if value is None:
            self._finish(trial, "fail", reason="it diverged", **length)
        else:
            self._finish(trial, "complete", value=value, **length)

    monkeypatch.setattr(Search, "_start", start)
    return left


def searched(root, *, settings=None, num_gpus=0, **tuning):
    """Search, and return the job's paths and the result."""
    section = {"metric": "val/auroc", "space": RATES, **tuning}
    paths = write_job(root, overrides={"tuning": section, **(settings or {})})
    hp = load_hyperparameters(paths)
    return paths, search(paths, hp, read_settings(paths), num_gpus=num_gpus)


def rows(paths):
    with (paths.output_data / "tuning" / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def numbers(paths):
    return [int(row["number"]) for row in rows(paths)]


def states(paths):
    return [row["state"] for row in rows(paths)]


def test_more_trials_continue_the_study_and_a_better_one_is_the_winner(tmp_path, values):
    values += [0.6, 0.7]
    searched(tmp_path, trials=2)
    values += [0.68, 0.9]
    paths, best = searched(tmp_path, trials=4)
    assert best.folder.name == "trial-0003"
    assert (best.hp.seed, numbers(paths)) == (42, [0, 1, 2, 3])
    assert not values


def test_a_further_trial_whose_settings_do_not_fit_the_data_is_pruned(tmp_path, values):
    values += [0.6, 0.7]
    searched(tmp_path, trials=2)
    values += [ContractError("'blue' is not a category"), 0.5]
    paths, _ = searched(tmp_path, trials=4)
    assert states(paths) == ["complete", "complete", "pruned", "complete"]


def test_more_trials_that_are_worse_leave_the_winner(tmp_path, values):
    values += [0.6, 0.7]
    _, first = searched(tmp_path, trials=2)
    values += [0.5, 0.65]
    paths, best = searched(tmp_path, trials=4)
    assert best == first
    assert [path.parents[1].name for path in paths.tuning.rglob("*.ckpt")] == ["trial-0001"]
    assert numbers(paths) == [0, 1, 2, 3]


@pytest.mark.parametrize("model", ["average", "distill"])
def test_final_seeds_make_an_ensemble_with_the_settings_of_the_best_trial(tmp_path, values, model):
    values += [0.6, 0.7]
    _, best = searched(tmp_path, trials=2, final_seeds=3, settings={"ensemble_model": model})
    assert best.folder.name == "trial-0001"
    assert (best.hp.ensemble, best.hp.ensemble_model, best.hp.seed) == (3, model, 42)


def test_the_other_networks_of_an_earlier_winner_are_removed_with_it(tmp_path, values):
    values += [0.6, 0.7]
    paths, best = searched(tmp_path, trials=2, final_seeds=2)
    write_checkpoint(best.folder / "networks" / "ensemble" / "seed-43" / "checkpoints", {"step": 1})
    searched(tmp_path, trials=2, final_seeds=3)
    assert len(list(paths.tuning.rglob("*.ckpt"))) == 2
    values += [0.8]
    searched(tmp_path, trials=3, final_seeds=2)
    assert [path.parents[1].name for path in paths.tuning.rglob("*.ckpt")] == ["trial-0002"]


@pytest.mark.parametrize(("model", "trials"), [("average", 2), ("distill", 1)])
def test_the_time_of_the_other_networks_is_part_of_the_hours(tmp_path, values, model, trials):
    values += [0.6, 0.7][:trials]
    paths, _ = searched(tmp_path, trials=9, max_hours=3.5, final_seeds=2, settings={"ensemble_model": model})
    assert numbers(paths) == list(range(trials))


@pytest.mark.parametrize(("num_gpus", "trials"), [(0, 2), (2, 3)])
def test_the_winners_networks_train_side_by_side_on_gpus_only_also_in_the_hours(tmp_path, values, num_gpus, trials):
    values += [0.6, 0.7, 0.65][:trials]
    paths, _ = searched(tmp_path, num_gpus=num_gpus, trials=9, max_hours=4.5, final_seeds=3, parallel=2)
    assert numbers(paths) == list(range(trials))


@pytest.mark.parametrize("ends_after", [1, 2], ids=["at the start", "after a trial"])
def test_an_error_that_has_nothing_to_do_with_the_drawn_settings_ends_the_search(tmp_path, values, ends_after):
    values += [0.6]
    paths, _ = searched(tmp_path, trials=1)
    if ends_after == 1:
        shutil.rmtree(paths.channel("test"))
    else:
        values += [lambda: shutil.rmtree(paths.channel("test"))]
    section = {"metric": "val/auroc", "trials": 9, "space": RATES}
    write_hyperparameters(paths, {"tuning": section})
    with pytest.raises(ContractError, match="/test"):
        search(paths, load_hyperparameters(paths), read_settings(paths), num_gpus=0)
    study = TuningStudy(paths, load_hyperparameters(paths), num_workers=1)
    assert [trial.state for trial in study.trials] == ["complete", "running"][:ends_after]


def test_an_error_before_an_interrupted_trial_goes_on_leaves_it(tmp_path):
    section = {"metric": "val/auroc", "trials": 2, "space": RATES}
    paths = write_job(tmp_path, overrides={"tuning": section})
    study = TuningStudy(paths, load_hyperparameters(paths), num_workers=1)
    study.report(study.begin(), 0.7)
    shutil.rmtree(paths.channel("test"))
    with pytest.raises(ContractError, match="/test"):
        search(paths, load_hyperparameters(paths), read_settings(paths), num_gpus=0)
    kept = TuningStudy(paths, load_hyperparameters(paths), num_workers=1).trials
    assert [(trial.state, trial.best_values) for trial in kept] == [("running", [0.7])]


def test_the_result_of_a_run_is_that_of_its_newest_checkpoint_whatever_last_ckpt_names(tmp_path):
    checkpoints = JobPaths(tmp_path).checkpoints
    write_checkpoint(checkpoints, {"step": 1})
    write_checkpoint(checkpoints, {"step": 2, "state": {"best_value": 0.7}})
    (checkpoints / "last.ckpt").write_text("epoch=0-step=1.ckpt")
    ended: Any = SimpleNamespace(folder=tmp_path, ended=True)
    assert Run.new_state(ended) == {"best_value": 0.7}


def test_another_precomputed_file_is_another_search(tmp_path, values):
    values += [0.6]
    paths, _ = searched(tmp_path, trials=1)
    paths.precomputed_artifacts.mkdir(parents=True, exist_ok=True)
    (paths.precomputed_artifacts / "selected_features.json").write_text("[]")
    with pytest.raises(ContractError, match="the file model_artifacts_input/selected_features.json: the search"):
        searched(tmp_path, trials=2)


def test_more_hours_continue_a_search_that_ran_out_of_time(tmp_path, values):
    values += [0.6, 0.7]
    paths, _ = searched(tmp_path, trials=4, max_hours=2.5)
    assert numbers(paths) == [0, 1]
    searched(tmp_path, trials=4, max_hours=2.9)
    assert numbers(paths) == [0, 1]
    values += [0.8, 0.9]
    searched(tmp_path, trials=4, max_hours=4.5)
    assert numbers(paths) == [0, 1, 2, 3]


def test_a_trial_starts_only_if_one_with_the_most_epochs_can_finish(tmp_path, values):
    space = {**RATES, "max_epochs": [1, 4]}
    values += [0.6]
    paths, _ = searched(tmp_path, trials=4, max_hours=4.9, space=space, settings={"max_epochs": 1})
    assert numbers(paths) == [0]


def test_the_same_command_again_runs_nothing(tmp_path, values):
    values += [0.6, None, 0.7]
    searched(tmp_path, trials=3)
    _, best = searched(tmp_path, trials=3)
    assert (best.folder.name, best.hp.seed) == ("trial-0002", 42)


def test_the_winner_has_what_is_changed_after_the_search(tmp_path, values):
    values += [0.6, 0.7]
    _, first = searched(tmp_path, trials=2, settings={"calibration": "temperature"})
    _, best = searched(tmp_path, trials=2, settings={"calibration": "isotonic", "label_issues": True})
    assert best.hp.lr == first.hp.lr
    assert (best.hp.calibration, best.hp.label_issues) == ("isotonic", True)


def test_a_search_without_a_result_names_the_first_failure_and_may_be_corrected(tmp_path, values):
    values += [None, None]
    with pytest.raises(ContractError) as failed:
        searched(tmp_path, trials=2)
    assert failed.value.cause == "tuning: no trial has a result; trial 0: it diverged"
    assert str(tmp_path / "checkpoints" / "tuning") in failed.value.fix
    assert not list((tmp_path / "checkpoints" / "tuning").rglob("*.ckpt"))
    values += [0.6, 0.7]
    paths, _ = searched(tmp_path, trials=2, space={"lr": {"low": 1e-4, "high": 1e-3}})
    assert numbers(paths) == [0, 1]


def test_a_machine_with_too_few_gpus_leaves_the_study(tmp_path, values):
    values += [None, RuntimeError("killed")]
    with pytest.raises(RuntimeError):
        searched(tmp_path, trials=2)
    hp = load_hyperparameters(JobPaths(tmp_path))
    hp = hp.model_copy(update={"nproc_per_node": 2})
    with pytest.raises(ContractError, match="need 2 GPUs, but this machine has 1"):
        search(JobPaths(tmp_path), hp, read_settings(JobPaths(tmp_path)), num_gpus=1)
    values += [0.6]
    paths, _ = searched(tmp_path, trials=2)
    assert states(paths) == ["fail", "complete"]


def test_hours_that_are_too_few_for_one_trial_are_an_error_with_its_duration(tmp_path, values):
    values += [0.6]
    with pytest.raises(ContractError) as short:
        searched(tmp_path, trials=3, max_hours=0.5)
    assert short.value.cause == "tuning.max_hours: 0.5 h is too short for one trial: the first took 3600 s"
    assert short.value.fix == "Set max_hours to at least 1, or lower max_epochs."


def test_hours_that_are_too_few_for_parallel_trials_are_an_error(tmp_path, values, monkeypatch):
    values += [0.6, 0.7]
    allowed = iter([True, True, False])
    with monkeypatch.context() as patch:
        patch.setattr(TimeLimit, "allows", lambda *_, **__: next(allowed))  # both begin before one has ended
        with pytest.raises(ContractError, match="0.5 h is too short for one trial: the first took 3600 s"):
            searched(tmp_path, trials=3, max_hours=0.5, parallel=2)


def test_the_summary_of_a_search_has_the_reason_of_a_failure(tmp_path, values):
    values += [0.6, None]
    paths, _ = searched(tmp_path, trials=2)
    summary = json.loads((paths.output_data / "tuning" / "summary.json").read_text())
    assert [trial["reason"] for trial in summary["trials"]] == ["", "it diverged"]


def test_the_hours_that_the_error_asks_for_are_enough(tmp_path, values, monkeypatch):
    monkeypatch.setitem(globals(), "HOUR", 3700.0)
    values += [0.6]
    with pytest.raises(ContractError) as short:
        searched(tmp_path, trials=1, max_hours=0.5)
    hours = float(short.value.fix.split()[5].strip(","))
    assert hours * 3600 >= HOUR
    searched(tmp_path, trials=1, max_hours=hours)


def test_a_search_of_another_space_is_refused_and_the_study_stays(tmp_path, values):
    values += [0.6, 0.7]
    paths, _ = searched(tmp_path, trials=2)
    with pytest.raises(ContractError, match="tuning.space.lr: the search in .* began with"):
        searched(tmp_path, trials=2, space={"lr": [1e-4]})
    values += [0.9]
    searched(tmp_path, trials=3)
    assert numbers(paths) == [0, 1, 2]


def test_another_number_of_processes_of_a_trial_is_refused(tmp_path, values):
    values += [0.6, 0.7]
    searched(tmp_path, trials=2)
    cause = r"nproc_per_node \(processes of a trial\): the search in .* began with 1, this run has 2"
    with pytest.raises(ContractError, match=cause):
        searched(tmp_path, trials=3, settings={"nproc_per_node": 2})
    values += [0.9]
    searched(tmp_path, trials=3, settings={"nproc_per_node": 1})


def test_settings_that_were_tried_before_are_not_trained_again(tmp_path, values):
    values += [0.6, 0.7, 0.5, 0.9]
    paths, _ = searched(tmp_path, trials=40, space={"lr": [1e-3, 2e-3], "max_epochs": [1, 2]})
    trials = json.loads((paths.output_data / "tuning" / "summary.json").read_text())["trials"]
    first = {json.dumps(trial["settings"]): trial["number"] for trial in reversed(trials)}
    trained = [trial["number"] for trial in trials if trial["state"] == "complete"]
    assert trained == sorted(first.values())
    assert trained[-1] == trials[-1]["number"] < 39, "the search ends when every combination has been tried"
    assert len(trials) > 4
    reasons = {trial["reason"]: first[json.dumps(trial["settings"])] for trial in trials if trial["state"] == "pruned"}
    assert reasons == {f"same settings as trial {number}": number for number in reasons.values()}
