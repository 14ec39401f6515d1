"""Convert a caller's records to a table of raw columns."""

from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from container.tables.records import records_to_table
from container.tables.table_file import Origin
from container.tables.values import keys, numbers, texts


@pytest.mark.parametrize("others", [[""], ["n/a"], ["1.234"], [Decimal("7.5")]])
def test_a_number_beside_texts_is_itself_in_every_notation(others):
    table = records_to_table([{"price": value} for value in [2.125, Decimal("12.125"), *others]])
    found = numbers(table["price"], "price", origin=Origin(), written="1.234,5")
    assert found[:2].tolist() == [2.125, 12.125]
    assert keys(table["price"])[:2].to_pylist() == texts(table["price"])[:2] == ["2.125", "12.125"]


def test_times_of_python_have_a_type():
    assert records_to_table([{"when": datetime(2024, 1, 2, 3)}, {"when": None}])["when"].type == pa.timestamp("us")
