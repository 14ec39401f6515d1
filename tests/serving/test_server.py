"""Serving: every format in and out, errors that a client can act on, many connections at once, a clean stop."""

import contextlib
import csv
import http.client
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from container.data.records import RecordArrays, TextArrays
from container.decision.decision import Decision, Threshold
from container.errors import ClientGone, DeadlineError
from container.predictor import Predictor
from container.serving.answers import write_answer
from container.serving.batching import BatchingQueue
from container.serving.connections import READ_THOUGH_REFUSED
from container.serving.errors import RequestError
from container.serving.media_types import MediaType, request_type, response_type
from container.serving.model import Prediction, ServedModel
from container.serving.requests import read_request
from container.serving.runner import Turns
from container.tables.table_file import Origin
from container.tables.values import keys, numbers
from contracts.errors import ContractError
from contracts.package_inputs import CalibrationMap
from contracts.serving import CSV, JSON, JSON_LINES, PARQUET, ServingSettings
from testing import table_jobs
from testing.hostile_texts import processor_seconds
from testing.jobs import REPOSITORY, table, wait_for
from testing.serving import (
    ask,
    bodies,
    many_clients,
    model_process,
    parquet_bytes,
    read_records,
    refused_start,
    serving,
)

COLUMNS = ("chat", "price", "quantity", "color")
LIMITS = ServingSettings()
SERVING_PAGE = (REPOSITORY / "docs" / "serving.md").read_text()
TEST = table(24, seed=2)  # as testing.jobs.write_job makes the test split


def read(body, content_type, limits=LIMITS):
    """The records that a model with COLUMNS takes from a request."""
    return read_records(body, content_type, COLUMNS, limits)


def refusal(body, content_type, limits=LIMITS):
    with pytest.raises(RequestError) as caught:
        read(body, content_type, limits)
    return int(caught.value.status), caught.value.cause


# Requests


def test_a_csv_without_a_header_has_the_models_columns_in_order():
    found = read('"a, ""b""\nc",1,,red\n007,2,3,', CSV).to_pylist()  # the last line needs no end
    assert found == [
        {"chat": 'a, "b"\nc', "price": "1", "quantity": "", "color": "red"},
        {"chat": "007", "price": "2", "quantity": "3", "color": ""},
    ]


def test_a_csv_without_a_header_in_the_documented_order_is_the_record_of_its_json(tmp_path):
    days = [f"2026-01-{1 + i % 28:02d}" for i in range(40)]
    frame = table_jobs.table(40, day=days, sent=days[::-1], size=["ML"[i % 2] for i in range(40)])
    lists = {"tab_field_list": ["y", "x"], "date_field_list": ["sent", "day"], "cat_field_list": ["size", "c"]}
    preprocessor, _ = table_jobs.fit(tmp_path, frame, table_jobs.settings(**lists))
    model = ServedModel(Predictor(preprocessor, None, decision=Decision(), batch_size=8))
    row = {"text": "good shirt", "x": 1.5, "y": 2, "day": "2026-01-05", "sent": "2026-02-09", "c": "a", "size": "L"}
    (order,) = re.findall(r"\| SERVING_CSV_COLUMNS \|.* in the order (.*)\. \|", SERVING_PAGE)
    columns = [name for setting in order.split(", ") for name in {"texts": ["text"], **lists}[setting]]
    bodies = {JSON: json.dumps(row), CSV: ",".join(str(row[name]) for name in columns)}
    requests = [read_request(body.encode(), content_type, LIMITS) for content_type, body in bodies.items()]
    of_json, of_csv = (next(model.prepare(request)).records[0] for request in requests)
    np.testing.assert_array_equal(of_csv.tabular, of_json.tabular)
    np.testing.assert_array_equal(of_csv.texts[0].tokens, of_json.texts[0].tokens)


@pytest.mark.parametrize(
    ("first", "is_header"),
    [("color,chat,price,quantity", True), ("chat,prise,quantity,color", True), ("chat,1,2,color", False),
     ("price,1,2,red", False), ("order_id,label,1,2", False)],
)  # fmt: skip
def test_a_row_that_names_more_than_half_of_the_models_columns_is_a_header(first, is_header):
    body = f"{first}\nhi,1,2,red\n"
    if "prise" in first:
        assert refusal(body, CSV) == (400, "the request: column 'price' is missing; the similar column 'prise' exists")
    else:
        expected = [dict(zip(first.split(",") if is_header else COLUMNS, ("hi", "1", "2", "red")))]
        assert read(body, CSV).to_pylist()[not is_header :] == expected


DECLARED = ServingSettings(serving_csv_columns=("order_id", "chat", "price", "quantity", "color", "label"))


def test_lines_without_a_header_have_the_declared_columns():
    expected = [{"chat": "hi", "price": "1", "quantity": "2", "color": "red"}]
    for body in ("7,hi,1,2,red,0\n", ",".join(DECLARED.serving_csv_columns) + "\n7,hi,1,2,red,0\n"):
        assert read(body, CSV, DECLARED).to_pylist() == expected
    needed = "line 1 has 6 fields and is no header; without a header, 4 are needed"
    assert refusal("7,hi,1,2,red,0\n", CSV) == (400, needed)
    assert "SERVING_CSV_COLUMNS is 'order_id'" in refusal("chat,price,quantity,color\nhi,1,2,red\n", CSV, DECLARED)[1]


def test_a_cell_with_the_name_of_the_models_only_column_does_not_make_declared_columns_a_header():
    declared = ServingSettings(serving_csv_columns=("id", "chat", "label"))
    assert read_records("1,chat,0\n2,hi,1\n", CSV, ["chat"], declared)["chat"].to_pylist() == ["chat", "hi"]
    assert read_records("id,chat,label\n2,hi,1\n", CSV, ["chat"], declared)["chat"].to_pylist() == ["hi"]
    assert read_records("chat\nhi\n", "text/csv; header=absent", ["chat"])["chat"].to_pylist() == ["chat", "hi"]
    without = ServingSettings(serving_csv_header="absent")
    assert read_records("chat\nhi\n", CSV, ["chat"], without)["chat"].to_pylist() == ["chat", "hi"]
    assert read_records("chat\nhi\n", "text/csv; header=present", ["chat"], without)["chat"].to_pylist() == ["hi"]


def test_a_line_break_in_quotes_names_json_lines_where_it_was_cut():
    with pytest.raises(RequestError, match="never closed") as caught:
        read('"first line\n', CSV)
    assert "SplitType=Line" in caught.value.fix
    assert "JSON Lines" in caught.value.fix
    assert read('"first\nsecond",1,2,red\n', CSV)["chat"].to_pylist() == ["first\nsecond"]


@pytest.mark.parametrize("content_type", [CSV, JSON, JSON_LINES, PARQUET])
def test_any_number_of_records_is_read_in_parts_in_order(content_type):
    count = 12_345
    frame = pd.DataFrame({"chat": [f"é {i}" for i in range(count)], "price": 1, "quantity": 2, "color": "red"})
    parts = list(read_request(bodies(frame)[content_type], content_type, LIMITS).parts(COLUMNS))
    assert max(map(len, parts)) <= 1000
    assert [part.first for part in parts] == np.cumsum([0, *map(len, parts)])[:-1].tolist()
    found = [text for part in parts for text in part.table()["chat"].to_pylist()]
    assert found == frame["chat"].tolist()


@pytest.mark.parametrize("content_type", [CSV, JSON, JSON_LINES])
def test_the_memory_for_reading_does_not_grow_with_the_records(content_type):
    def peak(count):
        frame = pd.DataFrame({"chat": "hello " * 9, "price": 1.0, "quantity": 2, "color": "red"}, index=range(count))
        request = read_request(bodies(frame)[content_type], content_type, LIMITS)
        begin = pa.total_allocated_bytes()
        tracemalloc.start()
        found = 0
        for part in request.parts(COLUMNS):
            found += part.table().num_rows
        assert found == count
        assert pa.total_allocated_bytes() - begin < 4 << 20
        text = len(request.body) if content_type == JSON else 0  # of which JSON needs all
        most = tracemalloc.get_traced_memory()[1] - text
        tracemalloc.stop()
        return most

    assert peak(40_000) < 1.1 * peak(10_000)


@pytest.mark.parametrize("content_type", [CSV, "text/csv; header=present"])
def test_blanks_belong_to_the_names_of_a_csv_as_in_training(content_type):
    body = b"chat, price \nhi,1\n"
    assert read_records(body, content_type, ["chat", " price "]).to_pylist() == [{"chat": "hi", " price ": "1"}]
    with pytest.raises(RequestError, match="'price' is missing; the similar column ' price ' exists"):
        read_records(body, content_type, ["price"])


@pytest.mark.parametrize("begin", ["\n", "\r\n\r\n", "\ufeff\r"])
def test_empty_lines_are_records_of_one_column_but_not_before_its_header(begin):
    body = f"{begin}text\nhello\n\n".encode()
    for content_type in (CSV, "text/csv; header=present"):
        table = read_records(body, content_type, ("text",))
        assert table["text"].to_pylist() == ["hello", ""]
    lines = len(begin.removeprefix("\ufeff").splitlines())
    for content_type, names in ((CSV, ("other",)), ("text/csv; header=absent", ("text",))):
        table = read_records(body, content_type, names)
        assert table[names[0]].to_pylist() == [""] * lines + ["text", "hello", ""]


@pytest.mark.parametrize(
    "body",
    ['{"chat": "hi", "price": 1, "quantity": 2, "color": null}',
     '[{"chat": "hi", "price": 1, "quantity": 2, "color": null}]',
     '{"instances": [{"chat": "hi", "price": 1, "quantity": 2, "color": null}]}',
     '\ufeff{"records": [{"chat": "hi", "price": 1, "quantity": 2, "color": null}]}'],
)  # fmt: skip
def test_json_is_an_object_or_a_list_of_them(body):
    assert read(body, JSON).to_pylist() == [{"chat": "hi", "price": 1, "quantity": 2, "color": None}]


@pytest.mark.parametrize("content_type", [JSON, JSON_LINES])
@pytest.mark.parametrize(("written", "key"), [("1.0E7", "10000000"), ("1e-5", "1e-05"), ("8.10", "8.1")])
def test_a_number_in_json_is_the_category_of_that_number(content_type, written, key):
    found = read(f'{{"chat": "hi", "price": 1.50, "quantity": 2, "color": {written}}}', content_type)
    assert keys(found["color"]).to_pylist() == [key]
    assert numbers(found["price"], "price", origin=Origin()).tolist() == [1.5]


def test_the_error_of_a_json_value_that_is_no_object_says_what_a_client_sends():
    with pytest.raises(RequestError, match="record 2: 'red' is not an object\nSend an object"):
        read(b'[{"chat": "a"}, "red"]', JSON)


@pytest.mark.parametrize(
    ("body", "content_type", "status", "named"),
    [("", JSON, 400, "empty"), ("  \n", CSV, 400, "empty"), ("[]", JSON, 400, "no record"),
     ("chat,price,quantity,color\n", CSV, 400, "no record"), ("[", JSON, 400, "not JSON"),
     ("3", JSON, 400, "neither an object nor a list"),
     ("[3]", JSON, 400, "record 1: 3 is not an object"),
     ('{"chat": "a", "price": 1, "price": 2}', JSON, 400, "the key 'price' occurs more than once"),
     ('{"chat": "a", "\\ud800": 1}', JSON, 400, r"the column name '\ud800' has a lone surrogate"),
     ("{}", JSON, 400, "no column"), ('{"chat": "hi"}\n{', JSON_LINES, 400, "line 2"),
     ("[" * 100_000, JSON, 400, "not JSON"),
     ('{"review": "hi", "prise": 1}', JSON, 400, "record 1: has no column"),
     ('[{"chat": "hi"}, {}]', JSON, 400, "record 2: has no column"), ("{}\n{}", JSON_LINES, 400, "record 1: has no"),
     (parquet_bytes(pd.DataFrame({"chat": ["hi"], "prise": [1]})), PARQUET, 400, "the similar column 'prise' exists"),
     (parquet_bytes(pd.DataFrame(index=range(3))), PARQUET, 400, "no record"), ("\n" * 4, CSV, 400, "empty"),
     ("," * 10_000, CSV, 413, "10001 columns"), ("[" + "{}," * 9 + "{}]", JSON, 400, "no column"),
     ("hi,1,2\n", CSV, 400, "3 fields"),
     ("hi,1,2,red\nho,1\n", CSV, 400, "row 2: has 2 columns instead of 4"),
     ("chat,chat,price,quantity,color\na,b,1,2,c\n", CSV, 400, "'chat' occurs twice"),
     ('hi,1,2,"red\n', CSV, 400, "never closed"), (b"hi,1,2,\xff\n", CSV, 400, "column '4': byte 0xFF"),
     (parquet_bytes(pa.table([["a"], [1], [2]], ["chat", "z", "z"])), PARQUET, 400, "the column 'z' occurs twice"),
     (b"hi,1", PARQUET, 400, "not Parquet"), (b"{\xff}", JSON, 400, "not JSON"),
     ("hi", "image/png", 415, "image/png"), ("hi", None, 415, "missing"),
     ("hi", "text/csv; charset=latin-1", 415, "latin-1")],
)  # fmt: skip
def test_a_request_that_cannot_be_read_says_why(body, content_type, status, named):
    found, cause = refusal(body, content_type)
    assert (found, named in cause) == (status, True), cause


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@pytest.mark.parametrize("content_type", [CSV, "text/csv; header=absent"])
def test_a_csv_request_with_another_delimiter_is_told_which_one_it_has(content_type, delimiter):
    line = delimiter.join(COLUMNS)
    with pytest.raises(RequestError) as caught:
        read(f"\n{line}\nhi{delimiter}1\n", content_type, LIMITS)
    assert f"line 1 has 1 field, {line!r}, and is no header" in caught.value.cause
    assert f"Separate fields by commas, not by {delimiter!r}." in caught.value.fix


def test_the_names_of_a_record_are_compared_in_linear_time():
    def refuse(count):
        body = json.dumps({f"c{i}": 1 for i in range(count)})[:-1] + ', "last": 1, "last": 2}'
        return processor_seconds(lambda: refusal(body, JSON))

    assert refuse(20_000) < 30 * max(refuse(2_000), 0.001)


def test_a_small_parquet_file_that_is_huge_when_decoded_is_refused():
    body = parquet_bytes(pd.DataFrame({"chat": ["x" * 20_000] * 1000, "price": 1.0, "quantity": 1, "color": "red"}))
    assert len(body) < 100_000
    status, cause = refusal(body, PARQUET, ServingSettings(serving_max_decoded_bytes=10_000_000))
    assert (status, "decompressed" in cause) == (413, True)


# Media types


@pytest.mark.parametrize(
    ("accept", "name"),
    [(None, JSON), ("", JSON), ("*/*", JSON), ("text/*", CSV), ("text/csv", CSV), ("application/x-ndjson", JSON_LINES),
     ("text/html, text/csv;q=0.5, application/json;q=0.4", CSV), ("application/json, text/csv", JSON),
     ("text/csv;q=0, application/jsonlines", JSON_LINES), ("TEXT/CSV; Charset=UTF-8", CSV),
     ('text/html; x=","; y="\\"", text/csv', CSV), ("text/html, *; q=.2, */*; q=.2", JSON), ("text/csv;;;", CSV),
     ("application/json;q=0, */*", CSV), ("*/*, application/*;q=0.1, application/json;q=0", CSV),
     ("application/*, application/json;q=0", JSON_LINES)],
)  # fmt: skip
def test_the_answer_has_the_format_that_accept_prefers(accept, name):
    assert response_type(accept).name == name


@pytest.mark.parametrize(
    ("content_type", "named"),
    [("text/csv; charset*=utf-8''utf-16", "charset*"), ("text/csv, application/json", "malformed"),
     ("text/csv; charset=utf-8; charset=utf-16", "more than once"), ("text/csv; charset=rot13", "rot13"),
     ("text/csv; header", "malformed"), ("text/\xe9", "malformed"), ("x" * 200_000, "xxx..."), (";", "missing")],
)  # fmt: skip
def test_a_content_type_that_does_not_name_one_format_in_utf_8_is_415(content_type, named):
    with pytest.raises(RequestError) as caught:
        request_type(content_type)
    assert (int(caught.value.status), named in caught.value.cause) == (415, True)
    assert len(caught.value.cause) < 200


@pytest.mark.parametrize(
    ("accept", "cause"),
    [("text/csv; header*=utf-8''present", "malformed"), ("text/csv; q=nan", "malformed"),
     ("text/csv; q=-1", "malformed"), ('"', "malformed|names no format"), ("a/b/c", "malformed"),
     ("text/html", "names no format"), ("application/x-parquet", "names no format"), ("image/*", "names no format"),
     ("text/csv;q=0", "names no format")],
)  # fmt: skip
def test_an_accept_that_is_malformed_or_names_nothing_known_is_406(accept, cause):
    with pytest.raises(RequestError, match=cause) as caught:
        response_type(accept)
    assert int(caught.value.status) == 406


def test_other_names_of_a_format_are_known():
    assert request_type("application/vnd.apache.parquet").name == PARQUET
    assert request_type("Text/CSV ; charset=UTF-8; header=present") == MediaType(CSV, True)


# Answers


def test_every_format_of_an_answer_says_the_same():
    prediction = Prediction(np.array([[0.25, 0.75], [1 / 3, 2 / 3]]), ["a,b", "c"], ["c", "a,b"])
    as_json = json.loads(write_answer(prediction, MediaType(JSON)))
    lines = write_answer(prediction, MediaType(JSON_LINES)).decode().splitlines()
    as_csv = pd.read_csv(io.BytesIO(write_answer(prediction, MediaType(CSV, True))))
    assert as_json["class_labels"] == ["c", "a,b"]
    assert as_json["predictions"] == list(map(json.loads, lines))
    assert as_csv.columns.tolist() == ["predicted_label", "prob_class_0", "prob_class_1"]
    assert as_csv["predicted_label"].tolist() == [entry["predicted_label"] for entry in as_json["predictions"]]
    np.testing.assert_array_equal(as_csv.iloc[:, 1:], prediction.probabilities)
    assert write_answer(prediction, MediaType(CSV)).decode().count("\n") == 2


@pytest.mark.parametrize("label", ["\r", "a\rb", "a\nb", "a\r\nb", '"', ",", ""])
def test_a_label_is_one_cell_of_csv_whatever_its_characters(label):
    prediction = Prediction(np.array([[0.25, 0.75]] * 2), [label] * 2, ["c", label])
    answer = write_answer(prediction, MediaType(CSV)).decode()
    assert list(csv.reader(io.StringIO(answer, newline=""))) == [[label, "0.25", "0.75"]] * 2


# Calibration


class FixedPredictor:
    """Stands for a model that gives class 1 a probability of 0.45."""

    feature_inputs = COLUMNS
    other_columns = ("order_id", "label")

    def __init__(self, decision, classes=2):
        self.decision = decision
        self.class_labels = list(range(classes))

    def prepare(self, records, *, first=0, origin=None):
        return numbered(range(records.num_rows))

    def compute(self, records, indices):
        return np.tile([0.55, 0.45], (len(indices), 1))


@pytest.mark.parametrize(
    ("threshold", "decided"), [(None, 1), (Threshold(0.5), 1), (Threshold(0.5, target="best_f1"), 0)]
)
def test_a_given_threshold_is_held_against_calibrated_probabilities_and_one_of_val_decides_as_it_did_there(
    threshold, decided
):
    model = ServedModel(FixedPredictor(Decision(threshold=threshold)))
    model.calibrate(CalibrationMap((0.4, 0.5), (0.6, 0.9)))
    answer = model.predict(read_request(b"hi,1,2,red\n", CSV, LIMITS))
    np.testing.assert_allclose(answer.probabilities, [[0.25, 0.75]])
    assert threshold is None or answer.decided == [decided]


@pytest.mark.parametrize(
    ("content", "named"),
    [('{"scores": [0, 1]}', "has no 'probabilities'"),
     ('{"scores": [0, 1], "probabilities": [0, 1.5]}', "has the value 1.5 for 'probabilities.1'"),
     ('{"scores": [0], "probabilities": [0]}', "at least 2 items"),
     ('{"scores": [0, 1], "probabilities": [0]}', "2 scores"),
     ('{"scores": [0, 0], "probabilities": [0, 1]}', "0 follows 0"),
     ('{"scores": [0, 1], "probabilities": [0.5, 0.25]}', "0.25 follows 0.5")],
)  # fmt: skip
def test_a_calibration_that_is_no_monotone_map_is_refused(tmp_path, content, named):
    path = tmp_path / "calibration.json"
    path.write_text(content)
    with pytest.raises(ContractError) as caught:
        CalibrationMap.read(path)
    assert str(path) in caught.value.cause
    assert named in caught.value.cause


def test_a_calibration_of_more_than_two_classes_is_refused():
    with pytest.raises(ContractError, match="3 classes"):
        ServedModel(FixedPredictor(Decision(), classes=3)).calibrate(CalibrationMap((0, 1), (0, 1)))


# The queue


def numbered(values):
    """Prepared records whose row numbers are `values`."""
    values = np.array(list(values))
    return RecordArrays(values, np.zeros(len(values)), np.zeros((len(values), 0)), (), np.ones(len(values)))


def of_tokens(lengths):
    """Prepared records of one chunk with these numbers of tokens."""
    ends = np.cumsum([0, *lengths])
    text = TextArrays(np.zeros(ends[-1], np.int64), ends, np.array(lengths), np.arange(len(lengths) + 1))
    return replace(numbered(range(len(lengths))), texts=(text,))


class Slow:
    """A model that computes [row, row], and is busy until it is let go on."""

    def __init__(self):
        self.rounds = []
        self.started, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, records, indices):
        self.rounds.append([int(part.row[i]) for part, i in zip(records, indices)])
        self.started.release()
        assert self.go_on.acquire(timeout=10)
        return np.array([[part.row[i], part.row[i]] for part, i in zip(records, indices)], float)


def compute_all(queue, records):
    """What a queue computes for all of `records`."""
    count = len(records.row)
    return queue.compute([records] * count, range(count))


@pytest.fixture
def slow():
    return Slow()


def test_a_lone_request_is_computed_at_once():
    queue = BatchingQueue(lambda records, indices: np.zeros((len(indices), 2)), batch_size=8)
    began = time.perf_counter()
    for _ in range(100):
        queue.compute([numbered([1])], [0])
    assert (time.perf_counter() - began) / 100 < 0.01  # a timer would cost that alone


def test_what_arrives_while_the_worker_is_busy_is_computed_together(slow):
    queue = BatchingQueue(slow, batch_size=8)
    with ThreadPoolExecutor(6) as clients:
        first = clients.submit(compute_all, queue, numbered([0]))
        assert slow.started.acquire(timeout=10)
        others = [clients.submit(compute_all, queue, numbered([i, 10 * i])) for i in (1, 2, 3)]
        wait_for(lambda: len(queue._waiting) >= 3)
        slow.go_on.release(10)
        assert first.result()[0, 0] == 0
        for i, other in zip((1, 2, 3), others):
            np.testing.assert_array_equal(other.result()[:, 0], [i, 10 * i])
    assert slow.rounds[0] == [0]
    assert len(slow.rounds) == 2
    assert sorted(slow.rounds[1]) == [1, 2, 3, 10, 20, 30]


def test_a_single_record_does_not_wait_for_a_thousand(slow):
    queue = BatchingQueue(slow, batch_size=4)
    with ThreadPoolExecutor(2) as clients:
        many = clients.submit(compute_all, queue, numbered(range(1000)))
        assert slow.started.acquire(timeout=10)
        one = clients.submit(compute_all, queue, numbered([5000]))
        wait_for(lambda: len(queue._waiting) >= 2)
        slow.go_on.release(1000)
        assert one.result()[0, 0] == 5000
        np.testing.assert_array_equal(many.result()[:, 0], np.arange(1000))
    assert 5000 in slow.rounds[1]
    assert all(len(found) <= 4 for found in slow.rounds)


def test_only_the_request_that_cannot_be_computed_fails(slow):
    def compute(records, indices):
        found = slow(records, indices)
        if 13 in found:
            raise MemoryError("13")
        return found

    queue = BatchingQueue(compute, batch_size=8)
    slow.go_on.release(100)
    with ThreadPoolExecutor(8) as clients:
        rows = [13 if i == 20 else i + 100 for i in range(40)]
        answers = [clients.submit(compute_all, queue, numbered([row])) for row in rows]
        for row, answer in zip(rows, answers):
            if row == 13:
                with pytest.raises(MemoryError):
                    answer.result()
            else:
                assert answer.result()[0, 0] == row


def test_records_for_which_nobody_waits_any_longer_are_dropped_after_the_round_in_progress(slow):
    queue, gone = BatchingQueue(slow, batch_size=4), threading.Event()
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(queue.compute, [numbered(range(8))] * 8, range(8), gone=gone.is_set)
        assert slow.started.acquire(timeout=10)
        with pytest.raises(DeadlineError):
            queue.compute([numbered([9])], [0], timeout=0.01)
        gone.set()
        slow.go_on.release(10)
        with pytest.raises(ClientGone):
            first.result(timeout=10)
    assert compute_all(queue, numbered([7]))[0, 0] == 7
    assert slow.rounds == [[0, 1, 2, 3], [7]]


def test_a_round_of_several_records_has_at_most_max_tokens(slow):
    queue = BatchingQueue(slow, batch_size=8, max_tokens=100)
    slow.go_on.release(100)
    with ThreadPoolExecutor(2) as clients:
        answers = [clients.submit(compute_all, queue, of_tokens([40, 40, 40, 250, 10, 10])) for _ in range(2)]
        for answer in answers:
            assert answer.result(timeout=10)[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    tokens = [[(40, 40, 40, 250, 10, 10)[row] for row in found] for found in slow.rounds]
    assert all(sum(found) <= 100 or found == [250] for found in tokens)
    assert [250] in tokens


# The server


@pytest.fixture(scope="module")
def server(trained_job):
    with serving(trained_job.root, SERVING_MAX_BYTES="200000") as server:
        yield server


@pytest.fixture(scope="module")
def trained(trained_job):
    """The training job's probabilities of TEST. [24, 2]"""
    found = pd.read_csv(trained_job.output_data / "test_predictions.csv")
    return found.filter(like="prob_class_").to_numpy()


@pytest.mark.slow
@pytest.mark.parametrize("content_type", [CSV, JSON, JSON_LINES, PARQUET])
def test_every_format_is_answered_with_the_training_jobs_probabilities(server, trained, content_type):
    answer = server.ask(bodies(TEST)[content_type], content_type)
    assert (answer.status, answer.headers["content-type"]) == (200, JSON)
    np.testing.assert_allclose(answer.probabilities, trained, atol=1e-4)
    assert [entry["predicted_label"] for entry in answer.json["predictions"]] == (trained[:, 1] >= 0.5).tolist()


@pytest.mark.slow
def test_accept_chooses_the_format_of_the_answer(server, trained):
    answer = server.ask(bodies(TEST)[CSV], CSV, accept="text/csv")
    assert answer.headers["content-type"] == CSV
    found = pd.read_csv(io.BytesIO(answer.body), header=None)
    np.testing.assert_allclose(found.iloc[:, 1:], trained, atol=1e-4)
    lines = server.ask(bodies(TEST)[CSV], CSV, accept="application/jsonlines").body.splitlines()
    assert len(lines) == 24


@pytest.mark.slow
def test_a_body_far_beyond_the_limit_is_refused_unread_and_the_next_request_is_answered(server):
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # cut off before the client had sent it all
        answer = server.ask("x" * 900_000, JSON)
        assert answer.status == 413
        assert answer.json["error"]["message"] == (
            f"the request has at least {READ_THOUGH_REFUSED * 200_000} bytes; at most 200000 are accepted"
        )
    assert server.ask("[]", JSON).status in (200, 400)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "status", "named"),
    [({"path": "/predict"}, 404, "POST /invocations"), ({"method": "DELETE"}, 405, "DELETE"),
     ({"body": "{"}, 400, "not JSON"), ({"content_type": "image/png"}, 415, "image/png"),
     ({"content_type": None}, 415, "missing"), ({"accept": "text/html"}, 406, "text/html"),
     ({"content_encoding": "br"}, 415, "br"), ({"body": "x" * 200_001}, 413, "200001 bytes"),
     ({"body": '{"chat": "a", "price": "dear", "quantity": 1, "color": "red"}'}, 400, "column 'price': 'dear'")],
)  # fmt: skip
def test_an_error_is_json_with_the_status_that_a_client_expects(server, asked, status, named):
    answer = server.ask(**{"body": "{}", "content_type": JSON, **asked})
    assert (answer.status, answer.headers["content-type"]) == (status, JSON)
    assert answer.json["error"]["status"] == status
    assert named in json.dumps(answer.json["error"], ensure_ascii=False), answer.json


@pytest.mark.slow
@pytest.mark.parametrize("content_type", [JSON, PARQUET])
def test_lists_matter_only_in_a_column_that_the_model_reads(server, content_type):
    record = {"chat": "a", "price": 1.0, "quantity": 1, "color": "red"}
    asked = [record, {**record, "tags": ["x"]}, {**record, "color": [{"a": "red"}]}, {**record, "price": [{"a": 1.0}]}]
    if content_type == JSON:
        answers = [server.ask(json.dumps(one), JSON) for one in asked]
    else:
        answers = [server.ask(parquet_bytes(pa.Table.from_pylist([one])), PARQUET) for one in asked]
    assert [answer.status for answer in answers] == [200, 200, 400, 400]
    np.testing.assert_array_equal(answers[0].probabilities, answers[1].probabilities)
    for answer, column in zip(answers[2:], ("color", "price")):
        assert f"record 1: column '{column}' contains a list" in answer.json["error"]["message"]


@pytest.mark.slow
def test_a_method_that_is_not_allowed_is_answered_with_those_that_are(server):
    assert server.ask(content_type=None, method="GET").headers["allow"] == "POST"


@pytest.mark.slow
def test_an_error_leaves_the_connection_usable(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    assert ask(connection, "{", JSON).status == 400
    assert ask(connection, bodies(TEST)[JSON], JSON).status == 200
    connection.close()


@pytest.mark.slow
def test_a_request_beyond_the_default_size_is_answered_where_the_settings_allow_it(trained_job):
    line = json.dumps({"chat": "hi", "notes": "x" * 1_000_000}) + "\n"
    with serving(trained_job.root, SERVING_MAX_BYTES=str(1 << 30), SERVING_TIMEOUT_SECONDS="3600") as server:
        answer = server.ask(line * 30, JSON_LINES)
    assert (answer.status, len(answer.json["predictions"])) == (200, 30)


@pytest.mark.slow
def test_of_200_clients_at_once_each_gets_its_own_answer(server):
    records = json.loads(table(60, seed=5).drop(columns=["label", "order_id", "events"]).to_json(orient="records"))
    alone = np.concatenate([server.ask(json.dumps(record)).probabilities for record in records])
    assert len(np.unique(alone[:, 0])) > 50, "answers that are mixed up would be seen"
    load = many_clients(server.port, records, alone, clients=200, requests=5)
    print(f"\n200 clients: {load}")
    assert load.lost == []
    assert load.statuses == {200: 1000}
    assert load.furthest < 1e-5


@pytest.mark.slow
def test_sigterm_answers_what_is_under_way_then_ends_with_0(trained_job):
    records = json.loads(TEST.drop(columns=["label", "order_id"]).to_json(orient="records"))
    with serving(trained_job.root, SERVING_GRACE_SECONDS="120", SERVING_TIMEOUT_SECONDS="120") as server:
        bodies = [json.dumps(records * 20) for _ in range(30)]
        connections = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=150) for _ in bodies]
        for connection, body in zip(connections, bodies):
            connection.request("POST", "/invocations", body, {"Content-Type": JSON})
        server.process.terminate()
        answers = [connection.getresponse() for connection in connections]
        assert [answer.status for answer in answers] == [200] * 30
        assert [len(json.loads(answer.read())["predictions"]) for answer in answers] == [480] * 30
        assert server.process.wait(timeout=30) == 0
        assert "requests answered: 30 with 200" in server.log.read_text()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", server.port), timeout=5)


def test_a_call_that_takes_too_long_ends_its_wait_and_the_next_call_runs():
    turns, release = Turns(), threading.Event()
    with pytest.raises(DeadlineError):
        turns.run(lambda: release.wait(60), 0.01)
    release.set()
    assert turns.run(lambda: 3, 60) == 3
    with pytest.raises(ZeroDivisionError):
        turns.run(lambda: 1 / 0, 60)


@pytest.mark.slow
def test_a_server_without_a_model_ends_with_1_and_says_what_is_missing(tmp_path):
    assert str(tmp_path / "model") in refused_start(tmp_path)


@pytest.mark.slow
def test_a_misspelled_setting_is_a_warning_with_the_right_name(tmp_path):
    log = refused_start(tmp_path, SERVING_MAX_BYTE="5", SERVING_MAX_BYTES="6")
    warning = "environment variable SERVING_MAX_BYTE: is not a setting of the server; did you mean 'SERVING_MAX_BYTES'?"
    assert warning in log
    assert log.count("is not a setting") == 1


@pytest.mark.slow
def test_a_server_whose_model_process_ends_answers_503_and_ends_with_1(trained_job):
    with serving(trained_job.root) as server:
        model = model_process(server.process.pid)
        os.kill(model, signal.SIGSTOP)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/invocations", bodies(TEST)[JSON], {"Content-Type": JSON})
        time.sleep(0.5)
        os.kill(model, signal.SIGKILL)
        assert connection.getresponse().status == 503
        assert server.process.wait(timeout=60) == 1
        assert "the model's process ended with signal 9" in server.log.read_text()


@pytest.mark.slow
def test_a_packages_own_inference_py_answers(trained_job, tmp_path):
    shutil.copytree(trained_job.model, tmp_path / "model")
    (tmp_path / "model" / "code").mkdir()
    (tmp_path / "model" / "code" / "inference.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from container.serving.handler import input_fn, model_fn, predict_fn\n"
        "@dataclass\nclass Answer:\n    decided: list[int]\n"  # its annotations are looked up in sys.modules
        "def output_fn(prediction, accept):\n    return ' '.join(map(str, Answer(prediction.decided).decided))\n"
    )
    with serving(tmp_path) as server:
        answer = server.ask(bodies(TEST.head(3))[JSON], JSON)
    assert answer.status == 200
    assert len(answer.body.split()) == 3


def test_the_settings_are_documented_as_they_are():
    for name, field in ServingSettings.model_fields.items():
        default = "" if field.default is None else f"{field.default:g}" if name.endswith("seconds") else field.default
        assert f"| {name.upper()} | {default} | {field.description} |" in SERVING_PAGE


@pytest.mark.parametrize("content_type", [CSV, JSON, JSON_LINES, PARQUET])
def test_damaged_requests_are_refused_and_nothing_worse(content_type):
    rng = random.Random(0)
    whole = bodies(TEST.head(3))[content_type]
    pieces = [b'"', b"\n", b",", b"{", b"[", b"\\ud800", b"null", b"1e999", b"\0", b"\xff", b"NaN", b""]
    refused = 0
    for _ in range(400):
        body = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            start = rng.randrange(len(body))
            body[start : start + rng.choice([0, 1, 20])] = rng.choice(pieces)
        try:
            table = read(bytes(body[: rng.choice([None, None, rng.randrange(1, len(body))])]), content_type)
            table.validate(full=True)
            table.to_pylist()
        except RequestError:
            refused += 1
    assert refused > 100
