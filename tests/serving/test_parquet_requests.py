"""Parquet requests are read in parts whose memory is bounded, whatever the types and encodings of the columns."""

import io
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from container.serving import parquet_requests
from container.serving.errors import RequestError
from container.serving.parts import PART_BYTES, PART_RECORDS
from container.serving.requests import read_request
from contracts.errors import ContractError
from contracts.serving import PARQUET, ServingSettings
from testing.hostile_texts import processor_seconds
from testing.serving import read_records

LONG = "x" * 20_000
DICTIONARIES = {"dictionary": pa.string()}
POOLS = []  # arrays may outlive the tests, and need their pools
TYPES = {
    "string": pa.string(), "large_string": pa.large_string(), "string_view": pa.string_view(), "json": pa.json_(),
}  # fmt: skip


def written(column, **options):
    sink = io.BytesIO()
    pq.write_table(pa.table({"chat": column}), sink, compression="zstd", **options)
    return sink.getvalue()


def texts(name, count, text=LONG):
    """Return a column of equal texts."""
    if name in DICTIONARIES:
        values = pa.array([text], DICTIONARIES[name])
        return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), values)
    if name == "json":
        return pa.ExtensionArray.from_storage(pa.json_(), pa.array([f'"{text}"'] * count))
    return pa.array([text] * count, TYPES[name])


def parts(body, limit=1 << 30):
    return read_request(body, PARQUET, ServingSettings(serving_max_decoded_bytes=limit)).parts(["chat"])


def refusal(body, limit):
    with pytest.raises(RequestError) as caught:
        for _ in parts(body, limit):
            pass
    return int(caught.value.status), caught.value.cause


@contextmanager
def arrow_peak(limit):
    """Assert that Arrow allocates at most `limit` bytes at a time in a `with` block."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        yield
    finally:
        pa.set_memory_pool(usual)
    assert pool.max_memory() <= limit


@pytest.mark.parametrize("name", [*TYPES, *DICTIONARIES])
def test_equal_texts_of_any_type_take_little_memory_until_they_exceed_the_limit(name, monkeypatch):
    monkeypatch.setattr(parquet_requests, "_BATCH_BYTES", 200_000)
    body = written(texts(name, 1000), row_group_size=100)  # decoded: 20 MB
    with arrow_peak(4_000_000):
        assert refusal(body, 4_000_000)[0] == 413


def test_texts_that_share_a_prefix_are_read_in_little_memory(monkeypatch):
    monkeypatch.setattr(parquet_requests, "_BATCH_BYTES", 200_000)
    expected = [f"{LONG}{i}" for i in range(1000)]
    body = written(pa.array(expected), use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY")
    found = []
    with arrow_peak(4_000_000):
        for part in parts(body):
            found += part.table()["chat"].to_pylist()
    assert found == expected


@pytest.mark.parametrize("name", ["string", "dictionary"])
def test_the_limit_is_for_the_sum_of_the_batches(name, monkeypatch):
    monkeypatch.setattr(parquet_requests, "_BATCH_BYTES", 1)
    body = written(texts(name, 40), row_group_size=10)
    assert sum(map(len, parts(body, 850_000))) == 40
    status, cause = refusal(body, 790_000)
    assert (status, "bytes after it is decompressed; at most 790000 are accepted" in cause) == (413, True)


@pytest.mark.parametrize("name", [*TYPES, *DICTIONARIES])
def test_a_part_has_at_most_its_bytes_of_decoded_text(name):
    body = written(texts(name, 100))
    found = list(parts(body))
    assert {len(part) for part in found[:-1]} == {PART_BYTES // len(LONG)}
    assert [part.first for part in found] == [sum(map(len, found[:i])) for i in range(len(found))]


def test_a_part_has_at_most_its_bytes_of_numbers():
    columns = {f"n{i}": [0.5] * 1000 for i in range(100)}
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    found = list(read_request(sink.getvalue(), PARQUET, ServingSettings()).parts(list(columns)))
    assert [len(part) for part in found] == [322, 322, 322, 34]  # 8 bytes and a bit for null per number


def test_a_text_longer_than_a_part_is_a_part_of_its_own():
    long = "y" * (2 * PART_BYTES)
    body = written(pa.array(["a", long, None, "b", long]))
    assert [part.table()["chat"].to_pylist() for part in parts(body)] == [["a"], [long], [None, "b"], [long]]


@pytest.mark.parametrize("batch_bytes", [1, 16 << 20])
def test_short_records_fill_parts_however_they_are_read(batch_bytes, monkeypatch):
    monkeypatch.setattr(parquet_requests, "_BATCH_BYTES", batch_bytes)
    column = pa.array([f"text {i}" for i in range(2 * PART_RECORDS + 5)])
    found = list(parts(written(column, row_group_size=300)))
    assert list(map(len, found)) == [PART_RECORDS, PART_RECORDS, 5]
    assert [text for part in found for text in part.table()["chat"].to_pylist()] == column.to_pylist()


@pytest.mark.parametrize(("columns", "counts"), [(["chat"], [3]), (["chat", "note"], [1, 1, 1])])
def test_a_part_reads_a_large_dictionary_once(columns, counts, monkeypatch):
    monkeypatch.setattr(parquet_requests, "_BATCH_BYTES", 50)  # 3 records without a text beside the dictionary, or 1
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0, 0, 0], pa.int32()), ["a", "y" * (2 * PART_BYTES)])
    sink = io.BytesIO()
    pq.write_table(pa.table({"chat": dictionary, "note": ["b"] * 3}), sink)
    assert list(map(len, read_request(sink.getvalue(), PARQUET, ServingSettings()).parts(columns))) == counts


@pytest.mark.parametrize(
    ("column", "kind"),
    [(pa.array([[7] * 1_000_000]), "a list"), (pa.array([["x"] * 1_000_000]), "a list"),
     (pa.array([{"a": LONG * 100}]), "a dict"),
     (pa.array([[("a", LONG * 100)]], pa.map_(pa.string(), pa.string())), "a dict")],
)  # fmt: skip
def test_the_values_of_lists_and_dicts_are_not_read(column, kind):
    body = written(column)
    with arrow_peak(100_000):
        assert read_records(body, PARQUET, ["chat"]).to_pylist() == [{"chat": {"kind": kind}}]


def test_invalid_text_is_an_error_of_its_part_that_names_the_record_of_the_request():
    column = pa.array([LONG.encode()] * 20 + [b"\xff"], pa.binary())
    body = written(pa.StringArray.from_buffers(len(column), *column.buffers()[1:]))
    *valid, last = parts(body)
    assert all(part.table()["chat"].to_pylist() == [LONG] * len(part) for part in valid)
    with pytest.raises(ContractError, match="^record 21: column 'chat' has an invalid value: Invalid UTF8 sequence\n"):
        last.table()


def test_columns_are_read_in_linear_time():
    def seconds(count):
        columns = [f"c{i}" for i in range(count)]
        sink = io.BytesIO()
        pq.write_table(pa.table({name: ["a"] for name in columns}), sink)
        return processor_seconds(lambda: read_records(sink.getvalue(), PARQUET, columns))

    assert seconds(2000) < 25 * max(seconds(200), 0.001)


def test_a_column_with_a_dot_in_its_name_is_not_a_field_of_another_column():
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [{"b": "other"}], "a.b": ["text"]}), sink)
    (part,) = read_request(sink.getvalue(), PARQUET, ServingSettings()).parts(["a.b"])
    assert part.table().to_pydict() == {"a.b": ["text"]}
