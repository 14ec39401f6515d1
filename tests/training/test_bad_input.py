"""Bad input ends with exit 1, both failure files, a first line that names the thing, and no half-written model."""

import contextlib
import json
import os
import pickle
from pathlib import Path

import pandas as pd
import pytest
from transformers import LongformerConfig, LongformerModel

from container.__main__ import main
from container.supervisor import train
from contracts.artifacts import USE_PRECOMPUTED_IMPUTATION, USE_PRECOMPUTED_RISK_TABLES
from contracts.paths import CHANNEL_ALIASES
from pipeline.__main__ import main as pipeline
from testing.jobs import (
    NO_DROPOUT,
    failure_line,
    log_of,
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


def frame_with(column, row, value, *, rows=60):
    frame = table(rows, seed=0).astype({column: object})
    frame.loc[row, column] = value
    return frame


def test_a_missing_channel_is_named(tmp_path):
    paths = write_job(tmp_path)
    for path in paths.channel("val").iterdir():
        path.unlink()
    paths.channel("val").rmdir()
    assert str(paths.channel("val")) in failed(paths)


def test_a_channel_without_a_data_file_is_named_with_what_is_there(tmp_path):
    paths = write_job(tmp_path)
    (paths.channel("test") / "data.csv").rename(paths.channel("test") / "data.xlsx")
    assert str(paths.channel("test")) in failed(paths)
    assert "data.xlsx" in paths.failure_files[0].read_text()


@pytest.mark.parametrize("content", [b"id,text\n1,hello\n", b"PAR1 not really", b""])
def test_a_file_that_is_not_what_its_name_says_is_named(tmp_path, content):
    paths = write_job(tmp_path, file_format="parquet")
    (paths.channel("train") / "data.parquet").write_bytes(content)
    assert "data.parquet" in failed(paths)


def test_binary_content_in_a_csv_is_named(tmp_path):
    paths = write_job(tmp_path)
    (paths.channel("train") / "data.csv").write_bytes(bytes(range(256)) * 50)
    assert "data.csv" in failed(paths)


def test_a_missing_column_is_named_with_its_file_and_the_nearest_column(tmp_path):
    paths = write_job(tmp_path)
    write_table(table(24, seed=1).rename(columns={"price": "prize"}), paths.channel("val"), "csv")
    line = failed(paths)
    assert "'price'" in line
    assert "data.csv" in line
    assert "prize" in paths.failure_files[0].read_text()


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
@pytest.mark.parametrize("program", [main, pipeline])
def test_a_root_whose_name_no_log_can_contain_is_an_error(tmp_path, capfd, program, name):
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    root.mkdir()
    with contextlib.suppress(SystemExit):
        program(["serve", "--root", str(root)])
    assert f"--root: {str(root)!r} is not UTF-8, or has a control character" in capfd.readouterr().err


def test_channels_may_have_the_names_of_sagemaker_s_examples(tmp_path):
    paths = write_job(tmp_path, overrides={"val_filename": "data.csv"})
    for alias, name in CHANNEL_ALIASES.items():
        paths.channel(name).rename(paths.channel(alias))
    write_table(table(24, seed=1).drop(columns="label"), paths.channel("validation"), "csv")
    assert failed(paths).startswith(f"{paths.channel('validation')}/data.csv: column 'label' is missing")


def test_a_missing_channel_is_an_error_that_lists_the_others(tmp_path):
    paths = write_job(tmp_path)
    paths.channel("val").rename(paths.channel("eval"))
    assert failed(paths).endswith("does not exist; there are eval, test, train")


def test_an_unknown_hyperparameter_names_the_nearest_known_one(tmp_path):
    paths = write_job(tmp_path, overrides={"lerning_rate": 1, "bacth_size": 8})
    line = failed(paths)
    assert line.startswith("lerning_rate: unknown hyperparameter")
    assert "; bacth_size: unknown hyperparameter" in line
    assert "did you mean 'batch_size'" in line


def test_a_wrong_type_names_the_key(tmp_path):
    assert failed(write_job(tmp_path, overrides={"batch_size": "many"})).startswith("batch_size: 'many'")


def test_inconsistent_classes_and_weights_name_the_key(tmp_path):
    assert failed(write_job(tmp_path, overrides={"class_weights": [1, 2, 3]})).startswith("class_weights")


def test_a_label_outside_the_categories_is_named_with_its_row(tmp_path):
    frames = {"test": frame_with("label", 17, "maybe", rows=24)}
    line = failed(write_job(tmp_path, frames=frames))
    for part in ("label", "'maybe'", "row 18", "data.csv"):
        assert part in line, line


def test_only_one_class_in_train_is_an_error(tmp_path):
    frame = table(60, seed=0).assign(label=1)
    assert "label" in failed(write_job(tmp_path, frames={"train": frame}))


def test_unlabelled_training_rows_are_counted_and_named(tmp_path):
    frame = table(60, seed=0).astype({"label": object})
    frame.loc[[3, 9], "label"] = None
    line = failed(write_job(tmp_path, frames={"train": frame}))
    assert "2 of 60 training rows" in line
    assert "row 4" in line
    assert "row 10" in line


def test_an_all_missing_column_is_named(tmp_path):
    frame = table(60, seed=0).assign(price=None)
    assert "'price'" in failed(write_job(tmp_path, frames={"train": frame}))


def test_a_value_that_is_no_number_is_named_with_column_row_and_file(tmp_path):
    line = failed(write_job(tmp_path, frames={"train": frame_with("price", 11, "cheap")}))
    for part in ("price", "'cheap'", "row 12", "data.csv"):
        assert part in line, line


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_an_empty_split_is_named(tmp_path, split):
    assert split in failed(write_job(tmp_path, frames={split: table(10, seed=0).head(0)}))


def test_an_encoder_that_cannot_be_reached_says_which_ways_would_work(tmp_path, monkeypatch):
    paths = write_job(tmp_path, overrides={"tokenizer": "nobody/never-heard-of-it", "encoder_config": {}})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "nobody/never-heard-of-it" in failed(paths)
    text = paths.failure_files[0].read_text()
    assert "from_scratch" in text
    assert str(paths.pretrained) in text


class Malicious:
    def __reduce__(self):
        return (os.system, ("touch /tmp/this-must-not-exist-after-the-test",))


@pytest.mark.parametrize(
    ("flag", "name", "content"),
    [
        (USE_PRECOMPUTED_IMPUTATION, "impute_dict.json", b"{broken"),
        (USE_PRECOMPUTED_IMPUTATION, "impute_dict.pkl", b"\x80\x04broken"),
        (USE_PRECOMPUTED_RISK_TABLES, "risk_table_map.json", b"[]"),
        (USE_PRECOMPUTED_IMPUTATION, "impute_dict.pkl", pickle.dumps(Malicious())),
        (USE_PRECOMPUTED_RISK_TABLES, "risk_table_map.pkl", pickle.dumps({"color": Malicious()})),
    ],
)
def test_a_corrupt_or_malicious_precomputed_artifact_is_refused_by_name(tmp_path, monkeypatch, flag, name, content):
    paths = write_job(tmp_path)
    paths.precomputed_artifacts.mkdir(parents=True)
    (paths.precomputed_artifacts / name).write_bytes(content)
    monkeypatch.setenv(flag, "true")
    assert name in failed(paths)
    assert not os.path.exists("/tmp/this-must-not-exist-after-the-test")


def test_a_strategy_that_does_not_multiply_out_names_degrees_and_world_size(tmp_path):
    line = failed(write_job(tmp_path, overrides={"nproc_per_node": 3, "dp_replicate_size": 2}))
    assert "dp_replicate=2" in line
    assert "WORLD_SIZE" in line


def test_a_failure_of_an_earlier_run_is_cleared_by_the_next(tmp_path):
    paths = write_job(tmp_path, overrides={"lerning_rate": 1})
    failed(paths)
    write_hyperparameters(paths, {"nproc_per_node": 3, "dp_replicate_size": 2})
    assert "lerning_rate" not in failed(paths)


@pytest.mark.slow
def test_duplicate_ids_are_warned_of_and_kept(unusual_job):
    log = log_of(unusual_job)
    assert "train: 1 rows repeat an id" in log
    assert "test: 12 rows repeat an id" in log
    assert "training on 58 records" in log, "2 of 60 have no label"
    predictions = pd.read_parquet(unusual_job.output_data / "test_predictions.parquet")
    assert predictions["order_id"].tolist() == table(12, seed=2)["order_id"].tolist() * 2


@pytest.mark.slow
def test_a_loss_that_stays_non_finite_ends_the_job_with_the_settings_to_change(tmp_path):
    paths = write_job(tmp_path, overrides={**NO_DROPOUT, "lr": 1e3, "optimizer": "SGD", "gradient_clip_val": 0})
    run_train(paths, expect=1)
    line = failure_line(paths)
    assert line.startswith("lr: the loss or its gradient was not finite for 5 optimizer steps in a row")
    assert not list(paths.model.glob("*"))


@pytest.mark.slow
def test_an_encoder_that_does_not_fit_its_chunks_is_an_error_before_training(tmp_path):
    paths = write_job(tmp_path, overrides={"encoder_config": {"hidden_size": 30, "num_attention_heads": 4}})
    run_train(paths, expect=1)
    assert "hidden_size" in failure_line(paths)


@pytest.mark.slow
def test_unlabelled_rows_are_dropped_on_request_and_predicted_in_test(unusual_job):
    assert "training on 58 records" in log_of(unusual_job)
    assert len(pd.read_parquet(unusual_job.output_data / "test_predictions.parquet")) == 24
    assert json.loads((unusual_job.output_data / "metrics.json").read_text())["test/auroc"] is not None


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
