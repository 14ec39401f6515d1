"""Every accepted hyperparameter changes something, or the log says that it has no effect here."""

import hashlib
import itertools
import json
import math
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import torch

from container.decision.softmax import softmax
from container.evaluation.metrics import classification_metrics
from container.export.onnx import input_names
from container.job.job import Job
from container.parallel.execution import GradientNorm, Gradients
from container.training.checkpoint import load_weights
from container.training.checkpoint_files import clear_checkpoints
from container.training.job_data import JobData
from container.training.train import Trained, build_model
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from contracts.paths import JobPaths
from contracts.text_fields import FULL_TEXT_STEPS
from testing.jobs import (
    CONFIGURATION,
    REPOSITORY,
    TINY_ENCODER,
    TWO_TEXTS,
    table,
    write_job,
    write_letters_tokenizer,
    write_table,
)
from testing.one_rank import prepared_job, train_job

ONE: dict = {"tab_field_list": ["price", "quantity"], "chunk_trancate": True, "max_total_chunks": 1}
TWO: dict = {**TWO_TEXTS}
ADAPTED: dict = {**ONE, "tokenizer": "pretrained_tiny", "encoder_config": {}, "reinit_layers": 0, "lora_rank": 2}
SHARED: dict = {**TWO, "tokenizer": "pretrained_tiny", "encoder_config": {}, "reinit_layers": 0, "share_encoder": True}
LONG = {"max_epochs": 3, "early_stop_patience": 9}
SHORT_STEPS = [step for step in FULL_TEXT_STEPS if step != "html_normalizer"]

CNN: dict = {**ONE, "model_class": "multimodal_cnn", "kernel_size": [2, 3], "num_channels": [8, 8]}
LSTM: dict = {**ONE, "model_class": "lstm"}
MOE: dict = {**ONE, "model_class": "multimodal_moe", "num_experts": 3, "experts_per_record": 2}
CROSS: dict = {**ONE, "model_class": "multimodal_cross_attn"}

# name -> (the base it is seen against, what is changed). A base may set what makes the change visible.
CHANGES: dict[str, tuple[dict, dict]] = {
    "id_name": (ONE, {"id_name": "row_id"}),
    "text_name": (ONE, {"text_name": "events"}),
    "primary_text_name": (TWO, {"primary_text_name": "notes"}),
    "secondary_text_name": (TWO, {"secondary_text_name": "notes"}),
    "label_name": (ONE, {"label_name": "other_label"}),
    "cat_field_list": (ONE, {"cat_field_list": []}),
    "tab_field_list": (ONE, {"tab_field_list": ["price"]}),
    "date_field_list": (ONE, {"date_field_list": ["day"]}),
    "group_name": (ONE, {"group_name": "size_group"}),
    "weight_name": (ONE, {"weight_name": "quantity_weight"}),
    "categorical_features_to_encode": (ONE, {"categorical_features_to_encode": []}),
    "train_filename": (ONE, {"train_filename": "data.csv"}),
    "val_filename": (ONE, {"val_filename": "data.csv"}),
    "test_filename": (ONE, {"test_filename": "data.csv"}),
    "model_class": (ONE, {"model_class": "bert"}),
    "tokenizer": (ONE, {"tokenizer": "pretrained_tiny", "encoder_config": {}}),
    "primary_tokenizer": (TWO, {"primary_tokenizer": "pretrained_tiny", "encoder_config": {}}),
    "secondary_tokenizer": (TWO, {"secondary_tokenizer": "pretrained_tiny", "encoder_config": {}}),
    "encoder_config": (ONE, {"encoder_config": {**TINY_ENCODER, "num_hidden_layers": 1}}),
    "num_classes": (ONE, {"num_classes": 3, "is_binary": False, "multiclass_categories": [0, 1, 2]}),
    "is_binary": (ONE, {"is_binary": False, "multiclass_categories": [0, 1]}),
    "multiclass_categories": (ONE, {"multiclass_categories": [1, 0]}),
    "hidden_common_dim": (ONE, {"hidden_common_dim": 8}),
    "fusion_hidden_dim": (TWO, {"fusion_hidden_dim": 8}),
    "dropout": (ONE, {"dropout": 0.5}),
    "fusion_dropout": (TWO, {"fusion_dropout": 0.5}),
    "kernel_size": (CNN, {"kernel_size": [2, 4]}),
    "num_channels": (CNN, {"num_channels": [8, 6]}),
    "num_layers": (LSTM, {"num_layers": 1}),
    "dropout_keep": (CNN, {"dropout_keep": 0.9}),
    "fusion_attention_heads": (CROSS, {"fusion_attention_heads": 2}),
    "num_experts": (MOE, {"num_experts": 4}),
    "experts_per_record": (MOE, {"experts_per_record": 1}),
    "expert_balance": (MOE, {"expert_balance": 1.0}),
    "lora_rank": (ADAPTED, {"lora_rank": 0}),
    "lora_alpha": (ADAPTED, {"lora_alpha": 64.0}),
    "lora_target": (ADAPTED, {"lora_target": "linear"}),
    "max_sen_len": (ONE, {"max_sen_len": 12}),
    "primary_max_sen_len": (TWO, {"primary_max_sen_len": 12}),
    "secondary_max_sen_len": (TWO, {"secondary_max_sen_len": 12}),
    "chunk_trancate": ({**ONE, "max_sen_len": 12}, {"chunk_trancate": False}),
    "max_total_chunks": ({**ONE, "max_sen_len": 12}, {"max_total_chunks": 2}),
    "text_input_ids_key": (ONE, {"text_input_ids_key": "tokens"}),
    "text_attention_mask_key": (ONE, {"text_attention_mask_key": "mask"}),
    "text_processing_steps": (ONE, {"text_processing_steps": SHORT_STEPS}),
    "primary_text_processing_steps": (TWO, {"primary_text_processing_steps": SHORT_STEPS}),
    "secondary_text_processing_steps": (TWO, {"secondary_text_processing_steps": ["dialogue_chunker", "tokenizer"]}),
    "smooth_factor": (ONE, {"smooth_factor": 0.5}),
    "smooth_rows": (ONE, {"smooth_rows": 4.0}),
    "count_threshold": (ONE, {"count_threshold": 30}),
    "risk_table_folds": (ONE, {"risk_table_folds": 0}),
    "imputation_strategy": (ONE, {"imputation_strategy": "median"}),
    "imputation_dict": (ONE, {"imputation_dict": {"price": 1.0}}),
    "number_format": ({**ONE, "tab_field_list": ["price", "thousands"]}, {"number_format": {"thousands": "1.234,5"}}),
    "missing_indicators": (ONE, {"missing_indicators": True}),
    "risk_tables": (ONE, {"risk_tables": {"color": {"bins": {"red": 0.9}, "default_bin": 0.1}}}),
    "numeric_transform": (ONE, {"numeric_transform": "quantile"}),
    "pooling": (ONE, {"pooling": "mean"}),
    "share_encoder": (SHARED, {"share_encoder": False}),
    "category_part": (ONE, {"category_part": {"color": "domain"}}),
    "category_embedding_dim": (ONE, {"category_embedding_dim": 4}),
    "category_embedding_min_count": ({**ONE, "category_embedding_dim": 4}, {"category_embedding_min_count": 100_000}),
    "numeric_embedding": (ONE, {"numeric_embedding": "piecewise_linear"}),
    "numeric_embedding_dim": ({**ONE, "numeric_embedding": "piecewise_linear"}, {"numeric_embedding_dim": 4}),
    "numeric_embedding_bins": ({**ONE, "numeric_embedding": "piecewise_linear"}, {"numeric_embedding_bins": 4}),
    "batch_size": (ONE, {"batch_size": 16}),
    "max_epochs": (ONE, {"max_epochs": 1}),
    "lr": (ONE, {"lr": 0.01}),
    "head_lr": (ONE, {"head_lr": 0.01}),
    "layer_lr_decay": (ONE, {"layer_lr_decay": 0.5}),
    "optimizer": (ONE, {"optimizer": "SGD"}),
    "momentum": ({**ONE, "optimizer": "SGD"}, {"momentum": 0.1}),
    "weight_decay": (ONE, {"weight_decay": 0.5}),
    "adam_epsilon": (ONE, {"adam_epsilon": 0.1}),
    "loss": (ONE, {"loss": "focal"}),
    "focal_gamma": ({**ONE, "loss": "focal"}, {"focal_gamma": 1.0}),
    "label_smoothing": (ONE, {"label_smoothing": 0.2}),
    "class_weights": (ONE, {"class_weights": [1.0, 4.0]}),
    "ema_decay": (ONE, {"ema_decay": 0.9}),
    "gradient_clip_val": (ONE, {"gradient_clip_val": 0.01, "optimizer": "SGD"}),
    "accumulate_grad_batches": (ONE, {"accumulate_grad_batches": 2}),
    "max_tokens_per_batch": (ONE, {"max_tokens_per_batch": 100}),
    "warmup_steps": (ONE, {"warmup_steps": 10}),
    "run_scheduler": (ONE, {"run_scheduler": False}),
    "lr_decay": (ONE, {"lr_decay": 0.9}),
    "fp16": (ONE, {"fp16": True}),
    "bf16": (ONE, {"bf16": True}),
    "seed": (ONE, {"seed": 1}),
    "early_stop_metric": ({**ONE, **LONG, "metric_choices": ["auroc"]}, {"early_stop_metric": "val/recall"}),
    "early_stop_patience": ({**ONE, **LONG, "lr": 1e-12, "max_epochs": 4}, {"early_stop_patience": 1}),
    "val_check_interval": (ONE, {"val_check_interval": 0.5}),
    "metric_choices": (ONE, {"metric_choices": ["accuracy"]}),
    "load_ckpt": (
        {**ONE, **LONG, "lr": 0.5, "run_scheduler": False, "early_stop_metric": "val/loss"},
        {"load_ckpt": False},
    ),
    "keep_checkpoints": ({**ONE, "val_check_interval": 0.25}, {"keep_checkpoints": 1}),
    "checkpoint_every_n_steps": ({**ONE, "keep_checkpoints": 9}, {"checkpoint_every_n_steps": 3}),
    "log_every_n_steps": (ONE, {"log_every_n_steps": 3}),
    "is_embeddings_trainable": (ONE, {"is_embeddings_trainable": False}),
    "primary_is_embeddings_trainable": (TWO, {"primary_is_embeddings_trainable": False}),
    "secondary_is_embeddings_trainable": (TWO, {"secondary_is_embeddings_trainable": False}),
    **{
        f"{prefix}{name}": ({**base, "tokenizer": "pretrained_tiny", "encoder_config": {}}, {f"{prefix}{name}": value})
        for (prefix, base), (name, value) in itertools.product(
            [("", ONE), ("primary_", TWO), ("secondary_", TWO)], [("reinit_pooler", False), ("reinit_layers", 0)]
        )
    },
}
# Settings whose effect is an error, or lies outside one process's training: each has a test of its own.
CHECKED = {
    "drop_unlabelled": {"drop_unlabelled": True},
    "max_nonfinite_steps": {"max_nonfinite_steps": 1},
    "resume": {"resume": False},
    "nproc_per_node": {"nproc_per_node": 2},
    "preprocess_workers": {"preprocess_workers": 2},
}
# Settings whose effect is seen in several processes, in how one computes the same, in an error or in the log, or after
# training: each names the file of its tests.
ELSEWHERE = {
    "date_format": "preprocessing/test_dates.py", "null_values": "preprocessing/test_dates.py",
    "full_field_list": "test_prepare.py", "input_tab_dim": "test_hyperparameters.py",
    "fixed_tokenizer_length": "test_declarations.py", "strategy": "test_degrees.py",
    "dp_replicate_size": "test_degrees.py", "dp_shard_size": "test_degrees.py", "pp_size": "test_degrees.py",
    "tp_size": "test_degrees.py", "branch_size": "test_degrees.py", "pp_schedule": "test_pipeline_parallel.py",
    "num_microbatches": "test_pipeline_parallel.py", "sharding_strategy": "test_data_parallel.py",
    "fsdp_reduce_dtype": "test_data_parallel.py", "fsdp_accumulation": "test_data_parallel.py",
    "cpu_offload": "test_data_parallel.py", "gradient_compression": "test_data_parallel.py",
    "sequence_parallel": "test_tensor_parallel.py", "activation_checkpointing": "test_data_parallel.py",
    "cuda_graphs": "test_step_graph.py",
    "compile": "test_data_parallel.py", "tf32": "test_precision.py", "max_restarts": "test_interruptions.py",
    "max_minutes": "test_max_minutes.py", "learning_curve": "test_learning_curve.py",
    "tuning": "test_search.py", "ensemble": "test_ensemble.py", "cross_fit": "test_ensemble.py",
    "cross_fit_repeats": "test_out_of_fold.py", "choose_on": "test_out_of_fold.py",
    "ensemble_model": "test_ensemble.py", "process_group_timeout_minutes": "test_process_settings.py",
    "num_threads": "test_threads.py", "log_all_ranks": "test_process_settings.py", "profile": "test_profiling.py",
    **{f"mlflow_{name}": "test_tracking.py" for name in ("tracking_uri", "experiment", "run_name", "tags")},
    "preset": "test_presets.py", "calibration": "test_decision.py", "target_prior": "test_decision.py",
    "decision_threshold": "test_decision.py", "draft": "test_draft.py", "companion": "test_companion_job.py",
    "label_issues": "test_companion_job.py", "explain": "test_explain.py", "onnx_variants": "test_variants.py",
    "false_positive_cost": "test_decision.py", "false_negative_cost": "test_decision.py",
}  # fmt: skip


def test_every_hyperparameter_is_in_one_of_the_tables():
    assert sorted([*CHANGES, *CHECKED, *ELSEWHERE]) == sorted(Hyperparameters.model_fields)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_setting_whose_effect_is_seen_elsewhere_is_named_in_the_tests_that_show_its_effect(name):
    (path,) = (REPOSITORY / "tests").rglob(ELSEWHERE[name])
    assert name in path.read_text()


@pytest.fixture(scope="module", autouse=True)
def group(one_rank):
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory):
    """Prepare and train in this process; everything a setting could change, digested, by setting."""

    @cache
    def compute(settings: str) -> dict[str, str]:
        root = tmp_path_factory.mktemp("job")
        overrides = json.loads(settings)
        classes = overrides.get("num_classes", 2)
        frames = {split: frame(count, seed, classes) for seed, (split, count) in enumerate(ROWS.items())}
        paths = write_job(root, overrides=overrides, frames=frames)
        for split in ROWS:
            write_table(frame(6, 7, classes), paths.channel(split), "csv", "more")
        pretrained_tiny(paths.pretrained / "pretrained_tiny")
        return outcome(paths)

    return lambda overrides: compute(json.dumps(overrides, sort_keys=True))


ROWS = {"train": 40, "val": 16, "test": 12}


def frame(rows, seed, classes):
    made = table(rows, seed=seed, classes=classes)
    thousands = [f"{1 + row % 7}.{row % 10}00" for row in range(len(made))]
    days = pd.date_range("2026-01-01", periods=len(made), freq="29h").astype(str)
    extra = {"thousands": thousands, "day": days, "quantity_weight": made["quantity"]}
    extra["size_group"] = made["quantity"]
    made = made.assign(row_id=made["order_id"] + "x", notes=made["chat"].str[::-1], **extra)
    return made.assign(other_label=1 - made["label"] % 2)


@cache
def _tiny_weights():
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    return BertModel(BertConfig(**{**TINY_ENCODER, "vocab_size": 90}))


def pretrained_tiny(folder: Path):
    """A tiny BERT with weights and a vocabulary of letters."""
    assert write_letters_tokenizer(folder) <= _tiny_weights().config.vocab_size
    _tiny_weights().save_pretrained(folder)


def train(paths: JobPaths) -> tuple[Job, Trained]:
    """Prepare and train in this process: the job, and what training left."""
    job = prepared_job(paths)
    if not job.hp.resume:  # what the launcher does
        clear_checkpoints(paths.checkpoints)
    return job, train_job(job)


def auroc_of_val(job: Job, done: Trained) -> float:
    """The AUROC of the predictions of val after training."""
    labels = JobData.open(job).splits["val"].column("label").to_numpy()
    return classification_metrics(labels, softmax(done.logits["val"]), ["auroc"]).values["auroc"]


def outcome(paths: JobPaths) -> dict[str, str]:
    job, done = train(paths)
    data = JobData.open(job)
    model = build_model(job.hp, data.prepared, pretrained=False)
    load_weights(model, *done.checkpoints)
    measured = {"time", "rows_per_second", "tokens_per_second", "padding_percent"}
    history = [{k: v for k, v in entry.items() if k not in measured} for entry in done.state.history]
    parts = {
        "ids": str(data.splits["test"].column("id").to_pylist()),
        "rows": str({name: len(split) for name, split in data.splits.items()}),
        "weights": {name: value.tolist() for name, value in model.state_dict().items()},
        "logits": {name: value.tolist() for name, value in done.logits.items()},
        "history": history,
        "checkpoints": sorted(path.name for path in paths.checkpoints.glob("*.ckpt")),
        "onnx": input_names(model, job.hp),
    }
    return {name: hashlib.sha256(json.dumps(part).encode()).hexdigest() for name, part in parts.items()}


def test_the_same_settings_give_the_same_outcome(outcome_of):
    again = {**ONE, "log_every_n_steps": CONFIGURATION["log_every_n_steps"]}
    assert outcome_of(ONE) == outcome_of(again)


@pytest.mark.parametrize("name", CHANGES)
def test_it_changes_the_outcome(outcome_of, name):
    base, change = CHANGES[name]
    assert outcome_of(base) != outcome_of({**base, **change})


def test_balanced_weights_train_as_the_same_weights_given_by_hand(outcome_of):
    labels = [*frame(ROWS["train"], 0, 2)["label"], *frame(6, 7, 2)["label"]]
    given = [len(labels) / (2 * labels.count(label)) for label in (0, 1)]
    balanced = outcome_of({**ONE, "class_weights": "balanced"})
    assert balanced == outcome_of({**ONE, "class_weights": given}) != outcome_of(ONE)


def test_max_nonfinite_steps_bounds_the_skipped_steps(tmp_path):
    overrides = {"lr": 1e3, "optimizer": "SGD", "gradient_clip_val": 0, **CHECKED["max_nonfinite_steps"]}
    with pytest.raises(ContractError, match="for 1 optimizer steps in a row"):
        outcome(write_job(tmp_path, overrides=overrides))


@pytest.mark.parametrize("precision", [{}, {"fp16": True}], ids=str)
def test_a_run_that_skips_every_step_fails_also_if_it_has_fewer_than_max_nonfinite_steps(
    tmp_path, monkeypatch, precision
):
    nan = GradientNorm(torch.tensor(math.nan), None, torch.ones(()))
    monkeypatch.setattr(Gradients, "norm", lambda *_, **__: nan)
    paths = write_job(tmp_path, overrides={"batch_size": 32, "max_epochs": 1, "max_nonfinite_steps": 3, **precision})
    for _ in ("at the end", "after its checkpoint was resumed"):
        with pytest.raises(ContractError, match="was not finite in any of the 2 optimizer steps"):
            outcome(paths)


def test_the_weights_of_the_best_validation_are_evaluated_not_the_last(tmp_path):
    overrides = {
        **LONG,
        "max_epochs": 6,
        "lr": 0.5,
        "seed": 1,
        "run_scheduler": False,
        "early_stop_metric": "val/auroc",
    }
    paths = write_job(tmp_path, overrides=overrides)
    job, done = train(paths)
    values = {entry["step"]: entry["val/auroc"] for entry in done.state.history if "val/auroc" in entry}
    assert done.state.best_step != done.state.step
    assert auroc_of_val(job, done) == max(values.values()) == done.state.best_value


def test_a_run_with_more_patience_resumes_after_an_early_stop(tmp_path):
    settings = {"max_epochs": 5, "lr": 1e-12, "early_stop_patience": 1}
    _, stopped = train(write_job(tmp_path, overrides=settings))
    assert (stopped.state.stopped_early, stopped.state.epoch) == (True, 2)
    _, longer = train(write_job(tmp_path, overrides={**settings, "early_stop_patience": 3}))
    assert longer.state.epoch == 4


@pytest.mark.parametrize("split", ["train", "val"])
def test_other_rows_do_not_resume_from_the_checkpoint_of_the_old_ones(tmp_path, split):
    paths = write_job(tmp_path)
    train(paths)
    frame_of_split = table(60 if split == "train" else 24, seed=0 if split == "train" else 1)
    write_table(frame_of_split.assign(label=1 - frame_of_split["label"]), paths.channel(split), "csv")
    with pytest.raises(ContractError, match="the prepared rows of "):
        train(paths)


def test_without_resume_the_checkpoints_are_removed_and_training_starts_over(tmp_path, caplog):
    paths = write_job(tmp_path)
    first = outcome(paths)
    caplog.set_level("INFO")
    assert outcome(paths) == first
    assert "resuming from" in caplog.text
    caplog.clear()
    write_job(tmp_path, overrides=CHECKED["resume"])
    assert outcome(paths) == first
    assert "resuming from" not in caplog.text
