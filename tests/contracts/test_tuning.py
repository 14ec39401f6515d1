"""The space of a search: every mistake in it is an error with its place before anything starts."""

import json
import math

import pytest

from contracts.errors import ContractError
from contracts.hyperparameter_files import cast_value, choose_settings, parse_hyperparameters, read_settings
from contracts.model_classes import MODEL_CLASSES
from contracts.tuning import Tuning
from contracts.tuning_space import describe_space, num_combinations, space_of, tunable
from testing.jobs import CONFIGURATION, TWO_TEXTS, write_job

RATES = {"lr": {"low": 1e-5, "high": 3e-4, "scale": "log"}}


def parsed(base=None, **tuning):
    text = cast_value("tuning", json.dumps(tuning))
    values = {**CONFIGURATION, **(base or {}), "tuning": text}
    return parse_hyperparameters({name: value for name, value in values.items() if value is not None})


def test_a_search_may_be_json_in_a_string_as_sagemaker_passes_it():
    hp = parsed(trials=7, space=RATES)
    assert hp.tuning is not None
    assert (hp.tuning.trials, space_of(hp)["lr"].high) == (7, 3e-4)


def test_the_log_names_the_values_of_a_space():
    hp = parsed(space={**RATES, "batch_size": {"low": 8, "high": 64}, "max_epochs": [1, 2]})
    text = describe_space(space_of(hp))
    assert text == "lr 1e-05 to 0.0003 (log), batch_size 8 to 64 (linear), max_epochs [1, 2]"


@pytest.mark.parametrize(
    ("tuning", "cause"),
    [
        ({"space": {"learning_rat": [1]}}, "'learning_rat' is not a hyperparameter"),
        ({"space": {"head_ltr": [1]}}, "did you mean 'head_lr'"),
        ({"space": {"resume": [True]}}, "resume cannot be tuned"),
        ({"space": {"calibration": ["none"]}}, "calibration cannot be tuned"),
        ({"space": {"seed": [1, 2]}}, "seed cannot be tuned"),
        ({"space": {"preset": ["defaults", "best"]}}, "preset cannot be tuned"),
        ({"space": {"lr": {"low": 1e-3}}}, "is invalid: space: lr: high: Field required"),
        ({"space": {"lr": []}}, "is invalid: space: lr: List should have at least 1 item"),
        ({"space": {"lr": 0.1}}, "space: lr: Input should be a list of values, or an object with low and high"),
        ({"space": {"dropout": [0.1, 1.5]}}, "dropout: 1.5 is invalid"),
        ({"space": {"dropout": {"low": 0.5, "high": 1.0}}}, "dropout: 1.0 is invalid"),
        ({"space": {"lr": {"low": 0, "high": 1, "scale": "log"}}}, "log scale needs a number above 0"),
        ({"space": {"lr": {"low": 1, "high": 1}}}, "low 1 is not below high 1"),
        ({"space": {"lr": {"low": 1, "high": 2, "scal": "log"}}}, "scal: Extra inputs"),
        ({"space": {"batch_size": {"low": 8.5, "high": 16}}}, "batch_size: 8.5 is invalid"),
        ({"space": {"pooling": {"low": 8, "high": 16}}}, "pooling: 8"),
        ({"space": {"lr": [1e-3, "0.001"]}}, "lr: '0.001' is listed twice"),
        ({"space": {"num_channels": [[8, 8], [8, 8]]}}, "num_channels: [8, 8] is listed twice"),
        ({"space": {"model_class": ["multimodal_bert", "bimodal_bert"]}}, "'bimodal_bert' is listed twice"),
        (
            {"space": {"num_layers": [1, 2]}},
            "num_layers has no effect in any combination: it applies to lstm, multimodal_cnn only",
        ),
        (
            {"space": {"model_class": ["lstm"], "num_layers": [1], "dropout_keep": [0.5]}},
            "dropout_keep has no effect in any combination: lstm uses it between recurrent layers",
        ),
        ({"space": {}}, "space"),
        ({"metric": "val/aurok"}, "tuning.metric: 'val/aurok' is unknown"),
        (
            {"metric": "val/loss", "space": {"class_weights": [[1, 1], [1, 9]]}},
            "class_weights change val/loss, the search's metric",
        ),
        ({"metric": ""}, "tuning.metric: '' is unknown"),
        ({"trials": 0}, "trials: Input should be greater"),
        ({"trails": 3}, "trails: Extra inputs"),
        ({"final_seeds": 0}, "final_seeds: Input should be greater"),
    ],
)
def test_a_search_that_cannot_run_is_refused_with_its_place(tuning, cause):
    with pytest.raises(ContractError) as refused:
        parsed(**tuning)
    assert refused.value.cause.startswith("tuning")
    assert cause in refused.value.cause
    assert refused.value.fix


@pytest.mark.parametrize(
    "space",
    [{"model_class": ["multimodal_bert", "bert"], "numeric_embedding": ["piecewise_linear"]}, {"lora_rank": [0, 2]}],
)
def test_a_value_that_another_setting_excludes_is_left_to_the_trials(space):
    assert parsed(space={**space, **RATES}).tuning


def test_a_value_in_a_text_is_the_setting_that_it_names():
    hp = parsed(space={"lr": ["1e-4", 1e-3], "run_scheduler": ["true", False], "dropout": {"low": "0", "high": "1e-1"}})
    space = space_of(hp)
    assert (space["lr"], space["run_scheduler"], space["dropout"].high) == ([1e-4, 1e-3], [True, False], 0.1)


@pytest.mark.parametrize(
    ("space", "number"),
    [
        ({"lr": [1e-3, 2e-3], "max_epochs": [1, 2, 3]}, 6),
        ({"batch_size": {"low": 8, "high": 16}, "max_epochs": {"low": 1, "high": 8, "scale": "log"}}, 72),
        ({"lr": {"low": 1e-3, "high": 2e-3}, "max_epochs": [1, 2]}, math.inf),
    ],
)
def test_the_combinations_of_a_space_are_counted(space, number):
    assert num_combinations(space_of(parsed(space=space))) == number


@pytest.mark.parametrize("name", MODEL_CLASSES)
@pytest.mark.parametrize("encoder", [{}, {"tokenizer": "some/encoder", "encoder_config": {}}, {"lora_rank": 4}])
def test_the_default_space_of_every_model_class_has_only_settings_with_an_effect(name, encoder):
    if encoder.get("lora_rank"):
        if MODEL_CLASSES[name].encoder != "transformer":
            return
        encoder = {"tokenizer": "some/encoder", "encoder_config": {}, "reinit_layers": 0, **encoder}
    texts = ({"text_name": None}, {}, TWO_TEXTS)[MODEL_CLASSES[name].num_texts]
    hp = parsed({**texts, "model_class": name, **encoder})
    space = space_of(hp)
    assert "lr" in space
    assert set(space) <= set(tunable())
    assert not [each for each in space if hp.declarations()[each].obstacle(hp, ())]


def test_a_default_space_has_no_value_that_contradicts_the_other_settings():
    heads = {"model_class": "multimodal_cross_attn", "hidden_common_dim": 16, "fusion_attention_heads": 4}
    assert space_of(parsed(heads))["hidden_common_dim"] == [100, 200]
    cnn = {"model_class": "multimodal_cnn", "num_channels": [8, 8], "num_layers": 2}
    assert "num_layers" not in space_of(parsed(cnn))


def test_the_command_tune_searches_without_the_key_and_its_options_override_the_key(tmp_path):
    paths = write_job(tmp_path)

    def tuning_with(options):
        return choose_settings(read_settings(paths, tuning=options)).hp.tuning

    assert tuning_with({}) == Tuning()
    write_job(tmp_path, overrides={"tuning": {"trials": 9, "final_seeds": 2, "space": RATES}})
    tuning = tuning_with({"trials": 4, "max_hours": 0.5})
    assert tuning is not None
    assert (tuning.trials, tuning.max_hours, tuning.final_seeds) == (4, 0.5, 2)
    with pytest.raises(ContractError, match="trials: Input should be greater"):
        tuning_with({"trials": 0})


def test_a_search_is_refused_if_the_last_weights_would_be_saved():
    with pytest.raises(ContractError, match="load_ckpt: is false, but a search compares trials by their best"):
        parsed({"load_ckpt": False}, space=RATES)
    assert parsed({"load_ckpt": True}, space=RATES).tuning
