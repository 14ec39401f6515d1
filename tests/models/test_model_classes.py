"""Every model class: a whole job, resumed, served by both backends; and one process's numbers under every strategy.

A class of one text reads two joined columns. Records have weights and, where the class reads a table, a date.
"""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from container.predictor import Predictor
from contracts.model_classes import MODEL_CLASSES
from testing.jobs import (
    DATE_AND_WEIGHT,
    JOINED_TEXTS,
    ONE_LAYER,
    TWO_TEXTS,
    dated_table,
    run_train,
    write_hyperparameters,
    write_job,
)
from testing.parity import TOLERANCE, ParityCheck, ParityJobs, Strategy
from testing.serving import bodies, read_records
from testing.tiers import long_except

pytestmark = pytest.mark.slow

ONE_TEXT = {**JOINED_TEXTS, "primary_text_name": None, "secondary_text_name": None}
THREE_CLASSES = {"is_binary": False, "num_classes": 3, "multiclass_categories": [0, 1, 2]}
# Small, and with something of everything: several layers, kernels, experts, heads.
SIZES = {
    "lstm": {"num_layers": 2, "dropout_keep": 1.0},
    "multimodal_cnn": {"kernel_size": [2, 3], "num_channels": [8, 6], "dropout_keep": 1.0},
    "multimodal_moe": {"num_experts": 3, "experts_per_record": 2, "fusion_hidden_dim": 8, "expert_balance": 0.1},
    "multimodal_cross_attn": {"fusion_attention_heads": 2},
    "trimodal_cross_attn": {"fusion_attention_heads": 2},
}
# With joined texts, the gradients of a bias nearly cancel, so float32 rounds them to 2e-5 of their sum.
BACKENDS = {"onnx": 1e-4, "torch": 1e-4, "openvino": 0.01}  # bfloat16, where the processor has it
ALONE = {"multimodal_cross_attn": {"text_name": JOINED_TEXTS["text_name"][0]}}
STRATEGIES = {
    "ddp": Strategy("ddp 2", 2, {"strategy": "ddp"}),
    "fsdp": Strategy("fsdp 2", 2, {"strategy": "fsdp"}),
    "tp": Strategy("tp 2", 2, {"strategy": "tp"}),
    "pp": Strategy("pp 2", 2, {"pp_size": 2, "pp_schedule": "InterleavedZeroBubble", "num_microbatches": 4}),
    "branch": Strategy("branch 2", 2, {"strategy": "branch"}),
}


def settings(name: str) -> dict[str, Any]:
    texts = ({**ONE_TEXT, "text_name": None}, ONE_TEXT, TWO_TEXTS)[MODEL_CLASSES[name].num_texts]
    return {**texts, **SIZES.get(name, {}), "model_class": name}


def _cells() -> list[tuple[str, str]]:
    """Model classes under the strategies that share them out."""
    cells = []
    for name, architecture in MODEL_CLASSES.items():
        words = architecture.encoder != "transformer"
        cells += [(name, strategy) for strategy in ("ddp", "fsdp", *(() if words else ("tp", "pp")))]
        cells += [(name, "branch")] if architecture.num_texts == 2 else []
    return [cell for cell in cells if cell[0] != "trimodal_bert"]  # that one is in test_parity.py


@pytest.mark.parametrize(
    ("name", "classes"),
    long_except([("multimodal_moe", 3)], [(name, classes) for name in MODEL_CLASSES for classes in (2, 3)]),
)
def test_a_job_of_every_class_trains_resumes_and_is_served_as_it_was_trained(name, classes, tmp_path):
    """Binary with a table, in two runs; of three classes without a table, where the class can do without one."""
    overrides = {**settings(name), **DATE_AND_WEIGHT, "max_epochs": 1, "encoder_config": ONE_LAYER}
    if classes == 3:
        overrides |= THREE_CLASSES
    if MODEL_CLASSES[name].table == "none" or (classes == 3 and MODEL_CLASSES[name].table == "optional"):
        overrides |= {"tab_field_list": [], "cat_field_list": [], "date_field_list": []}
        overrides["weight_name"] = None
    paths = write_job(tmp_path, overrides=overrides, classes=classes)
    run_train(paths)  # an export that does not agree with PyTorch fails it
    if classes == 2:
        write_hyperparameters(paths, {**overrides, "max_epochs": 2})
        assert "resuming from epoch=0-step=8.ckpt" in run_train(paths)
    trained = pd.read_csv(paths.output_data / "test_predictions.csv").filter(like="prob_class_").to_numpy()
    assert trained.shape == (24, classes)
    for backend, tolerance in BACKENDS.items():
        predictor = Predictor.load(paths.model, backend=backend)
        for content_type, body in bodies(dated_table(24, seed=2, classes=classes)).items():
            served = predictor.predict(read_records(body, content_type, predictor.feature_inputs))
            np.testing.assert_allclose(served, trained, atol=tolerance, err_msg=f"{backend} {content_type}")


@pytest.fixture(scope="module")
def check(rank_pool, tmp_path_factory):
    return ParityCheck(ParityJobs(rank_pool, tmp_path_factory.mktemp("classes")))


@pytest.mark.long
@pytest.mark.parametrize(("name", "strategy"), _cells())
def test_a_class_gives_one_processs_numbers_under_a_strategy(check, name, strategy):
    found = check.compare_sgd(STRATEGIES[strategy], {**settings(name), **ALONE.get(name, {})})
    assert found.value <= TOLERANCE, found
