"""DataLoading: a table in, or a generated one; part files, signature and metadata out."""

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from testing.step_runs import input_folder, message, orders, output_folder, run_step


def parts(root: Path) -> list[Path]:
    return sorted(output_folder(root, "load-data", "DATA").iterdir())


def written(root: Path, name: str, file: str) -> object:
    return json.loads((output_folder(root, "load-data", name) / file).read_text())


def test_a_users_table_becomes_part_files_with_its_cells_to_the_letter(tmp_path: Path) -> None:
    frame = orders(25)
    frame.to_json(input_folder(tmp_path, "load-data", "input_data") / "table.jsonl", orient="records", lines=True)
    run_step(tmp_path, "load-data", ROWS_PER_FILE=10)
    assert [path.name for path in parts(tmp_path)] == ["part-00000.csv", "part-00001.csv", "part-00002.csv"]
    read = [pd.read_csv(path, dtype=str, keep_default_na=False) for path in parts(tmp_path)]
    assert [len(each) for each in read] == [10, 10, 5]
    for name in ("order_id", "chat", "seller", "time"):
        assert pd.concat(read)[name].tolist() == frame[name].tolist()
    assert written(tmp_path, "SIGNATURE", "signature.json") == list(frame.columns)
    metadata = written(tmp_path, "METADATA", "metadata.json")
    assert metadata["rows"] == 25
    assert metadata["files"] == {"part-00000.csv": 10, "part-00001.csv": 10, "part-00002.csv": 5}


@pytest.mark.parametrize("output_format", ["TSV", "PARQUET"])
def test_the_format_is_the_one_asked_for(tmp_path: Path, output_format: str) -> None:
    orders(5).to_csv(input_folder(tmp_path, "load-data", "input_data") / "table.csv", index=False)
    run_step(tmp_path, "load-data", OUTPUT_FORMAT=output_format)
    (path,) = parts(tmp_path)
    assert path.name == f"part-00000.{output_format.lower()}"
    read = pd.read_parquet(path) if output_format == "PARQUET" else pd.read_csv(path, sep="\t", dtype=str)
    assert read["order_id"].tolist() == orders(5)["order_id"].tolist()


def test_a_parquet_table_keeps_its_types(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([1, 2], pa.int32()), "x": pa.array([0.1, None]), "kind": pa.array(["a", "b"])})
    table = table.set_column(2, "kind", table["kind"].dictionary_encode())
    pq.write_table(table, input_folder(tmp_path, "load-data", "input_data") / "t.parquet")
    run_step(tmp_path, "load-data", OUTPUT_FORMAT="PARQUET")
    schema = pq.read_schema(parts(tmp_path)[0])
    assert (schema.field("id").type, schema.field("x").type) == (pa.int32(), pa.float64())
    assert pa.types.is_string(schema.field("kind").type)


def test_a_column_of_lists_is_left_out(tmp_path: Path) -> None:
    frame = orders(5)
    frame.assign(tags=[[["a"]]] * 5).to_parquet(input_folder(tmp_path, "load-data", "input_data") / "t.parquet")
    run_step(tmp_path, "load-data")
    assert written(tmp_path, "SIGNATURE", "signature.json") == list(frame.columns)


def test_a_generated_table_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    bytes_of = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run_step(tmp_path / name, "load-data", GENERATE_ROWS=60, SEED=seed)
        bytes_of[name] = parts(tmp_path / name)[0].read_bytes()
    assert bytes_of["a"] == bytes_of["b"] != bytes_of["c"]


def test_without_a_table_the_number_of_rows_to_generate_is_needed(tmp_path: Path) -> None:
    run_step(tmp_path, "load-data", expect=1)
    assert message(tmp_path).startswith("DataLoading: input input_data is missing: ")
    assert message(tmp_path).endswith("contains no table, and GENERATE_ROWS is not set")


def test_a_table_and_rows_to_generate_exclude_each_other(tmp_path: Path) -> None:
    orders(5).to_csv(input_folder(tmp_path, "load-data", "input_data") / "table.csv", index=False)
    run_step(tmp_path, "load-data", expect=1, GENERATE_ROWS=5)
    assert message(tmp_path).startswith("GENERATE_ROWS: is 5, but there is a table in ")


def test_a_header_alone_is_no_table(tmp_path: Path) -> None:
    orders(0).to_csv(input_folder(tmp_path, "load-data", "input_data") / "table.csv", index=False)
    run_step(tmp_path, "load-data", expect=1)
    assert message(tmp_path).endswith("has no rows")


def test_a_table_of_a_spreadsheet_program_is_read_as_init_reads_it(tmp_path: Path) -> None:
    frame = orders(5).assign(seller="Müller;")
    folder = input_folder(tmp_path, "load-data", "input_data")
    frame.to_csv(folder / "table.csv", index=False, sep=";", encoding="cp1252")
    run_step(tmp_path, "load-data")
    read = pd.read_csv(parts(tmp_path)[0], dtype=str, keep_default_na=False)
    assert read["seller"].tolist() == ["Müller;"] * 5
    assert read["chat"].tolist() == frame["chat"].tolist()
