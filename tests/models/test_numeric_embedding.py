"""Embeddings of numbers: what they compute, what is fitted, and that they are exported with the model."""

import itertools
import json

import numpy as np
import onnxruntime
import pytest
import torch

from container.export.onnx import export_onnx
from container.models.build import build_classifier
from container.models.tabular import NumericEmbedding, PiecewiseLinear, TabularBranch, TabularFields, scaled_edges
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.numeric_transform import NumericTransformParameters
from contracts.errors import ContractError
from testing.encoder_families import hyperparameters, packed_batch, write_config
from testing.table_jobs import fit, settings, table

BINS = ((-3.0, 0.0, 1.0, 4.0), (0.5, 2.0), (7.0,))
SCALED = NumericTransformParameters("standard", mean=(1.0, 0.0, 7.0), scale=(2.0, 1.0, 1.0), bins=BINS)


def paper_encoding(x, edges):
    """Equation 1 of Gorishniy et al., for a number within the edges."""
    encoded = []
    for low, high in itertools.pairwise(edges):
        encoded.append(0.0 if x < low else 1.0 if x >= high else (x - low) / (high - low))
    return encoded


@pytest.mark.parametrize("x", [-3.0, -1.2, 0.0, 0.4, 1.0, 3.9, 4.0])
def test_bins_are_passed_one_after_the_other(x):
    edges = torch.tensor([BINS[0]])
    assert PiecewiseLinear(edges)(torch.tensor([[x]]))[0, 0].tolist() == pytest.approx(paper_encoding(x, BINS[0]))


def test_beyond_the_range_of_train_a_number_counts_as_its_end():
    encoding = PiecewiseLinear(torch.tensor([BINS[0]]))
    low, least, most, high = encoding(torch.tensor([[-1e30], [-3.0], [4.0], [1e30]]))[:, 0]
    assert torch.equal(low, least)
    assert torch.equal(high, most)
    assert not torch.equal(least, most)


def test_columns_of_fewer_bins_are_filled_up_with_bins_that_are_always_0():
    edges = scaled_edges(SCALED)
    assert edges.tolist() == [[-2.0, -0.5, 0.0, 1.5], [0.5, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]]
    encoded = PiecewiseLinear(edges)(torch.tensor([[0.75, 1.25, 0.3]]))[0]
    assert encoded.tolist() == [[1.0, 1.0, 0.5], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("kind", [TabularBranch, TabularFields])
def test_a_table_of_constants_alone_says_the_same_of_every_record(kind):
    constant = NumericTransformParameters("standard", mean=(7.0,), scale=(1.0,), bins=((7.0,),))
    made = kind(1, 4, transform=constant, dropout=0.0, embedding=NumericEmbedding(scaled_edges(constant), width=4))
    first, second = made(torch.tensor([[7.0], [9.0]]))
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()


def test_each_column_has_a_linear_layer_of_its_own():
    torch.manual_seed(0)  # with some seeds, the second column is 0 for both
    embedding = NumericEmbedding(scaled_edges(SCALED), width=5)
    inputs = torch.tensor([[0.1, 0.7, 0.0], [0.1, 1.5, 0.0]])
    first, second = embedding(inputs)
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])
    assert torch.equal(first[2], torch.relu(embedding.bias.view(3, 5)[2]))  # a column of one value
    expected = torch.relu(embedding.encoding(inputs)[0, 1] @ embedding.weight[1] + embedding.bias.view(3, 5)[1])
    torch.testing.assert_close(first[1], expected)


def test_the_bins_of_train_are_its_distinct_quantiles_and_travel_in_preprocessing_json(tmp_path):
    hp = settings(numeric_embedding="piecewise_linear", numeric_embedding_bins=4)
    found = table(41, x=[float(i) for i in range(41)], y=[0] * 30 + [1] * 11)
    fitted = fit(tmp_path, found, hp)[0].fitted
    numbers, zeros_and_ones, risks = fitted.numeric_transform.bins
    assert numbers == (0.0, 10.0, 20.0, 30.0, 40.0)
    assert zeros_and_ones == (0.0, 1.0)
    assert 1 <= len(risks) <= 5
    fitted.save(tmp_path / "model")
    assert FittedPreprocessing.load(tmp_path / "model") == fitted
    assert json.loads((tmp_path / "model" / "preprocessing.json").read_text())["numeric_transform"]["bins"][1] == [0, 1]


def test_without_it_preprocessing_is_what_it_was(tmp_path):
    fitted = fit(tmp_path, table())[0].fitted
    assert fitted.numeric_transform.bins == ()
    assert "bins" not in fitted.numeric_transform.to_json()


@pytest.mark.parametrize("scaling", ["standard", "quantile", "none"])
def test_the_exported_graph_gives_the_same_probabilities(tmp_path, scaling):
    transform = NumericTransformParameters(
        scaling,
        mean=SCALED.mean,
        scale=SCALED.scale,
        quantiles=((-3.0, 0.0, 0.0, 4.0), (0.5, 1.0, 1.0, 2.0), (7.0, 7.0, 7.0, 7.0)) if scaling == "quantile" else (),
        bins=BINS,
    )
    hp = hyperparameters(
        model_class="multimodal_bert",
        tab_field_list=["x", "y", "z"],
        numeric_embedding="piecewise_linear",
        numeric_transform=scaling,
        numeric_embedding_dim=6,
    )
    files = [write_config(tmp_path / "bert", "bert", num_hidden_layers=1)]
    torch.manual_seed(0)
    model = build_classifier(hp, files, tabular_dim=3, numeric_transform=transform).eval()
    batch = packed_batch([[5], [9, 3], [4], [6]], tabular_dim=3)
    report = export_onnx(model, hp, tmp_path / "model.onnx", samples=[batch])
    assert report.max_difference < 1e-5
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    feed = {node.name: np.ones((4, 1, 2), np.int64) for node in session.get_inputs() if node.name != "tabular"}
    tables = (np.full((4, 3), value, np.float32) for value in (-100.0, 0.0, 1.0, 100.0))
    answers = {session.run(None, {**feed, "tabular": numbers})[0][0, 0].item() for numbers in tables}
    assert len(answers) >= 3


@pytest.mark.parametrize("other", [{"model_class": "bert"}, {"model_class": "multimodal_bert"}])
def test_without_a_table_it_is_refused(other):
    with pytest.raises(ContractError, match="numeric_embedding: is 'piecewise_linear', but no number or category"):
        hyperparameters(numeric_embedding="piecewise_linear", **other)
