"""A search that has ended goes on with more trials, seeds or hours, and keeps its winner until another is better."""

import csv
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from optuna.trial import TrialState

from container.errors import StoppedBeforeTraining
from container.launch.run_queue import Run
from container.launch.workers import StopHandler
from container.tuning.search import Search, search
from container.tuning.study import TuningStudy
from container.tuning.time_limit import TimeLimit
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters, read_settings
from contracts.paths import JobPaths
from contracts.presets import DataFacts
from testing.jobs import write_job

CHECKPOINT = "epoch=0-step=1.ckpt"
HOUR = 3600.0  # of each run
RATES = {"lr": {"low": 1e-3, "high": 3e-3}}


@pytest.fixture
def values(monkeypatch):
    """Replace the runs by values of the metric, in order; None is a failed run, an exception is raised."""
    left = []

    def start(self, folder, changes, *, trial, **_):
        value = left.pop(0)
        if isinstance(value, Exception):
            raise value
        self._study.note("facts", asdict(DataFacts(10, (5, 5), (2, 2))))
        self._time.spent += HOUR
        epochs = changes.get("max_epochs", self._hp.max_epochs)
        complete_checkpoint(folder / "checkpoints", CHECKPOINT, step=1, run=folder.name)
        if value is None:
            self._finish(trial, TrialState.FAIL, reason="it diverged", seconds=HOUR, steps=1, planned_steps=2)
        else:
            self._finish(trial, TrialState.COMPLETE, value=value, seconds=HOUR, epochs=epochs, steps=2, planned_steps=2)

    monkeypatch.setattr(Search, "_start", start)
    return left


def complete_checkpoint(folder, name, *, step, run):
    files = {".metadata": "", "state.json": json.dumps({"step": step}), "run": run}
    (folder / name).mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (folder / name / file).write_text(content)
    (folder / name / "manifest.json").write_text(json.dumps({file: len(each) for file, each in files.items()}))


def searched(root, *, settings=None, **tuning):
    """Search, and return the job's paths and the hyperparameters of the winner."""
    section = {"metric": "val/auroc", "space": RATES, **tuning}
    paths = write_job(root, overrides={"tuning": section, **(settings or {})})
    hp = load_hyperparameters(paths)
    return paths, search(paths, hp, read_settings(paths), num_gpus=0, stop=StopHandler())


def installed(paths):
    """Return the name of the run whose checkpoint is the job's."""
    return (paths.checkpoints / CHECKPOINT / "run").read_text()


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
    paths, hp = searched(tmp_path, trials=4)
    assert installed(paths) == "trial-0003"
    assert (hp.seed, numbers(paths)) == (42, [0, 1, 2, 3])
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
    paths, hp = searched(tmp_path, trials=4)
    assert installed(paths) == "trial-0001"
    assert (hp.seed, hp.lr) == (42, first.lr)
    assert numbers(paths) == [0, 1, 2, 3]


def members(paths):
    """Return the names of the runs whose checkpoints are those of the networks of the ensemble."""
    found = paths.ensemble.glob(f"*/checkpoints/{CHECKPOINT}/run")
    return {path.parents[2].name: path.read_text() for path in found}


@pytest.mark.parametrize("model", ["average", "distill"])
def test_the_networks_of_the_best_settings_begin_with_that_of_its_trial(tmp_path, values, model):
    values += [0.6, 0.7]
    paths, hp = searched(tmp_path, trials=2, final_seeds=3, settings={"ensemble_model": model})
    assert members(paths) == {"seed-42": "trial-0001"}
    assert (hp.ensemble, hp.ensemble_model, hp.seed) == (3, model, 42)
    assert not (paths.checkpoints / CHECKPOINT).exists()


def test_the_network_of_the_best_trial_follows_a_change_of_final_seeds(tmp_path, values):
    values += [0.6, 0.7]
    paths, _ = searched(tmp_path, trials=2)
    for networks in (2, 1, 3):
        paths, hp = searched(tmp_path, trials=2, final_seeds=networks)
        assert hp.ensemble == networks
        assert (paths.checkpoints / CHECKPOINT).exists() == (networks == 1)
        assert members(paths) == ({} if networks == 1 else {"seed-42": "trial-0001"})


def test_networks_of_a_better_trial_replace_those_of_the_earlier_winner(tmp_path, values):
    values += [0.6, 0.7]
    paths, _ = searched(tmp_path, trials=2, final_seeds=2)
    complete_checkpoint(paths.ensemble / "seed-43" / "checkpoints", CHECKPOINT, step=1, run="second")
    complete_checkpoint(paths.checkpoints, CHECKPOINT, step=1, run="distilled")
    values += [0.8]
    paths, _ = searched(tmp_path, trials=3, final_seeds=2)
    assert members(paths) == {"seed-42": "trial-0002"}
    assert not (paths.checkpoints / CHECKPOINT).exists()


@pytest.mark.parametrize(("model", "trials"), [("average", 2), ("distill", 1)])
def test_the_time_of_the_other_networks_is_part_of_the_hours(tmp_path, values, model, trials):
    values += [0.6, 0.7][:trials]
    paths, _ = searched(tmp_path, trials=9, max_hours=3.5, final_seeds=2, settings={"ensemble_model": model})
    assert numbers(paths) == list(range(trials))


def test_the_curves_of_the_winner_have_the_name_that_its_network_has(tmp_path, values):
    def shown(paths):
        return {path.parent.name for path in paths.tensorboard.glob("*/events")}

    values += [0.7]
    paths, _ = searched(tmp_path, trials=1)
    curves = JobPaths(paths.tuning / "trial-0001").tensorboard / "events"
    (paths.tensorboard / "trial-0000").mkdir(parents=True)
    (paths.tensorboard / "trial-0000" / "events").touch()
    searched(tmp_path, trials=1, final_seeds=2)
    assert shown(paths) == {"seed-42"}
    curves.parent.mkdir(parents=True)
    curves.touch()
    values += [0.8]
    searched(tmp_path, trials=2)
    assert shown(paths) == {"trial-0001"}
    assert not curves.exists()


def test_the_networks_of_another_job_in_the_folder_stay(tmp_path, values):
    values += [0.7]
    paths, _ = searched(tmp_path, trials=1)
    (paths.ensemble / "fold-0").mkdir(parents=True)
    values += [0.8]
    searched(tmp_path, trials=2)
    assert installed(paths) == "trial-0001"
    assert (paths.ensemble / "fold-0").is_dir()


def test_a_run_that_went_on_from_the_winner_is_refused(tmp_path, values):
    values += [0.7]
    paths, _ = searched(tmp_path, trials=1)
    complete_checkpoint(paths.checkpoints, "epoch=2-step=3.ckpt", step=3, run="another job")
    with pytest.raises(ContractError, match="has a checkpoint of step 3, and the winner of the search has 1 steps"):
        searched(tmp_path, trials=2)


def test_an_error_that_has_nothing_to_do_with_the_drawn_settings_ends_the_search(tmp_path, values):
    values += [0.6]
    searched(tmp_path, trials=1)
    section = {"metric": "val/auroc", "trials": 9, "space": RATES}
    paths = write_job(tmp_path, overrides={"tuning": section})
    shutil.rmtree(paths.channel("test"))
    values += [ContractError("a trial cannot begin")]
    with pytest.raises(ContractError, match="/test"):
        search(paths, load_hyperparameters(paths), read_settings(paths), num_gpus=0, stop=StopHandler())
    study = TuningStudy(paths, load_hyperparameters(paths), num_workers=1)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "RUNNING"]


def test_an_error_before_an_interrupted_trial_goes_on_leaves_it(tmp_path, values):
    section = {"metric": "val/auroc", "trials": 2, "space": RATES}
    paths = write_job(tmp_path, overrides={"tuning": section})
    study = TuningStudy(paths, load_hyperparameters(paths), num_workers=1)
    study.report(study.begin(), step=1, value=0.7)
    study.note("facts", asdict(DataFacts(10, (5, 5), (2, 2))))
    shutil.rmtree(paths.channel("test"))
    values += [ContractError("a trial cannot begin")]
    with pytest.raises(ContractError, match="/test"):
        search(paths, load_hyperparameters(paths), read_settings(paths), num_gpus=0, stop=StopHandler())
    kept = TuningStudy(paths, load_hyperparameters(paths), num_workers=1).trials
    assert [(trial.state.name, trial.intermediate_values) for trial in kept] == [("RUNNING", {1: 0.7})]


def test_the_result_of_a_run_is_that_of_its_newest_checkpoint_whatever_last_ckpt_names(tmp_path):
    checkpoints = JobPaths(tmp_path).checkpoints
    complete_checkpoint(checkpoints, "epoch=0-step=1.ckpt", step=1, run="")
    newest = checkpoints / "epoch=1-step=2.ckpt"
    complete_checkpoint(checkpoints, newest.name, step=2, run="")
    content = json.dumps({"step": 2, "state": {"best_value": 0.7}})
    (newest / "state.json").write_text(content)
    (newest / "manifest.json").write_text(json.dumps({".metadata": 0, "state.json": len(content)}))
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


def test_a_stop_during_a_transaction_takes_effect_after_it(tmp_path, values, monkeypatch):
    stop = StopHandler()

    def interrupted(*arguments):
        stop()  # as by a signal
        return note(*arguments)

    note = TuningStudy.note
    values += [0.6, 0.7]
    with monkeypatch.context() as patch:
        patch.setattr(TuningStudy, "note", interrupted)
        section = {"metric": "val/auroc", "trials": 2, "space": RATES}
        paths = write_job(tmp_path, overrides={"tuning": section})
        hp = load_hyperparameters(paths)
        search(paths, hp, read_settings(paths), num_gpus=0, stop=stop)
    assert stop.requested
    assert len(values) == 0
    with pytest.raises(StoppedBeforeTraining), stop.interrupting():
        raise AssertionError


def test_the_same_command_again_runs_nothing(tmp_path, values):
    values += [0.6, None, 0.7]
    searched(tmp_path, trials=3)
    paths, hp = searched(tmp_path, trials=3)
    assert (installed(paths), hp.seed) == ("trial-0002", 42)


def test_the_winner_has_what_is_changed_after_the_search(tmp_path, values):
    values += [0.6, 0.7]
    _, first = searched(tmp_path, trials=2, settings={"calibration": "temperature"})
    _, hp = searched(tmp_path, trials=2, settings={"calibration": "isotonic", "label_issues": True})
    assert hp.lr == first.lr
    assert (hp.calibration, hp.label_issues) == ("isotonic", True)


def test_a_move_of_the_winner_that_was_interrupted_goes_on_with_more_trials(tmp_path, values):
    values += [0.6, 0.7]
    paths, _ = searched(tmp_path, trials=2)
    back = paths.tuning / "trial-0001" / "checkpoints"
    back.mkdir(parents=True)
    (paths.checkpoints / CHECKPOINT).rename(back / CHECKPOINT)
    values += [0.5]
    paths, _ = searched(tmp_path, trials=3)
    assert installed(paths) == "trial-0001"


def test_a_search_without_a_result_names_the_first_failure_and_may_be_corrected(tmp_path, values):
    values += [None, None]
    with pytest.raises(ContractError) as failed:
        searched(tmp_path, trials=2)
    assert failed.value.cause == "tuning: no trial has a result; trial 0: it diverged"
    assert str(tmp_path / "checkpoints" / "tuning") in failed.value.fix
    values += [0.6, 0.7]
    paths, _ = searched(tmp_path, trials=2, space={"lr": {"low": 1e-4, "high": 1e-3}})
    assert numbers(paths) == [0, 1]


def test_a_search_that_is_discarded_leaves_no_checkpoints(tmp_path, values):
    values += [None, None]
    with pytest.raises(ContractError, match="no trial has a result"):
        searched(tmp_path, trials=2)
    assert not list((tmp_path / "checkpoints" / "tuning").rglob("*.ckpt"))


def test_a_machine_with_too_few_gpus_leaves_the_study(tmp_path, values):
    values += [None, RuntimeError("killed")]
    with pytest.raises(RuntimeError):
        searched(tmp_path, trials=2)
    hp = load_hyperparameters(JobPaths(tmp_path))
    hp = hp.model_copy(update={"nproc_per_node": 2})
    with pytest.raises(ContractError, match="need 2 GPUs, but this machine has 1"):
        search(JobPaths(tmp_path), hp, read_settings(JobPaths(tmp_path)), num_gpus=1, stop=StopHandler())
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


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b"damaged" * 1000), Path.unlink])
def test_a_search_whose_study_is_damaged_goes_on_with_its_backup(tmp_path, values, damage, caplog):
    values += [0.6, 0.7]
    paths, _ = searched(tmp_path, trials=2)
    for number in (3, 4):
        damage(paths.tuning / "study.db")
        values += [0.5]
        searched(tmp_path, trials=number)
        assert "study.db: contains no search that can be continued" in caplog.text
        assert "the search goes on from the last finished trial" in caplog.text
    assert (numbers(paths), states(paths)) == ([0, 1, 2, 3], ["complete"] * 4)


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
