"""The final predictions: where they come from, and their precision."""

import numpy as np
import pytest
import torch

from container.job.job import Job
from container.training import train
from container.training.loop import Trainer
from container.training.precision import float32_products
from container.training.predict import predict_split
from testing.jobs import ONE_LAYER, table, write_job
from testing.one_rank import prepared_job, train_job

pytestmark = pytest.mark.usefixtures("one_rank")

ROWS = {"train": 40, "val": 16, "test": 12}


def job_under(root, overrides, **frames) -> Job:
    """Lay a job out and prepare its data."""
    settings = {"encoder_config": ONE_LAYER, **overrides}
    return prepared_job(write_job(root, overrides=settings, rows=tuple(ROWS.values()), frames=frames))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Returns a function that trains, or resumes: (logits by split, the splits predicted after training)."""

    def run_job(overrides):
        predicted = []

        def recorded(execution, split, **options):
            predicted.append(len(split))
            return predict_split(execution, split, **options)

        monkeypatch.setattr(train, "predict_split", recorded)
        done = train_job(job_under(tmp_path, overrides))
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
    monkeypatch.setattr(train, "predict_split", noted("predict", predict_split))
    job = job_under(tmp_path, {"tf32": True, "max_epochs": 1})
    for run_job in (train.train_only, train.train_and_predict):
        train_job(job, run=run_job)
    training = ("train", "high", True)
    assert found == [training, training, *[("predict", "highest", False)] * 2]


def test_the_log_of_a_validation_names_the_only_class_of_val(tmp_path, caplog):
    frames = {split: table(count, seed=0).replace({"label": {0: 1, 1: 2}}) for split, count in ROWS.items()}
    frames["val"]["label"] = 1
    train_job(job_under(tmp_path, {"max_epochs": 1}, **frames), run=train.train_only)
    assert "val/auroc is undefined: all 16 labelled records are of class 1" in caplog.text
