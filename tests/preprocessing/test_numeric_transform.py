"""Numbers that are close to each other or equal in train: the inputs that the model computes from them."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from container.models.tabular import NumericTransform
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
from testing.table_jobs import settings, table, write_job


def summary(values: Any) -> NumericSummary:
    found = NumericSummary()
    found.add(np.asarray(values, np.float64))
    return found


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
