"""Training from the weights of an earlier model: whole jobs, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container.job import supervisor
from container.job.initial_model import check_settings, find_initial_model, warn_of_val
from container.steps.archives import write_archive
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters, read_settings
from contracts.paths import JobPaths
from testing.jobs import (
    ONE_LAYER,
    failure_line,
    metrics,
    run_train,
    table,
    write_hyperparameters,
    write_job,
    write_table,
)

SETTINGS = {"encoder_config": ONE_LAYER, "max_epochs": 4}


@pytest.mark.slow
def test_a_model_goes_on_from_an_earlier_one_on_other_data(job_once, tmp_path: Path) -> None:
    earlier = job_once("first_week", overrides=SETTINGS, rows=(240, 60, 100))
    paths = write_job(tmp_path, overrides={**SETTINGS, "max_epochs": 1}, rows=(300, 60, 100))
    files = {path.relative_to(earlier.model).as_posix(): path for path in earlier.model.rglob("*") if path.is_file()}
    paths.initial_model.mkdir(parents=True)
    write_archive(paths.initial_model / "model.tar.gz", files)
    log = run_train(paths)
    assert "initial model" in log
    assert "2 of 2 classes" in log
    fresh = write_job(tmp_path / "fresh", overrides={**SETTINGS, "max_epochs": 1}, rows=(300, 60, 100))
    run_train(fresh)
    assert metrics(paths)["test/loss"] < metrics(fresh)["test/loss"]


@pytest.mark.slow
def test_a_folder_whose_data_changed_goes_on_from_its_own_model(tmp_path: Path) -> None:
    paths = write_job(tmp_path, overrides={**SETTINGS, "max_epochs": 1})
    run_train(paths)
    write_table(table(80, seed=5), paths.channel("train"), "csv")
    run_train(paths, expect=1)
    assert "prepared rows of train" in failure_line(paths)
    assert "train --initial-model JOB" in paths.failure_files[0].read_text()
    log = run_train(paths, arguments=["--initial-model", str(paths.root)])
    assert "the checkpoints are removed" in log
    assert "carry over" in log


def model_folder(folder: Path, **settings: object) -> Path:
    """A folder with the settings of a model and something as its weights."""
    (folder / "model").mkdir(parents=True)
    paths = JobPaths(folder / "job")
    write_hyperparameters(paths, settings)
    (folder / "model" / "hyperparameters.json").write_bytes((paths.config / "hyperparameters.json").read_bytes())
    (folder / "model" / "model.pth").write_bytes(b"weights")
    return folder


def hyperparameters(**changes: object):
    given = {"label_name": "label", "text_name": "chat", "model_class": "bert", "tokenizer": "from_scratch"}
    return parse_hyperparameters({**given, **changes})


def test_another_model_class_is_an_error_that_names_both(tmp_path: Path) -> None:
    model_folder(tmp_path)
    (tmp_path / "model" / "hyperparameters.json").write_text('{"model_class": "multimodal_bert"}')
    initial = find_initial_model(JobPaths(tmp_path / "new"), tmp_path, scratch=tmp_path)
    assert initial is not None
    with pytest.raises(ContractError, match="is a multimodal_bert, and model_class is bert"):
        check_settings(initial, hyperparameters())
    with pytest.raises(ContractError, match="ensemble trains several networks"):
        check_settings(initial, hyperparameters(ensemble=3))


@pytest.mark.parametrize(("choose_on", "warned"), [("out_of_fold", True), ("val", False)])
def test_a_model_that_trained_on_its_val_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, choose_on: str, warned: bool
) -> None:
    model_folder(tmp_path)
    (tmp_path / "model" / "hyperparameters.json").write_text(json.dumps({"choose_on": choose_on}))
    initial = find_initial_model(JobPaths(tmp_path / "new"), tmp_path, scratch=tmp_path)
    assert initial is not None
    warn_of_val(initial)
    assert ("it trained on rows of its val too" in caplog.text) == warned


def test_a_preset_trains_one_network_on_a_small_table_from_an_initial_model(tmp_path: Path) -> None:
    model_folder(tmp_path)
    paths = write_job(tmp_path / "new", overrides={"preset": "recommended", "model_class": "multimodal_bert"})
    (tmp_path / "model" / "hyperparameters.json").write_text('{"model_class": "multimodal_bert"}')
    initial = find_initial_model(JobPaths(tmp_path / "other"), tmp_path, scratch=tmp_path)
    assert initial is not None
    train, val = ({"rows": rows, "classes": {"0": rows // 2, "1": rows // 2}} for rows in (900, 100))
    prepared: Any = SimpleNamespace(summary={"splits": {"train": train, "val": val}})
    given = read_settings(paths)
    plan = supervisor._Plan(paths, given, parse_hyperparameters(given.values), hosts=1, num_gpus=0)
    folds = [each.with_facts(prepared).hp.cross_fit for each in (plan, replace(plan, initial=initial))]
    assert folds == [5, 0]


def test_a_folder_without_a_model_or_without_its_weights_is_an_error(tmp_path: Path) -> None:
    paths = JobPaths(tmp_path / "new")
    assert find_initial_model(paths, None, scratch=tmp_path) is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(ContractError, match="has no model"):
        find_initial_model(paths, tmp_path / "empty", scratch=tmp_path)
    model_folder(tmp_path)
    (tmp_path / "model" / "model.pth").unlink()
    with pytest.raises(ContractError, match="is a package for serving"):
        find_initial_model(paths, tmp_path, scratch=tmp_path)
