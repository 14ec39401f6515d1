"""Columns of every Arrow type mean the same in a Parquet file, in a request and in records in memory."""

import datetime as dt
import io
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from container.serving.errors import RequestError
from container.tables.channel_files import iter_tables
from container.tables.records import check_single_values, records_to_table
from container.tables.table_file import Origin
from container.tables.values import keys, numbers, texts
from contracts.errors import ContractError
from contracts.serving import PARQUET
from testing.serving import read_records

DAY, TIME = dt.datetime(2026, 1, 2, 3, 4, 5), dt.time(1, 2, 3)
BOOL = ("1", "true", 1.0)  # key, text, number
FIVE = ("5", "5", 5.0)


def extension(kind: pa.DataType, value: object, storage: pa.DataType) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array([value, None], storage))


def dictionary(value: object, kind: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int32()), pa.array([value], kind))


def text(value: str) -> tuple[str, str, None]:
    return value, value, None


# Each type with the key, the text and the number of its value; None: it is no number.
ACCEPTED = [
    *[(pa.array(["5", None], kind), FIVE) for kind in (pa.string(), pa.large_string(), pa.string_view())],
    *[
        (pa.array([5, None], kind), FIVE)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    ],
    (pa.array([2**64 - 1, None], pa.uint64()), ("18446744073709551615", "18446744073709551615", 2.0**64)),
    (pa.array([8.1, None], pa.float16()), ("8.1", "8.1", 8.1015625)),
    (pa.array([8.1, None], pa.float32()), ("8.1", "8.1", 8.100000381469727)),
    (pa.array([8.1, None], pa.float64()), ("8.1", "8.1", 8.1)),
    (pa.array([True, None]), BOOL),
    *[
        (pa.array([Decimal("1.10"), None], kind(5, 2)), ("1.1", "1.1", 1.1))
        for kind in (pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256)
    ],
    (pa.array([Decimal(0), None], pa.decimal128(38, 18)), ("0", "0", 0.0)),
    (pa.array([Decimal("0.00000011"), None], pa.decimal64(18, 9)), ("1.1e-07", "1.1e-07", 1.1e-7)),
    (pa.array([Decimal(10**30), None], pa.decimal256(60, 18)), (f"1{'0' * 30}", f"1{'0' * 30}", 1e30)),
    *[(pa.array([DAY.date(), None], kind), text("2026-01-02")) for kind in (pa.date32(), pa.date64())],
    *[
        (pa.array([TIME, None], kind), text("01:02:03"))
        for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))
    ],
    *[(pa.array([DAY, None], pa.timestamp(unit)), text("2026-01-02 03:04:05")) for unit in ("s", "ms", "us", "ns")],
    (pa.array([DAY, None], pa.timestamp("us", "UTC")), text("2026-01-02 03:04:05Z")),
    (pa.array([DAY, None], pa.timestamp("ns", "Europe/Berlin")), text("2026-01-02 03:04:05Z")),
    *[
        (pa.array([dt.timedelta(seconds=5), None], pa.duration(unit)), text("0 days 00:00:05"))
        for unit in ("s", "ms", "us", "ns")
    ],
    (pa.array([-1500, None], pa.duration("ms")), text("-1 days +23:59:58.5")),
    (pa.array([dt.timedelta(2), None], pa.duration("us")), text("2 days")),
    *[(dictionary("5", kind), FIVE) for kind in (pa.string(), pa.large_string())],
    (dictionary(5, pa.int64()), FIVE),
    (dictionary(DAY, pa.timestamp("us")), text("2026-01-02 03:04:05")),
    (extension(pa.json_(pa.string()), "5", pa.string()), FIVE),
    (extension(pa.bool8(), 1, pa.int8()), ("1", "1", 1.0)),
    (extension(pa.opaque(pa.string(), "a", "b"), "5", pa.string()), FIVE),
]
REFUSED = [
    *[pa.array([b"5", None], kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))],
    *[dictionary(b"5", kind) for kind in (pa.binary(), pa.binary(1))],
    extension(pa.uuid(), UUID(int=5).bytes, pa.binary(16)),
    pa.array(pd.Series(pd.period_range("2026-01", periods=2, freq="M"))),
    pa.array(pd.Series(pd.interval_range(0, 2))),
    *[pa.array([[0.5], None], kind) for kind in (pa.list_(pa.float64()), pa.large_list(pa.float32()))],
    pa.array([["a"], None], pa.list_view(pa.string())),
    pa.array([["a"]], pa.list_(pa.string(), 1)),
    pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    extension(pa.fixed_shape_tensor(pa.int64(), [1]), [1], pa.list_(pa.int64(), 1)).slice(0, 1),
]
# Parquet has no such type; a caller's Arrow table may have it.
REFUSED_IN_MEMORY = [
    pa.array([pa.MonthDayNano([1, 2, 3]), None], pa.month_day_nano_interval()),
    pa.RunEndEncodedArray.from_arrays([1, 2], ["5", None]),
    pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]),
]
LISTS = [
    *[(pa.array([[5, None, 7], []], kind), text("5, 7")) for kind in (pa.list_(pa.int8()), pa.large_list(pa.int64()))],
    (pa.array([["a", "b"], None]), text("a, b")),
]
IN_MEMORY_ONLY = [(dictionary("5", pa.string_view()), FIVE)]


def name(case: object) -> str | None:
    return str(case.type) if isinstance(case, pa.Array) else ""


def of_file(column: pa.Array, folder: Path) -> pa.ChunkedArray:
    pq.write_table(pa.table({"c": column}), folder / "a.parquet")
    return next(iter(iter_tables([folder / "a.parquet"], ["c"], rows_per_batch=9))).table["c"]


def of_request(column: pa.Array, folder: Path) -> pa.ChunkedArray:
    body = io.BytesIO()
    pq.write_table(pa.table({"c": column}), body)
    return read_records(body.getvalue(), PARQUET, ["c"])["c"]


def of_caller(column: pa.Array, folder: Path) -> pa.ChunkedArray:
    return records_to_table(pa.table({"c": column}))["c"]


def meaning(column: pa.ChunkedArray) -> tuple[str, str, float | None]:
    """Return the key, the text and the number of the first cell; the second is missing in each."""
    check_single_values(column, "c", origin=Origin())
    (key, no_key), (written, no_text) = keys(column).to_pylist(), texts(column)
    assert (no_key, no_text) == (None, None)
    try:
        found = numbers(column, "c", origin=Origin()).tolist()
    except ContractError:
        return key, written, None
    return key, written, found[0]


@pytest.mark.parametrize("read", [of_file, of_request, of_caller])
@pytest.mark.parametrize(("column", "expected"), ACCEPTED, ids=name)
def test_a_type_means_the_same_in_training_and_serving(tmp_path, read, column, expected):
    assert meaning(read(column, tmp_path)) == expected


@pytest.mark.parametrize("read", [of_file, of_caller])
@pytest.mark.parametrize(("column", "expected"), LISTS, ids=name)
def test_a_list_of_words_or_whole_numbers_is_one_text(tmp_path, read, column, expected):
    assert meaning(read(column, tmp_path)) == expected


@pytest.mark.parametrize(("column", "expected"), IN_MEMORY_ONLY, ids=name)
def test_a_type_that_parquet_lacks_means_the_same(column: pa.Array, expected: tuple[object, ...]) -> None:
    assert meaning(records_to_table(pa.table({"c": column}))["c"]) == expected


@pytest.mark.parametrize("column", REFUSED, ids=name)
def test_a_type_without_single_values_is_refused_in_training_and_serving(tmp_path: Path, column: pa.Array) -> None:
    kind = str(column.type.value_type if pa.types.is_dictionary(column.type) else column.type)[:4]
    with pytest.raises(ContractError) as caught:
        of_file(column, tmp_path)
    assert caught.value.cause.startswith(f"{tmp_path / 'a.parquet'}: ")
    assert ": column 'c' is " in caught.value.cause
    assert kind in caught.value.cause
    for read in (of_request, of_caller):
        with pytest.raises((ContractError, RequestError), match="column 'c'"):
            meaning(read(column, tmp_path))


@pytest.mark.parametrize("column", REFUSED_IN_MEMORY, ids=name)
def test_a_type_that_parquet_lacks_is_refused_with_its_column(column: pa.Array) -> None:
    with pytest.raises(ContractError, match=r"record 1: column 'c' contains .*, not a single value"):
        meaning(records_to_table(pa.table({"c": column}))["c"])


@pytest.mark.parametrize("read", [of_request, of_caller])
def test_text_that_is_not_utf_8_is_refused_with_its_record_and_column(tmp_path, read):
    text = pa.array([b"a", b"\xff"]).view(pa.string())
    with pytest.raises((ContractError, RequestError), match="record 2: column 'c' has an invalid value: .*UTF8"):
        read(text, tmp_path)


def test_a_value_of_several_lines_is_one_line_of_a_message() -> None:
    with pytest.raises(ContractError) as caught:
        records_to_table([pd.Series({"c": 1, "d": 2})])
    assert "\n" not in caught.value.cause


@pytest.mark.parametrize("read", [of_file, of_request, of_caller])
def test_a_time_in_a_zone_that_is_not_known_here_has_its_key_in_utc(tmp_path, read):
    assert keys(read(pa.array([0], pa.timestamp("us", tz="Foo/Bar")), tmp_path)).to_pylist() == ["1970-01-01 00:00:00Z"]


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.date32(), pa.binary()])
def test_a_column_without_rows_has_no_invalid_values(kind):
    check_single_values(of_caller(pa.array([], kind), Path()), "c", origin=Origin())


def test_a_column_of_dates_without_rows_has_no_invalid_numbers():
    assert numbers(pa.array([], pa.date32()), "c", origin=Origin()).size == 0
