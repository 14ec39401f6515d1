"""The loss and its options, beside torch's cross entropy and the formulas of the papers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from container.data.batch import PackedBatch
from container.decision.softmax import softmax
from container.preprocessing.class_weights import resolve_class_weights
from container.training.objective import WeightedCrossEntropy
from container.training.predict import weighted_log_loss
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from testing.jobs import CONFIGURATION

LABELS = [0, 2, 1, 1, 0, 2]
WEIGHTS = [1.0, 2.0, 5.0]


def hyperparameters(**overrides):
    return parse_hyperparameters({**CONFIGURATION, **overrides})


def batch(labels, weights=None):
    count = len(labels)
    return PackedBatch(
        texts=(),
        tabular=torch.zeros(count, 0),
        labels=torch.tensor(labels),
        rows=torch.arange(count),
        weights=torch.tensor(weights or [1.0] * count),
    )


def mean_loss(logits, labels, **options):
    objective = WeightedCrossEntropy(WEIGHTS, torch.device("cpu"), **options)
    return objective(logits, batch(labels)) / objective.record_weights(batch(labels)).sum()


@pytest.fixture
def logits():
    return torch.randn(len(LABELS), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_the_smoothed_loss_is_torch_s_cross_entropy(logits, smoothing):
    expected = torch.nn.functional.cross_entropy(
        logits,
        torch.tensor(LABELS),
        weight=torch.tensor(WEIGHTS, dtype=torch.float64),
        label_smoothing=smoothing,
    )
    torch.testing.assert_close(mean_loss(logits, LABELS, label_smoothing=smoothing), expected)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_the_focal_loss_is_that_of_its_paper(logits, gamma):
    p = logits.softmax(1)[range(len(LABELS)), LABELS]
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)[LABELS]
    expected = (weights * (1 - p) ** gamma * -p.log()).sum() / weights.sum()
    torch.testing.assert_close(mean_loss(logits, LABELS, focal_gamma=gamma), expected)


def test_focal_and_smoothed_the_loss_approaches_the_smoothed_one_as_gamma_vanishes(logits):
    smoothed = mean_loss(logits, LABELS, label_smoothing=0.2)
    torch.testing.assert_close(mean_loss(logits, LABELS, label_smoothing=0.2, focal_gamma=1e-9), smoothed)
    assert mean_loss(logits, LABELS, label_smoothing=0.2, focal_gamma=2.0) < smoothed


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_a_record_that_is_certain_gives_a_finite_gradient(gamma):
    logits = torch.tensor([[200.0, -200.0, 0.0]], requires_grad=True)
    mean_loss(logits, [0], focal_gamma=gamma).backward()
    assert logits.grad.isfinite().all()
    logits.grad = None
    mean_loss(logits, [1], focal_gamma=gamma).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 1] < 0


@pytest.mark.parametrize("options", [{}, {"focal_gamma": 2.0}, {"label_smoothing": 0.1}])
def test_unlabelled_and_filling_records_weigh_nothing_with_any_option(logits, options):
    objective = WeightedCrossEntropy(WEIGHTS, torch.device("cpu"), **options)
    padded = batch([1, -100, 0], [1.0, 1.0, 0.0])
    assert objective.record_weights(padded).tolist() == [2.0, 0.0, 0.0]
    torch.testing.assert_close(objective(logits[:3], padded), objective(logits[:1], batch([1])))


@pytest.mark.parametrize("options", [{}, {"focal_gamma": 2.0}, {"label_smoothing": 0.1}])
def test_targets_add_a_cross_entropy_in_which_a_class_has_its_weight_by_the_label_alone(logits, options):
    targets = torch.randn(len(LABELS), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).softmax(1)
    objective = WeightedCrossEntropy(WEIGHTS, torch.device("cpu"), **options)
    plain = batch(LABELS)
    of_records = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    expected = (objective(logits, plain) + (of_records * objective.record_weights(plain)).sum()) / 2
    torch.testing.assert_close(objective(logits, replace(plain, targets=targets)), expected)


def test_unlabelled_and_filling_records_weigh_nothing_with_targets(logits):
    objective = WeightedCrossEntropy(WEIGHTS, torch.device("cpu"))
    targets = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    padded = replace(batch([1, -100, 0], [1.0, 1.0, 0.0]), targets=targets)
    alone = replace(batch([1]), targets=targets[:1])
    torch.testing.assert_close(objective(logits[:3], padded), objective(logits[:1], alone))


def test_the_reported_loss_equals_the_trained_one():
    logits, labels = np.random.default_rng(0).normal(size=(5, 2)), np.array([0, 1, 1, -100, 0])
    objective = WeightedCrossEntropy([1.0, 3.0], torch.device("cpu"))
    packed = batch(labels.tolist(), [1.0, 0.0, 2.5, 1.0, 0.5])
    trained = objective(torch.from_numpy(logits), packed) / objective.record_weights(packed).sum()
    assert weighted_log_loss(logits, labels, [1.0, 3.0], packed.weights.numpy()) == pytest.approx(trained.item())
    assert weighted_log_loss(logits, np.full(5, -100), [1.0, 3.0], np.ones(5)) is None
    assert softmax(logits).sum(axis=1) == pytest.approx(np.ones(5))


def test_balanced_weights_give_each_class_the_same_share(caplog):
    hp = hyperparameters(class_weights="balanced")
    counts = {"no": 90, "yes": 10}
    caplog.set_level("INFO")
    weights = resolve_class_weights(hp, ["no", "yes"], {"splits": {"train": {"classes": counts}}})
    assert weights == pytest.approx([100 / 180, 5.0])
    assert [weight * count for weight, count in zip(weights, counts.values())] == pytest.approx([50, 50])
    assert "'yes' 5 (10 rows)" in caplog.text


def test_a_class_without_rows_cannot_be_balanced():
    hp = hyperparameters(class_weights="balanced", is_binary=False, num_classes=3, multiclass_categories=[0, 1, 2])
    with pytest.raises(ContractError, match="class_weights: is 'balanced', but no training row has the label 2"):
        resolve_class_weights(hp, [0, 1, 2], {"splits": {"train": {"classes": {"0": 4, "1": 6, "2": 0}}}})


def test_given_weights_are_taken_and_none_are_all_one():
    assert resolve_class_weights(hyperparameters(class_weights=[1.0, 3.0]), [0, 1], {}) == [1.0, 3.0]
    assert resolve_class_weights(hyperparameters(), [0, 1], {}) == [1.0, 1.0]
