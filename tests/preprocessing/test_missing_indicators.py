"""An input that tells the model whether a number was missing."""

from pathlib import Path

import numpy as np
import pytest

from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.transform import Preprocessor
from testing.table_jobs import fit, settings, table

WITH_INDICATORS = settings(missing_indicators=True)


def every(period: int, rows: int = 400) -> list[float | None]:
    """Numbers of which one in `period` is missing."""
    return [None if row % period == 0 else float(row % 7) for row in range(rows)]


def fitted_on(folder: Path, x: list[float | None], **overrides: object) -> Preprocessor:
    return fit(folder, table(len(x), x=x, y=[1.0] * len(x)), WITH_INDICATORS.model_copy(update=overrides))[0]


def inputs_of(preprocessor: Preprocessor, column: str, found: object) -> np.ndarray:
    batch = preprocessor.transform(found).batch
    tabular = batch.column("tabular").flatten().to_numpy().reshape(batch.num_rows, -1)
    return tabular[:, preprocessor.fitted.feature_columns.index(column)]


def test_an_indicator_is_1_where_the_number_is_missing(tmp_path: Path) -> None:
    preprocessor = fitted_on(tmp_path, every(4))
    assert inputs_of(preprocessor, "x_missing", table(4, x=["", "2", None, "NA"])).tolist() == [1, 0, 1, 1]


def test_indicators_follow_the_numbers(tmp_path: Path) -> None:
    assert fitted_on(tmp_path, every(4)).fitted.feature_columns == ["x", "y", "x_missing", "c"]


@pytest.mark.parametrize(("period", "columns"), [(100, 4), (101, 3)])
def test_a_column_with_less_than_a_hundredth_missing_has_no_indicator(
    tmp_path: Path, period: int, columns: int
) -> None:
    preprocessor = fitted_on(tmp_path, every(period, rows=10_100))
    assert len(preprocessor.fitted.feature_columns) == columns


def test_a_column_without_any_number_has_no_indicator(tmp_path: Path) -> None:
    fitted = fitted_on(tmp_path, [None] * 40, imputation_dict={"x": 1.0}).fitted
    assert fitted.feature_columns == ["x", "y", "c"]


def test_without_the_setting_there_is_no_indicator(tmp_path: Path) -> None:
    assert fitted_on(tmp_path, every(4), missing_indicators=False).fitted.feature_columns == ["x", "y", "c"]


def test_indicators_are_scaled_as_the_training_rows_have_them(tmp_path: Path) -> None:
    x = every(4)
    preprocessor = fitted_on(tmp_path, x)
    indicator = inputs_of(preprocessor, "x_missing", table(len(x), x=x))
    transform = preprocessor.fitted.numeric_transform
    assert transform.mean[2] == indicator.mean() == 0.25
    assert transform.scale[2] == pytest.approx(indicator.std())


def test_the_embedding_of_an_indicator_has_one_bin(tmp_path: Path) -> None:
    fitted = fitted_on(tmp_path, every(100, rows=1000), numeric_embedding="piecewise_linear").fitted
    assert fitted.numeric_transform.bins[2] == (0.0, 1.0)


def test_an_indicator_belongs_to_its_column(tmp_path: Path) -> None:
    """So that importance shuffles both together."""
    assert fitted_on(tmp_path, every(4)).fitted.tabular_places == {"x": (0, 2), "y": (1,), "c": (3,)}


def test_saved_rules_load_with_their_indicators(tmp_path: Path) -> None:
    fitted = fitted_on(tmp_path, every(4)).fitted
    fitted.save(tmp_path / "model")
    assert FittedPreprocessing.load(tmp_path / "model") == fitted


def test_the_log_names_the_columns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fitted_on(tmp_path, every(4))
    assert "an additional input tells whether a number is missing in x." in caplog.text
