import numpy as np
import pytest
import torch

from container.data.batch import PackedBatch
from container.decision.softmax import softmax
from container.training.objective import WeightedCrossEntropy
from container.training.predict import weighted_log_loss


def batch(labels, weights=None):
    count = len(labels)
    return PackedBatch(
        texts=(),
        tabular=torch.zeros(count, 0),
        labels=torch.tensor(labels),
        rows=torch.arange(count),
        weights=torch.tensor(weights or [1.0] * count),
    )


def test_the_summed_loss_over_its_weights_is_torch_s_weighted_cross_entropy():
    logits, labels = torch.randn(6, 3, dtype=torch.float64), [0, 2, 1, 1, 0, 2]
    objective = WeightedCrossEntropy([1.0, 2.0, 5.0], torch.device("cpu"))
    ours = objective(logits, batch(labels)) / objective.record_weights(batch(labels)).sum()
    weights = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    torch.testing.assert_close(ours, torch.nn.functional.cross_entropy(logits, torch.tensor(labels), weight=weights))


def test_unlabelled_and_filling_records_weigh_nothing():
    logits = torch.randn(3, 2)
    objective = WeightedCrossEntropy([1.0, 2.0], torch.device("cpu"))
    padded = batch([1, -100, 0], [1.0, 1.0, 0.0])
    assert objective.record_weights(padded).tolist() == [2.0, 0.0, 0.0]
    assert objective(logits, padded).item() == pytest.approx(objective(logits[:1], batch([1])).item())


def test_the_reported_loss_equals_the_trained_one():
    logits, labels = np.random.default_rng(0).normal(size=(5, 2)), np.array([0, 1, 1, -100, 0])
    objective = WeightedCrossEntropy([1.0, 3.0], torch.device("cpu"))
    packed = batch(labels.tolist())
    trained = objective(torch.from_numpy(logits), packed) / objective.record_weights(packed).sum()
    assert weighted_log_loss(logits, labels, [1.0, 3.0]) == pytest.approx(trained.item())
    assert weighted_log_loss(logits, np.full(5, -100), [1.0, 3.0]) is None
    assert softmax(logits).sum(axis=1) == pytest.approx(np.ones(5))
