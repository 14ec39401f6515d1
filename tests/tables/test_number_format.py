"""Read numbers as people write them: separators of thousands, decimal commas, currencies, percent signs."""

import re

import numpy as np
import pyarrow as pa
import pytest

from container.tables.table_file import Origin
from container.tables.values import numbers
from contracts.errors import ContractError
from testing.table_jobs import fit, settings, table

POINT = {
    "1,234,567.5": 1234567.5, "1 234": 1234, "1'234.5": 1234.5, "$1,000": 1000, "-$5": -5,
    "€ 7.50": 7.5, "12 %": 12, "12.5%": 12.5, "3 USD": 3, "(1,200.50)": -1200.5, "\u22125": -5, "1e3": 1000,
    "7.5": 7.5, "": np.nan, "n/a": np.nan, "US$ 5": 5, "$(2,500.00)": -2500, "304.70-": -304.7, "CHF 1'234.50": 1234.5,
    "USD1,000.50": 1000.5, "5 kr": 5, "#DIV/0!": np.nan, r"\N": np.nan,
    "125.-": 125, "CHF 16.-": 16,
}  # fmt: skip
COMMA = {"1.234,5": 1234.5, "1 234,56 €": 1234.56, "0,5": 0.5, "1.234": 1234, "-,5": -0.5, "12.5": 12.5, "3": 3,
         "R$ 1.234,50": 1234.5, "0.375": 0.375, "304,70-": -304.7,
         "16,-": 16, "472,\u2013 €": 472}  # fmt: skip


@pytest.mark.parametrize(("written", "cells"), [("1,234.5", POINT), ("1.234,5", COMMA)])
def test_a_notation_is_read(written, cells):
    read = numbers(pa.array(list(cells)), "price", origin=Origin(), written=written)
    np.testing.assert_allclose(read, list(cells.values()))


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("1,23", "1,234.5"),
        ("1.23,4.5", "1.234,5"),
        ("12 apples", "1,234.5"),
        ("1,2345", "1,234.5"),
        ("12,34,567", "1,234.5"),
        ("0,375", "1,234.5"),
        ("5 PCS", "1,234.5"),
        ("ABC-5", "1,234.5"),
        ("42 MIN", "1.234,5"),
        ("BAW32", "1.234,5"),
        ("ORD-00001", "1.234,5"),
        ("TOP10", "1,234.5"),
        ("EUR 007", "1,234.5"),
    ],
)
def test_other_texts_are_errors(cell, written):
    with pytest.raises(ContractError, match="is not a number"):
        numbers(pa.array([cell]), "price", origin=Origin(), written=written)


def test_a_notation_of_a_column_that_has_no_texts_is_refused(tmp_path):
    with pytest.raises(ContractError, match="number_format: 'x' has the notation 1.234,5, but the column is of type"):
        fit(tmp_path, table(), settings(number_format={"x": "1.234,5"}))


PRICES = ["$1,000.50", "$7.25", "12"]


def test_several_currencies_in_train_are_one_error(tmp_path):
    with pytest.raises(ContractError, match="column 'x': numbers are in CAD and in EUR"):
        fit(tmp_path, table(30, x=["5 CAD", "5 EUR"] * 15), settings(number_format={"x": "1,234.5"}))


def test_a_request_has_the_currency_of_train(tmp_path):
    preprocessor, _ = fit(tmp_path, table(30, x=PRICES * 10), settings(number_format={"x": "1,234.5"}))
    with pytest.raises(ContractError, match="'€ 5' is not a number in [$], as in train") as refused:
        preprocessor.transform(table(4, x=["$5", "5", "€ 5", "5 %"]))
    assert list(refused.value.row_causes) == [2, 3]


@pytest.mark.parametrize("cell", ["5 PCS", "ABC-5", "12 kg", "0,375"])
def test_a_request_with_letters_or_a_broken_group_is_an_error(cell, tmp_path):
    preprocessor, _ = fit(tmp_path, table(30, x=PRICES * 10), settings(number_format={"x": "1,234.5"}))
    with pytest.raises(ContractError, match=f"record 2, column 'x': '{cell}' is not a number"):
        preprocessor.transform(table(2, x=["5", cell]))


def test_a_word_of_null_values_is_missing_in_train_and_in_requests(tmp_path):
    preprocessor, _ = fit(tmp_path, table(30, x=["5", "TBD", "7"] * 10), settings(null_values=["tbd "]))
    tabular = np.stack(preprocessor.transform(table(2, x=["tbd", "6"])).batch["tabular"].to_numpy(False))
    assert tabular[:, 0].tolist() == [6, 6]


@pytest.mark.parametrize(
    ("cell", "fix"),
    [
        ("1,924.45", r'Set "number_format": \{"price": "1,234.5"\}'),
        ("1.924,45", r'Set "number_format": \{"price": "1.234,5"\}'),
        ("2026-01-31", "The column has dates"),
        ("31.01.2026", "The column has dates"),
        ("red", "Write a number such as 12.5"),
    ],
)
def test_the_fix_of_a_text_names_the_setting_that_reads_it(cell, fix):
    with pytest.raises(ContractError) as refused:
        numbers(pa.array(["1", cell]), "price", origin=Origin())
    assert refused.match("is not a number")
    assert re.search(fix, refused.value.fix)
