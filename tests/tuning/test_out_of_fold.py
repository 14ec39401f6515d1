"""With choose_on=out_of_fold, predictions of rows that a network did not train on decide, and the whole job agrees."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import f1_score

from container.decision.decision import Decision
from container.decision.softmax import softmax
from container.evaluation.fit_decision import fit_temperature
from container.job.job import Job, Scratch
from container.job.launch.worker import train_missing
from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import build_mesh
from container.predictor import Predictor
from container.preprocessing.prepare import prepare_data
from container.results.members import distill, predict_members
from container.training.checkpoint import load_weights
from container.training.checkpoint_files import complete_checkpoints
from container.training.job_data import JobData, folds_of
from container.training.state import EarlyStopping, TrainingState
from container.training.stop import StopFlag
from container.training.train import build_model, choose_weights
from container.tuning.ensemble import plan_members
from contracts.hyperparameter_files import load_hyperparameters
from testing.jobs import NO_DROPOUT, ONE_LAYER, metrics, run_train, table, write_hyperparameters, write_job

JOB = {"encoder_config": ONE_LAYER, "max_epochs": 1, "cross_fit": 3, "choose_on": "out_of_fold"}
PROBABILITIES = ["prob_class_0", "prob_class_1"]


def planned(paths) -> Job:
    """The job with its members, none of which is trained."""
    hp = load_hyperparameters(paths)
    prepared = prepare_data(paths, hp)
    return Job(paths, hp, Scratch(paths.root), prepared.folder, members=plan_members(paths, hp, prepared))


def trained(job: Job, world_size: int = 1, *, make=predict_members):
    """Train the members in a process group of `world_size` ranks, and make the model of them."""
    ranks = build_mesh(ParallelDegrees.resolve(job.hp, world_size))
    train_missing(job, ranks, stop=StopFlag())
    return make(job, ranks, data=JobData.open(job), stop=StopFlag())


def rows_of(split):
    return split.column("row").to_numpy().tolist()


@pytest.mark.parametrize("settings", [{}, {"group_name": "color", "cat_field_list": []}])
def test_each_row_of_train_and_val_is_left_out_by_one_network_of_each_division(tmp_path, settings):
    job = planned(write_job(tmp_path, overrides={**JOB, "cross_fit_repeats": 2, **settings}))
    divisions = []
    for first in (0, 3):
        left_out = []
        for member in job.members[first : first + 3]:
            splits = JobData.open(job.of_member(member)).splits
            trains, held_out = (rows_of(splits[name]) for name in ("train", "val"))
            assert sorted(trains + held_out) == list(range(84))
            assert set(splits) == {"train", "val"}
            if settings:
                assert not set(splits["train"].units()) & set(splits["val"].units())
            left_out.append(sorted(held_out))
        assert sorted(itertools.chain(*left_out)) == list(range(84))
        divisions.append(left_out)
    assert settings or divisions[0] != divisions[1], "three groups can be divided into three folds in one way"


def test_rows_of_val_follow_those_of_train_also_where_train_has_lost_some(tmp_path):
    frames = {"train": table(60, seed=0).astype({"label": "Int64"})}
    frames["train"].loc[:9, "label"] = None
    data = JobData.open(planned(write_job(tmp_path, frames=frames, overrides={**JOB, "drop_unlabelled": True})))
    train, val = data.splits["train"], data.splits["val"]
    assert rows_of(train) == list(range(10, 84))
    assert [row for part in train.arrays() for row in part.row] == rows_of(train)
    assert data.places["row"].tolist() == [*range(10, 60), *range(24)]
    assert data.places["split"].tolist() == ["train"] * 50 + ["val"] * 24
    assert train.column("id").to_pylist()[50:] == val.column("id").to_pylist()
    last = np.array([0, len(train) - 1])
    assert train.pack(last).rows.tolist() == [10, 83]


def test_ids_of_several_types_are_texts(tmp_path):
    frames = {name: table(rows, seed=0) for name, rows in (("train", 60), ("val", 24), ("test", 24))}
    frames["train"]["order_id"] = np.arange(60)
    data = JobData.open(planned(write_job(tmp_path, frames=frames, overrides=JOB, file_format="parquet")))
    assert data.splits["train"].column("id").to_pylist()[59:61] == ["59", "00000"]


def test_no_row_chooses_the_epoch_of_a_network(tmp_path):
    hp = load_hyperparameters(write_job(tmp_path, overrides={**JOB, "max_epochs": 6, "early_stop_patience": 1}))
    state, early = TrainingState(), EarlyStopping.of(hp)
    for epoch, loss in enumerate((0.1, 0.5, 0.6, 0.7, 0.8), start=1):
        state.step = epoch
        early.update(state, {"val/loss": loss, "val/f1_score": 1 - loss}, progress=epoch)
        assert not state.stopped_early
    assert state.best_step == 1
    chosen, weights = choose_weights(hp, SimpleNamespace(at_step=lambda step: step), state)
    assert (chosen, weights) == (5, "the last (step 5), because choose_on is out_of_fold")


@pytest.fixture(scope="module")
def model(one_rank, tmp_path_factory):
    """A job, its trained members, and the model of them; a class has fewer rows than there are folds."""
    root = tmp_path_factory.mktemp("out_of_fold")
    frames = {"train": table(59, seed=0), "val": table(24, seed=1)}
    frames["train"] = pd.concat([frames["train"], frames["train"][:1].assign(label=2, order_id="rare")])
    paths = write_job(root, frames=frames, overrides={**JOB, "num_classes": 3, "multiclass_categories": [0, 1, 2]})
    job = planned(paths)
    return job, trained(job)


def test_no_network_is_called_the_best_because_each_is_measured_on_rows_of_its_own(model):
    assert model[1].weights == "the average of the probabilities of 3 networks"


def of_networks(job, split):
    """The probabilities of a split by the last weights of each network. n x [N, K]"""
    found = []
    for member in job.members:
        network = build_model(job.hp, JobData.open(job).prepared, pretrained=False)
        load_weights(network, complete_checkpoints(member.checkpoints)[-1])
        logits = network.eval()(split.pack(np.arange(len(split)))).detach().numpy()
        found.append(softmax(logits))
    return np.stack(found)


def test_a_row_is_predicted_by_the_network_that_left_it_out_and_val_s_predictions_are_the_last_of_these(model):
    job, found = model
    train = JobData.open(job).splits["out_of_fold"]
    folds = folds_of(train, job.members[0].fold)
    expected = of_networks(job, train)[folds, np.arange(len(train))]
    np.testing.assert_allclose(softmax(found.logits["out_of_fold"]), expected, atol=1e-5)
    assert found.chooses == "out_of_fold"
    np.testing.assert_array_equal(found.honest_logits["val"], found.logits["out_of_fold"][-24:])


def test_the_model_itself_predicts_val_with_all_networks(model):
    job, found = model
    expected = of_networks(job, JobData.open(job).splits["val"]).mean(axis=0)
    np.testing.assert_allclose(softmax(found.logits["val"]), expected, atol=1e-5)
    assert np.abs(softmax(found.logits["val"]) - softmax(found.honest_logits["val"])).max() > 1e-3


def test_a_class_with_fewer_rows_than_folds_has_finite_predictions_by_networks_that_do_not_know_it(model):
    job, found = model
    labels = JobData.open(job).splits["out_of_fold"].column("label").to_numpy()
    assert (labels == 2).sum() == 1
    assert np.isfinite(found.logits["out_of_fold"]).all()


def test_the_networks_are_compared_on_the_rows_that_they_left_out(model, caplog):
    job, found = model
    assert list(found.values) == ["fold-0", "fold-1", "fold-2", "average"]
    data = JobData.open(job)
    train, log_p = data.splits["out_of_fold"], found.logits["out_of_fold"]
    predicted, labels = log_p.argmax(axis=1), train.column("label").to_numpy()
    assert found.values["average"] == pytest.approx(f1_score(labels, predicted, average="macro", labels=[0, 1, 2]))


def test_two_divisions_into_folds_show_the_spread_of_the_metric(one_rank, tmp_path):
    overrides = {**JOB, "cross_fit": 2, "cross_fit_repeats": 2, "early_stop_metric": "val/loss"}
    job = planned(write_job(tmp_path, overrides=overrides))
    found = trained(job)
    assert list(found.values) == ["fold-0", "fold-1", "fold-2", "fold-3", "division-0", "division-1", "average"]
    of_each = [found.values[f"division-{i}"] for i in (0, 1)]
    assert of_each[0] != of_each[1]
    assert found.values["average"] < np.mean(of_each), "log loss is convex"
    data = JobData.open(job)
    labels = data.splits["out_of_fold"].column("label").to_numpy()
    log_p = found.logits["out_of_fold"][np.arange(len(labels)), labels]
    assert found.values["average"] == pytest.approx(-log_p.mean(), abs=1e-5)


def logits_on_ranks(job, world_size):
    return trained(job, world_size).logits


@pytest.mark.slow
def test_two_ranks_train_and_predict_the_same_networks_as_one(one_rank, rank_pool, tmp_path):
    overrides = {**JOB, **NO_DROPOUT, "optimizer": "SGD", "lr": 0.1}
    expected = trained(planned(write_job(tmp_path / "one", overrides=overrides))).logits
    job = planned(write_job(tmp_path / "two", overrides={**overrides, "batch_size": 4}))
    for found in rank_pool.run(logits_on_ranks, job, 2, world_size=2):
        for split in ("val", "test", "out_of_fold"):
            np.testing.assert_allclose(found[split], expected[split], atol=1e-4, err_msg=split)


def test_a_distilled_network_trains_on_all_rows_and_those_of_its_teachers_decide(one_rank, tmp_path):
    job = planned(write_job(tmp_path, overrides={**JOB, "cross_fit": 2, "ensemble_model": "distill"}))
    found = trained(job, make=distill)
    assert list(found.values) == ["fold-0", "fold-1", "average"], "no row is left for the network itself"
    assert len(found.checkpoints) == 1
    assert found.weights.startswith("one network, trained on the probabilities of 2: the last (step 11)")
    np.testing.assert_allclose(softmax(found.logits["out_of_fold"]), found.out_of_fold, atol=1e-6)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole job of 40 labelled rows in all with a preset, and its log; its calibration has a temperature."""
    paths = write_job(tmp_path_factory.mktemp("small"), rows=(30, 10, 60))
    settings = {"preset": "recommended", "encoder_config": ONE_LAYER, "companion": False, "explain": 8}
    free = dict.fromkeys(("max_epochs", "lr", "batch_size", "val_check_interval"))
    write_hyperparameters(paths, {**free, **settings, "cross_fit_repeats": 1})
    return paths, run_train(paths)


def table_of(paths, name):
    return pd.read_csv(paths.output_data / f"{name}_predictions.csv", dtype={"order_id": str})


@pytest.mark.slow
def test_a_preset_lets_all_rows_of_a_small_table_decide_and_says_so(finished):
    paths, log = finished
    saved = json.loads((paths.model / "hyperparameters.json").read_text())
    assert (saved["choose_on"], saved["cross_fit"], saved["calibration"]) == ("out_of_fold", 5, "temperature")
    assert "preset recommended: cross_fit=5, because train and val have 40 labelled rows" in log
    assert "val/auroc out of fold: fold-0 " in log
    report = (paths.output_data / "report.html").read_text()
    assert "fitted out of fold (40 records)" in report
    assert "chosen out of fold for auto_accuracy" in report
    assert "60 test records, taken from the classes in turn" not in report
    assert "8 test records, taken from the classes in turn" in report


@pytest.mark.slow
def test_the_metrics_of_all_rows_have_intervals(finished):
    found = metrics(finished[0])
    low, high = found["intervals_95"]["out_of_fold"]["auroc"]
    assert low < found["out_of_fold/auroc"] < high
    assert found["records"]["out_of_fold"] == {"rows": 40, "labelled": 40}


@pytest.mark.slow
def test_the_temperature_is_fitted_on_the_predictions_out_of_fold(finished):
    paths, _ = finished
    raw = pd.read_parquet(paths.output_data / "train_out_of_fold.parquet")
    assert raw["split"].tolist() == ["train"] * 30 + ["val"] * 10
    logits = np.log(raw[PROBABILITIES].to_numpy()).astype(np.float32)
    decision = Decision.load(paths.model)
    assert decision.calibrator.temperature == pytest.approx(
        fit_temperature(logits, raw["label"].to_numpy()).temperature
    )
    shown = table_of(paths, "out_of_fold")
    np.testing.assert_allclose(shown[PROBABILITIES], decision.probabilities(logits), atol=1e-6)


@pytest.mark.slow
def test_val_s_predictions_are_those_out_of_fold_and_test_s_those_that_are_served(finished):
    paths, _ = finished
    val, every = table_of(paths, "val"), table_of(paths, "out_of_fold")
    pd.testing.assert_frame_equal(val, every[30:].reset_index(drop=True))
    served = Predictor.load(paths.model)
    np.testing.assert_allclose(served.predict(table(60, seed=2)), table_of(paths, "test")[PROBABILITIES], atol=1e-4)
    assert np.abs(served.predict(table(10, seed=1)) - val[PROBABILITIES].to_numpy()).max() > 1e-3
