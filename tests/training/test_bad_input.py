"""Bad input ends with exit 1, both failure files, a first line that names the thing, and no half-written model."""

import contextlib
import os
from pathlib import Path

import pytest
from transformers import LongformerConfig, LongformerModel

from container.commands import main
from container.job.supervisor import train
from contracts.paths import CHANNEL_ALIASES
from pipeline.commands import main as pipeline
from testing.jobs import (
    NO_DROPOUT,
    failure_line,
    run_train,
    table,
    write_hyperparameters,
    write_job,
    write_letters_tokenizer,
    write_table,
)


def failed(paths):
    """Run the job in this process (it fails before any worker starts) and return the first line of its failure."""
    assert train(paths) == 1
    assert not paths.model.exists() or not list(paths.model.iterdir())
    text = paths.failure_files[0].read_text()
    assert "What to change: " in text[:1024]
    return failure_line(paths)


@pytest.mark.parametrize(
    ("overrides", "changed", "causes"),
    [
        ({"lerning_rate": 1, "bacth_size": 8}, {}, ["lerning_rate: unknown hyperparameter", "; bacth_size: unknown"]),
        ({"nproc_per_node": 3, "dp_replicate_size": 2}, {}, ["dp_replicate=2", "WORLD_SIZE"]),
        ({}, {"price": "cheap"}, ["data.csv: row 12, column 'price': 'cheap'"]),
        ({}, {"label": None}, ["1 of 60 training rows", "row 12"]),
    ],
)
def test_an_error_of_each_phase_before_the_training_is_in_the_failure_files(tmp_path, overrides, changed, causes):
    frame = table(60, seed=0).astype(dict.fromkeys(changed, object))
    for column, value in changed.items():
        frame.loc[11, column] = value
    line = failed(write_job(tmp_path, overrides=overrides, frames={"train": frame}))
    assert [cause for cause in causes if cause not in line] == []


def test_a_missing_channel_is_an_error_that_lists_the_others(tmp_path):
    paths = write_job(tmp_path)
    paths.channel("val").rename(paths.channel("eval"))
    assert failed(paths).endswith("does not exist; there are eval, test, train")


def test_a_variable_that_names_no_network_interface_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth77")
    assert failed(write_job(tmp_path)).startswith("environment variable GLOO_SOCKET_IFNAME: names eth77, but")


@pytest.mark.parametrize("command", ["train", "serve", "metrics"])
def test_a_root_that_does_not_exist_is_an_error_and_is_not_created(tmp_path, capsys, command):
    with pytest.raises(SystemExit, match="2"):
        main([command, "--root", str(tmp_path / "jbo")])
    assert f"--root: {tmp_path / 'jbo'} is not a folder" in capsys.readouterr().err
    assert not (tmp_path / "jbo").exists()


@pytest.mark.parametrize("name", [b"d\xe9", b"a\nb"])
@pytest.mark.parametrize(("program", "command"), [(main, ["serve"]), (pipeline, ["run", "--config", "none.yaml"])])
def test_a_root_whose_name_no_log_can_contain_is_an_error(tmp_path, capfd, program, command, name):
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    root.mkdir()
    with contextlib.suppress(SystemExit):
        program([*command, "--root", str(root)])
    assert f"--root: {str(root)!r} is not UTF-8, or has a control character" in capfd.readouterr().err


def test_channels_may_have_the_names_of_sagemaker_s_examples(tmp_path):
    paths = write_job(tmp_path, overrides={"val_filename": "data.csv"})
    for alias, name in CHANNEL_ALIASES.items():
        paths.channel(name).rename(paths.channel(alias))
    write_table(table(24, seed=1).drop(columns="label"), paths.channel("validation"), "csv")
    assert failed(paths).startswith(f"{paths.channel('validation')}/data.csv: column 'label' is missing")


def test_a_failure_of_an_earlier_run_is_cleared_by_the_next(tmp_path):
    paths = write_job(tmp_path, overrides={"lerning_rate": 1})
    failed(paths)
    write_hyperparameters(paths, {"nproc_per_node": 3, "dp_replicate_size": 2})
    assert "lerning_rate" not in failed(paths)


@pytest.mark.slow
def test_a_loss_that_stays_non_finite_ends_the_job_with_the_settings_to_change(tmp_path):
    paths = write_job(tmp_path, overrides={**NO_DROPOUT, "lr": 1e3, "optimizer": "SGD", "gradient_clip_val": 0})
    run_train(paths, expect=1)
    line = failure_line(paths)
    assert line.startswith("lr: the loss or its gradient was not finite for 5 optimizer steps in a row")
    assert not list(paths.model.glob("*"))


@pytest.mark.slow
def test_an_encoder_that_could_not_be_exported_is_refused_before_training(tmp_path):
    folder = tmp_path / "input" / "data" / "pretrained" / "long"
    folder.mkdir(parents=True)
    config = LongformerConfig(
        vocab_size=write_letters_tokenizer(folder), hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=40, max_position_embeddings=66, attention_window=[4], pad_token_id=0, type_vocab_size=1,
    )  # fmt: skip
    LongformerModel(config).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    paths = write_job(tmp_path, overrides={"tokenizer": "long", "encoder_config": None, "reinit_layers": 0})
    log = run_train(paths, expect=1)
    assert failure_line(paths).startswith("model.onnx: an encoder of the family longformer cannot be exported")
    assert "first optimizer step" not in log
