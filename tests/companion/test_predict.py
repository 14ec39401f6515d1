"""The logits of a split by the companion: in its order, in batches of limited size; and the rows of the blend."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from container.companion import predict as prediction
from container.companion.blend import try_blend
from container.companion.graph import Companion
from container.companion.predict import predict
from container.data.records import onnx_inputs, onnx_inputs_of_all
from container.results import companion as module
from container.results.companion import Combined
from container.training.job_data import JobData
from testing.companions import FIELD, Split, fitted, rows
from testing.encoder_families import hyperparameters


def test_inputs_of_all_records_are_those_of_each():
    part = rows(50)
    chosen = np.array([7, 3, 40])
    expected = onnx_inputs([FIELD], [part] * 3, chosen.tolist())
    found = onnx_inputs_of_all([FIELD], part.take(chosen))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("most_tokens", [1, 300, 10**6])
def test_predictions_have_the_order_of_the_split_for_any_size_of_batches(most_tokens, monkeypatch):
    monkeypatch.setattr(prediction, "_MOST_TOKENS", most_tokens)
    companion, parts = fitted(rows(200)).companion, (rows(60, seed=1), rows(1, seed=2), rows(33, seed=3))
    sizes = []

    def counted(inputs):
        sizes.append(inputs[FIELD.input_ids_key].size)
        assert sizes[-1] <= most_tokens or len(inputs[FIELD.input_ids_key]) == 1
        return companion(inputs)

    logits, scores = predict(cast(Companion, counted), parts, [FIELD])
    assert (len(sizes) == 94) == (most_tokens == 1)
    assert (len(sizes) == 3) == (most_tokens == 10**6)
    expected = [companion(onnx_inputs([FIELD], [part], [i])) for part in parts for i in range(len(part.row))]
    np.testing.assert_array_equal(scores, np.concatenate([each for _, each in expected]))
    np.testing.assert_allclose(logits, np.concatenate([each for each, _ in expected]), atol=1e-6)


def test_the_blend_of_a_large_val_is_fitted_on_a_sample(monkeypatch):
    used = []

    def keep(network, companion, labels, **given):
        used.append(given["units"])
        return try_blend(network, companion, labels, **given)

    monkeypatch.setattr(module, "MOST_ROWS", 80)
    monkeypatch.setattr(module, "try_blend", keep)
    val = rows(300, seed=1)
    splits = {"val": Split(val), "test": Split(rows(3, seed=2))}
    data = cast(JobData, SimpleNamespace(splits=splits, class_weights=[1.0, 1.0]))
    network = {name: np.zeros((len(split), 2), np.float32) for name, split in splits.items()}
    found = module._blend(hyperparameters(), data, fitted(rows(200)), Combined(None, network))
    (sample,) = used
    assert len(set(sample.tolist())) == 80
    assert np.ptp(sample) > 200
    assert found.report is not None
    assert found.logits["val"].shape == (300, 2)
