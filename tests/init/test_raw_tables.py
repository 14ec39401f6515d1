"""`init` reads raw files as people export them; what it remembers suffices for `predict` and a second `init`."""

import json
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from container.commands import main
from container.tables.part_files import open_tables
from container.tables.reading import Reading
from contracts.paths import SPLITS, JobPaths
from tests.init.test_init import ROWS, raw_table
from tests.tables.test_raw_files import RAW, needs_raw

# Each file with its label, its rows with a label, and columns with the type in which init writes them.
FILES: dict[str, tuple[str, int, dict[str, str]]] = {
    "returns_excel.csv": ("Retoure", 2000, {"Größe": "string", "Preis": "string", "PLZ": "string"}),
    "tickets.xlsx": (
        "Churned next year",
        1200,
        {"Opened": "timestamp[us]", "Devices": "int64", "Response h": "double"},
    ),
    "conversations.jsonl": ("escalated", 1500, {"user.address.country": "string", "stats.messages": "int64"}),
    "churn_spark": ("churn", 3000, {"fee": "decimal128(10, 2)", "year": "int64", "month": "int64"}),
    "payments.tsv": ("fraud", 2500, {"customer_age": "string", "country_code": "string"}),
    "mails.csv.gz": ("label", 900, {"body_html": "string"}),
    "small_wrapped.json": ("label", 400, {"n": "int64"}),
    "by_plan": ("churn", 600, {"plan": "string"}),
    "by_label": ("churn", 600, {"amount": "double"}),
}


@needs_raw
@pytest.mark.parametrize(("name", "expected"), FILES.items(), ids=FILES)
def test_a_raw_file_becomes_splits_with_all_its_rows_and_columns(tmp_path, name: str, expected: Any) -> None:
    label, rows, types = expected
    assert main(["init", str(RAW / name), "--label", label, "--root", str(tmp_path)]) == 0
    files = [pq.ParquetFile(JobPaths(tmp_path).channel(split) / f"{split}.parquet") for split in SPLITS]
    assert sum(file.metadata.num_rows for file in files) == rows
    assert {column: str(files[0].schema_arrow.field(column).type) for column in types} == types


def test_options_are_remembered_by_the_job(tmp_path, capsys):
    file, root = tmp_path / "raw.csv", tmp_path / "job"
    raw = raw_table()
    raw["colour"] = raw["colour"].replace({"red": "mañana"})
    raw.to_csv(file, index=False, sep=";", encoding="cp1252")
    assert main(["init", str(file), "--root", str(root), "--label", "outcome", "--encoding", "cp1252"]) == 0
    assert "raw.csv: read with encoding cp1252, delimiter ';'." in capsys.readouterr().out
    paths = JobPaths(root)
    assert json.loads((paths.config / "reading.json").read_text()) == {"delimiter": ";", "encoding": "cp1252"}
    assert main(["init", str(file), "--root", str(root), "--label", "outcome", "--force"]) == 0
    assert "both fit" not in capsys.readouterr().out
    parts = open_tables([file], option="--input", reading=Reading.of(None, paths), scratch=tmp_path)
    assert parts.notes == ["raw.csv: read with encoding cp1252, delimiter ';'"]
    written = pd.concat([pd.read_parquet(paths.channel(split)) for split in SPLITS])
    assert len(written) == ROWS
    assert set(written["colour"]) == {"mañana", "green"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a;label\n", "has columns, but no rows"),
        ("a;a;label\n1;2;x\n", "the column 'a' occurs twice"),
        ("", "the file is empty"),
    ],
)
def test_a_table_without_rows_or_with_one_name_twice_is_one_error(tmp_path, capsys, content: str, said: str) -> None:
    (tmp_path / "raw.csv").write_text(content)
    assert main(["init", str(tmp_path / "raw.csv"), "--root", str(tmp_path / "job")]) == 1
    error = capsys.readouterr().err
    assert f"raw.csv: {said}" in error
    assert "Traceback" not in error
