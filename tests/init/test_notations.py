"""`init` reads notations from all rows, says its choices, and drops no letter, digit or sign silently."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.init_tables import SHARED
from container.commands import main
from container.preprocessing.prepare import prepare_data
from contracts.hyperparameter_files import load_hyperparameters
from contracts.paths import JobPaths

ROWS = 240
RNG = np.random.default_rng(0)
TEXT = [" ".join(RNG.choice(["late", "parcel", "refund", "blue", "shoe", "size"], 9)) for _ in range(ROWS)]


def table(**columns) -> pd.DataFrame:
    """Return a table with a text, a label and columns of ROWS cells, which are repeated."""
    made = {name: (list(cells) * ROWS)[:ROWS] for name, cells in columns.items()}
    return pd.DataFrame({"note": TEXT, **made, "y": ["a", "b", "b"] * (ROWS // 3)})


class Init:
    def __init__(self, tmp_path, capsys):
        self.paths, self.file, self.capsys = JobPaths(tmp_path / "job"), tmp_path / "raw.csv", capsys

    def __call__(self, frame: pd.DataFrame, *options: str) -> tuple[dict, str]:
        """Return the settings, and what was printed."""
        frame.to_csv(self.file, index=False)
        arguments = ["init", str(self.file), "--label", "y", "--root", str(self.paths.root), "--force", *options]
        assert main(arguments) == 0
        return json.loads(self.paths.hyperparameter_files[-1].read_text()), self.capsys.readouterr().out


@pytest.fixture
def init(tmp_path, capsys):
    return Init(tmp_path, capsys)


def role(settings: dict, name: str) -> str:
    """Return the setting that names a column; "" for none."""
    found = (key for key, value in settings.items() if isinstance(value, list) and name in value)
    return next(found, next((key for key, value in settings.items() if value == name), ""))


DIGITS = [int(each) for each in RNG.permutation(90_000)[:ROWS] + 10_000]
CODES = {
    "minutes": ["42 MIN", "7 MIN", "13 MIN"],
    "plane": ["BAW32", "BAW118", "DLH4"],
    "order": [f"ORD-{i % 30:05d}" for i in range(ROWS)],
    "pieces": ["5 PCS", "12 PCS", "7 PCS"],
    "month": [f"{i % 12 + 1:02d}.2024" for i in range(ROWS)],
    "item": ["007.1", "007.2", "112.1"],
    "app": ["1.10", "1.9", "1.8", "2.0"],
    "sku": ["12E4", "13E4", "77E1", "1204"],
    "town": [f"{each // 1000} {each % 1000:03d}" for each in DIGITS[:60]],
    "vat": [f"28.{each // 100}.{each % 900 + 100}" for each in DIGITS[:60]],
    "phone": [f"211 {each // 100} {each % 900 + 100}" for each in DIGITS[:60]],
    "top": ["TOP10", "TOP12", "PEN50"],
}


@pytest.mark.parametrize("name", CODES)
def test_a_code_is_no_number(name, init):
    settings, _ = init(table(**{name: CODES[name]}))
    assert role(settings, name) == "cat_field_list"


AMOUNTS = {
    "dollars": (["US$ 5", "US$ 1,200.50", "$(2,500.00)"], None),
    "reais": (["R$ 1.234,50", "R$ 7,25", "R$ 12,00"], "1.234,5"),
    "sap": (["304.70-", "12.50", "1,299.00"], "1,234.5"),
    "francs": (["CHF 1'234.50", "CHF 80.00"], "1,234.5"),
    "kroner": (["1 234,50 kr", "80,00 kr"], "1.234,5"),
    "comma": (["3", "0,375", "2"], "1.234,5"),
    "salary": ([f"{each // 1000} {each % 1000 // 100}00" for each in DIGITS], "1,234.5"),
    "price": ([f"{each % 90}.{each % 100:02d}" for each in DIGITS], ""),
    "large": ([f"{each * 97:,}" for each in DIGITS], "1,234.5"),
}


@pytest.mark.parametrize("name", AMOUNTS)
def test_an_amount_is_a_number(name, init):
    cells, written = AMOUNTS[name]
    settings, _ = init(table(**{name: cells}))
    if written is None:  # $ may be any dollar
        assert role(settings, name) == "cat_field_list"
    else:
        assert (role(settings, name), settings.get("number_format", {}).get(name, "")) == ("tab_field_list", written)


def test_amounts_in_several_currencies_are_no_number_and_are_named(init):
    settings, printed = init(table(price=["5 USD", "7 USD", "6 EUR"]))
    assert "price: the numbers are in USD (160), EUR (80), so it is no number" in printed
    assert role(settings, "price") == "cat_field_list"


def test_percentages_beside_plain_numbers_are_named(init):
    _, printed = init(table(share=["98 %", "0.79", "12 %"]))
    assert "share: 160 of 240 numbers have a percent sign, and 80 have none" in printed


@pytest.mark.parametrize("other", [{}, {"preis": ["3,78", "64,66"]}])
def test_groups_of_three_digits_are_a_warning_with_the_option_that_reads_them_otherwise(other, init):
    settings, printed = init(table(sales=["49", "39.306", "2.857"], **other))
    written, option = ("1.234,5", "sales=1,234.5") if other else (None, "sales=1.234,5")
    assert settings.get("number_format", {}).get("sales") == written
    assert f"--number-format {option}" in printed
    settings, printed = init(table(sales=["49", "39.306", "2.857"], **other), "--number-format", option)
    assert settings["number_format"]["sales"] == option.removeprefix("sales=")
    assert "--number-format" not in printed


@pytest.mark.parametrize("share", [1, 30])
@pytest.mark.parametrize("kind", ["number", "date"])
def test_words_among_values_are_a_warning_and_missing_if_the_user_says_so(kind, share, init):
    value = (lambda i: f"{i}.5") if kind == "number" else (lambda i: f"2024-03-{i % 28 + 1:02d}")
    words = int(ROWS * share / 100)
    cells = [*[value(i) for i in range(ROWS - words)], *(["unknown"] * (words - words // 3) + ["tbd"] * (words // 3))]
    settings, printed = init(table(v=cells))
    assert f"v: of 240 cells, {words} cannot be read as a {kind}, e.g. 'unknown', so it is no {kind}" in printed
    assert "To read them as missing: --null unknown" in printed
    settings, printed = init(table(v=cells), "--null", "Unknown", "tbd")
    assert role(settings, "v") == ("tab_field_list" if kind == "number" else "date_field_list")
    assert settings["null_values"] == ["Unknown", "tbd"]
    assert "cannot be read" not in printed


def test_one_bad_cell_behind_the_sample_keeps_a_column_from_being_a_number_or_a_date(init):
    rows = 60_000
    frame = pd.DataFrame({
        "note": (TEXT * rows)[:rows], "price": np.arange(rows) % 977 / 10, "day": "2024-01-02",
        "y": ["a", "b"] * (rows // 2),
    }).astype(str)  # fmt: skip
    frame.loc[rows - 1, ["price", "day"]] = ["12,x", "2024-02-30"]
    settings, printed = init(frame)
    assert "price: of 60,000 cells, 1 cannot be read as a number, e.g. '12,x'" in printed
    assert "day: of 60,000 cells, 1 cannot be read as a date, e.g. '2024-02-30'" in printed
    assert {role(settings, "price"), role(settings, "day")} & {"tab_field_list", "date_field_list"} == set()


DATES = {
    "utc": (["2024-01-25 10:30:00 UTC", "2024-02-25 11:30:00 UTC"], None),
    "mail": (["Thu, 25 Jan 2024 10:30:00 +0100", "Sun, 25 Feb 2024 10:30:00 +0100"], "%d %b %Y"),
    "comma": (["25.01.2024, 10:30:00", "26.01.2024, 10:30:00"], "%d.%m.%Y"),
    "dots": (["2024.01.25", "2024.02.25"], "%Y.%m.%d"),
    "dashes": (["01-25-2024", "02-25-2024"], "%m-%d-%Y"),
    "months": (["Jan 2024", "Feb 2024"], "%b %Y"),
    "digits": (["20240125", "20240225"], None),
    "weeks": (["2024-W05", "2024-W06-3"], None),
    "created_at": (["1706178600", "1708178600"], "epoch seconds"),
    "updated_ms_ts": (["1706178600000", "1708178600000"], "epoch milliseconds"),
    "american": (["1/25/2024 10:30 AM", "2/25/2024 1:05 PM"], "%m/%d/%Y"),
    "firsts": ([f"01-{month:02}-2022" for month in range(1, 13)], "%d-%m-%Y"),
}


@pytest.mark.parametrize("name", DATES)
def test_a_date_is_read_and_its_notation_is_a_setting(name, init):
    cells, written = DATES[name]
    settings, _ = init(table(**{name: cells}))
    assert (role(settings, name), settings.get("date_format", {}).get(name)) == ("date_field_list", written)


def test_numbers_of_the_range_of_epochs_are_dates_only_by_name(init):
    settings, _ = init(table(revenue=["1706178600", "1708178600", "1709178600"]))
    assert role(settings, "revenue") == "tab_field_list"
    settings, _ = init(table(revenue=["1706178600", "1708178600"]), "--date", "revenue")
    assert settings["date_format"] == {"revenue": "epoch seconds"}


@pytest.mark.parametrize(("other", "first"), [({}, "%m"), ({"price": ["3,78", "64,66"]}, "%d")])
def test_days_up_to_12_are_a_warning_with_the_option_that_reads_them_otherwise(other, first, init):
    settings, printed = init(table(day=["10/07/2024", "04/01/2024", "11/02/2024"], **other))
    assert settings["date_format"]["day"].startswith(first)
    option = "day=%d/%m/%Y" if first == "%m" else "day=%m/%d/%Y"
    assert f"--date-format {option}" in printed
    settings, printed = init(table(day=["10/07/2024", "04/01/2024"], **other), "--date-format", option)
    assert settings["date_format"] == {"day": option.removeprefix("day=")}
    assert "--date-format" not in printed


def test_times_with_and_without_a_zone_are_read_in_utc_by_option(init):
    cells = ["2024-01-25T10:00:00", "2024-02-25T10:00:00Z", "2024-03-25T10:00:00+02:00"]
    settings, printed = init(table(seen=cells))
    assert "seen: 160 times have a time zone, and 80 have none, so it is no date" in printed
    assert "--date-format 'seen=2026-11-27 UTC'" in printed
    settings, _ = init(table(seen=cells), "--date-format", "seen=2026-11-27 UTC")
    assert settings["date_format"] == {"seen": "2026-11-27 UTC"}


@pytest.mark.parametrize(
    "option", ["--number-format=price=1.234.5", "--date-format=day=%d/%m", "--date-format=%d/%m/%Y"]
)
def test_a_notation_that_is_not_known_is_one_error(option, init, capsys):
    table(price=["1"]).to_csv(init.file, index=False)
    assert main(["init", str(init.file), "--label", "y", "--root", str(init.paths.root), option]) == 1
    assert "is not COLUMN=NOTATION" in capsys.readouterr().err


def test_numbers_with_a_unit_and_spans_of_time_say_what_to_do(init):
    _, printed = init(table(weight=["53 kg", "61 kg", "87 kg"], call=["01:39:05", "00:50:39", "02:03:47"]))
    assert "weight: the cells are numbers with 'kg'" in printed
    assert "call: the cells are times such as" in printed


def test_columns_that_begin_after_the_rows_of_train_are_left_out_and_the_job_trains(init):
    days = pd.date_range("2026-01-01", periods=ROWS).strftime("%d.%m.%Y")
    late = [*[""] * (ROWS - 20), *[f"{i},5" for i in range(20)]]
    frame = table(day=days, late=late, seen=[day if cell else "" for day, cell in zip(days, late)])
    settings, printed = init(frame, "--time", "day")
    assert "late: is left out, because no row of train has a value." in printed
    assert (role(settings, "late"), role(settings, "seen")) == ("", "")
    assert prepare_data(init.paths, load_hyperparameters(init.paths)).rows["train"] == 192


@pytest.mark.skipif(not (SHARED / "raw").exists(), reason="the raw files are not on this machine")
@pytest.mark.parametrize(
    ("name", "label", "numbers", "dates"),
    [
        ("small_thousands_dot.csv", "label", {"Umsatz": "1.234,5", "Preis": "1.234,5"}, {}),
        ("small_weight.csv", "Retoure", {"Preis": "1.234,5", "Gewicht (kg)": "1.234,5"}, {}),
        ("small_odd_types.csv", "label", {"pct": "1.234,5"}, {"ts": "epoch seconds", "d_eu_small": "%d/%m/%Y"}),
        ("small_time_eu.csv", "label", {}, {}),
    ],
)
def test_a_raw_file_has_the_notations_of_its_readme(name, label, numbers, dates, tmp_path):
    options = ["--time", "datum"] if name == "small_time_eu.csv" else []
    assert main(["init", str(SHARED / "raw" / name), "--label", label, "--root", str(tmp_path), *options]) == 0
    settings = json.loads(JobPaths(tmp_path).hyperparameter_files[-1].read_text())
    assert (settings.get("number_format", {}), settings.get("date_format", {})) == (numbers, dates)
