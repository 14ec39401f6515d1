"""Batches are filled to few shapes, and the filler changes nothing."""

from dataclasses import replace

import pytest
import torch

from container.data.filling import filled, rounded_up, shapes_of
from container.models.build import build_classifier
from container.training.objective import WeightedCrossEntropy
from contracts.model_classes import MODEL_CLASSES
from testing.encoder_families import MAX_LENGTH, hyperparameters, packed_batch, standard_transform, write_config

CHUNKS = [[5], [9, 3], [2], [60]]


def test_numbers_are_rounded_up_to_few_in_each_doubling():
    values = {rounded_up(count, per_doubling=4) for count in range(16, 33)}
    assert values == {16, 20, 24, 28, 32}
    assert all(rounded_up(count, per_doubling=16) >= count for count in range(1, 5000))


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 700, 4712, 23201])
def test_a_filled_text_has_valid_chunks_and_one_more_record(tokens):
    chunks = [[min(MAX_LENGTH, tokens - start)] for start in range(0, tokens, MAX_LENGTH)]
    batch = packed_batch(chunks)
    (text,) = filled(batch, [(MAX_LENGTH, 1)]).texts
    assert len(text.record_lengths) == len(chunks) + 1
    assert min(text.lengths) > 0
    assert max(text.lengths) <= MAX_LENGTH == text.longest_chunk
    assert text.longest_record >= max(text.record_lengths)
    assert sum(text.lengths) == len(text.tokens) == text.cu_seqlens[-1] == len(text.positions)
    assert len(text.tokens) == rounded_up(len(text.tokens), per_doubling=16)
    assert len(text.lengths) == rounded_up(len(text.lengths), per_doubling=2)


def test_batches_of_a_task_have_few_shapes_and_little_filling():
    random = torch.Generator().manual_seed(0)
    shapes, tokens, computed = set(), 0, 0
    for _ in range(200):
        lengths = torch.randint(8, MAX_LENGTH, (32,), generator=random).tolist()
        batch = filled(packed_batch([[length] for length in lengths]), [(MAX_LENGTH, 1)])
        shapes.add(shapes_of(batch))
        tokens, computed = tokens + batch.num_tokens, computed + len(batch.texts[0].tokens)
    assert len(shapes) < 20
    assert computed / tokens < 1.05


def test_filler_is_in_no_count():
    batch = packed_batch(CHUNKS, tabular_dim=3)
    full = filled(batch, [(MAX_LENGTH, 1)])
    assert len(full.rows) == len(batch.rows) + 1
    assert (full.num_records, full.num_tokens) == (batch.num_records, batch.num_tokens)
    objective = WeightedCrossEntropy([1.0, 2.0], torch.device("cpu"))
    assert objective.record_weights(full).tolist() == [*objective.record_weights(batch).tolist(), 0.0]


@pytest.mark.parametrize("name", MODEL_CLASSES)
@pytest.mark.parametrize("options", [{}, {"loss": "focal", "label_smoothing": 0.1}, {"targets": True}], ids=str)
def test_filling_changes_no_loss_gradient_or_prediction(tmp_path, name, options):
    with_targets = options.get("targets", False)
    settings = {key: value for key, value in options.items() if key != "targets"}
    hp = hyperparameters(model_class=name, **settings)
    columns = 0 if hp.architecture.table == "none" else 3
    files = [write_config(tmp_path / field.role, "bert") for field in hp.text_fields]
    torch.manual_seed(0)
    model = build_classifier(hp, files, tabular_dim=columns, numeric_transform=standard_transform(columns)).double()
    batch = packed_batch(*[CHUNKS] * len(hp.text_fields), tabular_dim=columns)
    batch = replace(batch, tabular=batch.tabular.double())
    if with_targets:
        batch = replace(batch, targets=torch.rand(len(batch.rows), 2, dtype=torch.float64).softmax(1))
    objective = WeightedCrossEntropy(
        [1.0, 2.0], torch.device("cpu"), focal_gamma=2 * (hp.loss == "focal"), label_smoothing=hp.label_smoothing,
        head=model.fusion,
    )  # fmt: skip
    results = []
    for each in (batch, filled(batch, [(MAX_LENGTH, 1)] * len(hp.text_fields))):
        logits = model(each)
        loss = objective(logits, each)
        gradients = torch.autograd.grad(loss, [weight for weight in model.parameters() if weight.requires_grad])
        results.append((loss, logits[: len(batch.rows)], *gradients))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
