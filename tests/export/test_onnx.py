"""model.onnx gives PyTorch's probabilities for every family, every class and every shape."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx_ir.serde import deserialize_model, serialize_model
from transformers.models.bert.modeling_bert import BertLayer

from container.data.batch import PackedBatch
from container.data.split import PreparedSplit
from container.export import onnx as export
from container.export.artifacts import parity_batches
from container.export.onnx import OnnxReport, check_parity, export_onnx
from container.models.attention import DenseLayout
from container.models.build import build_classifier
from container.models.classifier import Classifier
from container.models.ensemble import Ensemble
from container.models.families import encoder_family
from container.preprocessing.numeric_transform import NumericTransformParameters
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from testing.encoder_families import (
    MAX_LENGTH,
    hyperparameters,
    packed_batch,
    standard_transform,
    write_config,
)
from testing.jobs import REPOSITORY
from testing.tiers import long_except
from tests.export.test_variants import run

QUANTILE = NumericTransformParameters(
    "quantile", quantiles=((-3.0, 0.0, 0.0, 3.0), (-1.0, 0.0, 1.0, 2.0), (-5.0, 1.0, 2.0, 9.0))
)


@dataclass(frozen=True)
class Case:
    """One exported model; together the cases cover families, classes, kinds of label and the table."""

    model_class: str
    families: tuple[str, ...]
    num_classes: int = 2
    transform: NumericTransformParameters = standard_transform(0)  # noqa: RUF009

    @property
    def tabular_dim(self) -> int:
        return max(len(self.transform.mean), len(self.transform.quantiles))


CASES = {
    "bert": Case("bert", ("bert",)),
    "roberta": Case("multimodal_bert", ("roberta",), 3, standard_transform(4)),
    "xlm-roberta, distilbert": Case("trimodal_bert", ("xlm-roberta", "distilbert"), 2, standard_transform(1)),
    "electra, albert": Case("trimodal_bert", ("electra", "albert"), 3),
    "modernbert": Case("multimodal_bert", ("modernbert",), 2, QUANTILE),
    "mpnet": Case("bert", ("mpnet",), 3),
    "lstm": Case("lstm", ("bert",), 3),
    "lstm and a table": Case("lstm", ("electra",), 2, standard_transform(2)),
    "cnn": Case("multimodal_cnn", ("bert",), 2, standard_transform(2)),
    "gate": Case("multimodal_gate_fusion", ("bert",), 3, standard_transform(3)),
    "experts": Case("multimodal_moe", ("bert",), 2, standard_transform(3)),
    "cross attention, table": Case("multimodal_cross_attn", ("bert",), 2, standard_transform(3)),
    "gates": Case("trimodal_gate_fusion", ("bert", "roberta"), 2, standard_transform(3)),
    "cross attention, texts": Case("trimodal_cross_attn", ("bert", "mpnet"), 3, standard_transform(3)),
    "deberta-v2": Case("multimodal_bert", ("deberta-v2",), 2, NumericTransformParameters("none")),
}

# Their modules are those of other cases, or nearly so.
LONG = ("lstm", "gate", "roberta", "mpnet", "xlm-roberta, distilbert", "electra, albert")

# Chunk lengths of each record: one of everything, the longest chunk, records of unlike numbers of chunks.
SHAPES = [[[2]], [[MAX_LENGTH]], [[3], [2]], [[4, 2, 9]], [[7, 30], [2], [5, 5, 5, 5]]]


@dataclass(frozen=True)
class Exported:
    case: Case
    hp: Hyperparameters
    model: Any  # Classifier or Ensemble
    path: Path
    report: OnnxReport


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    made: dict[str, Exported] = {}

    def export_once(name: str) -> Exported:
        if name not in made:
            made[name] = _export(CASES[name], tmp_path_factory.mktemp("onnx"))
        return made[name]

    return export_once


def _build(case: Case, folder: Path, **values: Any) -> tuple[Hyperparameters, Classifier]:
    hp = hyperparameters(model_class=case.model_class, num_classes=case.num_classes, **values)
    # Three equal layers are traced once; the last one computes first tokens only. ModernBERT: a global, a local layer.
    layers = {family: 4 if encoder_family(family).equal_layers else 1 for family in case.families} | {"modernbert": 2}
    files = [
        write_config(folder / family, family, num_hidden_layers=layers[family], n_layers=layers[family])
        for family in case.families
    ]
    return hp, build_classifier(hp, files, tabular_dim=case.tabular_dim, numeric_transform=case.transform)


def _batch(case: Case, chunks: list[list[int]], *, seed: int = 0) -> PackedBatch:
    texts = [chunks, [[length + 1 for length in reversed(lengths)][:2] for lengths in chunks]]
    texts = [[[min(length, MAX_LENGTH) for length in lengths] for lengths in text] for text in texts]
    return packed_batch(*texts[: len(case.families)], tabular_dim=case.tabular_dim, seed=seed)


def _export(case: Case, folder: Path, *, networks: int = 1) -> Exported:
    hp, model = _build(case, folder)
    if networks > 1:
        model = Ensemble([model, *(_build(case, folder)[1] for _ in range(networks - 1))])
    report = export_onnx(model, hp, folder / "model.onnx", samples=[_batch(case, [[5, 9], [12], [3]])])
    return Exported(case, hp, model.eval(), folder / "model.onnx", report)


def _feed(made: Exported, batch: PackedBatch) -> dict[str, np.ndarray]:
    """Padded inputs under the names of the contract, written out by hand."""
    feed = {}
    for field, text in zip(made.hp.text_fields, batch.texts):
        records = [[] for _ in batch.rows]
        for owner, chunk in zip(text.chunk_record.tolist(), text.tokens.split(text.lengths)):
            records[owner].append(chunk.numpy())
        shape = (len(records), max(map(len, records)), max(text.lengths))
        input_ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row, chunks in enumerate(records):
            for place, chunk in enumerate(chunks):
                input_ids[row, place, : len(chunk)] = chunk
                mask[row, place, : len(chunk)] = 1
        feed[field.input_ids_key], feed[field.attention_mask_key] = input_ids, mask
    if made.case.tabular_dim:
        feed["tabular"] = batch.tabular.numpy()
    return feed


@pytest.mark.parametrize("name", long_except([name for name in CASES if name not in LONG], CASES))
def test_probabilities_equal_pytorchs_for_every_shape(exported: Callable[[str], Exported], name: str) -> None:
    made = exported(name)
    for seed, chunks in enumerate(SHAPES):
        batch = _batch(made.case, chunks, seed=seed)
        with torch.no_grad():
            expected = made.model(batch).softmax(-1).numpy()
        found = run(made.path, _feed(made, batch))
        assert found.shape == (len(chunks), made.case.num_classes)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    assert np.ptp(found[:, 0]) > 1e-3  # records differ, so that equality says something


@pytest.mark.parametrize("name", long_except([name for name in CASES if name not in LONG], CASES))
def test_no_record_gives_no_probabilities(exported: Callable[[str], Exported], name: str) -> None:
    made = exported(name)
    one = _feed(made, _batch(made.case, [[5, 9]]))
    for chunks, length in ((2, 9), (1, 1), (0, 9), (2, 0), (0, 0)):
        feed = {
            key: np.zeros((0, chunks, length) if array.ndim == 3 else (0, array.shape[1]), array.dtype)
            for key, array in one.items()
        }
        found = run(made.path, feed)
        assert (found.shape, found.dtype) == ((0, made.case.num_classes), np.float32)


@pytest.mark.parametrize("name", long_except([name for name in CASES if name not in LONG], CASES))
def test_inputs_and_output_bear_the_names_of_the_contract(exported: Callable[[str], Exported], name: str) -> None:
    made = exported(name)
    session = onnxruntime.InferenceSession(str(made.path), providers=["CPUExecutionProvider"])
    two = len(made.case.families) == 2
    names = ["input_ids", "attention_mask"]
    if two:
        names = [f"{role}_{name}" for role in ("primary", "secondary") for name in names]
    table = ["tabular"] if made.case.tabular_dim else []
    assert [entry.name for entry in session.get_inputs()] == names + table
    assert [entry.type for entry in session.get_inputs()] == ["tensor(int64)"] * len(names) + ["tensor(float)"] * len(
        table
    )
    features = [f"features.{role}" for role in (("primary", "secondary") if two else ("text",))]
    assert [entry.name for entry in session.get_outputs()] == ["probabilities", *features]
    for entry in session.get_inputs()[: len(names)]:
        assert all(isinstance(size, str) for size in entry.shape), "every size of a text is free"


def test_keys_of_the_inputs_follow_the_hyperparameters(tmp_path: Path) -> None:
    hp, model = _build(CASES["bert"], tmp_path, text_input_ids_key="ids", text_attention_mask_key="seen", max_sen_len=4)
    export_onnx(model, hp, tmp_path / "model.onnx", samples=[_batch(CASES["bert"], [[4, 3], [2]])])
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert [entry.name for entry in graph.input] == ["ids", "seen"]


def test_a_file_holds_its_weights_its_labels_and_no_path_of_this_machine(exported: Callable[[str], Exported]) -> None:
    made = exported("roberta")
    files = {path.name for path in made.path.parent.iterdir() if path.is_file()}
    assert files == {"model.onnx", "model.head.onnx"}
    assert made.report.num_bytes == made.path.stat().st_size
    metadata = {entry.key: entry.value for entry in onnx.load(made.path).metadata_props}
    assert metadata == {"model_class": "multimodal_bert", "num_classes": "3", "class_labels": '["c0", "c1", "c2"]'}
    assert b"site-packages" not in made.path.read_bytes()


def test_weights_beyond_what_one_file_can_hold_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "LARGEST_FILE", 1000)
    made = _export(CASES["bert"], tmp_path)
    data = tmp_path / "model.onnx.data"
    assert 1000 < data.stat().st_size < made.report.num_bytes
    batch = _batch(made.case, [[5]])
    with torch.no_grad():
        expected = made.model(batch).softmax(-1).numpy()
    np.testing.assert_allclose(run(made.path, _feed(made, batch)), expected, atol=1e-5)
    data.unlink()  # the head has its own weights
    onnxruntime.InferenceSession(str(tmp_path / "model.head.onnx"), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", ["bert", "cross attention, table"])
def test_the_head_computes_the_probabilities_from_the_features(exported: Callable[[str], Exported], name: str) -> None:
    made = exported(name)
    feed = _feed(made, _batch(made.case, [[5], [9, 3]]))
    whole = onnxruntime.InferenceSession(str(made.path), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in whole.get_outputs()]
    outputs = dict(zip(names, whole.run(names, feed)))
    path = made.path.with_name("model.head.onnx")
    head = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {entry.name: (outputs | feed)[entry.name] for entry in head.get_inputs()}
    (scores,) = head.run(["scores"], given)
    found = torch.from_numpy(scores).softmax(-1).numpy()
    np.testing.assert_allclose(found, outputs["probabilities"], atol=1e-6)
    assert path.stat().st_size < made.report.num_bytes / 2  # it has no encoder


def test_the_check_covers_padding_to_spare_and_a_record_alone(exported: Callable[[str], Exported]) -> None:
    made = exported("bert")
    assert made.report.shapes == ((3, 2, 12), (2, 3, 15), (1, 2, 9))
    assert made.report.max_difference < 1e-5


def test_the_check_compares_records_from_the_whole_split_in_batches_of_similar_lengths() -> None:
    class Split:
        """A hundred records, of which every second is long."""

        def __len__(self) -> int:
            return 100

        def token_counts(self, positions: np.ndarray) -> np.ndarray:
            return np.where(positions % 2, 90, 5)

        def pack(self, positions: np.ndarray) -> np.ndarray:
            return positions

    batches = parity_batches(cast(PreparedSplit, Split()))
    assert [len(np.unique(np.asarray(batch) % 2)) for batch in batches] in ([1, 1, 2], [1, 2, 1], [2, 1, 1])
    records = np.sort(np.concatenate([np.asarray(batch) for batch in batches]))
    assert (len(records), records[0], records[-1]) == (24, 0, 99)
    assert np.diff(records).max() <= 5


def test_all_layers_of_an_exported_encoder_share_one_attention_bias_per_window() -> None:
    layout = DenseLayout(torch.tensor([[1, 1, 0]]))
    query = torch.randn(1, 2, 3, 4)
    for window in (None, 1, None, 1):
        layout.attend(query, query, query, scale=None, window=window)
    assert list(layout.biases) == [None, 1]
    assert torch.equal(layout.biases[None][0, 0, 0] == 0, torch.tensor([True, True, False]))


def test_a_file_that_disagrees_with_the_model_is_an_error(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    made = exported("bert")
    _, other = _build(made.case, tmp_path, seed=1)
    with pytest.raises(RuntimeError, match="a probability differs from PyTorch's by"):
        check_parity(other.eval(), made.hp, made.path, samples=[_batch(made.case, [[5]])])


def test_a_failed_export_leaves_the_earlier_file_alone(tmp_path: Path) -> None:
    case = replace(CASES["roberta"], families=("bert",))
    hp, model = _build(case, tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"earlier")
    batch = _batch(case, [[5]])
    broken = replace(batch, tabular=batch.tabular * float("nan"))
    with pytest.raises(RuntimeError, match="a probability differs"):
        export_onnx(model, hp, tmp_path / "model.onnx", samples=[broken])
    assert (tmp_path / "model.onnx").read_bytes() == b"earlier"
    assert {path.name for path in tmp_path.iterdir()} == {"bert", "model.onnx"}


def test_an_encoder_that_cannot_be_exported_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no operator")

    hp, model = _build(CASES["lstm"], tmp_path)
    monkeypatch.setattr(torch.onnx, "export", fail)
    with pytest.raises(ContractError, match="of the family lstm cannot be exported: no operator"):
        export_onnx(model, hp, tmp_path / "model.onnx", samples=[_batch(CASES["lstm"], [[5]])])


def test_a_deeper_encoder_is_not_traced_more_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced, forward = [], BertLayer.forward
    monkeypatch.setattr(BertLayer, "forward", lambda layer, *args, **named: (
        traced[-1].add(id(layer)) if torch.compiler.is_exporting() else None, forward(layer, *args, **named)
    )[1])  # fmt: skip
    for depth in (4, 7):
        traced.append(set[int]())
        hp = hyperparameters(model_class="bert", num_classes=2)
        files = [write_config(tmp_path / str(depth), "bert", num_hidden_layers=depth)]
        model = build_classifier(hp, files, tabular_dim=0, numeric_transform=standard_transform(0))
        export_onnx(model, hp, tmp_path / "model.onnx", samples=[packed_batch([[5, 9]])])
    assert [len(each) for each in traced] == [2, 2]  # one of the equal layers, and the last


@pytest.mark.parametrize("name", long_except(["cross attention, table"], CASES))
def test_several_networks_give_the_mean_of_their_probabilities_for_every_shape(name: str, tmp_path: Path) -> None:
    made = _export(CASES[name], tmp_path, networks=2)
    for seed, chunks in enumerate(SHAPES):
        batch = _batch(made.case, chunks, seed=seed)
        with torch.no_grad():
            expected = torch.stack([each(batch).softmax(-1) for each in made.model.members]).mean(0).numpy()
        np.testing.assert_allclose(run(made.path, _feed(made, batch)), expected, rtol=0, atol=1e-5)
    assert np.ptp(expected[:, 0]) > 1e-3


def test_several_networks_without_a_text_give_the_mean_of_their_probabilities(tmp_path: Path) -> None:
    made = _export(Case("tabular", (), 2, standard_transform(3)), tmp_path, networks=2)
    batch = packed_batch(tabular_dim=3)
    with torch.no_grad():
        expected = torch.stack([each(batch).softmax(-1) for each in made.model.members]).mean(0).numpy()
    np.testing.assert_allclose(run(made.path, {"tabular": batch.tabular.numpy()}), expected, rtol=0, atol=1e-5)


def test_more_networks_are_not_traced_more_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced, forward = set[int](), BertLayer.forward
    monkeypatch.setattr(BertLayer, "forward", lambda layer, *args, **named: (
        traced.add(id(layer)) if torch.compiler.is_exporting() else None, forward(layer, *args, **named)
    )[1])  # fmt: skip
    _export(CASES["bert"], tmp_path, networks=3)
    assert len(traced) == 2  # one of the equal layers, and the last


def test_exporting_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    hp, model = _build(CASES["bert"], tmp_path)
    model.train().double()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export_onnx(model, hp, tmp_path / "model.onnx", samples=[_batch(CASES["bert"], [[5]])])
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_the_onnx_runtime_tells_nobody_what_it_runs(tmp_path):
    """Its official builds do; where they begin to, they leave an identifier behind (but for hosts of known CI)."""
    tensors = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "same", tensors[:1], tensors[1:])
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "same.onnx")
    home = tmp_path / "home"
    home.mkdir()
    code = f"import container, onnxruntime; onnxruntime.InferenceSession({str(tmp_path / 'same.onnx')!r})"
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, timeout=60, check=True)
    assert list(home.rglob("*")) == []


def test_a_value_inside_the_graph_never_has_the_name_of_an_input():
    nodes = [onnx.helper.make_node("Relu", ["linear"], ["cat"]), onnx.helper.make_node("Neg", ["cat"], ["out"])]
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("linear", "out")]
    graph = onnx.helper.make_graph(nodes, "graph", ports[:1], ports[1:])
    model = deserialize_model(onnx.helper.make_model(graph))
    export._rename_values(model.graph, {"cat", "linear", "out"})
    renamed = serialize_model(model).graph
    assert [list(node.output) for node in renamed.node] == [["cat.inner"], ["out"]]
    assert list(renamed.node[1].input) == ["cat.inner"]
