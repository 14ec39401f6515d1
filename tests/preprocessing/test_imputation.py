"""What a missing number becomes, and the scaling fitted after it."""

from pathlib import Path

import numpy as np
import pytest

from container.preprocessing.imputation import fit_imputation, impute
from container.preprocessing.numeric_summary import NumericSummary
from container.preprocessing.numeric_transform import NumericTransformParameters
from container.preprocessing.transform import Preprocessor
from contracts.errors import ContractError
from testing.table_jobs import fit, settings, table

NAN = float("nan")


def summary(values: list[float]) -> NumericSummary:
    found = NumericSummary()
    found.add(np.array(values, np.float64))
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


def test_imputing_fills_gaps_alone() -> None:
    values, missing = impute(np.array([1.0, NAN]), 7.0)
    assert values.tolist() == [1.0, 7.0]
    assert missing.tolist() == [False, True]


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


def quantile_transform(parameters: NumericTransformParameters, inputs: np.ndarray) -> np.ndarray:
    """The formula of NumericTransformParameters, term by term."""
    q = np.array(parameters.quantiles)  # [K, Q]
    x = inputs.astype(np.float64)[:, :, None]  # [R, K, 1]
    width = np.diff(q)
    ramp = np.clip((x - q[:, :-1]) / np.where(width > 0, width, 1), 0, 1)
    step = (1 + np.sign(x - q[:, :-1])) / 2
    u = np.where(width > 0, ramp, step).sum(-1) / (q.shape[1] - 1)
    return np.sqrt(3) * (2 * u - 1)


def test_quantile_scaling_spreads_every_input_evenly(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = [None if gap else value for gap, value in zip(rng.random(4000) < 0.2, rng.lognormal(0, 3, 4000))]
    found = table(4000, x=x, y=np.where(rng.random(4000) < 0.7, 0, rng.normal(size=4000)))
    preprocessor, fold_values = fit(tmp_path, found, settings(numeric_transform="quantile"))
    inputs = tabular(preprocessor, found, folds=fold_values)
    scaled = quantile_transform(preprocessor.fitted.numeric_transform, inputs)
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
