"""A whole search: killed at any moment, it ends with the same trials, and its winner is an ordinary job's model."""

import csv
import json
import os
import re
import signal
import time

import pytest

from container.commands import main
from container.job.job import Job, Scratch
from container.training.checkpoint_files import complete_checkpoints
from container.training.job_data import JobData
from container.training.train import train_only
from container.tuning.search import search
from container.tuning.study import TuningStudy
from contracts.errors import ContractError
from contracts.hyperparameter_files import choose_settings, load_hyperparameters, read_settings
from testing.jobs import (
    ONE_LAYER,
    failure_line,
    metrics,
    printed,
    run_train,
    start_until,
    table,
    write_hyperparameters,
    write_job,
    write_table,
)
from testing.one_rank import prepared_job, train_job

SEARCH = {
    "metric": "val/auroc",
    "trials": 6,
    "space": {
        "lr": {"low": 1e-3, "high": 3e-2, "scale": "log"},
        "max_sen_len": [16, 24],
        "max_epochs": [2, 3],
        "model_class": ["multimodal_bert", "bert"],
        "numeric_embedding": ["none", "piecewise_linear"],  # refused with bert
    },
}
JOB = {"encoder_config": ONE_LAYER, "val_check_interval": 0.5, "explain": 0}


def study_of(paths):
    return TuningStudy(paths, load_hyperparameters(paths), num_workers=1)


def described(paths):
    """Everything about the trials of a search but their times."""
    return [
        (trial.number, trial.state, trial.value, trial.drawn, trial.best_values) for trial in study_of(paths).trials
    ]


def rows_of(paths):
    with (paths.output_data / "tuning" / "trials.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A search that ran to its end, and its log."""
    paths = write_job(tmp_path_factory.mktemp("search"), overrides={**JOB, "tuning": SEARCH})
    return paths, run_train(paths)


@pytest.mark.slow
def test_the_search_ends_with_as_many_trials_as_wanted_and_one_line_for_each(searched):
    paths, log = searched
    assert [trial.is_finished for trial in study_of(paths).trials] == [True] * SEARCH["trials"]
    assert re.findall(r"trial (\d+) (?:complete|pruned|fail): .* best .* left", log) == list("012345")


@pytest.mark.slow
def test_an_invalid_combination_is_a_pruned_trial_with_its_reason(searched):
    paths, _ = searched
    refused = {"model_class": '"bert"', "numeric_embedding": '"piecewise_linear"'}
    invalid = [trial for trial in study_of(paths).trials if trial.drawn.items() >= refused.items()]
    assert invalid
    assert all(trial.reason.startswith("invalid: numeric_embedding: is 'piecewise_linear'") for trial in invalid)
    assert {trial.state for trial in invalid} == {"pruned"}


@pytest.mark.slow
def test_complete_trials_record_the_loss_that_decides_between_equal_values(searched):
    complete = [trial for trial in study_of(searched[0]).trials if trial.state == "complete"]
    assert all(trial.loss is not None and 0 < trial.loss < 2 for trial in complete)


@pytest.mark.slow
def test_data_is_prepared_once_for_each_preparation_setting(searched):
    paths, log = searched
    assert log.count("Data found prepared") > 1
    prepares = ("max_sen_len", "model_class", "numeric_embedding")
    ran = {tuple(row[name] for name in prepares) for row in rows_of(paths) if row["steps"]}
    assert log[: log.index("trial 5 ")].count("Data prepared in") <= len(ran) < len(rows_of(paths))


@pytest.mark.slow
def test_the_best_trial_s_checkpoint_becomes_the_model(searched):
    paths, _ = searched
    winner = json.loads((paths.output_data / "tuning" / "summary.json").read_text())["winner"]
    assert winner["value"] == max(float(row["value"]) for row in rows_of(paths) if row["state"] == "complete")
    assert metrics(paths)["val/auroc"] == pytest.approx(winner["value"], abs=1e-6)
    saved = json.loads((paths.model / "hyperparameters.json").read_text())
    assert {name: saved[name] for name in winner["changes"]} == winner["changes"]
    assert saved["tuning"] is None


@pytest.mark.slow
def test_the_checkpoints_of_losing_runs_are_removed_and_their_logs_are_kept(searched):
    paths, _ = searched
    winner = json.loads((paths.output_data / "tuning" / "summary.json").read_text())["winner"]["trial"]
    assert len(list(paths.tuning.glob("*-*/log.txt"))) > 2
    assert [path.parent.name for path in paths.tuning.glob("*/checkpoints")] == [f"trial-{winner:04d}"]
    assert [path.parent.name for path in paths.tensorboard.glob("trial-*/events*")] == [f"trial-{winner:04d}"]


@pytest.mark.slow
def test_the_table_of_trials_has_a_column_for_each_setting(searched):
    paths, _ = searched
    rows = rows_of(paths)
    assert list(rows[0]) == ["number", "state", "value", "steps", "seconds", *SEARCH["space"]]
    assert [int(row["number"]) for row in rows] == list(range(SEARCH["trials"]))


@pytest.mark.slow
def test_the_report_of_the_winner_describes_the_search(searched):
    paths, _ = searched
    assert '<section id="tuning">' in (paths.output_data / "report.html").read_text()


@pytest.mark.long
def test_a_search_that_is_killed_again_and_again_ends_with_the_same_study(searched, tmp_path):
    paths = write_job(tmp_path, overrides={**JOB, "tuning": SEARCH})
    for wanted in ("Data prepared in", "trial 0 ", "trial 2 ", "trial 4 ", "winner: "):
        process = start_until(paths, wanted)
        time.sleep(0.3)
        process.kill()
        process.wait()
    log = run_train(paths)
    assert described(paths) == described(searched[0])
    lines = re.findall(r"trial (\d+) (?:complete|pruned|fail): ", log)
    assert len(lines) == len(set(lines))
    assert metrics(paths)["val/auroc"] == metrics(searched[0])["val/auroc"]


@pytest.mark.slow
def test_a_stopped_search_exits_as_a_stopped_job_and_goes_on(searched, tmp_path):
    paths = write_job(tmp_path, overrides={**JOB, "tuning": SEARCH})
    process = start_until(paths, "trial 0 ")
    process.terminate()
    assert process.wait(timeout=120) == 143
    assert "the search has 1 of 6 trials" in printed(paths)
    assert [trial.number for trial in study_of(paths).trials if trial.is_finished] == [0]
    write_hyperparameters(paths, {**JOB, "tuning": {**SEARCH, "trials": 3}})
    run_train(paths)
    assert described(paths) == described(searched[0])[:3]


@pytest.mark.slow
def test_parallel_trials_are_complete_although_a_worker_of_one_is_killed(tmp_path):
    space = {"lr": {"low": 1e-3, "high": 3e-3}}
    tuning = {"metric": "val/auroc", "trials": 2, "parallel": 2, "space": space}
    overrides = {**JOB, "max_epochs": 1, "val_check_interval": 1.0, "checkpoint_every_n_steps": 3, "tuning": tuning}
    paths = write_job(tmp_path, overrides=overrides, rows=(400, 24, 24))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    trial = paths.tuning / "trial-0000"
    process = start_until(paths, (trial / "checkpoints" / "last.ckpt").is_file, TMPDIR=str(scratch))
    os.kill(worker_of(trial, scratch), signal.SIGKILL)
    assert process.wait(timeout=120) == 0, printed(paths)
    assert "restart 1 of 3, from checkpoint epoch=0-step=" in printed(paths)
    assert "2 at a time with nproc_per_node 1" in printed(paths)
    assert [row["state"] for row in rows_of(paths)] == ["complete", "complete"]


def worker_of(folder, scratch):
    """The process id of the worker that trains in `folder`, from the scratch folders of the runs."""
    jobs = (file.parent for file in scratch.glob("trial-*/job.pickle"))
    (run,) = (each for each in jobs if Job.read(Scratch(each)).paths.root == folder)
    return json.loads((run / "pid.rank0").read_text())


def test_the_options_of_the_command_tune_are_settings_of_the_search(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(
        "container.job.supervisor.train", lambda paths, **settings: given.append((paths.root, settings))
    )
    main(["tune", "--root", str(tmp_path), "--trials", "3", "--max-hours", "1"])
    main(["tune", "--root", str(tmp_path)])
    assert given == [(tmp_path, {"tuning": {"trials": 3, "max_hours": 1.0}}), (tmp_path, {"tuning": {}})]
    with pytest.raises(SystemExit, match="2"):
        main(["tune", "--trials", "0"])


@pytest.mark.slow
def test_a_search_whose_parallel_trials_have_no_result_fails_with_the_first_cause(tmp_path):
    tuning = {"trials": 2, "parallel": 2, "space": {"lr": {"low": 900, "high": 1000}, "optimizer": ["SGD"]}}
    overrides = {**JOB, "tuning": tuning, "gradient_clip_val": 0, "max_nonfinite_steps": 1}
    paths = write_job(tmp_path, overrides=overrides)
    log = run_train(paths, expect=1)
    assert log.index("Data found prepared in") < log.index(" fail: "), "the second began before the first ended"
    assert failure_line(paths).startswith("tuning: no trial has a result; trial 0: lr: the loss or its gradient")


def test_data_that_no_trial_can_use_ends_the_search_at_once_and_may_be_corrected(tmp_path):
    frame = table(24, seed=1)
    paths = write_job(tmp_path, overrides={**JOB, "tuning": SEARCH}, frames={"val": frame.drop(columns="price")})
    hp = load_hyperparameters(paths)
    with pytest.raises(ContractError, match="price"):
        search(paths, hp, read_settings(paths), num_gpus=0)
    write_table(frame, paths.channel("val"), "csv")
    assert study_of(paths).trials == []


@pytest.mark.parametrize(
    ("metric", "labels", "reason"),
    [
        ("val/auroc", [0] * 24, "all 24 labelled records are of class 0"),
        ("val/f1_score", [0] * 24, "all 24 labelled records are of class 0"),
        ("val/loss", [None] * 24, "no record has a label"),
    ],
)
def test_a_metric_that_no_trial_could_have_ends_the_search_before_one_trains(tmp_path, metric, labels, reason):
    overrides = {**JOB, "tuning": {**SEARCH, "metric": metric}}
    paths = write_job(tmp_path, overrides=overrides, frames={"val": table(24, seed=1).assign(label=labels)})
    hp = load_hyperparameters(paths)
    with pytest.raises(ContractError, match=f"tuning.metric: {metric} is undefined on val: {reason}"):
        search(paths, hp, read_settings(paths), num_gpus=0)


def test_a_search_on_several_hosts_is_refused(tmp_path):
    given = read_settings(write_job(tmp_path, overrides={**JOB, "tuning": SEARCH}))
    with pytest.raises(ContractError, match="tuning: the job has 2 hosts, but a search runs on one"):
        choose_settings(given, hosts=2)


def test_a_trial_never_opens_test(one_rank, tmp_path):
    paths = write_job(tmp_path, overrides=JOB)
    job = prepared_job(paths, kind="trial")
    (job.prepared / "test.arrow").write_bytes(b"not a table")
    train_job(job, run=train_only)
    with pytest.raises(Exception, match="File is too small"):
        JobData.open(Job(paths, job.hp, job.scratch, job.prepared))
    assert complete_checkpoints(paths.checkpoints)[-1].content["state"]["best_value"] is not None
