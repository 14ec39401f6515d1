"""An input that tells the model whether a number was missing."""

from pathlib import Path

import numpy as np
import pytest

from container.preprocessing.transform import Preprocessor
from testing.table_jobs import fit, settings, table
from tests.preprocessing.test_imputation import tabular

WITH_INDICATORS = settings(missing_indicators=True)


def every(period: int, rows: int = 400) -> list[float | None]:
    """Numbers of which one in `period` is missing."""
    return [None if row % period == 0 else float(row % 7) for row in range(rows)]


def fitted_on(folder: Path, x: list[float | None], **overrides: object) -> Preprocessor:
    return fit(folder, table(len(x), x=x, y=[1.0] * len(x)), WITH_INDICATORS.model_copy(update=overrides))[0]


def inputs_of(preprocessor: Preprocessor, column: str, found: object) -> np.ndarray:
    return tabular(preprocessor, found)[:, preprocessor.fitted.feature_columns.index(column)]


def test_an_indicator_is_1_where_the_number_is_missing(tmp_path: Path) -> None:
    preprocessor = fitted_on(tmp_path, every(4))
    assert inputs_of(preprocessor, "x_missing", table(4, x=["", "2", None, "NA"])).tolist() == [1, 0, 1, 1]


def test_indicators_follow_the_numbers_and_belong_to_their_columns(tmp_path: Path) -> None:
    """So that importance shuffles a number together with its indicator."""
    three = {"is_binary": False, "num_classes": 3, "multiclass_categories": ["a", "b", "z"]}
    hp = settings(missing_indicators=True, category_embedding_dim=2, category_embedding_min_count=1, **three)
    fitted = fit(tmp_path, table(60, x=every(3, 60), y=every(4, 60), label=["a", "b", "z"] * 20), hp)[0].fitted
    assert fitted.feature_columns == ["x", "y", "x_missing", "y_missing", "c_a", "c_b", "c_z", "c_code"]
    assert fitted.tabular_places == {"x": (0, 2), "y": (1, 3), "c": (4, 5, 6, 7)}


@pytest.mark.parametrize(
    ("missing", "rows", "has_one"),
    [(10, 1000, True), (9, 1000, False), (990, 1000, True), (991, 1000, False), (3, 20, True), (2, 20, False)],
)
def test_a_column_that_is_nearly_always_missing_or_present_has_no_indicator(tmp_path, missing, rows, has_one):
    fitted = fitted_on(tmp_path, [None] * missing + [1.0] * (rows - missing)).fitted
    assert fitted.missing_indicators == (("x",) if has_one else ())


def test_a_column_without_any_number_has_no_indicator(tmp_path: Path) -> None:
    fitted = fitted_on(tmp_path, [None] * 40, imputation_dict={"x": 1.0}).fitted
    assert fitted.feature_columns == ["x", "y", "c"]


def test_indicators_are_scaled_as_the_training_rows_have_them(tmp_path: Path) -> None:
    x = every(4)
    preprocessor = fitted_on(tmp_path, x)
    indicator = inputs_of(preprocessor, "x_missing", table(len(x), x=x))
    transform = preprocessor.fitted.numeric_transform
    assert transform.mean[2] == indicator.mean() == 0.25
    assert transform.scale[2] == pytest.approx(indicator.std())


def test_the_embedding_of_an_indicator_tells_0_from_1(tmp_path: Path) -> None:
    bins = fitted_on(tmp_path, every(4), numeric_embedding="piecewise_linear").fitted.numeric_transform.bins[2]
    assert (bins[0], bins[-1]) == (0.0, 1.0)


def test_unlabelled_rows_of_train_do_not_count(tmp_path: Path) -> None:
    labels = [None if row % 4 == 0 else row % 3 % 2 for row in range(400)]  # where x is missing
    found = table(400, x=every(4), y=[1.0] * 400, label=labels)
    fitted = fit(tmp_path, found, WITH_INDICATORS.model_copy(update={"drop_unlabelled": True}))[0].fitted
    assert fitted.missing_indicators == ()


def test_the_log_names_the_columns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fitted_on(tmp_path, every(4))
    assert "an additional input tells whether a number is missing in x." in caplog.text
