"""A value of encoder_config that no encoder can have is refused before anything is prepared."""

from typing import Any

import pytest

from container.parallel.degrees import ParallelDegrees
from container.parallel.encoder_checks import check_encoders
from container.text import encoder_config
from container.text.encoder_config import scratch_config
from container.text.transformers_process import describe_config
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.paths import JobPaths
from contracts.presets import RULES
from testing.jobs import CONFIGURATION

BERT = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "type_vocab_size": 2,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "initializer_range": 0.02,
    "layer_norm_eps": 1e-12, "pad_token_id": 0, "use_cache": True, "max_position_embeddings": 512,
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000, not a whole number from 1 to 1048576"),
        ({"hidden_size": 2.0}, "hidden_size is 2.0, not a whole number"),
        ({"hidden_size": True}, "hidden_size is True, not a whole number"),
        ({"num_hidden_layers": 10**6}, "not a whole number from 1 to 1000"),
        ({"hidden_size": 6, "num_attention_heads": 4}, "hidden_size 6 is not divisible by num_attention_heads 4"),
        ({"type_vocab_size": 0}, "type_vocab_size is 0, not a whole number from 1"),
        ({"layer_norm_eps": -1}, "layer_norm_eps is -1, not a number above 0, at most 1"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob is 1.5, not a number from 0 to below 1"),
        ({"hidden_dropout_prob": "0.1"}, "hidden_dropout_prob is '0.1', not a number"),
        ({"initializer_range": -1}, "initializer_range is -1"),
        ({"pad_token_id": -5}, "pad_token_id is -5"),
        ({"use_cache": "no"}, "use_cache is 'no', not true or false"),
    ],
)
def test_a_value_of_the_wrong_type_or_out_of_range_is_named_with_its_range(monkeypatch, values, words):
    answer = {"defaults": BERT, "aliases": {}, "error": None}
    monkeypatch.setattr(encoder_config, "_answer", lambda *_: answer)
    with pytest.raises(ContractError) as raised:
        scratch_config(values, vocab_size=100, special_ids={}, max_sen_len=24)
    assert words in raised.value.cause
    assert raised.value.fix


def test_the_small_encoder_of_the_presets_needs_no_import_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(encoder_config, "_answer")
    (rule,) = (rule for rule in RULES if rule.setting == "encoder_config")
    assert scratch_config(rule.value, vocab_size=100, special_ids={}, max_sen_len=24)["hidden_dropout_prob"] == 0.3


def test_mpnet_has_a_position_for_the_last_token_whatever_its_padding_id() -> None:
    config = scratch_config({"model_type": "mpnet"}, vocab_size=100, special_ids={"pad": 0}, max_sen_len=600)
    assert config["max_position_embeddings"] == 602


def test_the_sizes_of_a_from_scratch_encoder_are_checked_before_data_is_prepared(tmp_path: Any) -> None:
    hp = parse_hyperparameters({**CONFIGURATION, "model_class": "lstm", "encoder_config": {"vocab_size": 10**12}})
    with pytest.raises(ContractError, match="vocab_size is 1000000000000"):
        check_encoders(JobPaths(tmp_path), hp, ParallelDegrees.resolve(hp, 1, per_host=1))


def test_an_unknown_activation_function_is_an_error_that_lists_the_known_ones() -> None:
    error = describe_config("bert", {"hidden_act": "foo"})["error"]
    assert "hidden_act 'foo' is not one of" in error
    assert "gelu" in error
    assert describe_config("bert", {"hidden_act": "relu"})["error"] is None
