"""A job whose encoders cannot be split as its degrees require fails before it prepares data."""

import json

import pytest

from container.models.blocks import flatten
from container.models.build import build_classifier
from container.parallel import encoder_checks
from container.parallel.degrees import ParallelDegrees
from container.parallel.encoder_checks import EncoderShape, check_against_model, check_encoders, warn_of_layer_settings
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters
from contracts.paths import JobPaths
from testing.encoder_families import PACKED_FAMILIES, PADDED_FAMILIES, hyperparameters, write_config
from testing.jobs import (
    NO_WEIGHTS,
    TINY_ENCODER,
    failure_line,
    run_train,
    write_hyperparameters,
    write_job,
    write_letters_tokenizer,
)

BASE = {"num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
PRETRAINED = {"tokenizer": "some-encoder", "encoder_config": {}}
LARGE = {"num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


def shape(config, *, role="text", model_type="bert"):
    return EncoderShape(role, "some-encoder", {"model_type": model_type, **config})


def two(first, second):
    return [shape(first, role="primary"), shape(second, role="secondary")]


def check(world_size, encoders, **settings):
    """Raise the error of a job with `encoders`."""
    model_class = "trimodal_bert" if len(encoders) == 2 else "bert"
    settings = {"batch_size": 64, "num_microbatches": 32, **settings}
    hp = hyperparameters(model_class=model_class, **settings)
    check_against_model(ParallelDegrees.resolve(hp, world_size), hp, encoders)


def refusal(world_size, encoders, **settings):
    with pytest.raises(ContractError) as caught:
        check(world_size, encoders, **settings)
    return str(caught.value)


@pytest.mark.parametrize("family", [*PACKED_FAMILIES, *PADDED_FAMILIES])
def test_the_blocks_counted_from_a_configuration_are_those_of_the_model(tmp_path, family):
    files = write_config(tmp_path, family)
    hp = hyperparameters(tokenizer=str(tmp_path))
    model = build_classifier(hp, [files], tabular_dim=0, numeric_transform=None)
    config = json.loads((tmp_path / "config.json").read_text())
    assert EncoderShape("text", "tiny", config).blocks + 1 == len(flatten(model))


def test_sizes_are_read_under_each_family_s_names():
    encoder = shape({"n_layers": 6, "n_heads": 12, "hidden_dim": 3072}, model_type="distilbert")
    assert (encoder.layers, encoder.heads, encoder.intermediate) == (6, 12, 3072)


def test_sizes_that_a_configuration_leaves_out_are_transformers_defaults():
    assert shape({"n_heads": 4}, model_type="distilbert").intermediate == 3072


@pytest.mark.parametrize(("tp_size", "works"), [(2, True), (3, True), (4, True), (5, False), (8, False)])
def test_slices_must_divide_the_heads(tp_size, works):
    if works:
        check(tp_size, [shape(BASE)], strategy="tp")
        return
    message = refusal(tp_size, [shape(BASE)], strategy="tp")
    assert f"{tp_size} ranks cannot split the 12 attention heads" in message
    assert f"tp={tp_size}; WORLD_SIZE={tp_size}" in message


def test_tp_sizes_that_work_are_listed_nearest_first():
    assert "Set tp_size to 4 or 2 or 1 (1 needs strategy auto)." in refusal(8, two(BASE, LARGE), strategy="tp")
    assert "Set tp_size to 1 (1 needs strategy auto)." in refusal(5, two(BASE, LARGE), strategy="tp")
    assert "Set tp_size to 1." in refusal(5, two(BASE, LARGE), tp_size=5)


def test_slices_must_divide_the_feed_forward_layers():
    message = refusal(3, [shape({**BASE, "intermediate_size": 1000})], strategy="tp")
    assert "1000 columns of the feed-forward layers" in message


@pytest.mark.parametrize("family", ["modernbert", "deberta-v2"])
def test_a_family_without_a_plan_is_not_sliced(family):
    message = refusal(2, [shape(BASE, model_type=family)], strategy="tp")
    assert f"model_type '{family}'" in message
    assert "bert" in message.splitlines()[1]


def test_tokens_are_split_only_if_the_family_supports_it():
    check(2, [shape(BASE)], strategy="tp", sequence_parallel=True)
    check(2, [shape(BASE, model_type="albert")], strategy="tp")
    message = refusal(2, [shape(BASE, model_type="albert")], strategy="tp", sequence_parallel=True)
    assert message.startswith("sequence_parallel: is true")


@pytest.mark.parametrize(
    ("schedule", "most"),
    [("GPipe", 15), ("1F1B", 15), ("Interleaved1F1B", 7), ("InterleavedZeroBubble", 7), ("ZBVZeroBubble", 7)],
)
def test_a_pipeline_has_no_more_stages_than_the_model_has_blocks(schedule, most):
    check(most, [shape(BASE)], strategy="pp", pp_schedule=schedule)
    message = refusal(most + 1, [shape(BASE)], strategy="pp", pp_schedule=schedule)
    assert "only 15 blocks (text: embeddings, 12 layers, pooler; head)" in message
    assert f"Set pp_size to at most {most}" in message
    assert f"WORLD_SIZE={most + 1}" in message
    assert ("pp_schedule to 1F1B or GPipe" in message) == (most == 7)


def test_two_texts_form_one_pipeline_but_under_branch_one_each():
    encoders = two(BASE, {**BASE, "num_hidden_layers": 2})
    check(19, encoders, strategy="pp")
    assert "only 19 blocks" in refusal(20, encoders, strategy="pp")
    check(10, encoders, pp_size=5, branch_size=2)
    assert "only 5 blocks (secondary: embeddings, 2 layers" in refusal(12, encoders, pp_size=6, branch_size=2)


def test_an_encoder_that_cannot_be_cut_is_one_block():
    message = refusal(4, [shape(BASE, model_type="albert")], strategy="pp")
    assert "only 2 blocks (text: albert, indivisible; head)" in message
    check(2, [shape(BASE, model_type="albert")], strategy="pp")


@pytest.mark.parametrize(
    ("family", "cause"),
    [("albert", "whose layers share one set of weights"), ("xlnet", "whose layers are not known")],
)
@pytest.mark.parametrize(("setting", "value"), [("layer_lr_decay", 0.9), ("reinit_layers", 1)])
def test_a_setting_of_single_layers_needs_an_encoder_with_separate_layers(family, cause, setting, value):
    check(1, two(BASE, BASE), **PRETRAINED, **{setting: value})
    message = refusal(1, [shape(BASE, model_type=family)], **PRETRAINED, **{setting: value})
    named = f"{setting}: is {value}, but text's encoder 'some-encoder' is of model_type '{family}', {cause}"
    assert named in message
    assert "modernbert" in message.splitlines()[1]
    check(1, [shape(BASE, model_type=family)], **PRETRAINED, layer_lr_decay=1.0)  # reinit_layers has its default, 2


def test_more_reinitialized_layers_than_there_are_is_an_error():
    check(1, [shape(BASE)], **PRETRAINED, reinit_layers=12)
    check(1, [shape({**BASE, "num_hidden_layers": 1})], **PRETRAINED)  # the default, 2, is not applied
    message = refusal(1, [shape(BASE)], **PRETRAINED, reinit_layers=13)
    assert "reinit_layers: is 13, but text's encoder 'some-encoder' has 12 layers" in message
    message = refusal(1, two(BASE, BASE), **PRETRAINED, secondary_reinit_layers=13)
    assert message.startswith("secondary_reinit_layers: is 13")


def refusal_of_encoder(root, settings, *, config=None):
    """Return the error of a job's encoders; `config` is the config.json of the pretrained encoder `tiny`."""
    paths = JobPaths(root)
    if config is not None:
        folder = paths.pretrained / "tiny"
        write_letters_tokenizer(folder)
        (folder / "config.json").write_text(json.dumps({**TINY_ENCODER, "vocab_size": 100, **config}))
        (folder / "model.safetensors").write_bytes(NO_WEIGHTS)
        settings = {"tokenizer": "tiny", "encoder_config": {}, **settings}
    hp = hyperparameters(**settings)
    with pytest.raises(ContractError) as raised:
        check_encoders(paths, hp, ParallelDegrees.resolve(hp, 1))
    return raised.value


def test_an_encoder_is_searched_before_data_is_prepared(tmp_path):
    assert "'nowhere-to-be-found'" in refusal_of_encoder(tmp_path, {"tokenizer": "nowhere-to-be-found"}).cause


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        ({"model_type": "gpt2"}, "tokenizer: tiny: model_type 'gpt2' is not a text encoder with attention in both"),
        ({"model_type": "t5"}, "tokenizer: tiny: model_type 't5' is not a text encoder with attention in both"),
        ({"model_type": "bert", "is_decoder": True}, "model_type 'bert' is not a text encoder with attention in both"),
        ({"model_type": "convbert"}, "encoders of the family convbert do not mask padding"),
        (
            {"model_type": "xlnet"},
            "tiny/config.json: not the configuration of a Hugging Face encoder: `d_head` (64) should",
        ),
    ],
)
def test_an_encoder_that_no_classifier_can_use_is_refused_before_data_is_prepared(tmp_path, config, cause):
    error = refusal_of_encoder(tmp_path, {}, config=config)
    assert cause in error.cause
    assert error.fix


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        ({"model_type": "convbert"}, "do not mask padding"),
        ({"vocab_size": 10}, "vocab_size is 10, too small for the letters alone"),
    ],
)
def test_a_random_encoder_that_no_classifier_can_use_is_refused_before_data_is_prepared(tmp_path, config, cause):
    settings = {"tokenizer": "from_scratch", "encoder_config": {**TINY_ENCODER, **config}}
    assert cause in refusal_of_encoder(tmp_path, settings).cause


@pytest.mark.parametrize("family", ["megatron-bert", "eurobert"])  # by default, eurobert pads with token 128,001
def test_an_encoder_of_an_unknown_family_that_works_is_accepted(tmp_path, family):
    settings = {"tokenizer": "from_scratch", "encoder_config": {**TINY_ENCODER, "model_type": family}}
    hp = hyperparameters(**settings)
    check_encoders(JobPaths(tmp_path), hp, ParallelDegrees.resolve(hp, 1))


@pytest.mark.slow
def test_weights_that_are_damaged_are_refused_before_data_is_prepared(tmp_path):
    paths = write_job(tmp_path, overrides={"tokenizer": "tiny", "encoder_config": None})
    folder = paths.pretrained / "tiny"
    write_letters_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **TINY_ENCODER}))
    (folder / "model.safetensors").write_bytes(NO_WEIGHTS[:-1])
    run_train(paths, expect=1)
    assert failure_line(paths).startswith(
        f"{folder}/model.safetensors: is cut, or no file of safetensors: it has 9 bytes"
    )
    (folder / "model.safetensors").write_bytes(NO_WEIGHTS)
    (folder / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    run_train(paths, expect=1)
    assert failure_line(paths) == f"{folder}/tokenizer.json: is a Git LFS pointer, not the file itself"
    assert not paths.prepared.exists()


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_chunk_beyond_the_positions_is_refused_before_data_is_prepared(tmp_path, family):
    config = {"model_type": family, "max_position_embeddings": 40}
    error = refusal_of_encoder(tmp_path, {"max_sen_len": 41}, config=config)
    assert error.cause == "max_sen_len: is 41, but the encoder has positions for 40 tokens"


def test_an_override_that_a_pretrained_encoder_does_not_know_is_refused_before_data_is_prepared(tmp_path):
    settings = {"encoder_config": {"hidden_droput_prob": 0.1}}
    error = refusal_of_encoder(tmp_path, settings, config={"model_type": "bert"})
    assert "did you mean 'hidden_dropout_prob'" in error.cause


@pytest.mark.parametrize("settings", [{"activation_checkpointing": 1}, {"compile": True}])
def test_a_setting_of_layers_is_named_if_the_encoder_has_no_separate_layers(tmp_path, caplog, settings):
    paths = JobPaths(tmp_path)
    albert = {"model_type": "albert", **TINY_ENCODER, "embedding_size": 16}
    write_hyperparameters(paths, {"encoder_config": albert, **settings})
    hp = load_hyperparameters(paths)
    warn_of_layer_settings(paths, hp, ParallelDegrees.resolve(hp, 1))
    assert f"{next(iter(settings))} has no effect on the encoder of text" in caplog.text
    caplog.clear()
    write_hyperparameters(paths, settings)
    hp = load_hyperparameters(paths)
    warn_of_layer_settings(paths, hp, ParallelDegrees.resolve(hp, 1))
    assert not caplog.records


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pp_size": 2, "nproc_per_node": 3}, "need a multiple of 2, but there are 3 processes (WORLD_SIZE=3)"),
        ({"strategy": "ddp", "pp_size": 2, "nproc_per_node": 4}, "(WORLD_SIZE=4), but pp_size is 2"),
        ({"strategy": "branch", "nproc_per_node": 2}, "has 1 text encoder"),
        (
            {"strategy": "pp", "nproc_per_node": 6, "pp_schedule": "GPipe"},
            "6 ranks x 1 stage (GPipe) make 6 stages, but the model has only",
        ),
    ],
)
def test_a_wrong_combination_ends_the_job_before_data_is_prepared(tmp_path, settings, message):
    paths = write_job(tmp_path, overrides=settings)
    run_train(paths, expect=1)
    assert message in failure_line(paths)
    assert not paths.prepared.exists()


def test_a_process_that_dies_while_it_tries_an_encoder_out_is_reported(monkeypatch):
    monkeypatch.setattr("sys.executable", "false")
    with pytest.raises(RuntimeError, match="the encoder 'mine' could not be tried out: exit code 1"):
        encoder_checks._try_out("mine", "{}")
