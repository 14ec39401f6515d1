"""What a missing number becomes, and the scaling fitted after it, also of numbers that are close to each other."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from container.models.tabular import NumericTransform
from container.preprocessing.fit import fit_imputation
from container.preprocessing.numeric_summary import NumericSummary
from container.preprocessing.numeric_transform import (
    InputDistribution,
    Kind,
    NumericTransformParameters,
    fit_numeric_transform,
    fit_subtracted,
)
from container.preprocessing.prepare import prepare_data
from container.preprocessing.transform import Preprocessor
from contracts.errors import ContractError
from testing.table_jobs import fit, settings, table, write_job

NAN = float("nan")


def summary(values: Any) -> NumericSummary:
    found = NumericSummary()
    found.add(np.asarray(values, np.float64))
    return found


def tabular(preprocessor: Preprocessor, found: object, **kwargs: object) -> np.ndarray:
    batch = preprocessor.transform(found, **kwargs).batch
    return batch.column("tabular").flatten().to_numpy().reshape(batch.num_rows, -1)


@pytest.mark.parametrize(("strategy", "expected"), [("mean", 3.25), ("median", 2.0), ("mode", 1.0)])
def test_each_strategy_is_fitted_on_what_is_there(strategy: str, expected: float) -> None:
    found = {"x": summary([1, NAN, 1, 8, 3, NAN])}
    assert fit_imputation(found, strategy=strategy, given={}, where="train") == {"x": expected}


def test_a_given_value_wins_and_serves_an_all_missing_column() -> None:
    found = {"x": summary([NAN, NAN]), "y": summary([2.0])}
    assert fit_imputation(found, strategy="mean", given={"x": -1}, where="train") == {"x": -1.0, "y": 2.0}


def test_an_all_missing_column_is_an_error() -> None:
    with pytest.raises(ContractError, match="/data/train: column 'x' has no value in any of its 2"):
        fit_imputation({"x": summary([NAN, NAN])}, strategy="mean", given={}, where="/data/train")


def test_missing_values_are_counted_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fit_imputation({"x": summary([NAN, 4.0])}, strategy="median", given={}, where="train")
    assert "column 'x' has 1 missing of 2 values; they become 4 (median)" in caplog.text


def test_training_and_serving_impute_the_same(tmp_path: Path) -> None:
    found = table(40)
    preprocessor, _ = fit(tmp_path, found)
    x = found["x"].to_pylist()
    mean = np.mean([value for value in x if value is not None])
    expected = np.array([mean if value is None else value for value in x], np.float32)
    np.testing.assert_array_equal(tabular(preprocessor, found)[:, 0], expected)
    np.testing.assert_array_equal(tabular(preprocessor, found.slice(1, 1))[:, 0], np.float32(mean))


@pytest.mark.parametrize("folds", [0, 5])
def test_standard_scaling_is_that_of_the_training_inputs(tmp_path: Path, folds: int) -> None:
    """Of all of them: numbers after imputation, risk values as the training rows get them."""
    found = table(60)
    preprocessor, fold_values = fit(tmp_path, found, settings(risk_table_folds=folds))
    inputs = tabular(preprocessor, found, folds=fold_values).astype(np.float64)
    parameters = preprocessor.fitted.numeric_transform
    np.testing.assert_allclose(parameters.mean, inputs.mean(0), rtol=1e-6)
    np.testing.assert_allclose(parameters.scale, inputs.std(0), rtol=1e-5)


def test_a_constant_column_has_scale_0(tmp_path: Path) -> None:
    preprocessor, _ = fit(tmp_path, table(30, x=[0.1] * 30, y=[1e6] * 30))
    assert preprocessor.fitted.numeric_transform.scale[:2] == (0.0, 0.0)


def test_quantile_scaling_spreads_every_input_evenly(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = [None if gap else value for gap, value in zip(rng.random(4000) < 0.2, rng.lognormal(0, 3, 4000))]
    found = table(4000, x=x, y=np.where(rng.random(4000) < 0.7, 0, rng.normal(size=4000)))
    preprocessor, fold_values = fit(tmp_path, found, settings(numeric_transform="quantile"))
    inputs = tabular(preprocessor, found, folds=fold_values)
    scaled = NumericTransform(preprocessor.fitted.numeric_transform)(torch.tensor(inputs)).numpy()
    assert np.abs(scaled).max() <= np.sqrt(3)
    np.testing.assert_allclose(scaled.mean(0), 0, atol=0.02)
    present = scaled[[value is not None for value in x], 0]
    assert present.std() == pytest.approx(1, abs=0.1)
    expected = [np.quantile(inputs[:, k], np.linspace(0, 1, 101)) for k in range(3)]
    np.testing.assert_allclose(preprocessor.fitted.numeric_transform.quantiles, expected, rtol=1e-5, atol=1e-7)
    shared = scaled[inputs[:, 1] == 0, 1]
    assert len(set(shared)) == 1


def test_no_transform_has_no_parameters(tmp_path: Path) -> None:
    preprocessor, _ = fit(tmp_path, table(), settings(numeric_transform="none"))
    assert preprocessor.fitted.numeric_transform == NumericTransformParameters("none")


HOURS = 2024010100 + np.arange(24.0)
MILLISECONDS = 1.7e12 + 1000.0 * np.arange(600)


@pytest.mark.parametrize("values", [HOURS, MILLISECONDS, -HOURS, 1e15 + np.arange(5.0)])
def test_numbers_far_from_zero_and_close_to_each_other_stay_different(values: np.ndarray) -> None:
    found = summary(values)
    scaling = fit_numeric_transform(
        "standard", [InputDistribution.of_numbers(found, fill=0.0, subtracted=fit_subtracted(found))]
    )
    inputs = torch.tensor((values - fit_subtracted(found)).astype(np.float32))[:, None]
    scaled = NumericTransform(scaling)(inputs)
    assert len(scaled.unique()) == len(values)
    assert scaled.std(correction=0).item() == pytest.approx(1, abs=1e-4)
    assert scaled.mean().item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("values", [[0.0, 1.0], np.arange(100.0), [1e12, 2e12], [5.0, 5.0], [1e-12, 2e-12], []])
def test_nothing_is_subtracted_from_numbers_that_float32_tells_apart(values: Any) -> None:
    assert fit_subtracted(summary(values)) == 0


def times(rows: int, *, start: int = 0) -> pa.Table:
    """The table of a job whose y is a time in milliseconds; every seventh is missing."""
    return table(rows, start=start, y=[None if i % 7 == 0 else 1_700_000_000_000 + 500 * i for i in range(rows)])


def test_prepared_and_served_times_are_equal_and_distinct(tmp_path: Path) -> None:
    splits = {"train": times(60), "val": times(20, start=100), "test": times(20, start=200)}
    prepared = prepare_data(write_job(tmp_path, **splits), settings(tokenizer="tiny"))
    assert list(prepared.fitted.subtracted) == ["y"]
    place = prepared.fitted.feature_columns.index("y")
    served = Preprocessor.load(prepared.folder).transform(splits["val"]).batch["tabular"].to_pylist()
    file = pa.ipc.open_file(pa.memory_map(str(prepared.split("val")))).read_all()["tabular"].to_pylist()
    assert served == file
    assert len({row[place] for row in served}) == 18  # 17 times, and the imputed one


@pytest.mark.parametrize("kind", ["standard", "quantile"])
def test_an_input_with_one_value_in_train_is_0_for_every_value(kind: Kind) -> None:
    found = InputDistribution.of_numbers(summary([202312.0] * 9), fill=0.0)
    transform = NumericTransform(fit_numeric_transform(kind, [found]))
    values = torch.tensor([[202312.0], [202401.0], [-3e38], [3e38]])
    assert transform(values).tolist() == [[0.0]] * 4


def test_a_scale_of_1_from_an_earlier_version_is_as_it_was() -> None:
    transform = NumericTransform(NumericTransformParameters("standard", mean=(7.0,), scale=(1.0,)))
    assert transform(torch.tensor([[9.0]])).item() == 2


def test_the_log_names_a_column_with_one_value_in_train(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        prepare_data(write_job(tmp_path, train=table(60, y=[1] * 60)), settings(tokenizer="tiny"))
    assert "train: every number in y is the same: the column has no effect." in caplog.text
