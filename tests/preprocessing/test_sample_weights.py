"""weight_name: a record of weight n counts as n records, and a weight that is none is an error of its row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from container.data.split import PreparedSplit
from container.decision.val_labels import check_val_labels
from container.evaluation.choose_threshold import choose_threshold
from container.evaluation.fit_decision import fit_calibrator
from container.evaluation.metrics import classification_metrics
from container.preprocessing.class_weights import class_totals, resolve_class_weights
from container.preprocessing.prepare import prepare_data
from container.preprocessing.prepared import PreparedData
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters
from contracts.metrics import METRICS
from contracts.presets import DataFacts
from contracts.threshold_targets import parse_threshold
from testing.jobs import table, write_job

RNG = np.random.default_rng(4)
LABELS = RNG.integers(0, 3, 200)
LOGITS = RNG.normal(size=(200, 3)) + 1.5 * np.eye(3)[LABELS]
WEIGHTS = RNG.integers(0, 4, 200)
COPIES = np.repeat(np.arange(200), WEIGHTS)


def probabilities(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 3])
def test_weighted_metrics_are_those_of_as_many_copies(classes: int) -> None:
    labels, scores = LABELS % classes, probabilities(LOGITS[:, :classes])
    weighted = classification_metrics(labels, scores, METRICS, weights=WEIGHTS)
    copied = classification_metrics(labels[COPIES], scores[COPIES], METRICS)
    assert weighted.values == pytest.approx(copied.values)


@pytest.mark.parametrize("target", ["best_f1", "precision>=0.8", "recall>=0.9", "cost"])
def test_the_threshold_with_weights_is_that_of_as_many_copies(target: str) -> None:
    positive, scores, kept = LABELS == 1, probabilities(LOGITS)[:, 1], WEIGHTS > 0
    weighted = choose_threshold(
        parse_threshold(target), positive[kept], scores[kept], weights=WEIGHTS[kept].astype(float)
    )
    assert weighted == choose_threshold(parse_threshold(target), positive[COPIES], scores[COPIES])


@pytest.mark.parametrize("method", ["temperature", "isotonic"])
def test_the_calibration_with_weights_is_that_of_as_many_copies_but_for_smoothing(method: str) -> None:
    kept = WEIGHTS > 0
    weighted = fit_calibrator(method, LOGITS[kept], LABELS[kept], weights=WEIGHTS[kept])
    copied = fit_calibrator(method, LOGITS[COPIES], LABELS[COPIES])
    np.testing.assert_allclose(
        np.exp(weighted.log_probabilities(LOGITS)), np.exp(copied.log_probabilities(LOGITS)), atol=0.02
    )


def prepared(root: Path, weights: Any, **overrides: Any) -> tuple[PreparedData, Any]:
    of_split = weights if isinstance(weights, dict) else dict.fromkeys(("train", "val", "test"), weights)
    frames = {split: table(40, seed=seed).assign(w=of_split[split]) for seed, split in enumerate(of_split)}
    paths = write_job(root, overrides={"weight_name": "w", **overrides}, frames=frames)
    hp = load_hyperparameters(paths)
    return prepare_data(paths, hp), hp


def test_records_carry_their_weights_and_balanced_class_weights_count_them(tmp_path: Path) -> None:
    weights = np.arange(40) / 4
    data, hp = prepared(tmp_path, weights, class_weights="balanced")
    train = PreparedSplit(data.split("train"), roles=["text"])
    assert train.weights().tolist() == weights.tolist()
    assert train.pack(np.array([3, 5])).weights.tolist() == [0.75, 1.25]
    assert train.pack(np.array([3]), filler=True).weights.tolist() == [0]
    totals = np.bincount(train.column("label").to_numpy(), weights)
    assert resolve_class_weights(hp, data.fitted.class_labels, data.summary) == pytest.approx(totals.sum() / 2 / totals)
    assert "w" not in data.fitted.feature_inputs


def test_rows_of_weight_zero_make_no_table_large(tmp_path: Path) -> None:
    data, _ = prepared(tmp_path, {"train": [1.0] * 30 + [0.0] * 10, "val": [0.0] * 5 + [1.0] * 35, "test": [1.0] * 40})
    assert DataFacts.read(data.summary).labelled == 30 + 35


@pytest.mark.parametrize(
    ("weights", "cause"),
    [
        ([1.0] * 39 + [None], "row 40, column 'w': '' is not a weight"),
        ([1.0] * 39 + [-0.5], "row 40, column 'w': '-0.5' is not a weight"),
        (["1"] * 39 + ["heavy"], "row 40, column 'w': 'heavy' is not a number"),
        (["1"] * 39 + ["1,5"], "row 40, column 'w': '1,5' is not a number"),
        ([1.0] * 39 + [1e39], "row 40, column 'w': '1e+39' is not a finite 32-bit number"),
        ([1.0] * 39 + [1e21], "row 40, column 'w': '1e+21' is not a weight"),
        ([1.0] * 39 + [1e-21], "row 40, column 'w': '1e-21' is not a weight"),
    ],
)
def test_what_is_no_weight_is_an_error_with_its_row_and_the_fix(tmp_path: Path, weights: list[Any], cause: str) -> None:
    with pytest.raises(ContractError) as error:
        prepared(tmp_path, weights)
    assert cause in error.value.cause
    assert error.value.fix.startswith("Write 0 or a positive number such as 1.5 in every row")


def test_number_format_reads_weights_with_a_decimal_comma(tmp_path: Path) -> None:
    data, _ = prepared(tmp_path, ["0,5", "2,25"] * 20, number_format={"w": "1.234,5"})
    assert PreparedSplit(data.split("train"), roles=["text"]).weights().tolist() == [0.5, 2.25] * 20


def test_labelled_rows_without_any_weight_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="channel train, column 'w': the weight of every labelled row is 0"):
        prepared(tmp_path, [0] * 40)


def test_a_class_of_train_without_any_weight_is_an_error_that_names_it(tmp_path: Path) -> None:
    labels = table(40, seed=0)["label"]
    with pytest.raises(ContractError) as error:
        prepared(tmp_path, labels)
    rows = np.count_nonzero(labels == 0)
    assert (
        error.value.cause == f"channel train, column 'w': the weight of each of the {rows} rows with the label '0' is 0"
    )


def test_a_class_of_val_without_any_weight_is_refused_before_the_decision_is_fitted_on_it(tmp_path: Path) -> None:
    labels = {split: table(40, seed=seed)["label"] for seed, split in enumerate(("train", "val", "test"))}
    weights = {"train": 1.0, "val": (labels["val"] == 0).astype(float), "test": 1.0}
    data, hp = prepared(tmp_path, weights, calibration="temperature")
    with pytest.raises(ContractError) as error:
        check_val_labels(hp, class_totals(data.summary["splits"]["val"]))
    assert f"but val has {{'0': {weights['val'].sum()}, '1': 0.0}} as total weights by class" in error.value.cause
    assert error.value.fix.startswith("Give val records of every class a weight above 0")
