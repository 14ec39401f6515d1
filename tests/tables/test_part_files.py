"""Part files of every format as one stream."""

import gzip
import json
import logging
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from container.tables import parquet_files
from container.tables.part_files import find_part_files, read_signature
from contracts.errors import ContractError
from testing.step_runs import orders

FORMATS = ["csv", "tsv", "json", "jsonl", "parquet"]


def write(frame: pd.DataFrame, path: Path) -> Path:
    """Write a part file in the format of its name; .gz is gzipped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    match plain.suffix:
        case ".parquet":
            frame.to_parquet(plain, index=False)
        case ".json":
            frame.to_json(plain, orient="records")
        case ".jsonl":
            frame.to_json(plain, orient="records", lines=True)
        case suffix:
            frame.to_csv(plain, index=False, sep="," if suffix == ".csv" else "\t")
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    return path


def read(folder: Path, scratch: Path, **options: object) -> pa.Table:
    parts = find_part_files(folder, scratch=scratch, **options)
    return pa.concat_tables([part.table for part in parts.iter_tables(rows_per_batch=7)])


@pytest.mark.parametrize("suffix", [f".{name}{gz}" for name in FORMATS for gz in ("", ".gz")])
def test_every_format_gives_the_same_rows_in_the_same_order(tmp_path: Path, suffix: str) -> None:
    frame = orders(30)
    for i in range(3):
        write(frame[10 * i : 10 * i + 10], tmp_path / "data" / f"part-{i}{suffix}")
    found = read(tmp_path / "data", tmp_path / "scratch")
    for name in ("order_id", "chat", "seller"):
        assert found[name].to_pylist() == frame[name].tolist()
    assert [int(label) for label in found["label"].to_pylist()] == frame["label"].tolist()


def test_a_json_array_may_be_pretty_printed_and_larger_than_a_block(tmp_path: Path) -> None:
    rows = [{"id": str(i), "text": "é" * 1000} for i in range(3000)]
    (tmp_path / "part-0.json").write_text(json.dumps(rows, indent=2, ensure_ascii=False))
    found = read(tmp_path, tmp_path)
    assert found["id"].to_pylist() == [row["id"] for row in rows]
    assert found["text"].to_pylist() == [row["text"] for row in rows]


def test_objects_may_follow_each_other_without_lines_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "part-0.jsonl").write_text('{"a": 1}\n{"a": 2} {"a":\n3}\n\n{"a": 4},\n{"a": 5}')
    assert read(tmp_path, tmp_path)["a"].to_pylist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"a": 1}, {"a": 2}', "the array has no end after row 2"),
        ('{"a": 1}\n{"a": ', "row 2 is not JSON"),
        ('{"a": 1}\n{"a": 2}\n{"a": oops}\n{"a": 4}\n', "row 3 is not JSON"),
        ('{"a": 1}\n{"a": 2}\n"three"\n', "row 3: 'three' is not an object"),
        ("[1, 2]", "row 1: 1 is not an object"),
        ('{"a": 1\n"b": 2}\n', "row 1 is not JSON"),
        ('{"a": [[1]]}', "row 1, column 'a' contains a list"),
        ("[]", "has no rows"),
        ('[{"a": 1}] x', "text follows the end of the array"),
    ],
)
def test_damaged_json_is_named_with_its_row(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "part-0.json").write_text(text)
    with pytest.raises(ContractError, match=said):
        read(tmp_path, tmp_path)


def test_a_key_of_late_rows_is_a_column_and_types_are_those_of_all_rows(tmp_path: Path) -> None:
    rows = [{"a": 1, "c": 1}] * 1000 + [{"b": 1, "a": 0.5, "c": "n/a"}, {"c": 2, "d": "x"}, {"d": 3}]
    (tmp_path / "part-0.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = read(tmp_path, tmp_path)
    assert {field.name: str(field.type) for field in found.schema} == {
        "a": "double", "c": "int64", "b": "int64", "d": "string",
    }  # fmt: skip
    assert found.slice(999).to_pylist() == [
        {"a": 1.0, "c": 1, "b": None, "d": None}, {"a": 0.5, "c": None, "b": 1, "d": None},
        {"a": None, "c": 2, "b": None, "d": "x"}, {"a": None, "c": None, "b": None, "d": "3"},
    ]  # fmt: skip


def test_a_column_of_two_types_in_two_json_files_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1.5}\n')
    (tmp_path / "b.jsonl").write_text('{"x": "1,5"}\n')
    assert read(tmp_path, tmp_path)["x"].to_pylist() == ["1.5", "1,5"]


def test_a_signature_names_the_columns_of_files_without_a_header(tmp_path: Path) -> None:
    frame = orders(10)
    frame.to_csv(tmp_path / "part-0.csv", index=False, header=False)
    found = read(tmp_path, tmp_path, signature=list(frame.columns))
    assert found.column_names == list(frame.columns)
    assert found["order_id"].to_pylist() == frame["order_id"].tolist()


def test_a_header_that_fits_the_signature_is_no_row(tmp_path: Path) -> None:
    write(orders(10), tmp_path / "part-0.csv")
    assert read(tmp_path, tmp_path, signature=list(orders(1).columns)).num_rows == 10


def test_a_header_whose_names_differ_in_case_only_is_no_row(tmp_path: Path) -> None:
    frame = orders(10)[["label", "order_id"]].rename(columns={"order_id": "Label"})
    write(frame, tmp_path / "part-0.csv")
    assert read(tmp_path, tmp_path, signature=list(frame.columns)).num_rows == 10


@pytest.mark.parametrize(
    ("rename", "cause"),
    [
        (lambda name: name.replace("label", "lable"), "'label' of the .* missing; the similar column 'lable' exists"),
        (lambda name: f" {name.title()}", "of the signature is missing"),
    ],
    ids=["typing error", "case"],
)
def test_a_header_that_nearly_fits_the_signature_is_refused_and_is_no_row(tmp_path: Path, rename, cause: str) -> None:
    write(orders(10).rename(columns=rename), tmp_path / "part-0.csv")
    with pytest.raises(ContractError, match=cause):
        read(tmp_path, tmp_path, signature=list(orders(1).columns))


def test_a_signature_of_another_table_is_refused(tmp_path: Path) -> None:
    orders(10).to_csv(tmp_path / "part-0.csv", index=False, header=False)
    with pytest.raises(ContractError, match="has 6 columns, and the signature names 2"):
        read(tmp_path, tmp_path, signature=["x", "y"])


def test_a_json_file_with_a_column_that_the_signature_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"z": 1}\n')
    with pytest.raises(ContractError, match=r"b\.jsonl: has the column 'z', which the signature lacks"):
        read(tmp_path, tmp_path, signature=["x", "y"])


@pytest.mark.parametrize("text", ['["a", "b c"]', "a,b c", "a\tb c\n", "a\nb c\n"])
def test_a_signature_is_a_json_list_or_names_in_one_line_or_one_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "signature").write_text(text)
    assert read_signature(tmp_path) == ["a", "b c"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'["id", "M\xfcller"]', "byte 0xFC at position 9 is not UTF-8"),
        (b'a,"b', "the header, column 2: .* never closed"),
        (b"a," + b"b" * 200_000 + b'"', "the header, column 2: .* ends with one"),
    ],
)
def test_a_damaged_signature_is_refused_with_its_place(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "signature").write_bytes(content)
    with pytest.raises(ContractError, match=f"signature: {said}"):
        read_signature(tmp_path)


def test_a_name_in_a_signature_may_be_long(tmp_path: Path) -> None:
    (tmp_path / "signature").write_text("a," + "b" * 200_000)
    assert read_signature(tmp_path) == ["a", "b" * 200_000]


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_column_that_a_file_lacks_is_empty_there_and_is_named_once(tmp_path: Path, suffix: str, caplog) -> None:
    write(orders(5).drop(columns="price"), tmp_path / f"part-0.{suffix}")
    write(orders(5).assign(extra=1), tmp_path / f"part-1.{suffix}")
    found = read(tmp_path, tmp_path)
    assert found["price"][:5].null_count == found["extra"].null_count == 5
    expected = [
        f"Column 'price' is empty where a file lacks it: part-0.{suffix}.",
        f"Column 'extra' is empty where a file lacks it: part-0.{suffix}.",
    ]
    assert sorted(caplog.messages) == sorted(expected)


def test_a_column_with_nearly_the_name_of_a_missing_one_and_another_table_are_refused(tmp_path: Path) -> None:
    write(orders(5), tmp_path / "part-0.csv")
    write(orders(5).rename(columns={"price": "prices"}), tmp_path / "part-1.csv")
    with pytest.raises(
        ContractError, match=r"part-1\.csv: column 'price' of part-0\.csv is missing; .* 'prices' exists"
    ):
        read(tmp_path, tmp_path)
    (tmp_path / "part-1.csv").write_text("city,label\nRome,1\n")
    with pytest.raises(ContractError, match=r"part-1\.csv: has 'city', 'label', but part-0\.csv 'order_id'"):
        read(tmp_path, tmp_path)


def test_columns_may_come_in_another_order(tmp_path: Path) -> None:
    frame = orders(10)
    write(frame[:5], tmp_path / "part-0.csv")
    write(frame[5:][list(frame.columns)[::-1]], tmp_path / "part-1.csv")
    assert read(tmp_path, tmp_path)["order_id"].to_pylist() == frame["order_id"].tolist()


@pytest.mark.parametrize("empty", [b"", gzip.compress(b"", mtime=0)])
def test_markers_and_empty_parts_are_passed_over(tmp_path: Path, empty: bytes) -> None:
    write(orders(5), tmp_path / "data" / "part-0.csv.gz")
    (tmp_path / "data" / ("part-1.csv.gz" if empty else "part-1.csv")).write_bytes(empty)
    (tmp_path / "data" / "_SUCCESS").touch()
    assert read(tmp_path / "data", tmp_path).num_rows == 5


@pytest.mark.parametrize("content", ["[]", "\n"])
def test_a_json_file_without_rows_beside_others_is_named_and_adds_no_row(tmp_path, content, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "part-0.json").write_text(content)
    write(orders(5), tmp_path / "part-1.json")
    assert read(tmp_path, tmp_path).num_rows == 5
    assert f"{tmp_path}: these files have no cells: part-0.json." in caplog.messages


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("rows", [1, 300])
def test_damaged_gzip_data_is_refused_with_the_name_of_its_file(tmp_path: Path, suffix: str, rows: int) -> None:
    path = write(orders(rows)[["label"]], tmp_path / f"part-0.{suffix}.gz")
    whole = path.read_bytes()
    invalid_block = whole[:10] + bytes([0xFF]) + whole[11:]
    for damaged in (invalid_block, whole[:-9], whole[:-1] + bytes([whole[-1] ^ 1]), b"not gzip"):
        path.write_bytes(damaged)
        with pytest.raises(ContractError, match=rf"part-0\.{suffix}\.gz: cannot be (decompressed|read)"):
            read(tmp_path, tmp_path / "scratch")


def test_a_full_disk_is_not_reported_as_a_damaged_file(tmp_path: Path, monkeypatch) -> None:
    write(orders(3), tmp_path / "data" / "part-0.parquet.gz")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(parquet_files, "NamedTemporaryFile", lambda **_: open("/dev/full", "wb", 0))  # noqa: SIM115
    with pytest.raises(OSError, match="No space left"):
        find_part_files(tmp_path / "data", scratch=tmp_path)


def test_nothing_but_empty_parts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part-0.csv").touch()
    with pytest.raises(ContractError, match=r"part-0\.csv: the file is empty"):
        find_part_files(tmp_path, scratch=tmp_path)


def test_formats_are_not_mixed(tmp_path: Path) -> None:
    for suffix in ("csv", "jsonl"):
        write(orders(3), tmp_path / f"part.{suffix}")
    with pytest.raises(ContractError, match=r"several formats: part\.csv \(csv\), part\.jsonl \(jsonl\)"):
        find_part_files(tmp_path, scratch=tmp_path)


NESTED = pd.DataFrame({"id": ["1", "2"], "tags": [[{"a": 1}], None], "item": [{"n": 1}, {"n": 2}]})


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
def test_nested_columns_that_nobody_names_are_left_out_with_one_warning(tmp_path, suffix, caplog):
    write(NESTED.assign(tags=None), tmp_path / f"part-0.{suffix}")
    write(NESTED, tmp_path / f"part-1.{suffix}")
    parts = find_part_files(tmp_path, scratch=tmp_path).single_valued()
    assert [part.table.to_pylist() for part in parts.iter_tables()] == [
        [{"id": "1", "item.n": 1}, {"id": "2", "item.n": 2}] * 2
    ]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["Columns of lists or objects are left out: 'tags'."]


@pytest.mark.parametrize(
    ("suffix", "said"),
    [("jsonl", r"row 1, column 'tags' contains a list"), ("parquet", r"column 'tags' is of type list<")],
)
def test_a_nested_column_that_a_setting_names_is_refused(tmp_path: Path, suffix: str, said: str) -> None:
    write(NESTED, tmp_path / f"part.{suffix}")
    with pytest.raises(ContractError, match=said):
        list(find_part_files(tmp_path, scratch=tmp_path).single_valued(["tags"]).iter_tables())


def test_a_table_of_nested_columns_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part.jsonl").write_text('{"tags": [["b"]]}\n')
    with pytest.raises(ContractError, match="every column contains lists or objects"):
        find_part_files(tmp_path, scratch=tmp_path).single_valued()
