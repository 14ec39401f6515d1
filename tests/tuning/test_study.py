"""A search draws the same settings however often it is interrupted, and refuses to go on with other inputs."""

import json
import warnings

import optuna.importance  # "optuna" alone loads it at its first use, over what a test replaced
import pytest

from container.tuning.study import TuningStudy
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters
from testing.foreign_files import add_foreign_files
from testing.jobs import NO_WEIGHTS, write_job

ODD_NAMES = ["a?b", "a%20b", "a#b", "[x]", "a'b\"c", "a b", "é", "{x}", "$HOME", "a\\b", "*", "a:b", "a;b&c"]
SPACE = {
    "lr": {"low": 1e-4, "high": 1e-2, "scale": "log"},
    "batch_size": {"low": 4, "high": 16},
    "num_channels": [[8, 8], [16, 16]],
}
CNN = {"model_class": "multimodal_cnn", "kernel_size": [2], "val_check_interval": 1 / 9, "max_epochs": 1}


def opened(root, **changes):
    tuning = {"metric": "val/auroc", "space": SPACE, **changes.pop("tuning", {})}
    paths = write_job(root, overrides={**CNN, "tuning": tuning, **changes})
    return TuningStudy(paths, load_hyperparameters(paths), num_workers=1)


def finished(study, value):
    trial = study.begin()
    study.finish(trial, "complete", value=value)
    return study.changes(trial)


def test_a_search_that_is_opened_anew_for_every_trial_draws_the_same_settings(tmp_path):
    values = [0.5, 0.7, 0.6, 0.8, 0.75, 0.9, 0.85, 0.95]
    whole = opened(tmp_path / "whole")
    expected = [finished(whole, value) for value in values]
    assert [finished(opened(tmp_path / "parts"), value) for value in values] == expected
    assert len({each["lr"] for each in expected}) == len(values)


def test_a_trial_that_was_interrupted_goes_on_with_its_settings(tmp_path):
    study = opened(tmp_path)
    begun = [study.begin(), study.begin()]
    assert opened(tmp_path).trials == begun
    assert [trial.state for trial in begun] == ["running"] * 2


def test_a_search_of_a_version_whose_ranges_had_a_step_goes_on(tmp_path):
    study = opened(tmp_path)
    study.begin()
    (saved,) = tmp_path.rglob("search.json")
    assert json.loads(saved.read_text())["fingerprint"]["tuning.space.batch_size"]["step"] is None


def test_the_first_trial_has_the_settings_of_the_job_that_are_in_the_space(tmp_path):
    study = opened(tmp_path, lr=5e-3, num_channels=[16, 16], batch_size=20)
    first = study.changes(study.begin())
    assert (first["lr"], first["num_channels"]) == (5e-3, [16, 16])
    assert 4 <= first["batch_size"] <= 16


@pytest.mark.parametrize("name", ODD_NAMES)
def test_the_search_is_in_its_folder_whatever_the_name_of_the_folder(tmp_path, name):
    root = tmp_path / name / "job"
    study = opened(root)
    finished(study, 0.5)
    assert len(opened(root).trials) == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_another_encoder_under_the_same_name_is_another_search(tmp_path):
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (encoder / name).write_text("{}")
    (encoder / "model.safetensors").write_bytes(NO_WEIGHTS)
    given = {"model_class": "multimodal_bert", "tokenizer": str(encoder)}
    tuning = {"metric": "val/auroc", "space": {"lr": SPACE["lr"]}}
    paths = write_job(tmp_path / "job", overrides={**given, "tuning": tuning})
    paths.precomputed_artifacts.mkdir()
    (paths.precomputed_artifacts / "notes.txt").touch()
    finished(TuningStudy(paths, load_hyperparameters(paths), num_workers=1), 0.5)
    add_foreign_files(tmp_path)
    TuningStudy(paths, load_hyperparameters(paths), num_workers=1)
    (encoder / "model.safetensors").write_bytes(NO_WEIGHTS.replace(b"\x02", b"\x03").replace(b"}", b" }"))
    with pytest.raises(ContractError) as refused:
        TuningStudy(paths, load_hyperparameters(paths), num_workers=1)
    assert refused.value.cause.startswith(f"the encoder {encoder}: the search")
    (encoder / "model.safetensors").write_bytes(NO_WEIGHTS[:-1])
    with pytest.raises(ContractError, match=r"model\.safetensors: is cut"):
        TuningStudy(paths, load_hyperparameters(paths), num_workers=1)


def test_losses_that_depend_on_the_class_weights_decide_nothing(tmp_path):
    space = {"class_weights": [[1.0, 1.0], [1.0, 2.0]]}
    study = opened(tmp_path, tuning={"space": space})
    for loss in (0.9, 0.2):
        study.finish(study.begin(), "complete", value=0.5, loss=loss)
    assert study.best is not None
    assert study.best.number == 0


def test_of_trials_with_equal_values_the_one_with_the_lower_loss_is_the_best(tmp_path):
    study = opened(tmp_path)
    for value, loss in ((0.0, 0.9), (0.0, 0.2), (0.0, 0.2), (0.0, 0.5)):  # F1 scores of a rare class
        study.finish(study.begin(), "complete", value=value, loss=loss)
    assert study.best is not None
    assert study.best.number == 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tuning": {"space": {**SPACE, "batch_size": [8]}}}, "tuning.space.batch_size"),
        ({"tuning": {"metric": "val/loss"}}, "tuning.metric"),
        ({"weight_decay": 0.5}, "weight_decay"),
        ({"max_epochs": 2}, "max_epochs"),
        ({"rows": (61, 24, 24)}, "the data file train/data.csv"),
        ({"gradient_compression": "bf16"}, "gradient_compression"),
    ],
)
def test_a_search_of_other_inputs_is_refused_and_named(tmp_path, changes, named):
    finished(opened(tmp_path), 0.5)
    rows = changes.pop("rows", (60, 24, 24))
    tuning = {"metric": "val/auroc", "space": SPACE, **changes.pop("tuning", {})}
    paths = write_job(tmp_path, overrides={**CNN, "tuning": tuning, **changes}, rows=rows)
    with pytest.raises(ContractError) as refused:
        TuningStudy(paths, load_hyperparameters(paths), num_workers=1)
    assert refused.value.cause.startswith(named)
    assert "resume=false" in refused.value.fix


@pytest.mark.parametrize(
    ("content", "cause"), [("damaged", "cannot be read: it is not JSON"), ('{"fingerprint": {}}', "has no 'trials'")]
)
def test_a_damaged_file_of_a_search_is_named(tmp_path, content, cause):
    finished(opened(tmp_path), 0.5)
    file = tmp_path / "checkpoints" / "tuning" / "search.json"
    file.write_text(content)
    with pytest.raises(ContractError) as refused:
        opened(tmp_path)
    assert refused.value.cause.startswith(f"{file}: {cause}")
    assert "resume=false" in refused.value.fix


def test_more_trials_and_more_hours_go_on_with_the_search(tmp_path):
    finished(opened(tmp_path), 0.5)
    assert len(opened(tmp_path, tuning={"trials": 99, "max_hours": 2}).trials) == 1


def test_the_setting_that_changes_the_metric_has_the_largest_importance(tmp_path):
    study = opened(tmp_path)
    for _ in range(10):
        trial = study.begin()
        value = 1.0 if study.changes(trial)["num_channels"] == [8, 8] else 0.5
        study.finish(trial, "complete", value=value + trial.drawn["lr"] / 100)
    importance = study.importance()
    assert set(importance) == set(SPACE)
    assert sum(importance.values()) == pytest.approx(1)
    assert max(importance, key=importance.__getitem__) == "num_channels"


def test_an_error_of_the_importance_is_not_hidden(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ValueError("wrong")

    study = opened(tmp_path)
    for value in (0.5, 0.6):
        finished(study, value)
    monkeypatch.setattr(optuna.importance, "get_param_importances", fail)
    with pytest.raises(ValueError, match="wrong"):
        study.importance()


@pytest.mark.parametrize("values", [(), (0.5,), (0.5, 0.5), (0.5, 0.5 + 1e-8)])
def test_trials_that_do_not_show_the_importance_of_a_setting_give_none(tmp_path, values):
    study = opened(tmp_path)
    for value in values:
        finished(study, value)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert study.importance() == {}
    assert not warned
