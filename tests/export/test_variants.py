"""onnx_variants: fused and 8-bit files give nearly the same probabilities, and one that does not is not kept."""

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from container.data.split import PreparedSplit
from container.decision.decision import Decision
from container.decision.softmax import softmax
from container.errors import NotMade
from container.evaluation.evaluate import write_evaluation
from container.evaluation.evaluation_input import VariantReport
from container.export import onnx as export
from container.export.onnx import export_onnx, feed_of
from container.export.variants import WRITERS, write_fused
from container.models.build import build_classifier
from container.preprocessing.prepare import prepare_data
from container.results import onnx_graphs as module
from container.results.onnx_graphs import judge, write_variants
from container.training.train import build_model
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters, parse_hyperparameters
from testing.encoder_families import hyperparameters, packed_batch, standard_transform, write_config
from testing.evaluations import two_splits
from testing.jobs import CONFIGURATION, write_job


def exported(folder: Path, *families: str, settings: Mapping[str, Any] | None = None, **config: Any):
    """A model of one encoder per family, and its model.onnx."""
    model_class = "trimodal_bert" if len(families) == 2 else "multimodal_bert"
    hp = hyperparameters(model_class=model_class, **(settings or {}))
    files = [write_config(folder / family, family, **config) for family in families]
    model = build_classifier(hp, files, tabular_dim=4, numeric_transform=standard_transform(4)).eval()
    texts = [[[5, 9], [12], [3]], [[4], [2, 8], [6]]][: len(families)]
    batch = packed_batch(*texts, tabular_dim=4)
    export_onnx(model, hp, folder / "model.onnx", samples=[batch])
    return hp, model, batch


def run(path: Path, feed: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["probabilities"], feed)[0]


def operators(path: Path) -> Counter:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


NUMBERS = {"numeric_embedding": "piecewise_linear", "tab_field_list": list("abcd")}


def test_embeddings_of_numbers_are_left_as_they_are_in_8_bits(tmp_path: Path) -> None:
    hp, model, batch = exported(tmp_path, "bert", settings=NUMBERS, num_hidden_layers=1)
    feed = feed_of(model, hp, batch)
    WRITERS["int8"](tmp_path / "model.onnx", tmp_path / "model.int8.onnx", model)
    found = run(tmp_path / "model.int8.onnx", feed)
    np.testing.assert_allclose(found, run(tmp_path / "model.onnx", feed), rtol=0, atol=0.05)
    assert operators(tmp_path / "model.int8.onnx")["DynamicQuantizeLinear"] > 0


@pytest.mark.parametrize("model_class", ["lstm", "multimodal_cnn"])
def test_a_class_without_what_a_variant_speeds_up_gets_none_and_the_reason(tmp_path: Path, model_class: str) -> None:
    hp = hyperparameters(model_class=model_class)
    files = write_config(tmp_path / "bert", "bert")
    model = build_classifier(hp, [files], tabular_dim=4, numeric_transform=standard_transform(4)).eval()
    export_onnx(model, hp, tmp_path / "model.onnx", samples=[packed_batch([[5, 9], [12], [3]], tabular_dim=4)])
    reasons = {"fused": "nothing in this graph can be fused", "int8": r"only \d+% of the multiplied weights"}
    for name, reason in reasons.items():
        with pytest.raises(NotMade, match=reason):
            WRITERS[name](tmp_path / "model.onnx", tmp_path / f"model.{name}.onnx", model)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("families", [("bert",), ("roberta", "distilbert"), ("modernbert",), ("albert",)])
def test_variants_take_the_same_inputs_and_give_nearly_the_same(tmp_path: Path, families: tuple[str, ...]) -> None:
    hp, model, batch = exported(tmp_path, *families)
    feed = feed_of(model, hp, batch)
    expected = run(tmp_path / "model.onnx", feed)
    for name, tolerance in (("fused", 1e-5), ("int8", 0.05)):
        path = tmp_path / f"model.{name}.onnx"
        WRITERS[name](tmp_path / "model.onnx", path, model)
        np.testing.assert_allclose(run(path, feed), expected, rtol=0, atol=tolerance)
    assert np.ptp(expected[:, 0]) > 1e-3
    assert operators(tmp_path / "model.int8.onnx")["DynamicQuantizeLinear"] > 0
    assert {path.suffix for path in tmp_path.iterdir() if path.is_file()} == {".onnx"}


@pytest.mark.slow
@pytest.mark.long
def test_gelu_norms_and_the_attention_of_every_token_are_fused_in_a_bert(tmp_path: Path) -> None:
    _, model, _ = exported(tmp_path, "bert")
    write_fused(tmp_path / "model.onnx", tmp_path / "fused.onnx", model)
    layers = model.branches["text"].encoder.backbone.config.num_hidden_layers
    found = operators(tmp_path / "fused.onnx")
    assert found["Attention"] == layers - 1  # the last layer computes first tokens only
    assert found["BiasGelu"] == layers
    assert found["SkipLayerNormalization"] == 2 * layers
    assert found["MatMul"] < operators(tmp_path / "model.onnx")["MatMul"]


@pytest.mark.slow
@pytest.mark.long
def test_weights_beyond_what_one_file_can_hold_lie_beside_the_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "LARGEST_FILE", 1000)
    hp, model, batch = exported(tmp_path, "bert")
    feed = feed_of(model, hp, batch)
    for name in WRITERS:
        path = tmp_path / f"model.{name}.onnx"
        WRITERS[name](tmp_path / "model.onnx", path, model)
        assert path.with_name(f"{path.name}.data").stat().st_size > 1000
        np.testing.assert_allclose(run(path, feed), run(tmp_path / "model.onnx", feed), rtol=0, atol=0.05)


LABELS = np.arange(200) % 2
PROBABILITIES = softmax(np.stack([np.zeros(200), np.where(LABELS, 2.0, 0.0) + np.linspace(0, 3, 200)], axis=1))


def judged(found: np.ndarray, labels: np.ndarray = LABELS) -> VariantReport:
    given = {"expected": PROBABILITIES, "class_labels": ("no", "yes"), "num_bytes": 7, "seconds": 0.1}
    return judge("int8", labels=labels, found=found, **given)


def test_a_variant_is_kept_while_its_auroc_falls_by_less_than_0_002() -> None:
    kept = judged(PROBABILITIES[:, ::-1] * 0 + PROBABILITIES + np.array([-1e-4, 1e-4]))
    assert kept.written
    assert (kept.max_difference, kept.mean_difference) == (pytest.approx(1e-4), pytest.approx(1e-4))
    assert kept.auroc_difference == pytest.approx(0, abs=1e-9)
    worse = PROBABILITIES.copy()
    worse[:20] = worse[:20, ::-1]
    lost = judged(worse)
    assert not lost.written
    assert lost.auroc_difference < -0.002
    assert lost.reason == f"AUROC on val falls by {-lost.auroc_difference:.4f}, more than 0.002"


def test_a_variant_that_cannot_be_judged_is_not_kept() -> None:
    undefined = "AUROC on val is undefined (all 200 labelled records are of class yes)"
    assert judged(PROBABILITIES, np.ones(200, int)).reason.startswith(undefined)
    broken = PROBABILITIES.copy()
    broken[3] = np.nan
    assert judged(broken).reason == "a probability is not a number"
    assert judged(broken).max_difference is None


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory):
    """A tiny untrained model with its model.onnx, its val split, and what it says of it."""
    root = tmp_path_factory.mktemp("job")
    paths = write_job(root, overrides={"onnx_variants": ["fused", "int8"]})
    hp = load_hyperparameters(paths)
    data = prepare_data(paths, hp)
    model = build_model(hp, data).eval()
    val = PreparedSplit(data.split("val"), roles=["text"])
    batch = val.pack(np.arange(len(val)))
    export_onnx(model, hp, root / "model.onnx", samples=[batch])
    return root, model, hp, val, run(root / "model.onnx", feed_of(model, hp, batch))


@pytest.mark.slow
@pytest.mark.long
def test_both_variants_are_written_measured_and_logged(prepared, caplog) -> None:
    root, model, hp, val, expected = prepared
    caplog.set_level(logging.INFO)
    fused, int8 = write_variants(root, model, hp, val=val, expected=expected, class_labels=(0, 1))
    assert fused.written
    assert fused.max_difference < 1e-5
    assert fused.records == int8.records == len(val)
    assert (root / "model.fused.onnx").stat().st_size == fused.num_bytes
    assert int8.max_difference > fused.max_difference
    assert "model.fused.onnx (" in caplog.text
    assert (root / "model.int8.onnx").exists() == int8.written


@pytest.mark.slow
@pytest.mark.long
def test_a_variant_that_loses_too_much_leaves_no_file_and_the_log_says_why(prepared, caplog) -> None:
    root, model, hp, val, expected = prepared
    labels = val.column("label").to_numpy()
    perfect = np.stack([1.0 - labels, labels], axis=1)  # what no variant of an untrained model reaches
    fused, _ = write_variants(root, model, hp, val=val, expected=perfect, class_labels=(0, 1))
    assert not fused.written
    assert not (root / "model.fused.onnx").exists()
    assert "model.fused.onnx is not written: AUROC on val falls by" in caplog.text
    assert len(expected) == len(perfect)


@pytest.mark.slow
@pytest.mark.long
def test_a_tool_that_fails_costs_the_variant_and_not_the_job(prepared, monkeypatch, caplog) -> None:
    root, model, hp, val, expected = prepared

    def fail(*_: object) -> None:
        raise KeyError("no such node")

    monkeypatch.setitem(module.WRITERS, "fused", fail)
    fused, _ = write_variants(root, model, hp, val=val, expected=expected, class_labels=(0, 1))
    assert fused == VariantReport("fused", False, reason="KeyError: 'no such node'")
    assert "model.fused.onnx is not written: KeyError: 'no such node'" in caplog.text


def test_a_variant_that_gains_nothing_is_a_note_without_the_name_of_an_exception(prepared, monkeypatch, caplog) -> None:
    root, model, hp, val, expected = prepared

    def refuse(*_: object) -> None:
        raise NotMade("nothing in this graph can be fused")

    caplog.set_level("INFO")
    monkeypatch.setitem(module.WRITERS, "fused", refuse)
    fused, _ = write_variants(root, model, hp, val=val, expected=expected, class_labels=(0, 1))
    assert fused == VariantReport("fused", False, reason="nothing in this graph can be fused", possible=False)
    assert [r.levelname for r in caplog.records if "nothing in this graph" in r.getMessage()] == ["INFO"]


def test_a_variant_named_twice_or_unknown_is_refused() -> None:
    with pytest.raises(ContractError, match="onnx_variants: .* names a variant twice"):
        parse_hyperparameters({**CONFIGURATION, "onnx_variants": ["int8", "int8"]})
    with pytest.raises(ContractError, match="onnx_variants"):
        parse_hyperparameters({**CONFIGURATION, "onnx_variants": ["int4"]})


def test_the_report_and_the_metrics_have_what_each_variant_gives_up(tmp_path: Path) -> None:
    made = two_splits()
    kept = VariantReport("fused", True, "", 2_000_000, 400, 1e-7, 1e-8, 0.93, 0.0, 1.0)
    lost = VariantReport("int8", False, "AUROC on val falls by 0.0100, more than 0.002", 1, 400, 0.3, 0.1, 0.92, -0.01)
    object.__setattr__(made, "variants", (kept, lost))
    written = write_evaluation(tmp_path, made)["onnx_variants"]
    assert written["fused"]["auroc"] == 0.93
    assert written["int8"]["written"] is False
    page = (tmp_path / "report.html").read_text()
    assert "model.int8.onnx was not written: AUROC on val falls by 0.0100, more than 0.002." in page
    assert "<td>2.0</td><td>400</td>" in page


def test_decisions_are_in_the_variants_too(tmp_path: Path) -> None:
    """They are made of model.onnx, whose graph ends with the decision's probabilities."""
    hp = hyperparameters(model_class="bert")
    files = [write_config(tmp_path / "bert", "bert", num_hidden_layers=1)]
    model = build_classifier(hp, files, tabular_dim=0, numeric_transform=standard_transform(0)).eval()
    batch = packed_batch([[5], [9]], tabular_dim=0)
    decision = Decision("temperature", calibrator=type(Decision().calibrator)(0.01), fitted_on=9)
    export_onnx(model, hp, tmp_path / "model.onnx", samples=[batch], decision=decision)
    write_fused(tmp_path / "model.onnx", tmp_path / "fused.onnx", model)
    found = run(tmp_path / "fused.onnx", feed_of(model, hp, batch))
    logits = model(batch).detach().numpy()
    np.testing.assert_allclose(found, decision.probabilities(logits), atol=1e-4)
    assert np.abs(found - softmax(logits)).max() > 0.01
