"""Embedded categories: their codes, the vector of rare and unseen ones, and that they go wherever the model goes."""

import numpy as np
import onnxruntime
import pytest
import torch

from container.export.onnx import export_onnx
from container.models.build import build_classifier
from container.models.tabular import CategoryEmbedding
from container.predictor import Predictor
from container.preprocessing.fitted import FittedPreprocessing
from contracts.errors import ContractError
from testing.encoder_families import hyperparameters, packed_batch, standard_transform, write_config
from testing.jobs import table as job_table
from testing.table_jobs import fit, settings, table

EMBEDDED = {"category_embedding_dim": 4, "category_embedding_min_count": 3}


def fitted_on(folder, categories, **overrides):
    return fit(folder, table(len(categories), c=categories), settings(**{**EMBEDDED, **overrides}))[0]


def test_frequent_categories_have_codes_of_their_own_and_rare_unseen_and_other_ones_share_0(tmp_path):
    preprocessor = fitted_on(tmp_path, ["a"] * 10 + ["b"] * 10 + ["rare"] * 2 + [None] * 3)
    assert preprocessor.fitted.embedded_categories == {"c": ("", "a", "b")}
    assert preprocessor.fitted.num_codes == (4,)
    prepared = preprocessor.transform(table(6, c=["b", "rare", None, "never seen", "", "a"])).batch
    assert [row[-1] for row in prepared["tabular"].to_pylist()] == [3, 0, 1, 0, 1, 2]


def test_the_codes_travel_in_preprocessing_json_and_belong_to_their_column(tmp_path):
    fitted = fitted_on(tmp_path, ["a"] * 10 + ["b"] * 10).fitted
    assert fitted.feature_columns == ["x", "y", "c", "c_code"]
    assert fitted.tabular_places == {"x": (0,), "y": (1,), "c": (2, 3)}
    fitted.save(tmp_path / "model")
    assert FittedPreprocessing.load(tmp_path / "model") == fitted


def test_of_a_risk_table_given_without_counts_every_category_is_frequent(tmp_path):
    given = {"c": {"risk": {"a": 0.5, "elsewhere": 0.1}, "default_risk": 0.2}}
    fitted = fitted_on(tmp_path, ["a"] * 20, risk_tables=given).fitted
    assert fitted.embedded_categories == {"c": ("a", "elsewhere")}


def test_without_it_preprocessing_is_what_it_was(tmp_path):
    fitted = fitted_on(tmp_path, ["a"] * 20, category_embedding_dim=0, category_embedding_min_count=5).fitted
    assert fitted.embedded_categories == {}
    assert fitted.feature_columns == ["x", "y", "c"]


def test_each_column_has_vectors_of_its_own_and_that_of_unseen_categories_starts_as_zeros():
    embedding = CategoryEmbedding((3, 2), 5)
    assert embedding.table.weight.shape == (5, 5)
    vectors = embedding(torch.tensor([[0.0, 0.0], [2.0, 1.0]]))
    assert torch.equal(vectors[0], torch.zeros(2, 5))
    assert torch.equal(vectors[1], embedding.table.weight[[2, 4]])


@pytest.mark.parametrize(
    ("model_class", "numeric_embedding"),
    [("multimodal_bert", "none"), ("multimodal_cross_attn", "piecewise_linear")],
)
def test_the_exported_graph_gives_the_same_probabilities_and_depends_on_the_codes(
    tmp_path, model_class, numeric_embedding
):
    hp = hyperparameters(
        model_class=model_class, tab_field_list=["x"], cat_field_list=["c"], numeric_embedding=numeric_embedding,
        hidden_common_dim=8, **EMBEDDED,
    )  # fmt: skip
    files = [write_config(tmp_path / "bert", "bert", num_hidden_layers=1)]
    model = build_classifier(
        hp, files, tabular_dim=3, numeric_transform=standard_transform(2), num_codes=(300,)
    ).eval()  # fmt: skip
    batch = packed_batch([[5], [9, 3], [4], [6]], tabular_dim=3)
    batch.tabular[:, 2] = torch.tensor([0.0, 299.0, 257.0, 3.0])
    report = export_onnx(model, hp, tmp_path / "model.onnx", samples=[batch])
    assert report.max_difference < 1e-5
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    feed = {node.name: np.ones((1, 1, 2), np.int64) for node in session.get_inputs() if node.name != "tabular"}
    tables = (np.array([[0, 0, code]], np.float32) for code in (256, 257, 258))
    answers = {session.run(None, {**feed, "tabular": numbers})[0][0, 0].item() for numbers in tables}
    assert len(answers) == 3


def test_without_a_category_it_is_refused():
    with pytest.raises(ContractError, match="category_embedding_dim: is 4, but no category enters the model"):
        hyperparameters(model_class="multimodal_bert", tab_field_list=["x"], category_embedding_dim=4)


@pytest.mark.slow
def test_a_job_trains_the_vectors_and_serves_them(unusual_job):
    records = job_table(8, seed=5).drop(columns="label")
    onnx, pytorch = (
        Predictor.load(unusual_job.model, backend=backend).predict(records) for backend in ("onnx", "torch")
    )
    assert abs(onnx - pytorch).max() < 1e-4
    state = torch.load(unusual_job.model / "model.pth", weights_only=True)
    weight = state["tabular.categories.table.weight"]
    assert weight.shape[1] == 4
    assert weight.std() > 0
