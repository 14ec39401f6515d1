"""How a vector is made of each chunk: the mean of its tokens, the same packed, padded and exported."""

import pytest
import torch

from container.export.onnx import export_onnx
from container.models.build import build_classifier
from container.models.encoder import MeanPooler
from testing.encoder_families import hyperparameters, packed_batch, standard_transform, write_config

CHUNKS = [[5], [9, 3], [4]]


def build(folder, family="bert", **values):
    hp = hyperparameters(pooling="mean", **values)
    files = [write_config(folder / family, family)]
    return hp, build_classifier(hp, files, tabular_dim=0, numeric_transform=standard_transform(0)).eval()


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert", "deberta-v2"])
def test_a_chunk_s_vector_is_the_mean_of_its_tokens(tmp_path, family):
    _, model = build(tmp_path, family)
    encoder, text = model.branches["text"].encoder, packed_batch(CHUNKS).texts[0]
    states = encoder.token_states(text).split(text.lengths)
    torch.testing.assert_close(encoder(text), torch.stack([chunk.mean(0) for chunk in states]))


def test_it_has_nothing_to_train(tmp_path):
    _, model = build(tmp_path)
    assert isinstance(model.branches["text"].encoder.pooler, MeanPooler)
    assert not [name for name in model.state_dict() if "pooler" in name]


def test_a_record_has_the_same_logits_beside_others(tmp_path):
    _, model = build(tmp_path)
    model = model.double()
    alone, together = model(packed_batch(CHUNKS[:1])), model(packed_batch(CHUNKS))  # of the same first record
    torch.testing.assert_close(together[:1], alone, rtol=1e-12, atol=1e-12)


def test_the_exported_graph_gives_the_same_probabilities(tmp_path):
    hp, model = build(tmp_path)
    report = export_onnx(model, hp, tmp_path / "model.onnx", samples=[packed_batch(CHUNKS)])
    assert report.max_difference < 1e-5
