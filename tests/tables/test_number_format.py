"""Read numbers as people write them: separators of thousands, decimal commas, currencies, percent signs."""

import re

import numpy as np
import pyarrow as pa
import pytest

from container.tables.channel_files import Origin
from container.tables.values import numbers
from contracts.errors import ContractError
from testing.table_jobs import fit, settings, table

POINT = {
    "1,234,567.5": 1234567.5, "12,34,567": 1234567, "1 234": 1234, "1'234.5": 1234.5, "$1,000": 1000, "-$5": -5,
    "€ 7.50": 7.5, "12 %": 12, "12.5%": 12.5, "3 USD": 3, "(1,200.50)": -1200.5, "\u22125": -5, "1e3": 1000,
    "7.5": 7.5, "": np.nan, "n/a": np.nan,
}  # fmt: skip
COMMA = {"1.234,5": 1234.5, "1 234,56 €": 1234.56, "0,5": 0.5, "1.234": 1234, "-,5": -0.5, "12.5": 12.5, "3": 3}


@pytest.mark.parametrize(("written", "cells"), [("1,234.5", POINT), ("1.234,5", COMMA)])
def test_a_notation_is_read(written, cells):
    read = numbers(pa.array(list(cells)), "price", origin=Origin(), written=written)
    np.testing.assert_allclose(read, list(cells.values()))


@pytest.mark.parametrize(
    ("cell", "written"), [("1,23", "1,234.5"), ("1.23,4.5", "1.234,5"), ("12 apples", "1,234.5"), ("1,2345", "1,234.5")]
)
def test_other_texts_are_errors(cell, written):
    with pytest.raises(ContractError, match="is not a number"):
        numbers(pa.array([cell]), "price", origin=Origin(), written=written)


def test_a_notation_of_a_column_that_has_no_texts_is_refused(tmp_path):
    with pytest.raises(ContractError, match="number_format: 'x' has the notation 1.234,5, but the column is of type"):
        fit(tmp_path, table(), settings(number_format={"x": "1.234,5"}))


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
