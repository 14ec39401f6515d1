"""Files of a channel as a stream of slices, and what a cell means."""

import gzip
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.tables.channel_files import column_names, input_format, iter_tables, read_head, read_rows
from container.tables.data_files import find_data_files
from container.tables.records import check_single_values, records_to_table
from container.tables.table_file import Origin, check_names
from container.tables.values import keys, numbers, texts
from container.tables.writer import TableWriter
from contracts.errors import ContractError
from testing.hostile_texts import processor_seconds
from testing.table_jobs import table, write_table


def read(files: list[Path], columns: list[str], rows: int = 7) -> pa.Table:
    return pa.concat_tables([part.table for part in iter_tables(files, columns, rows_per_batch=rows)])


def written(folder: Path, name: str, *columns: object) -> list[Path]:
    """A Parquet file with each column."""
    parts = enumerate(columns)
    return [write_table(folder / f"{number}.parquet", pa.table({name: values})) for number, values in parts]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_chosen_rows_of_several_files_are_read_in_the_order_of_the_numbers(tmp_path: Path, suffix: str) -> None:
    for part in range(2):
        write_table(tmp_path / f"{part}.{suffix}", pa.table({"a": [f"{part}{i}" for i in range(3)]}))
    files = find_data_files(tmp_path, None)
    assert texts(read_rows(files, ["a"], np.array([4, 0, 5, 2]))["a"]) == ["11", "00", "12", "02"]
    assert read_rows(files, ["a"], np.array([], np.int64)).num_rows == 0


def test_a_channel_lists_its_data_files_and_nothing_else(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv.gz", "part/c.tsv", "D.PARQUET", "_SUCCESS", ".hidden.csv", "_tmp/e.csv", "readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    found = [str(path.relative_to(tmp_path)) for path in find_data_files(tmp_path, None)]
    assert found == ["D.PARQUET", "a.csv.gz", "b.csv", "part/c.tsv"]


def test_a_missing_channel_an_empty_one_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"channel train: the folder .* does not exist"):
        find_data_files(tmp_path / "train", None)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ContractError, match=r"no data file in .*; it contains notes\.txt"):
        find_data_files(tmp_path, None)
    with pytest.raises(ContractError, match=r"gone\.csv does not exist; it contains notes\.txt"):
        find_data_files(tmp_path, "gone.csv")
    with pytest.raises(ContractError, match="the file name does not show the format"):
        find_data_files(tmp_path, "notes.txt")


def test_files_of_several_formats_are_named_below_the_folder_of_all(tmp_path: Path) -> None:
    with pytest.raises(ContractError) as caught:
        input_format([tmp_path / "eu" / "part.csv", tmp_path / "us" / "part.parquet"])
    assert caught.value.cause == (
        f"{tmp_path}: contains files of several formats: eu/part.csv (csv), us/part.parquet (parquet)"
    )
    assert input_format([tmp_path / "x.tsv.gz"]) == "tsv"


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_rows_of_several_files_keep_order_and_numbers(tmp_path: Path, suffix: str) -> None:
    files = [write_table(tmp_path / f"{i}{suffix}", table(rows, start=20 * i)) for i, rows in enumerate((20, 0, 13))]
    parts = list(iter_tables(files, ["id", "text"], rows_per_batch=7))
    assert [part.first_row for part in parts] == [0, 7, 14, 20, 27]
    assert [part.origin.first_row for part in parts] == [0, 7, 14, 0, 7]
    assert [part.origin.file for part in parts] == [files[0]] * 3 + [files[2]] * 2
    ids = pa.concat_tables([part.table for part in parts])["id"].to_pylist()
    assert ids == [f"{i:05d}" for i in (*range(20), *range(40, 53))]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_short_files_share_a_slice_and_their_rows_keep_the_names_of_their_files(tmp_path: Path, suffix: str) -> None:
    files = [write_table(tmp_path / f"{i}{suffix}", table(rows, start=20 * i)) for i, rows in enumerate((3, 0, 2, 6))]
    first, second = iter_tables(files, ["id"], rows_per_batch=6)
    assert (first.first_row, second.first_row) == (0, 5)
    assert first.table["id"].to_pylist() == ["00000", "00001", "00002", "00040", "00041"]
    assert [first.origin.row(i) for i in (0, 2, 3, 4)] == [
        f"{files[0]}: row 1", f"{files[0]}: row 3", f"{files[2]}: row 1", f"{files[2]}: row 2",
    ]  # fmt: skip
    assert second.origin.row(5) == f"{files[3]}: row 6"


@pytest.mark.parametrize(
    ("sizes", "count"), [((40, 40), 64), ((3, 500), 64), ((70, 3), 64), ((2, 3, 200), 4), ((5, 2), 64)]
)
def test_the_head_has_the_first_rows_of_all_files_and_their_names(tmp_path: Path, sizes: tuple, count: int) -> None:
    files = [write_table(tmp_path / f"{i}.csv", table(rows, start=1000 * i)) for i, rows in enumerate(sizes)]
    head = read_head(files, ["id"], count)
    rows = [(file, i, row) for i, (file, size) in enumerate(zip(files, sizes)) for row in range(size)][:count]
    assert head.table["id"].to_pylist() == [f"{1000 * i + row:05d}" for _, i, row in rows]
    assert [head.origin.row(i) for i in range(len(rows))] == [f"{file}: row {row + 1}" for file, _, row in rows]


def test_the_head_of_long_rows_is_as_long_as_that_of_short_ones(tmp_path: Path) -> None:
    long = ["x" * (1 << 18)] * 40
    files = written(tmp_path, "id", long, long)
    assert read_head(files, ["id"], 64).table.num_rows == 64


def test_long_rows_do_not_share_a_slice(tmp_path: Path) -> None:
    files = written(tmp_path, "id", *[["x" * (3 << 20)]] * 2)
    assert [part.table.num_rows for part in iter_tables(files, ["id"], rows_per_batch=6)] == [1, 1]


def test_a_missing_column_is_named_with_its_file_and_the_nearest(tmp_path: Path) -> None:
    files = [write_table(tmp_path / "a.csv", table(2)), write_table(tmp_path / "b.csv", table(2).drop(["label"]))]
    with pytest.raises(ContractError, match=r"b\.csv: column 'label' is missing"):
        read(files, ["id", "label"])
    with pytest.raises(ContractError, match=r"a\.csv: column 'labels' is missing; the similar column 'label' exists"):
        read(files, ["labels"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", b"id,text\n1,2\n", "cannot be read as Parquet"),
        ("a.parquet", b"", "cannot be read as Parquet"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
        ("a.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
        ("a.csv", b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "is a web page"),
        ("a.csv", b"PAR1\x15\x04\x15", "contains Parquet data, not text"),
        ("a.csv", b"", "the file is empty"),
        ("a.csv", b"\xef\xbb\xbf\n\n", "the file is empty"),
        ("a.csv", gzip.compress(b"id\n1\n", mtime=0), "contains gzip data, not text"),
        ("a.csv.gz", b"id,text\n1,2\n", "cannot be read"),
        ("a.csv.gz", gzip.compress(b"id,text\n" + b"1,2\n" * 9999, mtime=0)[:-20], "cannot be read"),
        ("a.csv", b"id,text,id\n1,2,3\n", "column 'id' occurs twice"),
        ("a.tsv", b"id,text\n1,2\n", "column 'id' is missing"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ContractError, match=message) as caught:
        read([tmp_path / name], ["id", "text"])
    assert str(tmp_path / name) in caught.value.cause
    assert caught.value.fix


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", table(5000))
    data = bytearray(path.read_bytes())
    data[100:4000] = b"\x55" * 3900
    path.write_bytes(data)
    with pytest.raises(ContractError, match=r"a\.parquet: damaged Parquet data"):
        read([path], ["id", "text"])


def test_parquet_types_are_widened_over_files_and_kept_otherwise(tmp_path: Path) -> None:
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    pq.write_table(pa.table({"id": pa.array([1], pa.int32()), "c": pa.array(["u"]).dictionary_encode()}), files[0])
    pq.write_table(pa.table({"id": pa.array([2**40]), "c": pa.array(["v"], pa.large_string())}), files[1])
    found = read(files, ["id", "c"])
    assert found["id"].type == pa.int64()
    assert found.to_pylist() == [{"id": 1, "c": "u"}, {"id": 2**40, "c": "v"}]
    pq.write_table(pa.table({"id": pa.array(["x"]), "c": ["v"]}), files[1])
    with pytest.raises(ContractError, match=r"b\.parquet: column 'id' is string, but int32 in .*a\.parquet"):
        read(files, ["id", "c"])


def test_records_in_every_form_are_the_same_table() -> None:
    rows = [{"id": 1, "text": "a", "x": 1.5}, {"id": 2, "x": None}]
    expected = [{"id": 1, "text": "a", "x": 1.5}, {"id": 2, "text": None, "x": None}]
    made = pa.Table.from_pylist(expected)
    for records in (rows, pd.DataFrame(rows), made, made.to_batches()[0]):
        assert records_to_table(records).to_pylist() == expected
    assert records_to_table([]).num_rows == 0
    with pytest.raises(ContractError, match="record 2: 'text' is not a dict"):
        records_to_table([{}, "text"])


def test_the_same_key_in_any_spelling_is_one() -> None:
    spellings = [
        pa.array([1]),
        pa.array([1.0]),
        pa.array(["1"]),
        pa.array([" 1.0 "]),
        pa.array([True]),
        pa.array(["TRUE"]),
    ]
    assert {keys(spelled).to_pylist()[0] for spelled in spellings} == {"1"}
    assert keys(pa.array(["007", "1.50", "-0.0", "", " ", None, "1e3"])).to_pylist() == [
        "007", "1.50", "0", None, None, None, "1e3"
    ]  # fmt: skip
    assert keys(pa.array([0.5, float("nan"), -0.0, 1e17, None])).to_pylist() == ["0.5", None, "0", str(10**17), None]
    assert keys(records_to_table([{"c": 1}, {"c": "1"}, {"c": 1.0}, {"c": True}, {}])["c"]).to_pylist() == ["1"] * 4 + [
        None
    ]


@given(st.lists(st.one_of(st.none(), st.floats(-1e30, 1e30))))
def test_a_number_means_the_same_as_its_text(values: list[float | None]) -> None:
    written = pa.array([None if value is None else repr(value) for value in values], pa.string())
    as_text = numbers(written, "x", origin=Origin())
    np.testing.assert_array_equal(as_text, numbers(pa.array(values, pa.float64()), "x", origin=Origin()))


def test_missing_numbers_are_known_by_name() -> None:
    written = pa.array(["", " ", "NA", "n/a", "null", "None", "NaN", None, "+5", ".5", "1e2", "true"])
    expected = [np.nan] * 8 + [5, 0.5, 100, 1]
    np.testing.assert_array_equal(numbers(written, "x", origin=Origin()), expected)


@pytest.mark.parametrize(
    "value",
    ["twelve", "1,5", "1_000", "inf", "-Infinity", "0x10", "1e39", "2024-01-01", "1 2", "++1", "+-1", "-+1", "--1",
     "+ 1", "+", ".", "1e", "1d5", "1e400", "+nan", "\u0661\u0662", "\uff11"],
)  # fmt: skip
def test_what_is_no_number_is_named_with_file_row_column_and_value(value: str) -> None:
    with pytest.raises(ContractError) as caught:
        numbers(pa.array(["1", "", value]), "price", origin=Origin(Path("/data/a.csv"), 10))
    assert "/data/a.csv: row 13, column 'price'" in caught.value.cause
    assert repr(value) in caught.value.cause


def test_infinite_numbers_are_refused() -> None:
    with pytest.raises(ContractError, match="record 2, column 'x': inf is not a finite"):
        numbers(pa.array([1.0, float("inf")]), "x", origin=Origin())


def floats_written(values: list[float], kind: pa.DataType) -> list[str]:
    return keys(pa.array(np.array(values).astype(kind.to_pandas_dtype()), kind)).to_pylist()


def test_floats_are_named_as_python_and_pandas_write_them() -> None:
    values = [8.1, 1e-05, 0.0001, 0.00012, 9999999.5, 123456789012.5, 1e30]
    assert floats_written(values, pa.float64()) == [repr(value) for value in values]
    assert floats_written([8.1, 0.25, 3, 0.0001], pa.float32()) == ["8.1", "0.25", "3", "0.0001"]
    assert floats_written([8.1, 65504, 1e-05], pa.float16()) == ["8.1", "65504", "1e-05"]
    written = pd.DataFrame({"c": values}).to_csv(index=False).split()[1:]
    assert keys(pa.array(written)).to_pylist() == [repr(value) for value in values]


@pytest.mark.parametrize(
    ("kind", "drawn"), [(pa.int64(), st.integers(-(2**62), 2**62)), (pa.float64(), st.floats(-1e15, 1e15))]
)
@given(data=st.data())
def test_a_number_has_the_key_of_its_text(data: st.DataObject, kind: pa.DataType, drawn: st.SearchStrategy) -> None:
    values = data.draw(st.lists(st.one_of(st.none(), drawn)))
    written = pa.array([None if value is None else repr(value) for value in values], pa.string())
    assert keys(pa.array(values, kind)) == keys(written)


def test_a_dataframe_keeps_the_precision_of_its_columns() -> None:
    frame = pd.DataFrame({
        "f": np.array([8.1, np.nan], np.float32),
        "t": pd.to_datetime(["2026-01-02", None]),
        "i": pd.array([1, None], "Int64"),
        "c": pd.Categorical(np.array([9.3, np.nan], np.float32)),
        "o": ["x", 5],
    })  # fmt: skip
    found = records_to_table(frame)
    assert [keys(found[name])[0].as_py() for name in "ftico"] == ["8.1", "2026-01-02", "1", "9.3", "x"]
    assert [keys(found[name])[1].as_py() for name in "ftico"] == [None, None, None, None, "5"]


_EAST = timezone(timedelta(hours=5))


@pytest.mark.parametrize(
    "value",
    [5.0, 0.1, 10.0**16, True, 7, pd.Timestamp("2026-01-02"), 2**70, np.float16(8.1), np.float32(8.1), np.True_,
     Decimal("1.1"), datetime(2026, 1, 2, 3, 4), datetime(2026, 1, 2, 3, tzinfo=_EAST)],
)  # fmt: skip
@pytest.mark.parametrize(
    "other", ["a", 7, 1.5, Decimal("1.105"), date(2026, 1, 1), datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)]
)
def test_a_value_means_the_same_beside_others_of_its_column(value: object, other: object) -> None:
    alone, beside = records_to_table([{"c": value}]), records_to_table([{"c": other}, {"c": value}])
    assert texts(alone["c"])[0] == texts(beside["c"])[1]
    assert keys(alone["c"])[0] == keys(beside["c"])[1]


@pytest.mark.parametrize("other", ["a", 7, None])
@pytest.mark.parametrize("value", [b"abc", bytearray(b"abc"), UUID(int=5), pd.Period("2024-01")])
def test_bytes_uuids_and_periods_are_refused_by_name_beside_every_value(other: object, value: object) -> None:
    with pytest.raises(ContractError, match="record 2: column 'c' contains (bytes|a UUID|a period), not a single"):
        check_single_values(records_to_table([{"c": other}, {"c": value}])["c"], "c", origin=Origin())


@pytest.mark.parametrize(
    "value", [datetime(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 120_000, tzinfo=UTC), time(8, 30), timedelta(1, 5)]
)
def test_a_time_keeps_its_key_when_a_parquet_table_is_written_as_csv(tmp_path: Path, value: object) -> None:
    written = pa.table({"c": [value, None]})
    with TableWriter(tmp_path / "a.csv", written.schema) as writer:
        writer.write(written)
    assert keys(read([tmp_path / "a.csv"], ["c"])["c"]).equals(keys(written["c"]))


@pytest.mark.parametrize("written", [pa.table({"c": ["a", "b\0"]}), pa.table({"c\0": ["a"]})])
def test_a_nul_byte_is_refused_when_it_is_written_as_csv(tmp_path: Path, written: pa.Table) -> None:
    with (
        pytest.raises(ContractError, match=r"a\.csv: .* contains a NUL byte"),
        TableWriter(tmp_path / "a.csv", written.schema) as writer,
    ):
        writer.write(written)
    with TableWriter(tmp_path / "a.parquet", written.schema) as writer:
        writer.write(written)


@pytest.mark.parametrize(
    "value",
    [
        None, float("nan"), np.float32("nan"), Decimal("NaN"), Decimal("sNaN"), pd.NA, pd.NaT, np.datetime64("NaT"),
        np.timedelta64("NaT"),
    ],
)  # fmt: skip
def test_a_missing_value_of_any_class_is_missing_beside_a_string(value: object) -> None:
    frame = pd.DataFrame({"c": pd.Series([value, "a"], dtype=object)})
    for records in (frame, [{"c": value}, {"c": "a"}]):
        assert records_to_table(records)["c"].to_pylist() == [None, "a"]


def test_names_that_are_no_strings_are_read_by_their_text() -> None:
    assert records_to_table([{1: 5, 2: "a"}, {"1": 6}]).to_pylist() == [{"1": 5, "2": "a"}, {"1": 6, "2": None}]
    assert records_to_table(pd.DataFrame({1: [5]})).to_pylist() == [{"1": 5}]


def test_a_column_that_is_there_twice_is_refused() -> None:
    for records in (pd.DataFrame([[1, 2]], columns=["x", "x"]), pa.table([[1], [2]], names=["x", "x"])):
        with pytest.raises(ContractError, match="column 'x' occurs twice"):
            records_to_table(records)


@pytest.mark.parametrize(
    ("narrow", "wide", "whole"),
    [("float16", "float32", 65504), ("float16", "float64", 65504), ("float32", "float64", 123456792)],
)
def test_one_category_of_narrow_and_wide_floats_is_one(tmp_path: Path, narrow: str, wide: str, whole: int) -> None:
    cells = [pa.array(np.array([8.1, 9.3, whole, 0], kind), mask=np.arange(4) == 3) for kind in (narrow, wide)]
    assert set(keys(read(written(tmp_path, "c", *cells), ["c"])["c"]).to_pylist()) == {"8.1", "9.3", str(whole), None}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (12345678901.0, "12345678901"), (1e16, "10000000000000000"), (0.25e11, "25000000000"), (1234567890123.25,) * 2,
        (1e-5, "1e-05"), (float("nan"), ""), (np.float32(16777218 * 16), "268435488"), (np.float16(8.1), "8.1"),
        (Decimal("0E-18"), "0"), (Decimal("1.10"), "1.1"),
    ],
)  # fmt: skip
def test_a_cell_of_csv_is_the_text_of_the_number_that_was_written(tmp_path, value, written):
    rows = pa.table({"n": ["1"], "c": pa.array([value])})
    with TableWriter(tmp_path / "a.csv", rows.schema) as writer:
        writer.write(rows)
    assert read([tmp_path / "a.csv"], ["c"])["c"].to_pylist() == [str(written)]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_slice_of_long_texts_has_few_rows(tmp_path: Path, suffix: str) -> None:
    long = [f"{row} {'good ' * 20_000}" for row in range(400)]  # 100 KB each
    path = write_table(tmp_path / f"a{suffix}", pa.table({"id": range(400), "text": long}))
    slices = list(iter_tables([path], ["text"], rows_per_batch=1024))
    assert max(part.table.nbytes for part in slices) < 18 << 20
    assert [text for part in slices for text in part.table["text"].to_pylist()] == long
    assert [part.first_row for part in slices] == [part.origin.first_row for part in slices]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_the_first_row_that_is_not_utf8_is_named(tmp_path: Path, kind: pa.DataType) -> None:
    texts = [b"a", None, b"b"] * 5 + [b"caf\xe9", b"\xff"]
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    cells = pa.array(texts, pa.large_binary() if pa.types.is_large_string(kind) else pa.binary())
    cells = pa.Array.from_buffers(plain, len(cells), cells.buffers())
    pq.write_table(pa.table({"c": cells if plain == kind else cells.dictionary_encode()}), tmp_path / "a.parquet")
    with pytest.raises(ContractError, match=r"a\.parquet: row 16: column 'c' is .* and is not UTF-8 text"):
        read([tmp_path / "a.parquet"], ["c"])


def test_a_parquet_column_name_that_is_not_utf8_is_an_error_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"idxx": [1]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"idxx", b"id\xff\xff"))
    with pytest.raises(ContractError, match=r"a\.parquet: cannot be read as Parquet: 'utf-8' codec can't decode"):
        column_names(path)


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (pa.array([Decimal("1.10")]), pa.array([2**63 - 1]), pa.decimal128(22, 2)),
        (pa.array([2**64 - 1], pa.uint64()), pa.array([Decimal("1.10")]), pa.decimal128(22, 2)),
        (pa.array([5], pa.int32()), pa.array([Decimal("1.10")], pa.decimal128(38, 30)), pa.decimal256(50, 30)),
    ],
)
def test_an_id_keeps_its_digits_where_files_have_integers_and_decimals(tmp_path, first, second, kind):
    found = read(written(tmp_path, "id", first, second), ["id"])["id"]
    assert found.type == kind
    assert keys(found).to_pylist() == [*keys(first).to_pylist(), *keys(second).to_pylist()]


@pytest.mark.parametrize("other", [pa.array([0.5]), pa.array([Decimal("0.5")]), pa.array([True])])
def test_a_numeric_column_may_have_another_type_of_number_in_every_file(tmp_path: Path, other: pa.Array) -> None:
    files = written(tmp_path, "x", pa.array([2**53 + 1]), other)
    found = pa.concat_tables([part.table for part in iter_tables(files, ["x"], rows_per_batch=9, numeric=["x"])])
    assert found["x"].to_pylist() == [2.0**53, float(other[0].as_py())]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_decimals_are_refused_where_another_file_has_floats(tmp_path: Path, kind: pa.DataType) -> None:
    files = written(tmp_path, "id", pa.array([Decimal("0.05")]), pa.array([0.05], kind))
    with pytest.raises(
        ContractError, match=rf"1\.parquet: column 'id' is {kind}, but decimal128\(2, 2\) in .*0\.parquet"
    ):
        read(files, ["id"])


def test_integers_that_no_float_holds_are_refused_where_another_file_has_floats(tmp_path: Path) -> None:
    files = written(tmp_path, "id", [2**53 + 1], [0.5])
    with pytest.raises(ContractError, match=r"0\.parquet: column 'id' is int64 and cannot be read as double") as caught:
        read(files, ["id"])
    assert caught.value.fix.endswith("Text keeps every digit of an id or a category.")


def test_column_names_are_compared_in_linear_time() -> None:
    def check(count: int) -> float:
        return processor_seconds(lambda: check_names([f"c{i}" for i in range(count)], "records"))

    assert check(20_000) < 30 * max(check(2_000), 0.001)
