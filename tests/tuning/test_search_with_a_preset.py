"""A search with a preset: trials and the winner have what the preset chooses by the data, except for the space."""

import json
import logging
from typing import ClassVar

import pytest

import container.tuning.search as module
from container.job.launch import run_queue
from container.job.log_once import log_once
from container.preprocessing.prepare import prepare_data
from container.tuning.search import search
from container.tuning.study import TuningStudy
from contracts.errors import ContractError
from contracts.hyperparameter_files import choose_settings, read_settings
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from testing.jobs import NO_WEIGHTS, TINY_ENCODER, TWO_TEXTS, write_job, write_letters_tokenizer

RATES = {"lr": {"low": 1e-3, "high": 3e-3}}


class Run:
    """Stands for the workers of a run: it ends at once with a value."""

    completed, failure, ended = True, None, True
    trained: ClassVar[list[Hyperparameters]] = []
    curves: ClassVar[list[list[float]]] = []  # of the validations of the first runs

    def __init__(self, shares, slot, *, shown):
        pass

    def train(self, folder, hp, *, prepared, fold, timeline):
        self.trained.append(hp)
        (folder / "checkpoints" / "epoch=0-step=1.ckpt").mkdir(parents=True)

    def new_state(self):
        curve = self.curves.pop(0) if self.curves else [0.5]
        history = [{"step": i, "epoch": i / 2, "val/auroc": value} for i, value in enumerate(curve, 1)]
        return {"best_value": max(curve), "history": history}

    def request_stop(self):
        pass

    def abandon(self):
        pass

    def close(self):
        pass


@pytest.fixture
def trained(monkeypatch):
    """The settings of each run."""
    monkeypatch.setattr(run_queue, "Run", Run)
    monkeypatch.setattr(Run, "trained", [])
    return Run.trained


def searched(root, space, *, trials=2, **settings):
    changed = {"preset": "recommended", "tuning": {"trials": trials, "space": space}, "max_epochs": None}
    paths = write_job(root, overrides={**changed, **settings})
    write_letters_tokenizer(paths.pretrained / "tiny")
    (paths.pretrained / "tiny" / "config.json").write_text(json.dumps({"model_type": "albert", **TINY_ENCODER}))
    (paths.pretrained / "tiny" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (paths.pretrained / "tiny" / "model.safetensors").write_bytes(NO_WEIGHTS)
    given = read_settings(paths)
    hp = choose_settings(given).hp
    return search(paths, hp, given, num_gpus=0).hp


def test_every_run_and_the_winner_have_what_the_preset_chooses_by_the_data(tmp_path, trained):
    winner = searched(tmp_path, RATES)
    assert [(hp.max_epochs, hp.calibration) for hp in (*trained, winner)] == [(6, "temperature")] * 3
    assert winner.companion


def test_values_of_the_space_win_over_the_preset(tmp_path, trained):
    winner = searched(tmp_path, {"max_epochs": [1, 2]})
    assert {hp.max_epochs for hp in (*trained, winner)} <= {1, 2}


@pytest.fixture
def pruned(trained, monkeypatch):
    """Settings of a search of two trials, the second of which is better at first and then worse."""
    monkeypatch.setattr(Run, "curves", [[0.5, 0.5, *[0.9] * 10], [0.6] * 12])  # six epochs with two validations each
    return {"trials": 2, "val_check_interval": None}


def last_validations(root):
    paths = JobPaths(root)
    given = read_settings(paths)
    study = TuningStudy(paths, choose_settings(given).hp, num_workers=1, given=given.values)
    return [len(trial.best_values) for trial in study.trials]


ENCODERS = {"tokenizer": ["from_scratch", "tiny"]}
FREE = {"encoder_config": None, "lr": None, "tokenizer": "from_scratch"}


def test_the_preset_chooses_for_each_trial_by_the_trial_s_own_settings(tmp_path, trained):
    winner = searched(tmp_path, ENCODERS, trials=20, **FREE)
    found = {hp.tokenizer: (hp.lr, hp.max_epochs, len(hp.encoder_config), hp.pooling) for hp in trained}
    assert found == {"from_scratch": (2e-3, 6, 6, "first"), "tiny": (1e-4, 4, 0, "mean")}
    assert winner in trained


def test_trials_end_early_after_a_third_of_the_validations_of_the_epochs_that_the_preset_chooses(tmp_path, pruned):
    searched(tmp_path, RATES, **pruned)
    assert last_validations(tmp_path) == [12, 4]


def test_a_search_that_goes_on_ends_its_trials_after_the_same_validations(tmp_path, pruned):
    searched(tmp_path, RATES, **{**pruned, "trials": 1})
    searched(tmp_path, RATES, **pruned)
    assert last_validations(tmp_path) == [12, 4]


@pytest.mark.parametrize(("name", "value"), [("max_epochs", 3), ("batch_size", 32)])
def test_a_setting_that_the_preset_chose_by_the_data_is_another_search(tmp_path, trained, name, value):
    searched(tmp_path, RATES, batch_size=None)
    with pytest.raises(ContractError) as refused:  # as before the data is known, and the default
        searched(tmp_path, RATES, trials=3, **{"batch_size": None, name: value})
    assert refused.value.cause.startswith("settings that you set, so that the preset does not choose them by the data")
    assert f"began with [], this run has ['{name}']" in refused.value.cause


def test_a_value_of_the_preset_that_contradicts_other_trials_is_chosen_for_a_trial_that_it_fits(tmp_path, trained):
    settings = {**TWO_TEXTS, **FREE, "primary_tokenizer": "tiny", "secondary_tokenizer": "tiny"}
    searched(tmp_path, {"secondary_tokenizer": ["tiny", "from_scratch"]}, trials=20, **settings)
    assert {hp.secondary_tokenizer: hp.share_encoder for hp in trained} == {"tiny": True, "from_scratch": False}


def test_the_preset_chooses_nothing_for_a_trial_that_its_encoder_contradicts(tmp_path, trained):
    searched(tmp_path, ENCODERS, trials=20, **FREE)
    assert {(hp.tokenizer, hp.layer_lr_decay) for hp in trained} == {("from_scratch", 1), ("tiny", 1)}


def test_the_log_compares_no_value_of_the_space_with_the_preset_s(tmp_path, trained, caplog):
    caplog.set_level(logging.INFO)
    log_once.cache_clear()
    searched(tmp_path, {**RATES, **ENCODERS}, trials=8, **FREE)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("preset ")]
    assert any("pooling=" in line for line in lines)
    assert not [line for line in lines if " lr=" in line]


def test_a_search_that_was_interrupted_after_its_trials_keeps_what_the_preset_chose(tmp_path, trained):
    first = searched(tmp_path, RATES)
    assert searched(tmp_path, RATES) == first
    assert len(trained) == 2


def test_a_search_keeps_the_prepared_data_of_ten_other_settings(tmp_path, trained):
    searched(tmp_path, {"smooth_factor": {"low": 0.0, "high": 1.0}}, trials=14)
    assert len({hp.smooth_factor for hp in trained}) == 14
    assert len(list(JobPaths(tmp_path).prepared.iterdir())) == 13  # digests, a lock, the last one, and ten others


def test_the_data_of_running_trials_is_in_use(tmp_path, trained, monkeypatch):
    in_use = []

    def recorded(*arguments, **options):
        prepared = prepare_data(*arguments, **options)
        in_use.append((prepared.folder, list(options["in_use"])))
        return prepared

    monkeypatch.setattr(module, "prepare_data", recorded)
    tuning = {"trials": 2, "parallel": 2, "space": {"smooth_factor": {"low": 0.0, "high": 1.0}}}
    searched(tmp_path, {}, tuning=tuning)
    (first, before), (_, then) = in_use
    assert (before, then) == ([], [first])
