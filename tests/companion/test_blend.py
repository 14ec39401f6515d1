"""The blend of network and companion: used where val says that it helps, and the same in every runtime.

And the companion's logits of a split: in its order, in batches of limited size.
"""

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import onnx
import pytest

from container.companion import fit, graph
from container.companion.blend import Blend, BlendedCompanion, try_blend
from container.companion.graph import Companion, predict
from container.data.records import onnx_inputs
from container.decision.decision import Decision
from container.errors import NotMade
from container.evaluation import bootstrap
from container.evaluation.bootstrap import estimate_metrics
from container.export.artifacts import _earlier_files
from container.export.onnx import check_parity, export_onnx, feed_of
from container.export.variants import write_fused, write_int8
from container.models.build import build_classifier
from container.models.ensemble import Ensemble
from container.results import companion as in_job
from container.results.companion import Combined, add_companion
from container.results.onnx_graphs import measure_costs
from container.training.job_data import JobData
from contracts.atomic_files import replace_together
from testing.companions import FIELD, Split, fitted, rows, without_meaning
from testing.encoder_families import hyperparameters, packed_batch, standard_transform, write_config
from tests.export.test_variants import run


def noisy(labels: np.ndarray, *, strength: float, seed: int, classes: int = 2) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(len(labels), classes))
    logits[np.arange(len(labels)), labels] += strength
    return logits


@pytest.fixture(autouse=True, scope="module")
def narrow():
    """Fit the boosted trees alone: the other parts take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "WIDE_ROWS", 0)
        yield


LABELS = np.random.default_rng(5).integers(0, 3, 600)


def tried(network, companion, labels=LABELS, weights=(1.0, 1.0, 1.0)):
    return try_blend(
        network, companion, labels, units=np.arange(len(labels)), weights=np.array(weights)[labels], seed=0
    )


def test_two_independent_models_are_blended_by_what_each_is_worth():
    found = tried(noisy(LABELS, strength=2, seed=0, classes=3), noisy(LABELS, strength=1, seed=1, classes=3))
    assert found.helps
    assert found.blend.network > found.blend.companion > 0.3


def test_a_gain_that_a_small_val_cannot_prove_is_taken():
    labels = np.random.default_rng(5).integers(0, 3, 73)
    network, companion = noisy(labels, strength=2, seed=0, classes=3), noisy(labels, strength=0.3, seed=10, classes=3)
    found = tried(network, companion, labels)
    assert 0 < found.improvement < found.standard_error
    assert found.helps


def test_noise_does_not_help():
    found = tried(noisy(LABELS, strength=2, seed=0, classes=3), noisy(LABELS, strength=0, seed=1, classes=3))
    assert not found.helps


def test_a_network_that_is_too_sure_gets_no_help_from_its_own_logits():
    network = 10 * noisy(LABELS, strength=2, seed=0, classes=3)
    assert not tried(network, network).helps


def test_factors_are_not_negative_and_finite_for_records_without_an_error():
    found = tried(50 * np.eye(3)[LABELS], noisy(LABELS, strength=-1, seed=1, classes=3)).blend
    assert found.companion == 0
    assert 0 < found.network < 100


def test_class_weights_count_in_the_blend_as_in_the_loss():
    network, companion = noisy(LABELS, strength=2, seed=0, classes=3), noisy(LABELS, strength=2, seed=1, classes=3)
    network[LABELS == 0] = 0  # useless for class 0
    even = tried(network, companion).blend
    weighted = tried(network, companion, weights=(20.0, 1.0, 1.0)).blend
    assert weighted.companion / weighted.network > even.companion / even.network


@pytest.fixture(scope="module", params=[True, False], ids=["texts", "table alone"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A network with a companion, whose trees read texts or not, and their model.onnx."""
    folder = tmp_path_factory.mktemp("made")
    hp = hyperparameters(model_class="multimodal_bert")
    files = [write_config(folder / "bert", "bert", num_hidden_layers=1)]
    model = build_classifier(hp, files, tabular_dim=4, numeric_transform=standard_transform(4)).eval()
    train = rows(600, columns=4)
    found = fitted(train if request.param else without_meaning(train))
    assert found.uses_texts == request.param
    companion = BlendedCompanion(found.companion, Blend(0.7, 1.3))
    batch = packed_batch([[5, 9], [12], [3]], tabular_dim=4)
    path = folder / "model.onnx"
    report = export_onnx(model, hp, path, samples=[batch], companion=companion)
    return hp, model, companion, batch, path, report


class Rows:
    """A split of the records of one batch, which it always returns."""

    def __init__(self, batch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch.rows)

    def pack(self, _):
        return self.batch


def test_model_onnx_computes_the_blend(made):
    hp, model, _, batch, path, report = made
    assert report.max_difference < 1e-5
    with pytest.raises(RuntimeError, match="differs from PyTorch's"):
        check_parity(model, hp, path, samples=[batch])
    names = [value.name for value in onnx.load(path).graph.input]
    assert names == list(feed_of(model, hp, batch)), "the companion has no input of its own"
    assert {each.domain for each in onnx.load(path).opset_import} >= {"", "ai.onnx.ml"}
    used = {name for node in onnx.load(path).graph.node for name in node.input}
    assert {each.name for each in onnx.load(path).graph.initializer} <= used
    onnx.checker.check_model(str(path))


def test_no_record_gives_no_probabilities(made):
    hp, model, _, batch, path, _ = made
    feed = {name: array[:0] for name, array in feed_of(model, hp, batch).items()}
    empty = {name: array[:, :0] if array.ndim == 3 else array for name, array in feed.items()}
    assert [run(path, each).shape for each in (feed, empty)] == [(0, 2)] * 2


def test_the_cost_of_one_network_is_measured_with_the_companion_and_the_decision_of_the_model(
    made, tmp_path, monkeypatch
):
    hp, model, companion, batch, *_ = made
    decision = Decision("temperature", type(Decision().calibrator)(0.5), fitted_on=9)
    whole, one, given = tmp_path / "model.onnx", tmp_path / "one.onnx", {"decision": decision, "companion": companion}
    functions = []
    export_onnx(Ensemble([model, model]), hp, whole, samples=[batch], **given, of_ensemble=functions)
    export_onnx(Ensemble([model]), hp, one, samples=[batch], **given)
    with monkeypatch.context() as patched:
        patched.delattr("container.export.repeated_layers._functions_of")  # they are not traced again
        costs = measure_costs(tmp_path, Ensemble([model, model]), hp, val=Rows(batch), **given, of_ensemble=functions)
    assert costs["model.onnx with one network"].num_bytes == one.stat().st_size


def test_one_network_that_cannot_be_exported_costs_the_comparison_and_not_the_job(made, tmp_path, monkeypatch, caplog):
    hp, model, companion, batch, _, _ = made
    given = {"decision": Decision(), "companion": companion, "of_ensemble": []}
    export_onnx(Ensemble([model, model]), hp, tmp_path / "model.onnx", samples=[batch], **given)
    monkeypatch.delattr("container.results.onnx_graphs.export_onnx")
    costs = measure_costs(tmp_path, Ensemble([model, model]), hp, val=Rows(batch), **given)
    assert list(costs) == ["model.onnx"]
    assert "cost of one network: none, because of" in caplog.text


@pytest.mark.parametrize("write", [write_fused, write_int8])
def test_variants_contain_the_companion(made, write, tmp_path):
    hp, model, _, batch, path, _ = made
    write(path, tmp_path / "variant.onnx", model)
    feed = feed_of(model, hp, batch)
    np.testing.assert_allclose(run(tmp_path / "variant.onnx", feed), run(path, feed), atol=0.02)
    assert run(tmp_path / "variant.onnx", {name: array[:0] for name, array in feed.items()}).shape == (0, 2)
    assert any(node.op_type == "TreeEnsembleClassifier" for node in onnx.load(tmp_path / "variant.onnx").graph.node)


def test_a_saved_companion_is_the_same_when_it_is_loaded(made, tmp_path):
    hp, model, companion, batch, *_ = made
    companion.save(tmp_path)
    loaded = BlendedCompanion.load(tmp_path)
    assert loaded is not None
    assert loaded.blend == companion.blend
    network, feed = np.ones((3, 2), np.float32), feed_of(model, hp, batch)
    np.testing.assert_array_equal(loaded(network, feed), companion(network, feed))
    assert BlendedCompanion.load(tmp_path / "absent") is None


def test_the_companion_of_an_earlier_run_is_removed(tmp_path):
    (tmp_path / "companion.onnx").touch()
    with replace_together(tmp_path, _earlier_files(tmp_path)):
        pass
    assert not list(tmp_path.iterdir())


def added(network, settings=None, **splits: Split):
    """What add_companion makes of a network's logits and the splits of a job."""
    data = cast(JobData, SimpleNamespace(splits=splits, class_weights=[1.0, 1.0]))
    return add_companion(hyperparameters(**(settings or {"companion": True})), data, network)


@pytest.mark.parametrize("error", [NotMade("there is a reason"), MemoryError("too large")])
def test_a_companion_that_cannot_be_fitted_is_one_warning_and_leaves_the_network(error, monkeypatch, caplog):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(in_job, "fit_companion", fail)
    network = {"val": np.zeros((2, 2)), "test": np.zeros((2, 2))}
    found = added(network, train=Split(rows(2)))
    assert found.companion is None
    assert found.logits is network
    assert found.report is not None
    assert str(error) in found.report.reason
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == [f"companion: none, because {found.report.reason}"]


def test_an_error_after_the_fit_leaves_the_probabilities_of_train(monkeypatch):
    def fail(*_):
        raise MemoryError("too large")

    monkeypatch.setattr(in_job, "predict", fail)
    found = added({"val": np.zeros((40, 2))}, train=Split(rows(100)), val=Split(rows(40, seed=1)))
    assert found.companion is None
    assert found.report is not None
    assert found.report.reason == "MemoryError: too large"
    assert found.out_of_fold is not None
    assert found.out_of_fold.probabilities.shape == (100, 2)


@pytest.fixture(scope="module")
def out_of_fold():
    """A companion beside a network that is right about every row of val, and knows nothing out of fold."""
    train, test = rows(400), rows(80, seed=1)
    val = Split(rows(60, seed=2))
    every = Split(train, *val.parts)
    sizes = {"test": 80, "out_of_fold": 460}
    network = {name: np.random.default_rng(0).normal(size=(size, 2)) for name, size in sizes.items()}
    network["val"] = noisy(val.column("label").to_numpy(), strength=50, seed=0)
    return added(network, train=every, out_of_fold=every, val=val, test=Split(test)), val


def test_the_blend_is_chosen_on_the_predictions_out_of_fold(out_of_fold):
    report = out_of_fold[0].report
    assert report.kept
    assert report.factors[0] < 0.1 < report.factors[1]
    assert "log loss out of fold -" in str(report)


def test_the_companion_is_measured_out_of_fold_by_companions_that_did_not_see_the_row(out_of_fold):
    found, val = out_of_fold
    auroc = {name: each["auroc"].value for name, each in found.report.parts["companion"].items()}
    assert abs(auroc["out_of_fold"] - auroc["test"]) < 0.08
    seen, _ = predict(found.companion.companion, val.arrays(), [FIELD])
    of_seen = estimate_metrics(val.column("label").to_numpy(), seen, seed=0)["auroc"].value
    assert of_seen > max(auroc.values()) + 0.03
    assert found.report.parts["network"]["val"]["auroc"].value < 0.7, "val's figures are those out of fold"


def test_standard_errors_are_those_of_many_samples():
    logits = noisy(LABELS, strength=1, seed=0, classes=3)
    found = estimate_metrics(LABELS, logits, seed=0)
    assert found["auroc"].value == pytest.approx(_metric("auroc", logits), abs=1e-9)
    assert found["average_precision"].value == pytest.approx(_metric("average_precision", logits), abs=1e-9)
    assert found["f1_score"].value == pytest.approx(_metric("f1_score", logits), abs=1e-9)
    others = [noisy(LABELS, strength=1, seed=seed, classes=3) for seed in range(1, 60)]
    spread = np.std([_metric("auroc", other) for other in others])
    assert found["auroc"].standard_error == pytest.approx(spread, rel=0.4)


def test_val_decides_of_which_class_the_average_precision_of_every_split_is():
    quarter = np.arange(40) % 4
    few, many = quarter // 3, (quarter > 0).astype(int)  # class 1 is rare in val, and class 0 in test
    splits = {"train": Split(rows(100)), "val": Split(rows(40, labels=few)), "test": Split(rows(40, labels=many))}
    network = {name: np.random.default_rng(0).normal(size=(40, 2)) for name in ("val", "test")}
    report = added(network, **splits).report
    assert report is not None
    assert report.rarer_class == 1
    of_class = estimate_metrics(many, network["test"], seed=42, rarer=1)["average_precision"].value
    assert report.parts["network"]["test"]["average_precision"].value == of_class


def test_the_average_precision_is_that_of_the_class_that_is_given():
    labels = np.arange(90) % 3 // 2  # class 1 is rarer
    logits = noisy(labels, strength=1, seed=0, classes=2)
    rarer, of_class = (
        [estimate_metrics(labels, logits, seed=0, rarer=k)["average_precision"].value for k in choices]
        for choices in ((None,), (0, 1))
    )
    assert rarer == of_class[1:] != of_class[:1]


def _metric(name: str, logits: np.ndarray) -> float:
    from container.decision.softmax import softmax
    from container.evaluation.metrics import classification_metrics

    value = classification_metrics(LABELS, softmax(logits), [name]).values[name]
    assert value is not None
    return value


def test_standard_errors_of_a_sample_are_those_of_all_rows(monkeypatch):
    labels = np.random.default_rng(0).choice(3, 20_000, p=[0.8, 0.19, 0.01])
    logits = noisy(labels, strength=1, seed=0, classes=3)
    all_rows = estimate_metrics(labels, logits, seed=0)
    monkeypatch.setattr(bootstrap, "MOST_ROWS", 3000)
    rows = []
    metrics = bootstrap._metrics
    monkeypatch.setattr(bootstrap, "_metrics", lambda *given: rows.append(len(given[0])) or metrics(*given))
    sample = estimate_metrics(labels, logits, seed=0)
    assert rows == [20_000, 2000 + (labels == 2).sum()]
    for name, expected in all_rows.items():
        assert sample[name].value == expected.value
        assert sample[name].standard_error == pytest.approx(expected.standard_error, rel=0.3)


@pytest.mark.parametrize("seed", range(3))
def test_there_is_no_standard_error_where_few_samples_have_every_class(seed):
    labels = np.arange(6)
    found = estimate_metrics(labels, noisy(labels, strength=1, seed=seed, classes=6), seed=seed)
    assert found["auroc"].value is not None
    assert {estimate.standard_error for estimate in found.values()} == {None}


def test_a_split_of_one_class_has_no_estimates():
    found = estimate_metrics(np.ones(9, int), np.zeros((9, 2)), seed=0)
    assert all(estimate.value is None for estimate in found.values())


FEW = "19 labelled val records are fewer than 20"
ONE_CLASS = "fewer than two classes have 5 labelled val records"


@pytest.mark.parametrize(
    ("labels", "reason"),
    [(np.repeat([0, 1], [16, 4]), ONE_CLASS), (np.arange(25) % 4 // 2 - 5 * (np.arange(25) > 18), FEW)],
)
def test_a_val_of_one_class_or_few_records_gives_no_blend_but_probabilities_of_train(labels, reason):
    val = Split(replace(rows(len(labels)), label=labels))
    found = added({"val": np.zeros((len(labels), 2))}, train=Split(rows(100)), val=val)
    assert found.companion is None
    assert found.report is not None
    assert found.report.reason == reason
    assert found.out_of_fold is not None
    assert found.out_of_fold.probabilities.shape == (100, 2)


def test_label_issues_alone_give_no_section_about_a_companion():
    found = added({"val": np.zeros((20, 2))}, {"label_issues": True}, train=Split(rows(10)))
    assert (found.report, found.out_of_fold) == (None, None)


@pytest.mark.parametrize("most_tokens", [1, 300, 10**6])
def test_predictions_have_the_order_of_the_split_for_any_size_of_batches(most_tokens, monkeypatch):
    monkeypatch.setattr(graph, "_MOST_TOKENS", most_tokens)
    companion, parts = fitted(rows(200)).companion, (rows(60, seed=1), rows(1, seed=2), rows(33, seed=3))
    sizes = []

    def counted(inputs):
        sizes.append(inputs[FIELD.input_ids_key].size)
        assert sizes[-1] <= most_tokens or len(inputs[FIELD.input_ids_key]) == 1
        return companion(inputs)

    logits, scores = predict(cast(Companion, counted), parts, [FIELD])
    assert (len(sizes) == 94) == (most_tokens == 1)
    assert (len(sizes) == 3) == (most_tokens == 10**6)
    expected = [
        companion(onnx_inputs([FIELD], part.take(np.array([i])))) for part in parts for i in range(len(part.row))
    ]
    np.testing.assert_array_equal(scores, np.concatenate([each for _, each in expected]))
    np.testing.assert_allclose(logits, np.concatenate([each for each, _ in expected]), atol=1e-6)


def test_the_blend_of_a_large_val_is_fitted_on_a_sample(monkeypatch):
    used = []

    def keep(network, companion, labels, **given):
        used.append(given["units"])
        return try_blend(network, companion, labels, **given)

    monkeypatch.setattr(in_job, "MOST_ROWS", 80)
    monkeypatch.setattr(in_job, "try_blend", keep)
    val = rows(300, seed=1)
    splits = {"val": Split(val), "test": Split(rows(3, seed=2))}
    data = cast(JobData, SimpleNamespace(splits=splits, class_weights=[1.0, 1.0]))
    network = {name: np.zeros((len(split), 2), np.float32) for name, split in splits.items()}
    found = in_job._blend(hyperparameters(), data, fitted(rows(200)), Combined(None, network))
    (sample,) = used
    assert len(set(sample.tolist())) == 80
    assert np.ptp(sample) > 200
    assert found.report is not None
    assert found.logits["val"].shape == (300, 2)
