"""Date columns from raw files to prepared inputs; what train has decides how they are read."""

from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from container.preprocessing.prepare import prepare_data
from container.preprocessing.prepared import PreparedData
from container.preprocessing.transform import Preprocessor
from container.tables.dates import ISO
from container.tables.records import records_to_table
from contracts.errors import ContractError
from contracts.hyperparameter_files import load_hyperparameters
from testing.jobs import table, write_job

DAYS = pd.date_range("2023-12-30 06:00", periods=60, freq="31h")


def prepared(root: Path, days: Any, *, file_format: str = "csv", **given: Any) -> PreparedData:
    """Prepare a column of days; `given` are further columns, and settings."""
    columns = {"day": days} | {name: given.pop(name) for name in ("label", "day_year") if name in given}
    frames = {split: table(60, seed=seed).assign(**columns) for seed, split in enumerate(("train", "val", "test"))}
    settings = {"date_field_list": ["day"], **given}
    paths = write_job(root, overrides=settings, frames=frames, file_format=file_format)
    return prepare_data(paths, load_hyperparameters(paths))


@pytest.mark.parametrize(
    ("days", "file_format"),
    [
        (DAYS, "parquet"),
        (DAYS.tz_localize("UTC").tz_convert("Asia/Tokyo"), "parquet"),
        (DAYS.strftime("%d.%m.%Y %H:%M"), "csv"),
        (DAYS.strftime("%b %d, %Y %I:%M %p"), "csv"),
    ],
    ids=["times", "zone", "german", "american"],
)
def test_every_notation_and_format_is_prepared_to_the_same_inputs(tmp_path: Path, days: Any, file_format: str) -> None:
    plain = prepared(tmp_path / "plain", DAYS.strftime("%Y-%m-%dT%H:%M:%S"))
    other = prepared(tmp_path / "other", days, file_format=file_format)
    assert other.fitted.numeric_transform == plain.fitted.numeric_transform
    assert other.digests == plain.digests


def test_a_record_is_read_as_the_rows_of_train(tmp_path: Path) -> None:
    data = prepared(tmp_path, DAYS.strftime("%d/%m/%Y"))
    preprocessor = Preprocessor.load(data.folder)
    record = {"chat": "hello", "price": 1.0, "quantity": 2, "color": "red", "day": "05/01/2024"}
    blank = record | {"day": None}
    tabular = np.stack(preprocessor.transform(records_to_table([record, blank])).batch["tabular"].to_numpy(False))
    inputs = data.fitted.feature_columns
    assert tabular[0, inputs.index("day_month")] == 1
    assert tabular[0, inputs.index("day_day")] == 5
    median = np.median(DAYS.floor("D").to_numpy().astype("datetime64[D]").astype(int))
    assert tabular[0, inputs.index("day_days")] == 19727 - median
    assert tabular[:, inputs.index("day_missing")].tolist() == [0, 1]
    assert tabular[1, inputs.index("day_year")] == np.float32(data.fitted.imputation["day_year"])
    assert "day" in data.fitted.feature_inputs
    assert not {"day_year", "day_missing"} & set(data.fitted.feature_inputs)


def test_a_column_with_every_day_up_to_12_is_read_with_the_month_first_and_a_warning(tmp_path, caplog):
    data = prepared(tmp_path, "02/03/2024")
    assert data.fitted.dates["day"].format == "%m/%d/%Y"
    assert "have the month first, as no day is above 12" in caplog.text


@pytest.mark.parametrize(
    ("days", "cause"),
    [
        (
            ["2024-01-05"] * 55 + ["soon", "2024-01-05", "later", "never", ""],
            "3 of 59 values (5.1%) are no dates, e.g. {0}: row 56: 'soon'; {0}: row 58: 'later'; {0}: row 59: 'never'",
        ),
        (["2024-01-05T10:00:00Z"] * 50 + ["2024-01-05T10:00:00"] * 10, "50 times have a time zone, and 10 have none"),
        ([None] * 60, "column 'day': no row has a date"),
        ([1706010912345] * 60, "60 of 60 values (100.0%) are no dates"),
    ],
)
def test_what_train_cannot_have_as_dates_is_an_error_with_the_share_and_the_rows(tmp_path, days, cause):
    with pytest.raises(ContractError) as error:
        prepared(tmp_path, days)
    assert cause.format(tmp_path / "input/data/train/data.csv") in error.value.cause


@pytest.mark.parametrize(("days", "file_format"), [(DAYS, "parquet"), (DAYS.strftime("%Y-%m-%d"), "csv")])
def test_a_date_among_the_numbers_is_an_error_that_names_the_setting(tmp_path, days, file_format):
    with pytest.raises(ContractError) as error:
        prepared(tmp_path, days, file_format=file_format, date_field_list=[], tab_field_list=["price", "day"])
    assert error.value.fix == "The column has dates: move it from tab_field_list to date_field_list."


def test_iso_dates_are_read_without_a_word_about_the_order_of_month_and_day(tmp_path, caplog):
    data = prepared(tmp_path, DAYS.strftime("%Y-%m-%d"))
    assert "month first" not in caplog.text
    shown = [name for name in data.summary["splits"]["train"]["numeric"] if name.startswith("day_")]
    assert shown == ["day_days"]


def test_a_time_after_the_year_9999_is_an_error_with_its_row(tmp_path: Path) -> None:
    days = np.array(["20000-01-01", *["2024-01-05"] * 59], "datetime64[s]")
    with pytest.raises(ContractError, match="1 of 60 values .* are no dates, e.g. .*row 1: '20000-01-01"):
        prepared(tmp_path, days, file_format="parquet")


def test_dates_of_unlabelled_rows_alone_are_no_dates(tmp_path: Path) -> None:
    label = [None, *[0, 1] * 29, 0]
    with pytest.raises(ContractError, match="column 'day': no row has a date"):
        prepared(tmp_path, ["2024-01-05", *[None] * 59], drop_unlabelled=True, label=label)


def test_years_of_two_digits_are_read_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepared(tmp_path, "05/14/40")
    assert "years of two digits are from 1969 to 2068: 40 is 2040" in caplog.text


@pytest.mark.parametrize(
    ("days", "settings", "reading"),
    [
        ("02/03/2024", {"date_format": {"day": "%d/%m/%Y"}}, ("%d/%m/%Y", False)),
        (["2024-01-05T10:00:00Z", "2024-01-05 10:00"] * 30, {"date_format": {"day": "2026-11-27 UTC"}}, (ISO, None)),
        ([1706010912] * 60, {"date_format": {"day": "epoch seconds"}}, ("epoch seconds", False)),
        (["2024-01-05", "soon"] * 30, {"null_values": ["Soon"]}, (ISO, False)),
    ],
)
def test_a_setting_says_how_dates_are_written(tmp_path, caplog, days, settings, reading):
    data = prepared(tmp_path, days, **settings)
    assert astuple(data.fitted.dates["day"]) == reading
    assert "month first" not in caplog.text
    loaded = Preprocessor.load(data.folder)
    cell = days if isinstance(days, str) else days[1]
    record = {"chat": "hello", "price": 1.0, "quantity": 2, "color": "red", "day": cell}
    tabular = loaded.transform(records_to_table([record])).batch["tabular"].to_numpy(False)[0]
    assert tabular[loaded.fitted.feature_columns.index("day_missing")] == (cell == "soon")


@pytest.mark.parametrize("setting", ["id_name", "weight_name", "group_name"])
def test_a_column_that_is_no_input_may_have_the_name_of_a_part_of_a_date(tmp_path: Path, setting: str) -> None:
    plain = prepared(tmp_path / "plain", DAYS)
    named = prepared(tmp_path / "named", DAYS, day_year=range(1, 61), **{setting: "day_year"})
    assert named.fitted.imputation == plain.fitted.imputation


def test_a_column_of_a_table_that_has_the_name_of_a_part_of_a_date_is_ignored(tmp_path: Path) -> None:
    preprocessor = Preprocessor.load(prepared(tmp_path, DAYS).folder)
    record = {"chat": "hello", "price": 1.0, "quantity": 2, "color": "red", "day": "2024-01-05", "day_year": 1}
    tabular = preprocessor.transform(pa.Table.from_pylist([record])).batch["tabular"].to_numpy(False)[0]
    assert tabular[preprocessor.fitted.feature_columns.index("day_year")] == 2024
