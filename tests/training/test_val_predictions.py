"""The final predictions: whose logits they are, and their precision."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from container.job import Job, Scratch
from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import build_mesh
from container.preprocessing.prepare import prepare_data
from container.training import final_predictions, train
from container.training.job_data import JobData
from container.training.loop import Trainer
from container.training.precision import float32_products
from container.training.predict import predict_split
from container.training.stop import StopFlag
from contracts.hyperparameter_files import load_hyperparameters
from testing.jobs import ONE_LAYER, table, write_job

ROWS = {"train": 40, "val": 16, "test": 12}


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def job_under(root, overrides, **frames):
    """Lay a job out and prepare its data."""
    settings = {"encoder_config": ONE_LAYER, **overrides}
    paths = write_job(root, overrides=settings, rows=tuple(ROWS.values()), frames=frames)
    hp = load_hyperparameters(paths)
    job = Job(paths, hp, Scratch(root), prepare_data(paths, hp).folder)
    return job, build_mesh(ParallelDegrees.resolve(hp, 1))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Returns a function that trains, or resumes: (logits by split, the splits predicted after training)."""

    def run_job(overrides):
        predicted = []

        def recorded(execution, split, **options):
            predicted.append(len(split))
            return predict_split(execution, split, **options)

        monkeypatch.setattr(final_predictions, "predict_split", recorded)
        job, ranks = job_under(tmp_path, overrides)
        done = train.train_and_predict(job, ranks, data=JobData.open(job), stop=StopFlag())
        return done.logits, [name for size in predicted for name in ROWS if ROWS[name] == size]

    return run_job


@pytest.mark.parametrize("overrides", [{}, {"ema_decay": 0.5}, {"early_stop_metric": "val/auroc", "max_epochs": 3}])
def test_val_is_not_predicted_again_with_the_weights_of_a_float32_validation(run, overrides):
    first, predicted = run(overrides)
    assert predicted == ["test"]
    computed, predicted = run(overrides)  # resumed after its last step: no validation in this run
    assert predicted == ["val", "test"]
    assert all(np.array_equal(first[name], computed[name]) for name in ("val", "test"))


def test_val_is_predicted_in_float32_after_validations_in_bfloat16(run):
    assert run({"bf16": True})[1] == ["val", "test"]


@pytest.mark.parametrize(("limit", "chosen"), [(1e-3, "bfloat16"), (1e-9, "float32")])
def test_final_predictions_in_bfloat16_are_used_only_where_a_sample_is_close_to_float32(
    run, monkeypatch, caplog, limit, chosen
):
    caplog.set_level("INFO")
    exact, _ = run({})
    monkeypatch.setattr(final_predictions, "_LARGEST_DIFFERENCE", limit)
    logits, predicted = run({"prediction_dtype": "bfloat16"})  # resumed after its last step
    assert predicted == ["val", "val", "val", "test"]  # both data types on the sample, which is all of this val
    equal = [np.array_equal(logits[name], exact[name]) for name in ("val", "test")]
    assert equal == [chosen == "float32"] * 2
    assert f"final predictions are computed in {chosen}: in bfloat16, a probability of 16 records" in caplog.text


def test_a_trial_and_a_job_train_with_tf32_and_predict_without(tmp_path, monkeypatch):
    found = []

    def noted(name, function):
        def call(*args, **options):
            found.append((name, torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
            return function(*args, **options)

        return call

    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(train, "float32_products", lambda hp, _: float32_products(hp, gpu))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # as in a worker
    monkeypatch.setattr(Trainer, "train", noted("train", Trainer.train))
    monkeypatch.setattr(final_predictions, "predict_split", noted("predict", predict_split))
    job, ranks = job_under(tmp_path, {"tf32": True, "max_epochs": 1})
    for run_job in (train.train_only, train.train_and_predict):
        run_job(job, ranks, data=JobData.open(job), stop=StopFlag())
    training = ("train", "high", True)
    assert found == [training, training, *[("predict", "highest", False)] * 2]


def test_the_log_of_a_validation_names_the_only_class_of_val(tmp_path, caplog):
    frames = {split: table(count, seed=0).replace({"label": {0: 1, 1: 2}}) for split, count in ROWS.items()}
    frames["val"]["label"] = 1
    job, ranks = job_under(tmp_path, {"max_epochs": 1}, **frames)
    train.train_only(job, ranks, data=JobData.open(job), stop=StopFlag())
    assert "val/auroc is undefined: all 16 labelled records are of class 1" in caplog.text
