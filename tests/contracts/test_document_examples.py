"""The example configurations that users have in hand, run as they are on data of their schema.

Only max_epochs is cut, and encoders that a hub would have are tiny folders of the same name in input/data/pretrained/.
"""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from contracts.paths import JobPaths
from testing.jobs import metrics, run_train, write_table
from tests.contracts.test_every_hyperparameter import pretrained_tiny

pytestmark = [pytest.mark.slow, pytest.mark.long]

FRAUD: dict[str, Any] = {
    "id_name": "message_id", "text_name": "dialogue_text", "label_name": "is_fraud", "batch_size": 32,
    "full_field_list": ["message_id", "dialogue_text", "is_fraud", "seller_rating", "price"],
    "cat_field_list": ["marketplace"], "tab_field_list": ["seller_rating", "price"],
    "categorical_features_to_encode": ["marketplace"], "max_sen_len": 512, "max_total_chunks": 5,
    "tokenizer": "bert-base-multilingual-cased", "hidden_common_dim": 128, "num_classes": 2, "is_binary": True,
    "model_class": "multimodal_bert", "max_epochs": 10, "lr": 2e-5, "optimizer": "AdamW", "class_weights": [1.0, 5.0],
    "early_stop_metric": "val/f1_score", "early_stop_patience": 3, "fp16": True,
    "metric_choices": ["auroc", "f1_score", "precision", "recall"],
}  # fmt: skip
SENTIMENT: dict[str, Any] = {
    "id_name": "order_id", "text_name": "review_text", "label_name": "sentiment", "batch_size": 64,
    "full_field_list": ["order_id", "review_text", "sentiment", "rating", "verified"], "cat_field_list": ["verified"],
    "tab_field_list": ["rating"], "categorical_features_to_encode": ["verified"], "max_sen_len": 256,
    "kernel_size": [3, 5, 7], "num_channels": [128, 128], "num_classes": 3, "is_binary": False,
    "multiclass_categories": ["positive", "neutral", "negative"], "model_class": "multimodal_cnn", "max_epochs": 15,
    "lr": 0.001, "optimizer": "Adam", "dropout_keep": 0.5, "early_stop_metric": "val/f1_score",
    "val_check_interval": 0.5, "metric_choices": ["auroc", "f1_score", "average_precision"],
}  # fmt: skip
TOPICS: dict[str, Any] = {
    "id_name": "doc_id", "text_name": "document", "label_name": "category", "batch_size": 16,
    "full_field_list": ["doc_id", "document", "category"], "cat_field_list": [], "tab_field_list": [],
    "max_sen_len": 512, "tokenizer": "bert-base-uncased", "num_classes": 5, "is_binary": False,
    "multiclass_categories": ["tech", "business", "sports", "politics", "entertainment"], "model_class": "bert",
    "max_epochs": 20, "lr": 3e-5, "optimizer": "AdamW", "adam_epsilon": 1e-8, "warmup_steps": 500,
    "reinit_pooler": True, "reinit_layers": 2, "gradient_clip_val": 1.0, "fp16": True, "early_stop_patience": 5,
}  # fmt: skip
PRIORITY: dict[str, Any] = {
    "id_name": "ticket_id", "text_name": "message", "label_name": "priority", "batch_size": 128,
    "full_field_list": ["ticket_id", "message", "priority", "response_time"], "cat_field_list": [],
    "tab_field_list": ["response_time"], "max_sen_len": 256, "tokenizer": "bert-base-uncased", "num_classes": 2,
    "is_binary": True, "model_class": "lstm", "num_layers": 2, "hidden_common_dim": 64, "max_epochs": 25, "lr": 0.01,
    "optimizer": "SGD", "momentum": 0.9, "dropout_keep": 0.6, "metric_choices": ["auroc", "f1_score"],
}  # fmt: skip
RISK: dict[str, Any] = {
    "id_name": "transaction_id", "text_name": "description", "label_name": "risk_level", "batch_size": 32,
    "full_field_list": ["transaction_id", "description", "risk_level", "amount", "frequency", "location"],
    "cat_field_list": ["location"], "tab_field_list": ["amount", "frequency"],
    "categorical_features_to_encode": ["location"], "max_sen_len": 512, "tokenizer": "bert-base-multilingual-cased",
    "hidden_common_dim": 256, "num_classes": 4, "is_binary": False,
    "multiclass_categories": ["low", "medium", "high", "critical"], "model_class": "multimodal_moe", "max_epochs": 30,
    "lr": 1e-4, "optimizer": "AdamW", "class_weights": [1.0, 2.0, 5.0, 10.0], "gradient_clip_val": 1.0, "fp16": True,
    "early_stop_metric": "val/f1_score", "early_stop_patience": 5, "val_check_interval": 0.25, "warmup_steps": 1000,
    "run_scheduler": True,
}  # fmt: skip
EXAMPLES = {"fraud": FRAUD, "sentiment": SENTIMENT, "topics": TOPICS, "priority": PRIORITY, "risk": RISK}
_WORDS = [letter * 4 for letter in "abcdefghijklmnop"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_configuration_of_the_documents_runs(name, tmp_path):
    configuration = EXAMPLES[name]
    paths = JobPaths(tmp_path)
    for seed, (split, rows) in enumerate({"train": 80, "val": 40, "test": 40}.items()):
        write_table(_generated(configuration, rows=rows, seed=seed), paths.channel(split), "csv")
    values = {**configuration, "max_epochs": 1}
    # The documents' CNN names no encoder: its default is a hub's, of which the words and their embeddings are used.
    pretrained_tiny(paths.pretrained / values.setdefault("tokenizer", "bert-base-cased"))
    paths.config.mkdir(parents=True)
    text = json.dumps({name: json.dumps(value) for name, value in values.items()})
    (paths.config / "hyperparameters.json").write_text(text)
    log = run_train(paths)
    assert isinstance(metrics(paths)["test/f1_score"], float)
    assert "fixed_tokenizer_length" not in log


def _generated(configuration: dict[str, Any], *, rows: int, seed: int) -> pd.DataFrame:
    """Columns as the configuration names them; the label shows in the text and in the first number."""
    rng = np.random.default_rng(seed)
    labels = configuration.get("multiclass_categories", [0, 1])
    label = np.arange(rows) % len(labels)
    frame = pd.DataFrame({configuration["id_name"]: [f"{seed}-{i}" for i in range(rows)]})
    texts = [" ".join([*rng.choice(_WORDS, rng.integers(3, 40)), *[_WORDS[y]] * 3]) for y in label]
    frame[configuration["text_name"]] = texts
    frame[configuration["label_name"]] = [labels[y] for y in label]
    for column in configuration["tab_field_list"]:
        frame[column] = np.round(rng.normal(label, 1.0), 2)
    for column in configuration["cat_field_list"]:
        frame[column] = rng.choice(["a", "b", "c"], rows)
    return frame
