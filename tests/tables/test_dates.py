"""Dates in the usual notations become the same numbers, whatever the file format or type carries them."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from container.tables.dates import ISO, DateReading, date_columns, date_parts, read_dates
from container.tables.table_file import Origin
from contracts.errors import ContractError
from contracts.tabular_inputs import DATE_PARTS
from testing.jobs import run_python
from testing.locales import MONTHS, locale_environment

MOMENT = datetime(2024, 2, 29, 13, 45)
IN_A_LOCALE = """
import locale, time, pyarrow as pa
from container.tables.dates import DateReading, date_example, read_dates
from contracts.value_types import DATE_FORMATS
locale.setlocale(locale.LC_TIME, "")
texts = pa.array(["18-Oct-2024", "18-October-2024 14:30"])
print(time.strftime("%b", (2024, 10, 1, 0, 0, 0, 0, 275, 0)), read_dates(texts, "%d-%b-%Y").seconds.tolist())
print([date_example(DateReading(each, None)) for each in DATE_FORMATS])
"""


def parts_of(column: pa.Array, date_format: str = ISO) -> dict[str, float]:
    """The parts of the first date."""
    return dict(zip(DATE_PARTS, date_parts(read_dates(column, date_format).seconds)[:, 0].tolist(), strict=True))


@pytest.mark.parametrize("language", MONTHS)
def test_names_of_months_are_english_whatever_the_language_of_the_caller(language: str, tmp_path: Path) -> None:
    english, other = (
        run_python(IN_A_LOCALE, **environment).stdout.splitlines()
        for environment in ({"LC_TIME": "C"}, locale_environment(tmp_path, language))
    )
    assert english[0] == "Oct [1729209600.0, 1729261800.0]"
    assert other[0] == english[0].replace("Oct", MONTHS[language].split()[9])
    assert other[1] == english[1]


def test_a_time_becomes_its_parts() -> None:
    days = (MOMENT - datetime(1970, 1, 1)).total_seconds() / 86400
    parts = {"year": 2024, "month": 2, "day": 29, "weekday": 3, "hour": 13, "days": days, "missing": 0}
    assert parts_of(pa.array([MOMENT])) == parts


@pytest.mark.parametrize(
    "column",
    [
        pa.array([MOMENT], pa.timestamp("ns")),
        pa.array(["2024-02-29T13:45:00"]),
        pa.array(["2024-02-29 13:45"]),
        pa.array([str(pd.Timestamp(MOMENT))]).dictionary_encode().cast(pa.string()),
    ],
    ids=["timestamp", "iso", "minutes", "pandas"],
)
def test_every_carrier_of_a_time_has_its_parts(column: pa.Array) -> None:
    assert parts_of(column) == parts_of(pa.array([MOMENT]))


@pytest.mark.parametrize(
    ("text", "date_format"),
    [
        ("29.02.2024", "%d.%m.%Y"), ("02/29/2024", "%m/%d/%Y"), ("29/02/2024", "%d/%m/%Y"), ("29-Feb-24", "%d-%b-%y"),
        ("February 29, 2024", "%B %d, %Y"), ("20240229", ISO), ("02/29/2024 12:00 AM", "%m/%d/%Y"),
        ("2024-W09-4", ISO), ("2024.02.29", "%Y.%m.%d"), ("02-29-2024", "%m-%d-%Y"), ("24/02/29", "%y/%m/%d"),
        ("Feb 29th, 2024", "%b %d, %Y"), ("THURSDAY, 29. feb. 2024", "%d %b %Y"), ("1709164800", "epoch seconds"),
        ("1709164800000", "epoch milliseconds"), ("29.02.2024, 00:00:00", "%d.%m.%Y"), ("2024-2-29", ISO),
    ],
)  # fmt: skip
def test_every_notation_of_a_date_has_its_parts(text: str, date_format: str) -> None:
    assert parts_of(pa.array([text]), date_format) == parts_of(pa.array([date(2024, 2, 29)]))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["2024-02-29T15:45:00+02:00"]),
        pa.array(["2024-02-29 13:45:00Z"]),
        pa.array(["2024-02-29 13:45:00 UTC"]),
        pa.array(["2024-02-29 13:45:00.000000+00"]),
        pa.array([MOMENT.replace(tzinfo=UTC)], pa.timestamp("us", "UTC")),
    ],
    ids=["offset", "utc", "named", "postgres", "timestamp"],
)
def test_a_time_with_a_zone_is_read_in_utc(column: pa.Array) -> None:
    assert read_dates(column, ISO).zoned.all()
    assert parts_of(column) == parts_of(pa.array([MOMENT]))


@pytest.mark.parametrize(
    ("text", "date_format", "expected"),
    [
        ("Thu, 29 Feb 2024 15:45:00 +0200", "%d %b %Y", MOMENT), ("Feb 2024", "%b %Y", datetime(2024, 2, 1)),
        ("2/29/2024 1:45 p.m.", "%m/%d/%Y", MOMENT), ("29/02/2024 13:45:00.000", "%d/%m/%Y", MOMENT),
    ],
)  # fmt: skip
def test_a_time_of_any_notation_has_its_parts(text: str, date_format: str, expected: datetime) -> None:
    assert parts_of(pa.array([text]), date_format) == parts_of(pa.array([expected]))


@pytest.mark.parametrize("date_format", ["%d.%m.%Y", "epoch seconds"])
def test_a_typed_date_is_that_date_whatever_the_notation_of_texts(date_format: str) -> None:
    assert parts_of(pa.array([MOMENT]), date_format) == parts_of(pa.array([MOMENT]))


def test_a_time_without_a_zone_is_in_utc_where_the_reading_says_so() -> None:
    table = pa.table({"t": ["2024-02-29T13:45:00", "2024-02-29T15:45:00+02:00"]})
    assert len(set(date_columns(table, {"t": DateReading(ISO, None)}, origin=Origin())["t_days"].to_pylist())) == 1


@pytest.mark.parametrize("cell", [None, "", " ", "NaT", "null"])
def test_a_missing_date_is_nothing_but_missing(cell: str | None) -> None:
    parts = parts_of(pa.array([cell], pa.string()))
    assert parts.pop("missing") == 1
    assert np.isnan([*parts.values()]).all()


@pytest.mark.parametrize(
    ("cell", "reading", "cause"),
    [
        ("30.02.2024", DateReading("%d.%m.%Y", False), "'30.02.2024' is not a date of the form %d.%m.%Y, as in train"),
        ("soon", DateReading(ISO, False), "'soon' is not a date"),
        ("2024-02-29T13:45:00Z", DateReading(ISO, False), "is not a time without a time zone, as in train"),
        ("2024-02-29", DateReading(ISO, True), "is not a time with a time zone, as in train"),
        ("2024-02-29+05:00", DateReading(ISO, False), "'2024-02-29+05:00' is not a date"),  # a zone, no hour
        ("20240612-0208", DateReading(ISO, False), "'20240612-0208' is not a date"),
        ("1709164800000", DateReading("epoch seconds", False), "is not a date of the form epoch seconds, as in train"),
        ("29/02/2024 13", DateReading("%d/%m/%Y", False), "'29/02/2024 13' is not a date"),
    ],
)
def test_a_date_that_the_model_cannot_read_is_an_error_of_its_row(cell: Any, reading: DateReading, cause: str) -> None:
    table = pa.table({"day": pa.array([None, cell], pa.string())})
    with pytest.raises(ContractError) as error:
        date_columns(table, {"day": reading}, origin=Origin())
    assert list(error.value.row_causes) == [1]
    assert cause in error.value.cause


@pytest.mark.parametrize("reading", [DateReading(ISO, False), DateReading(ISO, True), DateReading("%d %b %Y", False)])
def test_the_fix_is_a_date_that_the_model_reads(reading: DateReading) -> None:
    with pytest.raises(ContractError, match="'soon' is not a date") as error:
        date_columns(pa.table({"day": ["soon"]}), {"day": reading}, origin=Origin())
    example = error.value.fix.removeprefix("Write it as ").partition(",")[0]
    date_columns(pa.table({"day": [example]}), {"day": reading}, origin=Origin())
