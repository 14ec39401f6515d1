"""A preset chooses no value with which the job cannot run on its processes and encoders."""

import json
import logging

import pytest

from container.job.log_once import log_once
from container.job.preflight import check_before_preparing, choose_job_settings
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters, read_settings
from contracts.presets import DataFacts
from testing.jobs import NO_WEIGHTS, TINY_ENCODER, TWO_TEXTS, write_job, write_letters_tokenizer

FACTS = DataFacts(rows=8_000, class_totals=(4_000, 4_000), val_class_totals=(500, 500), labelled=9_000, units=9_000)
PRETRAINED = {"preset": "recommended", "tokenizer": "tiny", "encoder_config": None}
RANDOM = {"preset": "recommended", "tokenizer": "from_scratch", "encoder_config": None}


@pytest.fixture
def chosen(tmp_path, caplog):
    """A function that returns the settings of a job, of a pretrained encoder of a family, and the log lines."""

    def choose(settings, *, family="bert", processes=1, facts=None):
        paths = write_job(tmp_path, overrides=settings)
        folder = paths.pretrained / "tiny"
        write_letters_tokenizer(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": family, **TINY_ENCODER}))
        (folder / "model.safetensors").write_bytes(NO_WEIGHTS)
        log_once.cache_clear()
        caplog.set_level(logging.INFO)
        hp = choose_job_settings(paths, read_settings(paths), facts, hosts=1, num_gpus=processes)
        return hp, [record.getMessage() for record in caplog.records]

    return choose


@pytest.mark.parametrize("family", ["albert", "megatron-bert"])
def test_the_preset_leaves_the_rates_of_layers_that_are_not_separate_and_says_why(chosen, family):
    hp, lines = chosen(PRETRAINED, family=family, facts=FACTS)
    assert (hp.layer_lr_decay, hp.pooling, hp.max_epochs) == (1, "mean", 2)
    (line,) = [line for line in lines if "layer_lr_decay" in line]
    assert "layer_lr_decay=0.85, because an encoder is pretrained; not chosen, because of your settings: " in line
    assert f"model_type '{family}'" in line


def test_the_preset_chooses_rates_for_separate_layers(chosen):
    assert chosen(PRETRAINED)[0].layer_lr_decay == 0.85


@pytest.mark.parametrize(
    ("settings", "processes"),
    [({"pp_size": 5}, 5), ({**TWO_TEXTS, "encoder_config": None, "pp_size": 4, "pp_schedule": "Interleaved1F1B"}, 4)],
    ids=["one text", "two texts"],
)
def test_the_preset_keeps_the_layers_that_a_pipeline_needs_and_says_why(chosen, settings, processes):
    divisible = {"batch_size": 32, "num_microbatches": 16}
    hp, lines = chosen({**RANDOM, **divisible, **settings}, processes=processes, facts=FACTS)
    assert (hp.encoder_config, hp.weight_decay) == ({}, 0.01)
    (line,) = [line for line in lines if "encoder_config=" in line]
    assert "not chosen, because of your settings: pp_size" in line


def test_settings_that_cannot_run_are_refused_before_the_preset_chooses(chosen, caplog):
    with pytest.raises(ContractError, match=r"layer_lr_decay: is 0\.5, but text's encoder 'tiny' is of"):
        chosen({**PRETRAINED, "layer_lr_decay": 0.5}, family="albert")
    assert not caplog.records


def test_a_line_about_the_preset_is_logged_once_in_a_job(chosen, tmp_path, caplog):
    _, before = chosen(PRETRAINED)
    paths = write_job(tmp_path, overrides=PRETRAINED)
    choose_job_settings(paths, read_settings(paths), FACTS, hosts=1, num_gpus=1)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines)) > len(before)


@pytest.mark.parametrize("trainable", [False, True])
def test_random_embeddings_that_stay_random_are_warned_of(tmp_path, caplog, trainable):
    settings = {**TWO_TEXTS, "tokenizer": "from_scratch", "secondary_is_embeddings_trainable": trainable}
    paths = write_job(tmp_path, overrides=settings)
    check_before_preparing(paths, load_hyperparameters(paths), hosts=1, per_host=1)
    warned = "secondary_is_embeddings_trainable: is false, and the embeddings of 'events' are from_scratch"
    assert (warned in caplog.text) == (not trainable)


def test_a_training_without_the_key_of_its_data_is_refused_before_anything_else(tmp_path, monkeypatch):
    paths = write_job(tmp_path)
    monkeypatch.setenv("DATA_KEY", "not-looked-up")
    with pytest.raises(ContractError, match="DATA_KEY: .*started without the key of its data"):
        check_before_preparing(paths, load_hyperparameters(paths), hosts=1, per_host=1)
