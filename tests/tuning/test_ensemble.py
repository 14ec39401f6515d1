"""An ensemble trains each network once, however often it is killed, and its model averages their probabilities."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from container.data.folds import even_folds
from container.data.loader import step_batches
from container.data.sampler import BatchPlan
from container.errors import StopAgreed
from container.job import supervisor
from container.job.failure import FailedElsewhere, Failure
from container.job.job import Job, Scratch
from container.job.launch import run_queue
from container.job.launch.run_queue import Shares
from container.job.launch.worker import train_missing
from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import build_mesh
from container.predictor import Predictor
from container.preprocessing.prepare import prepare_data
from container.results import members
from container.results.members import distill, predict_members
from container.training.checkpoint import load_weights
from container.training.checkpoint_files import complete_checkpoints
from container.training.job_data import JobData, folds_of
from container.training.state import EarlyStopping, TrainingState, is_finished
from container.training.stop import StopFlag
from container.training.train import build_model
from container.tuning import ensemble
from container.tuning.ensemble import plan_members, train_members
from contracts.errors import ContractError
from contracts.hyperparameter_files import choose_settings, load_hyperparameters, parse_hyperparameters, read_settings
from contracts.monitored_metric import MonitoredMetric
from contracts.paths import JobPaths
from contracts.presets import DataFacts
from contracts.program import Stopped
from testing.jobs import (
    CONFIGURATION,
    NO_DROPOUT,
    ONE_LAYER,
    metrics,
    run_train,
    start_until,
    table,
    write_checkpoint,
    write_job,
)
from testing.one_rank import prepared_job, train_job

JOB = {"encoder_config": ONE_LAYER, "val_check_interval": 0.5, "explain": 20, "early_stop_metric": "val/auroc"}
AVERAGED = {**JOB, "ensemble": 2, "max_epochs": 6, "early_stop_patience": 9}  # long enough to be killed
PROBABILITIES = ["prob_class_0", "prob_class_1"]


def state_of(paths):
    return torch.load(paths.model / "model.pth", weights_only=True)


def predictions(paths, split="test"):
    return pd.read_csv(paths.output_data / f"{split}_predictions.csv")[PROBABILITIES].to_numpy()


def test_a_job_that_starts_over_removes_every_checkpoint_before_it_trains(tmp_path, monkeypatch):
    def failing(*_, **__):
        raise FailedElsewhere(Failure("it diverged", ""))

    paths = write_job(tmp_path, overrides={**JOB, "ensemble": 2, "ensemble_model": "distill", "resume": False})
    checkpoints = [folder / "epoch=0-step=8.ckpt" for folder in (paths.checkpoints, paths.ensemble / "seed-42")]
    for folder in checkpoints:
        folder.mkdir(parents=True)
    monkeypatch.setattr(supervisor, "plan_members", failing)
    assert supervisor.train(paths) == 1
    assert not any(folder.exists() for folder in checkpoints)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A job with two networks, and its log."""
    paths = write_job(tmp_path_factory.mktemp("ensemble"), overrides=AVERAGED)
    return paths, run_train(paths)


def networks_of(job, *folders):
    """The networks of a job with the weights of the best checkpoints in these folders."""
    for folder in folders:
        checkpoints = complete_checkpoints(folder)
        best = checkpoints[-1].content["state"]["best_step"]
        network = build_model(job.hp, JobData.open(job).prepared, pretrained=False)
        load_weights(network, next(each for each in checkpoints if each.step == best))
        yield network.eval()


def members_of(paths):
    """The networks of a finished job, and the job."""
    job = prepared_job(paths)
    return list(networks_of(job, *sorted(paths.ensemble.glob("*/checkpoints")))), job


def probabilities(network, split):
    """The probabilities of the records of a split. [N, K]"""
    with torch.no_grad():
        return network(split.pack(np.arange(len(split)))).softmax(-1).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_the_model_gives_the_mean_of_the_probabilities_of_its_networks(averaged, backend):
    paths, _ = averaged
    networks, job = members_of(paths)
    each = [probabilities(network, JobData.open(job).splits["test"]) for network in networks]
    assert not np.allclose(each[0], each[1], atol=1e-3)
    expected = np.mean(each, 0)
    np.testing.assert_allclose(predictions(paths), expected, atol=1e-5)
    np.testing.assert_allclose(
        Predictor.load(paths.model, backend=backend).predict(table(24, seed=2)), expected, atol=1e-4
    )


@pytest.mark.slow
def test_model_pth_has_the_weights_of_each_network_under_its_number(averaged):
    paths, _ = averaged
    networks, _ = members_of(paths)
    expected = {f"members.{i}.{name}": value for i in range(2) for name, value in networks[i].state_dict().items()}
    state = state_of(paths)
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], value) for name, value in expected.items())


@pytest.mark.slow
def test_the_log_and_the_metrics_compare_the_networks_with_their_average(averaged):
    paths, log = averaged
    found = metrics(paths)["ensemble"]
    assert found["metric"] == "val/auroc"
    assert list(found["values"]) == ["seed-42", "seed-43", "average"]
    assert found["values"]["average"] == pytest.approx(metrics(paths)["val/auroc"])
    sizes = [cost["num_bytes"] for cost in found["onnx"].values()]
    assert sizes[0] == (paths.model / "model.onnx").stat().st_size > sizes[1]
    assert re.search(r"val/auroc on val: seed-42 0\.\d+, seed-43 0\.\d+, average 0\.\d+", log)
    assert re.search(r"model.onnx: .* MB, .* ms per record; model.onnx with one network: ", log)
    assert "val/auroc of each network" in (paths.output_data / "report.html").read_text()


@pytest.mark.slow
def test_a_network_keeps_the_best_and_the_last_checkpoint_only(averaged):
    paths, _ = averaged
    for folder in paths.ensemble.iterdir():
        assert len(list((folder / "checkpoints").glob("epoch*"))) <= 2
        assert sorted(path.name for path in folder.iterdir()) == ["checkpoints", "output"]


@pytest.mark.slow
def test_an_ensemble_that_is_killed_among_its_networks_has_the_same_weights_and_repeats_no_network(averaged, tmp_path):
    paths = write_job(tmp_path, overrides=AVERAGED)
    process = start_until(paths, lambda: any(paths.ensemble.glob("seed-43/checkpoints/epoch*")))
    process.kill()
    process.wait()
    log = run_train(paths)
    expected = state_of(averaged[0])
    assert all(torch.equal(value, expected[name]) for name, value in state_of(paths).items())
    assert log.count("seed-42: training begins") == 1
    assert log.count("seed-43: training begins") == 2
    assert "1 of 2 networks are trained" in log
    assert "resuming from" in log


@pytest.mark.slow
def test_cross_fit_writes_each_training_row_s_probabilities_by_the_network_that_did_not_train_on_it(tmp_path):
    paths = write_job(tmp_path, overrides={**JOB, "cross_fit": 3, "explain": 0, "label_issues": True})
    assert re.search(r"label_issues: \d+ of 60 training rows", run_train(paths))
    networks, job = members_of(paths)
    train = JobData.open(job).splits["train"]
    found = pd.read_parquet(paths.output_data / "train_out_of_fold.parquet")
    rows = train.column("row").to_numpy()
    assert list(found.columns) == ["row", "split", "label", *PROBABILITIES]
    assert set(found["split"]) == {"train"}
    assert found["row"].tolist() == rows.tolist()
    assert found["label"].tolist() == train.column("label").to_pylist()
    folds = even_folds(rows, found["label"].to_numpy(), num_folds=3, seed=job.hp.seed)
    expected = np.stack([probabilities(network, train) for network in networks])[folds, np.arange(len(train))]
    np.testing.assert_allclose(found[PROBABILITIES].to_numpy(), expected, atol=1e-5)
    for number, folder in enumerate(sorted(paths.ensemble.iterdir())):
        state = complete_checkpoints(folder / "checkpoints")[-1].content["state"]
        assert state["step"] == job.hp.max_epochs * -(-int((folds != number).sum()) // job.hp.batch_size)


@pytest.mark.long
@pytest.mark.parametrize("model", ["average", "distill"])
def test_the_networks_of_the_best_settings_become_the_model_that_ensemble_model_names(tmp_path, model):
    tuning = {"trials": 1, "final_seeds": 2, "space": {"lr": [3e-3]}}
    paths = write_job(tmp_path, overrides={**JOB, "tuning": tuning, "ensemble_model": model, "explain": 0})
    log = run_train(paths)
    found, saved = metrics(paths), json.loads((paths.model / "hyperparameters.json").read_text())
    best = json.loads((paths.output_data / "tuning" / "summary.json").read_text())["winner"]
    assert list(found["ensemble"]["values"]) == list(dict.fromkeys(["trial-0000", "seed-43", "average", model]))
    assert found["ensemble"]["values"]["trial-0000"] == pytest.approx(best["value"], abs=1e-6)
    assert (saved["lr"], saved["seed"], saved["ensemble"]) == (3e-3, 42, 2)
    assert saved["ensemble_model"] == model
    assert any(name.startswith("members.") for name in state_of(paths)) == (model == "average")
    assert "1 of 2 networks are trained" in log, "the best trial is the first network"
    assert log.count("Data prepared in") == 1, "the networks of one model share the prepared data"
    served = Predictor.load(paths.model).predict(table(24, seed=2))
    np.testing.assert_allclose(served, predictions(paths), atol=1e-4)
    assert "seed-43 0." in (paths.output_data / "report.html").read_text()
    tuning["final_seeds"] = 3
    write_job(tmp_path, overrides={**JOB, "tuning": tuning, "ensemble_model": model, "explain": 0})
    assert "2 of 3 networks are trained" in run_train(paths)


@pytest.mark.long
def test_a_distilled_job_that_is_killed_continues_and_its_model_is_one_network(tmp_path):
    overrides = {**JOB, "cross_fit": 2, "ensemble_model": "distill", "max_epochs": 4, "explain": 0}
    paths = write_job(tmp_path, overrides=overrides)
    process = start_until(paths, lambda: any(paths.checkpoints.glob("epoch*")))
    process.kill()
    process.wait()
    log = run_train(paths)
    assert log.count("fold-0: training begins") == log.count("fold-1: training begins") == 1
    assert "resuming from epoch" in log
    found = metrics(paths)
    assert list(found["ensemble"]["values"]) == ["fold-0", "fold-1", "average", "distill"]
    assert found["ensemble"]["values"]["distill"] == pytest.approx(found["val/auroc"])
    assert list(found["ensemble"]["onnx"]) == ["model.onnx"]
    assert not any(name.startswith("members.") for name in state_of(paths))
    assert len(pd.read_parquet(paths.output_data / "train_out_of_fold.parquet")) == 60
    np.testing.assert_allclose(Predictor.load(paths.model).predict(table(24, seed=2)), predictions(paths), atol=1e-4)


def train_here(paths, **settings):
    """Train the networks in this process, without cross_fit two; returns the job that makes a model of them.

    Args:
        settings: hyperparameters of the job in addition to those of `paths`.
    """
    given = load_hyperparameters(paths).model_dump(exclude_unset=True)
    hp = parse_hyperparameters({**given, **({} if "cross_fit" in settings else {"ensemble": 2}), **settings})
    prepared = prepare_data(paths, hp)
    job = Job(paths, hp, Scratch(paths.root), prepared.folder, members=plan_members(paths, hp, prepared))
    train_missing(job, build_mesh(ParallelDegrees.resolve(hp, 1)), stop=StopFlag())
    return job


def predicted(job, world_size=1):
    """Return the logits of val and test by the job's members, in a process group of `world_size` ranks."""
    ranks = build_mesh(ParallelDegrees.resolve(job.hp, world_size))
    return predict_members(job, ranks, data=JobData.open(job), stop=StopFlag())


def logits_on_ranks(job, world_size):
    return predicted(job, world_size).logits


STRATEGIES = [
    {},
    {"strategy": "fsdp"},
    {"strategy": "fsdp", "sharding_strategy": "SHARD_GRAD_OP"},
    {"strategy": "tp"},
    {"strategy": "pp", "num_microbatches": 2},
]


@pytest.mark.slow
def test_networks_predict_the_same_on_two_processes_under_every_strategy(one_rank, rank_pool, tmp_path):
    paths = write_job(tmp_path, overrides={**JOB, **NO_DROPOUT, "max_epochs": 1, "ensemble": 2})
    job = train_here(paths)
    expected = predicted(job).logits
    for strategy in STRATEGIES:
        hp = parse_hyperparameters({**job.hp.model_dump(exclude_unset=True), **strategy})
        of_ranks = rank_pool.run(
            logits_on_ranks, Job(paths, hp, job.scratch, job.prepared, members=job.members), 2, world_size=2
        )
        for found in of_ranks:
            for split in ("val", "test"):
                np.testing.assert_allclose(found[split], expected[split], atol=1e-5, err_msg=str(strategy))


def distilled(job, world_size=1, *, stop=None, root=None):
    """Train the network of a job that learns from its members, in a process group of `world_size` ranks."""
    ranks = build_mesh(ParallelDegrees.resolve(job.hp, world_size))
    if root is not None:
        job = Job(JobPaths(root), job.hp, job.scratch, job.prepared, members=job.members)
    return distill(job, ranks, data=JobData.open(job), stop=stop or StopFlag())


def train_targets(job):
    """The probabilities of train by each network. n x [N, K]"""
    networks = networks_of(job, *(member.checkpoints for member in job.members))
    return [probabilities(network, JobData.open(job).splits["train"]) for network in networks]


def targets(job):
    ranks = build_mesh(ParallelDegrees.resolve(job.hp, 1))
    found = members.predict_each(job, ranks, "val", data=JobData.open(job), stop=StopFlag(), train=True)
    return found.of_train


def test_the_targets_of_an_ensemble_are_the_mean_of_its_networks_probabilities(one_rank, tmp_path):
    job = train_here(write_job(tmp_path, overrides={**JOB, "max_epochs": 1}), ensemble_model="distill")
    first, second = train_targets(job)
    assert not np.allclose(first, second, atol=1e-3)
    np.testing.assert_allclose(targets(job), (first + second) / 2, atol=1e-5)


def test_the_target_of_a_cross_fitted_row_is_of_the_network_that_did_not_train_on_it(one_rank, tmp_path):
    job = train_here(write_job(tmp_path, overrides={**JOB, "max_epochs": 1}), cross_fit=2, ensemble_model="distill")
    folds = folds_of(JobData.open(job).splits["train"], job.members[0].fold)
    expected = np.stack(train_targets(job))[folds, np.arange(len(folds))]
    np.testing.assert_allclose(targets(job), expected, atol=1e-5)


def test_each_record_of_a_batch_has_the_target_of_its_row(tmp_path):
    data = JobData.open(prepared_job(write_job(tmp_path)))
    rows = data.splits["train"].column("row").to_numpy()
    train = data.with_targets(np.stack([rows, -rows], axis=1)).splits["train"]
    for split in (train, train.part(np.arange(9, 50))):
        order = np.random.default_rng(0).permutation(len(split))
        plan = BatchPlan(microbatch_size=3, data_parallel_size=2, num_microbatches=2)
        batches = [
            batch
            for rank in (0, 1)
            for step in step_batches(split, order, batch_plan=plan, data_rank=rank)
            for batch in step
        ]
        for batch in batches:
            counted = batch.rows >= 0
            assert batch.to("cpu").targets[counted, 0].tolist() == batch.rows[counted].tolist()
        assert sum(batch.num_records for batch in batches) == len(split)
    assert data.splits["train"].pack(order[:3]).targets is None


class StopsAt(StopFlag):
    """Requests a stop when it has been asked `count` times."""

    def __init__(self, count):
        self._left = count

    @property
    def requested(self):
        self._left -= 1
        return self._left < 0


def test_a_distilled_network_that_was_stopped_has_the_same_weights_as_one_that_was_not(one_rank, tmp_path):
    job = train_here(write_job(tmp_path, overrides={**JOB, "max_epochs": 1}), ensemble_model="distill")
    expected = distilled(job, root=tmp_path / "whole")
    counter = StopsAt(10**6)
    distilled(job, root=tmp_path / "counted", stop=counter)
    asked = 10**6 - counter._left
    with pytest.raises(StopAgreed):
        distilled(job, root=tmp_path / "stopped", stop=StopsAt(asked * 2 // 3))
    assert complete_checkpoints(tmp_path / "stopped" / "checkpoints")[-1].content["state"]["step"] > 0
    found = distilled(job, root=tmp_path / "stopped")
    assert list(found.values) == ["seed-42", "seed-43", "average", "distill"]
    for split in ("val", "test"):
        np.testing.assert_array_equal(found.logits[split], expected.logits[split])


def test_a_network_learns_from_the_members_of_its_ensemble(one_rank, tmp_path):
    job = train_here(write_job(tmp_path, overrides={**JOB, "max_epochs": 1}), ensemble_model="distill")
    found = distilled(job, root=tmp_path / "distilled")
    alone = Job(JobPaths(tmp_path / "alone"), job.hp, job.scratch, job.prepared)
    without = train_job(alone)
    assert not np.allclose(found.logits["val"], without.logits["val"], atol=1e-4)
    assert found.weights.startswith("one network, trained on the probabilities of 2: ")


def distilled_logits(job, root, world_size):
    return distilled(job, world_size, root=root).logits


@pytest.mark.long
def test_a_distilled_network_is_the_same_on_two_processes_under_every_strategy(one_rank, rank_pool, tmp_path):
    overrides = {**JOB, **NO_DROPOUT, "max_epochs": 1, "batch_size": 8, "optimizer": "SGD", "lr": 0.1}
    job = train_here(write_job(tmp_path, overrides=overrides), ensemble_model="distill")
    expected = distilled(job, root=tmp_path / "one").logits
    halves = {"batch_size": 4}  # of each of two data-parallel ranks
    for i, strategy in enumerate([{**halves}, {"strategy": "fsdp", **halves}, *STRATEGIES[3:]]):
        hp = parse_hyperparameters({**job.hp.model_dump(exclude_unset=True), **strategy})
        changed = Job(job.paths, hp, job.scratch, job.prepared, members=job.members)
        for found in rank_pool.run(distilled_logits, changed, tmp_path / str(i), 2, world_size=2):
            for split in ("val", "test"):
                np.testing.assert_allclose(found[split], expected[split], atol=1e-4, err_msg=str(strategy))


def test_a_distilled_network_of_fewer_networks_is_refused_before_more_are_trained(one_rank, tmp_path):
    paths = write_job(tmp_path, overrides={**JOB, "max_epochs": 1})
    job = train_here(paths, ensemble_model="distill")
    distilled(job)
    more = parse_hyperparameters({**job.hp.model_dump(exclude_unset=True), "ensemble": 3})
    with pytest.raises(ContractError, match=r"ensemble: the checkpoint in .* was trained with 2, this run has 3"):
        plan_members(paths, more, prepare_data(paths, more))


def test_networks_that_were_trained_with_other_settings_are_refused(one_rank, tmp_path):
    paths = write_job(tmp_path, overrides={**JOB, "max_epochs": 1, "ensemble": 2})
    train_here(paths)
    changed = parse_hyperparameters({**load_hyperparameters(paths).model_dump(exclude_unset=True), "lr": 5e-3})
    with pytest.raises(ContractError, match=r"lr: the checkpoint in .*seed-42.* was trained with 0\.002"):
        plan_members(paths, changed, prepare_data(paths, changed))


def test_the_curves_and_the_profile_of_each_network_are_in_the_output_of_every_run(one_rank, tmp_path):
    paths = write_job(tmp_path, overrides={**JOB, "max_epochs": 1, "profile": True})
    for _ in range(2):  # the second time on a machine that has the checkpoints only
        train_here(paths)
        for name in ("seed-42", "seed-43"):
            assert list((paths.tensorboard / name).glob("events*"))
            assert (paths.output_data / "profile" / name / "costliest.rank0.txt").is_file()
        shutil.rmtree(paths.root / "output")


def test_a_network_is_finished_only_if_training_would_take_no_further_step():
    stopping = EarlyStopping(MonitoredMetric("val/loss"), patience=1)

    def finished(**changes):
        known = {"step": 8, "epoch": 2, "validated_step": 8, "history": [{"step": 8, "epoch": 2.0}]}
        return is_finished(TrainingState(**{**known, **changes}), max_epochs=2, stopping=stopping)

    assert finished()
    assert not finished(epoch=1)
    assert not finished(validated_step=6)
    assert not is_finished(TrainingState(), max_epochs=2, stopping=stopping)
    early = {"epoch": 1, "consumed": 4, "best_step": 2, "history": [{"step": 8, "epoch": 1.5}]}
    assert finished(**early, best_progress=0.5)
    assert not finished(**early, best_progress=0.75)


@pytest.mark.parametrize(
    ("settings", "cause", "fix"),
    [
        ({"cross_fit": 1}, "cross_fit: is 1", "2 or more"),
        ({"cross_fit": 3, "ensemble": 2}, "ensemble: is 2, but cross_fit is 3", "Remove one"),
        ({"choose_on": "out_of_fold"}, "choose_on: is out_of_fold, but cross_fit is 0", "number of folds"),
        (
            {"ensemble": 4, "tuning": {}},
            "ensemble: is 4, but tuning is set",
            "set final_seeds to 4 in tuning. With tuning.engine sagemaker, which has no final_seeds",
        ),
        ({"cross_fit": 4, "tuning": {}}, "cross_fit: is 4, but tuning is set", "model/hyperparameters.json"),
        ({"ensemble": 0}, "ensemble: 0 is invalid", ""),
    ],
)
def test_settings_that_contradict_an_ensemble_are_refused(settings, cause, fix):
    with pytest.raises(ContractError) as refused:
        parse_hyperparameters({**CONFIGURATION, **settings})
    assert refused.value.cause.startswith(cause)
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({}, "Set ensemble or cross_fit"),
        ({"tuning": {}}, "Set final_seeds to 2 or more in tuning"),
        ({"tuning": {}}, "With tuning.engine sagemaker, which has no final_seeds, run another job"),
    ],
)
def test_a_model_of_several_networks_is_refused_where_the_job_trains_one(tmp_path, settings, fix):
    given = read_settings(write_job(tmp_path, overrides={"ensemble_model": "distill", **settings}))
    with pytest.raises(ContractError, match="ensemble_model: is distill, but the job trains one network") as refused:
        choose_settings(given)
    assert fix in refused.value.fix


@pytest.mark.parametrize(("preset", "rows", "networks"), [("best", 8_000, 4), ("recommended", 900, 5)])
def test_a_preset_s_networks_become_the_model_that_ensemble_model_names(tmp_path, preset, rows, networks):
    given = read_settings(write_job(tmp_path, overrides={"ensemble_model": "distill", "preset": preset}))
    facts = DataFacts(rows, (rows // 2, rows // 2), (9, 9), labelled=rows, units=rows)
    assert choose_settings(given).hp.num_members == 1, "the data are not known yet"
    assert choose_settings(given, facts).hp.num_members == networks


def test_a_model_of_several_networks_is_refused_where_the_preset_chooses_one(tmp_path):
    given = read_settings(write_job(tmp_path, overrides={"ensemble_model": "distill", "preset": "recommended"}))
    with pytest.raises(ContractError, match="ensemble_model: is distill, but the job trains one network"):
        choose_settings(given, DataFacts(8_000, (4_000, 4_000), (9, 9), labelled=8_000, units=8_000))


def test_an_ensemble_on_several_hosts_is_refused(tmp_path):
    given = read_settings(write_job(tmp_path, overrides={"ensemble": 3}))
    with pytest.raises(ContractError, match="ensemble: is 3, and the job has 2 hosts"):
        choose_settings(given, hosts=2)


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"cross_fit": 9}, "cross_fit: is 9, but train has 2 rows"),
        ({"cross_fit": 9, "choose_on": "out_of_fold"}, "cross_fit: is 9, but train and val have 8 rows"),
        (
            {"cross_fit": 3, "choose_on": "out_of_fold", "group_name": "color"},
            r"cross_fit: is 3, but train and val have 2 groups in column 'color' \(group_name\)",
        ),
    ],
)
def test_more_folds_than_rows_or_groups_are_refused(tmp_path, settings, cause):
    frames = {"train": table(2, seed=0).assign(label=[0, 1], color=["red", "blue"])}
    frames["val"] = table(6, seed=1).assign(color="red")
    paths = write_job(tmp_path, frames=frames, overrides={"cat_field_list": [], **settings})
    hp = load_hyperparameters(paths)
    with pytest.raises(ContractError, match=cause):
        plan_members(paths, hp, prepare_data(paths, hp))


class Runs:
    """Stands for the workers of networks: each run ends after two polls, with a checkpoint or with a failure."""

    def __init__(self, *, fails=None):
        self.fails, self.made, self.most_at_once = fails, [], 0

    def __call__(self, shares, slot, *, shown):
        run = self.Run(self, slot)
        self.made.append(run)
        return run

    class Run:
        def __init__(self, runs, slot):
            self.runs, self.slot, self.polls = runs, slot, 0
            self.folder = Path()  # none yet
            self.closed, self.stopped, self.completed = False, False, False
            self.failure: Failure | None = None

        def train(self, folder, hp, *, prepared, fold, timeline):
            self.folder = folder
            self.runs.most_at_once = max(self.runs.most_at_once, len(self.runs.training))
            assert len({run.slot for run in self.runs.training}) == len(self.runs.training)

        @property
        def ended(self):
            self.polls += 1
            if self.polls < 2 and self.folder.name != self.runs.fails:
                return False
            if self.folder.name == self.runs.fails:
                self.failure = Failure("lr: the loss is not finite", "Lower lr.")
                return True
            self.completed = True
            write_checkpoint(self.folder / "checkpoints", {"step": 1, "state": {"step": 1, "best_value": 0.5}})
            return True

        def request_stop(self):
            self.stopped = True

        def close(self):
            self.closed = True

    @property
    def training(self):
        return [run for run in self.made if run.folder.name and not run.closed]


def trained_by(runs, monkeypatch, tmp_path, *, num_gpus, sleep=lambda _: None, **settings):
    paths = write_job(tmp_path, overrides={"nproc_per_node": 1, **settings})
    hp = load_hyperparameters(paths)
    monkeypatch.setattr(run_queue, "Run", runs)
    monkeypatch.setattr(ensemble.time, "sleep", sleep)
    prepared = prepare_data(paths, hp)
    members = plan_members(paths, hp, prepared)
    train_members(members, prepared, shares=Shares.of_members(hp, len(members), num_gpus=num_gpus))
    return members


def test_networks_train_side_by_side_on_gpus_of_their_own(monkeypatch, tmp_path):
    runs = Runs()
    found = trained_by(runs, monkeypatch, tmp_path, num_gpus=2, ensemble=5)
    assert [member.name for member in found] == [f"seed-{seed}" for seed in range(42, 47)]
    assert runs.most_at_once == 2
    assert len(runs.made) == 5
    assert all(run.closed for run in runs.made)


def test_a_network_that_cannot_be_trained_ends_the_job_with_its_cause_and_stops_the_others(monkeypatch, tmp_path):
    runs = Runs(fails="fold-0")
    with pytest.raises(FailedElsewhere) as failed:
        trained_by(runs, monkeypatch, tmp_path, num_gpus=2, cross_fit=3)
    assert failed.value.failure.cause == "lr: the loss is not finite [fold-0]"
    assert failed.value.failure.fix == "Lower lr."
    assert [run.stopped for run in runs.made if run.folder.name == "fold-1"] == [True]
    assert all(run.closed for run in runs.made)


def test_a_stopped_ensemble_says_how_many_networks_are_trained(monkeypatch, tmp_path):
    def stop(_):
        raise Stopped

    runs = Runs()
    with pytest.raises(Stopped) as stopped:
        trained_by(runs, monkeypatch, tmp_path, num_gpus=0, sleep=stop, ensemble=3)
    assert stopped.value.where == "0 of 3 networks are trained"
    assert runs.made[0].stopped
    assert all(run.closed for run in runs.made)


@pytest.mark.parametrize(
    ("num_gpus", "cores", "settings", "expected"),
    [
        (0, 2, {"ensemble": 3}, (1, 1)),
        (0, 5, {"ensemble": 3}, (2, 1)),
        (0, 8, {"ensemble": 3, "nproc_per_node": 2}, (2, 2)),
        (8, 99, {"ensemble": 3}, (1, 8)),
        (8, 99, {"ensemble": 3, "nproc_per_node": 2}, (3, 2)),
        (8, 99, {"ensemble": 9, "nproc_per_node": 2}, (4, 2)),
        (2, 99, {"cross_fit": 5, "nproc_per_node": 4}, (1, 4)),
    ],
)
def test_networks_train_side_by_side_only_on_gpus_or_cores_that_one_leaves_over(
    num_gpus, cores, settings, expected, monkeypatch
):
    monkeypatch.setattr(run_queue, "available_cores", lambda: cores)
    hp = parse_hyperparameters({**CONFIGURATION, **settings})
    found = Shares.of_members(hp, hp.num_members, num_gpus=num_gpus)
    assert (found.parallel, found.num_workers) == expected
