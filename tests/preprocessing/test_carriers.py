"""The same table in any form has the same inputs for the model, whatever form it was trained on."""

import json
import tempfile
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.risk_tables import category_keys
from container.preprocessing.transform import Preprocessor
from container.tables.channel_files import iter_tables
from container.tables.records import check_single_values, records_to_table
from container.tables.table_file import Origin
from container.tables.values import keys
from contracts.errors import ContractError
from contracts.serving import PARQUET
from testing.carriers import FILES, NARROW, TYPES, column, read_back, records, write
from testing.serving import read_records
from testing.table_jobs import fit_file, settings

ROWS = 40
# Forms in which a narrow float is a Python float, with other digits than in a file of text.
PYTHON_FLOATS = ("dicts", "JSON", "JSON Lines")


def columns_with(cells: pa.Array | pd.Series, labels: Random) -> dict[str, pa.Array | pd.Series]:
    """The columns of testing.table_jobs.settings, with `cells` as categories."""
    rows = len(cells)
    return {
        "id": pd.Series([f"r{i}" for i in range(rows)]),
        "text": pd.Series(["good"] * rows),
        "x": pd.Series([1.5] * rows),
        "y": pd.Series([2.5] * rows),
        "c": cells,
        "label": pd.Series([labels.randint(0, 1) if i > 1 else i for i in range(rows)]),
    }


def fitted(folder: Path, *, c: Sequence[object], suffix: str = "csv", dtype: str | None = None) -> Preprocessor:
    """A preprocessor fitted on a file with the categories `c`, each several times."""
    cells = pd.Series([*c] * 4, dtype=dtype)
    path = write(folder / f"train.{suffix}", columns_with(cells, Random(0)))
    return fit_file(folder, path, settings())[0]


def categories(preprocessor: Preprocessor, *cells: object) -> list[str | None]:
    """The category of train that each cell of a request is; None for another one."""
    table = preprocessor.fitted.risk_tables["c"]
    names = [*table.risk, None]
    keys = category_keys(records_to_table([{"c": cell} for cell in cells])["c"], preprocessor.fitted.kinds["c"])
    return [names[code] for code in table.codes(keys)]


@pytest.mark.parametrize("name", TYPES)
@given(rng=st.randoms(use_true_random=False))
@hypothesis_settings(max_examples=1, deadline=None)  # make fuzz has more
def test_every_form_of_a_table_has_the_inputs_of_train(name: str, rng: Random) -> None:
    columns = columns_with(column(name, rng, rows=ROWS), rng)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for suffix in FILES:
            path = write(Path(folder) / f"train.{suffix}", columns)
            preprocessor, _ = fit_file(Path(folder) / suffix, path, settings(category_embedding_dim=4))
            for form, table in read_back(columns, Path(folder)):
                if suffix == "parquet" or name not in NARROW or form not in PYTHON_FLOATS:
                    found[f"train in {suffix}, {form}"] = (
                        preprocessor.transform(table).batch.column("tabular").flatten()
                    )
    expected = found["train in parquet, parquet file"]
    assert [form for form, inputs in found.items() if not np.allclose(inputs, expected, rtol=0, atol=1e-6)] == []


@pytest.mark.parametrize(
    ("train", "request_cells", "expected"),
    [
        (("0012", "12", "7"), ("0012", "012", "12", 12, "12.0"), ["0012", None, "12", "12", "12"]),
        (("3.1", "3.10", "2"), ("3.1", "3.10", "3.100", 3.1), ["3.1", "3.10", None, "3.1"]),
        (("7.50", "8.25", "9"), ("7.5", "7.50", 7.5, Decimal("7.500"), "07.5"), ["7.5"] * 4 + [None]),
        (("3.1", "3.9"), ("3.1", "3.10"), ["3.1", None]),
        (("v1.10", "v1.1"), ("v1.10", "v1.1"), ["v1.10", "v1.1"]),
        (("1.2345678901234568e+18", "5"), (1.2345678901234568e18, "5.0"), ["1234567890123456768", "5"]),
        (("1e-07", "2.5"), (1e-7, Decimal("0.0000001")), ["1e-07"] * 2),
        (("1E3", "2E3", "x"), ("1E3", "1000"), ["1E3", None]),
        (("true", "no"), (True, 1, "1.0", "TRUE"), ["1"] * 4),
        (
            ("2024-01-02", "2024-01-03 10:00:00"),
            (datetime(2024, 1, 2), date(2024, 1, 2), "2024-01-02T00:00:00.000", "2024-01-03 10:00:00.000000"),
            ["2024-01-02"] * 3 + ["2024-01-03 10:00:00"],
        ),
        (
            ("2024-01-02 00:00:00+00:00", "2024-07-02 03:00:00Z"),
            ("2024-01-02 01:00:00+01:00", "2024-01-02 00:00:00", datetime(2024, 7, 2, 3, tzinfo=UTC)),
            ["2024-01-02 00:00:00Z", None, "2024-07-02 03:00:00Z"],
        ),
        (("1 days", "0 days 00:00:05"), (timedelta(1), "0:00:05", "P0DT0H0M5S"), ["1 days"] + ["0 days 00:00:05"] * 2),
        (("9" * 5000 + " days", "0 days"), ("9" * 5000 + " days", timedelta(0)), ["9" * 5000 + " days", "0 days"]),
        (("b'x y'", r"\N"), ("b'x y'", "x y"), ["b'x y'", None]),
    ],
)
def test_texts_of_csv_are_read_as_the_kind_of_the_column(tmp_path, train, request_cells, expected):
    assert categories(fitted(tmp_path, c=train), *request_cells) == expected


def test_a_string_of_parquet_keeps_its_spelling_where_it_looks_like_a_number(tmp_path):
    found = categories(fitted(tmp_path, suffix="parquet", c=("1.10", "1.20")), "1.10", "1.1", 1.1)
    assert found == ["1.10", None, None]


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_a_python_float_is_the_category_of_a_narrow_float(tmp_path, kind):
    cells = np.array([8.1, 0.25], kind)
    found = categories(
        fitted(tmp_path, suffix="parquet", c=cells.tolist(), dtype=kind), float(cells[0]), "8.1", str(cells[1])
    )
    assert found == ["8.1", "8.1", "0.25"]


def test_a_member_of_an_enum_is_its_value(tmp_path):
    color = Enum("Color", {"RED": "r", "BLUE": 5})
    assert categories(fitted(tmp_path, c=("r", "5")), color.RED, color.BLUE) == ["r", "5"]


def test_a_file_with_an_extension_type_that_is_not_known_is_refused_by_its_name(tmp_path):
    metadata = {b"ARROW:extension:name": b"geo.point", b"ARROW:extension:metadata": b""}
    schema = pa.schema([pa.field("c", pa.int64(), metadata=metadata)])
    pq.write_table(pa.table({"c": [1]}, schema=schema), tmp_path / "a.parquet")
    with pytest.raises(ContractError, match="column 'c' is of type int64 of the extension type geo.point"):
        next(iter(iter_tables([tmp_path / "a.parquet"], ["c"], rows_per_batch=9)))
    for table in (
        records_to_table(pa.table({"c": [1]}, schema=schema)),
        read_records((tmp_path / "a.parquet").read_bytes(), PARQUET, ["c"]),
    ):
        with pytest.raises(ContractError, match="column 'c' contains .* of the extension type geo.point"):
            check_single_values(table["c"], "c", origin=Origin())


@pytest.mark.parametrize("name", ["bool", "nullable integers", "decimals", "categories of numbers", "times in UTC"])
def test_every_form_of_a_label_is_the_same_class(tmp_path, name):
    labels = column(name, Random(1), rows=ROWS)
    values = dict.fromkeys(row["label"] for row in records({"label": labels}))
    first, second = [value for value in values if value is not None][:2]
    cells = [first, second] * (ROWS // 2)
    given = pd.Series(cells, dtype=labels.dtype) if isinstance(labels, pd.Series) else pa.array(cells, labels.type)
    columns = {**columns_with(pd.Series(["a"] * ROWS), Random(0)), "label": given}
    for suffix in FILES:
        preprocessor, _ = fit_file(tmp_path / suffix, write(tmp_path / f"train.{suffix}", columns), settings())
        for form, table in read_back(columns, tmp_path):
            found = preprocessor.transform(table).batch.column("label").to_pylist()
            assert sorted(found[:2]) == [0, 1], (suffix, form)
            assert found == found[:2] * (ROWS // 2), (suffix, form)


@pytest.mark.parametrize(("wanted", "written"), [("gr\u00f6\u00dfe", "gro\u0308\u00dfe"), ("o\u0308", "\u00f6")])
def test_a_column_name_is_found_in_either_unicode_form(tmp_path, wanted, written):
    columns = {"x": pd.Series([1, 2]), written: pd.Series(["a", "b"]), "z": pd.Series([3, 4])}
    found = dict(read_back(columns, tmp_path, names=[wanted, "x"]))
    assert [form for form, table in found.items() if table[wanted].to_pylist() != ["a", "b"]] == []


def test_a_name_that_looks_like_another_one_is_shown_with_escapes(tmp_path):
    write(tmp_path / "a.csv", {"pric\u0435": pd.Series([1])})
    with pytest.raises(ContractError, match=r"'price' is missing; the similar column 'pric\u0435' exists") as caught:
        next(iter_tables([tmp_path / "a.csv"], ["price"], rows_per_batch=9))
    assert r"('price' is not 'pric\u0435')" in caught.value.cause


class TestOlderModel:
    """A model whose preprocessing.json has no category_kinds."""

    def load(self, folder: Path, risks: dict[str, float]) -> FittedPreprocessing:
        fitted(folder, c=("a", "b")).fitted.save(folder)
        rules = json.loads((folder / "preprocessing.json").read_text())
        del rules["category_kinds"]
        (folder / "preprocessing.json").write_text(json.dumps(rules))
        (folder / "risk_table_map.json").write_text(json.dumps({"c": {"default_risk": 0.5, "risk": risks}}))
        return FittedPreprocessing.load(folder)

    def test_it_reads_numbers_times_and_texts_as_they_were(self, tmp_path):
        old = self.load(tmp_path, {"7.50": 0.1, "9": 0.2})
        assert categories(Preprocessor(old, {}), Decimal("7.5"), 9, "007") == ["7.5", "9", None]
        old = self.load(tmp_path, {"2024-01-02 00:00:00": 0.1, "2024-01-02 04:00:00+0100": 0.2, "x": 0.3})
        moments = datetime(2024, 1, 2), datetime(2024, 1, 2, 3, tzinfo=UTC)
        assert categories(Preprocessor(old, {}), *moments, "x") == ["2024-01-02", "2024-01-02 03:00:00Z", "x"]

    def test_it_refuses_spans_of_time(self, tmp_path):
        old = Preprocessor(self.load(tmp_path, {"5000000": 0.1, "1": 0.2}), {})
        table = records_to_table([{"text": "", "x": 1, "y": 1, "c": timedelta(seconds=5)}])
        with pytest.raises(ContractError, match="column 'c' is of type duration.*\n?.*Train the model again"):
            old.transform(table)


@pytest.mark.parametrize("value", [pd.Timestamp("2024-01-02 03:04:05.000000007"), pd.Timedelta(7, "ns")])
def test_a_pandas_value_of_a_dict_keeps_its_nanoseconds(value):
    expected = keys(records_to_table(pd.DataFrame({"c": [value]}))["c"])
    assert expected[0].as_py().endswith("05.000000007" if isinstance(value, pd.Timestamp) else "00.000000007")
    assert keys(records_to_table([{"c": value}])["c"]) == expected
