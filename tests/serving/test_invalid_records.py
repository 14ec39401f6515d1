"""SERVING_INVALID_RECORDS=report: what an invalid record costs, and that its error is that of the record alone."""

import io
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from container.decision.decision import Decision
from container.predictor import Predictor
from container.serving.answers import write_answer
from container.serving.media_types import MediaType
from container.serving.model import ServedModel
from container.serving.parts import PART_RECORDS, Part
from container.serving.requests import read_request
from container.tables.table_file import Origin
from container.text.tokenization import TextProcessor
from contracts.errors import ContractError
from contracts.serving import CSV, JSON, JSON_LINES, PARQUET, ServingSettings
from testing.table_jobs import fit, table
from tests.serving.test_predictor import Tokens

MAX_TOKENS = 40
LIMITS = ServingSettings(serving_invalid_records="report", serving_max_tokens=MAX_TOKENS)
HEADER = "text,x,y,c\n"
VALID = {"text": "good shirt", "x": 1.5, "y": 2, "c": "a"}
VALID_LINE = "good shirt,1.5,2,a"
LONG = "good " * 60
TOO_LONG = (
    "record {n}: has at least 72 tokens, with chunks padded to one length; at most 40 are accepted "
    "(column 'text' has 6 chunks of up to 12 tokens)"
)

# Invalid records with their errors; {n} is the number of the record.
CSV_LINES = {
    "good shirt,dear,2,a": "record {n}, column 'x': 'dear' is not a number",
    "good shirt,1.5,-1e39,a": "record {n}, column 'y': '-1e39' is not a finite 32-bit number",
    "good shirt,1e999,dear,a": "record {n}, column 'x': '1e999' is not a finite 32-bit number",
    "good shirt,1": "the request: row {n}: has 2 columns instead of 4: 'good shirt,1'",
    "good shirt,1,2,a,": "the request: row {n}: has 5 columns instead of 4: 'good shirt,1,2,a,'",
    '"good shirt,1,2,a': "the request: row {n}, column 'text': the cell begins with a quote that is never closed",
    '"good" shirt,1,2,a': "the request: row {n}, column 'text': the cell begins with a quote, and a later quote in it "
    "is followed by ' ', not by a delimiter or a line end",
    'good,1,2"': "the request: row {n}, column 'y': the cell does not begin with a quote, but ends with one or "
    "contains two in succession",
    "good,1\0,dear,a": "the request: row {n}, column 'x': the cell contains a NUL byte",
    "good,dear,2,caf\udce9": "the request: row {n}, column 'c': byte 0xE9 after 'caf' is not UTF-8",
    "caf\udce9,dear,2,caf\udce9": "the request: row {n}, column 'text': byte 0xE9 after 'caf' is not UTF-8",
    f"{LONG},1,2,a": TOO_LONG,
    "good\rshirt,1,2,a": "the request: row {n}: has a carriage return outside quotes",
}
JSON_VALUES = {
    '{"x": "dear"}': "record {n}, column 'x': 'dear' is not a number",
    '{"y": 1e39}': "record {n}, column 'y': 1e+39 is not a finite 32-bit number",
    '{"text": {"good": 1}}': "record {n}: column 'text' contains a dict, not a single value",
    '{"text": [0.5], "x": "dear"}': "record {n}: column 'text' contains a list, not a single value",
    '{"c": [[1], 2]}': "record {n}: column 'c' contains a list, not a single value",
    "[1]": "record {n}: [1] is not an object",
    "null": "record {n}: None is not an object",
    "{}": "record {n}: has no column of the model, only []",
    '{"instances": [], "parameters": {}}': "record {n}: has no column of the model, only ['instances', 'parameters']",
    '{"x": 1, "\\ud800": 1}': "records: the column name '\\ud800' has a lone surrogate, which is not a character",
    f'{{"text": "{LONG}"}}': TOO_LONG,
}
BROKEN_JSON = {
    '{"x": 1': "line {n} is not JSON: Expecting ',' delimiter: line 1 column 8 (char 7)",
    '{"x": 1, "x": 2}': "line {n} is not JSON: the key 'x' occurs more than once",
    '{"x": 1}\r{"x": 2}': "line {n} is not JSON: Extra data: line 1 column 10 (char 9)",
}


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    preprocessor, _ = fit(tmp_path_factory.mktemp("fit"), table(60))
    return Predictor(preprocessor, Tokens(), decision=Decision(), batch_size=8, max_tokens=MAX_TOKENS)


def request(content_type, records):
    """A request of lines, of JSON values or of a table."""
    if content_type == PARQUET:
        body = io.BytesIO()
        pq.write_table(records, body)
        return read_request(body.getvalue(), PARQUET, LIMITS)
    body = {
        CSV: lambda: HEADER + "\n".join(records),
        JSON: lambda: f"[{', '.join(records)}]",
        JSON_LINES: lambda: "\n".join(records),
    }[content_type]()
    return read_request(body.encode("utf-8", "surrogateescape"), content_type, LIMITS)


def reported(predictor, found):
    """The error of each invalid record of a request, by position."""
    errors = ServedModel(predictor, report_invalid=True).predict(found).errors
    assert errors is not None
    return dict(errors)


def test_a_client_is_not_told_to_change_the_settings_of_training(predictor):
    with pytest.raises(ContractError) as refused:
        ServedModel(predictor).predict(request(JSON_LINES, ['{"x": "dear"}']))
    assert refused.value.fix == "Write a number such as 12.5, or leave the cell empty."


def alone(predictor, found):
    """The errors of the records of a request that are prepared one by one."""
    errors = {}
    for part in found.parts(predictor.feature_inputs):
        for i in range(len(part)):
            single = replace(part, rows=part.rows[i : i + 1], first=part.first + i)
            try:
                predictor.prepare(single.table(), origin=Origin(first_row=single.first))
            except ContractError as error:
                errors[single.first] = error.cause
    return errors


def mixed(invalid, valid):
    """Each invalid record twice, between valid ones; the errors by position."""
    records = [record for each in [*invalid] * 2 for record in (valid, each)]
    errors = {2 * i + 1: text.replace("{n}", str(2 * i + 2)) for i, text in enumerate([*invalid.values()] * 2)}
    return records, errors


@pytest.mark.parametrize(
    ("content_type", "invalid", "valid"),
    [(CSV, CSV_LINES, VALID_LINE), (JSON, JSON_VALUES, json.dumps(VALID)),
     (JSON_LINES, {**JSON_VALUES, **BROKEN_JSON}, json.dumps(VALID))],
)  # fmt: skip
def test_every_kind_of_invalid_record_gets_its_own_error_among_all_others(predictor, content_type, invalid, valid):
    records, errors = mixed(invalid, valid)
    found = request(content_type, records)
    assert reported(predictor, found) == errors == alone(predictor, found)


def not_utf8(values):
    array = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(array), array.buffers()[1], array.buffers()[2], array.buffers()[0])


@pytest.mark.parametrize(
    ("column", "errors"),
    [
        ({"x": ["1", "dear", "1e39"]}, {1: "record 2, column 'x': 'dear' is not a number",
                                        2: "record 3, column 'x': '1e39' is not a finite 32-bit number"}),
        ({"x": [1.0, 2.0, np.inf]}, {2: "record 3, column 'x': inf is not a finite 32-bit number"}),
        ({"x": pa.array(["1", "dear", "2"], pa.string_view())}, {1: "record 2, column 'x': 'dear' is not a number"}),
        ({"x": pa.array([1, 2, 3], pa.date32())},
         dict.fromkeys(range(3), "records: column 'x' is of type date32[day], which is not numeric")),
        ({"c": [[0.5], None, [1.5]]},
         {i: f"record {i + 1}: column 'c' contains a list, not a single value" for i in range(3)}),
        ({"c": [b"a", None, b"b"]},
         {i: f"record {i + 1}: column 'c' contains the type binary, not a single value" for i in range(3)}),
        ({"text": not_utf8([b"good", b"\xff", b"good"])},
         {1: "record 2: column 'text' has an invalid value: Invalid UTF8 sequence"}),
        ({"c": not_utf8([b"a", b"\xff", b"b"]), "x": pa.array([1, 2, 3], pa.date32())},
         {**dict.fromkeys(range(3), "records: column 'x' is of type date32[day], which is not numeric"),
          1: "record 2: column 'c' has an invalid value: Invalid UTF8 sequence"}),
        ({"text": ["good", LONG, None]}, {1: TOO_LONG.replace("{n}", "2")}),
    ],
    ids=["texts", "floats", "views", "dates", "lists", "bytes", "not UTF-8", "two columns", "tokens"],
)  # fmt: skip
def test_an_invalid_record_of_a_table_gets_its_own_error(predictor, column, errors):
    columns = {"text": ["good"] * 3, "x": [1.0] * 3, "y": [2] * 3, "c": ["a"] * 3}
    assert reported(predictor, request(PARQUET, pa.table({**columns, **column}))) == errors


def test_two_lines_that_a_quote_joins_to_a_record_are_both_invalid(predictor):
    found = request(CSV, [VALID_LINE, '"good', 'shirt",1,2,a'])
    assert reported(predictor, found) == alone(predictor, found)
    assert list(reported(predictor, found)) == [1, 2]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("content_type", "lines", "invalid"),
    [(CSV, ['"good\rshirt",1,2,a', VALID_LINE], []), (CSV, ["good\rshirt,1,2,a", VALID_LINE], [0]),
     (CSV, [VALID_LINE, '"good', 'shirt",1,2,a', f"{VALID_LINE}\r{VALID_LINE}"], [1, 2, 3]),
     (JSON_LINES, ['{"text":\r"good"}', json.dumps(VALID)], []),
     (JSON_LINES, ['{"text": "good"}\r{"text": "good"}', json.dumps(VALID)], [0])],
)  # fmt: skip
def test_a_carriage_return_ends_no_line_and_each_line_gets_one_line(predictor, content_type, lines, invalid, end):
    body = end.join([*lines, ""])
    found = read_request((HEADER * (content_type == CSV) + body).encode(), content_type, LIMITS)
    prediction = ServedModel(predictor, report_invalid=True).predict(found)
    assert list(prediction.errors) == invalid
    for media_type in (CSV, JSON_LINES):
        assert write_answer(prediction, MediaType(media_type)).count(b"\n") == len(lines)


@pytest.mark.parametrize(("content_type", "valid"), [(CSV, VALID_LINE), (JSON_LINES, json.dumps(VALID))])
def test_blank_lines_are_no_records(predictor, content_type, valid):
    begin = f"\n \t\r\n{HEADER}" if content_type == CSV else "\n"
    body = f"{begin}{valid}\n\n  \n\r\n{valid}\r\n \n"
    found = ServedModel(predictor, report_invalid=True).predict(read_request(body.encode(), content_type, LIMITS))
    assert (len(found.decided), found.errors) == (2, {})


def test_blank_lines_are_records_of_a_csv_with_one_column():
    (part,) = read_request(b"text\na\n\n \r\nb\n", CSV, LIMITS).parts(["text"])
    assert part.table()["text"].to_pylist() == ["a", "", " ", "b"]


CELLS = [
    "good", "", "1", "dear", "1e999", "a\0", "\udcff", '"', '"a"', 'a"', 'a"b', '""', '"a""b"', "é", LONG,
    "a\rb", '"a\rb"'
]  # fmt: skip
LINES = st.lists(st.sampled_from(CELLS), min_size=1, max_size=5).map(",".join)


@settings(max_examples=60)
@given(st.lists(LINES | st.just(VALID_LINE), min_size=1, max_size=12))
def test_the_errors_of_csv_lines_do_not_depend_on_other_lines(predictor, lines):
    found = request(CSV, [VALID_LINE, *lines])
    assert reported(predictor, found) == alone(predictor, found)


@pytest.mark.parametrize(("content_type", "valid"), [(CSV, VALID_LINE), (JSON_LINES, json.dumps(VALID))])
def test_invalid_records_do_not_change_the_scores_of_the_others(predictor, content_type, valid):
    invalid = CSV_LINES if content_type == CSV else {**JSON_VALUES, **BROKEN_JSON}
    records, errors = mixed(invalid, valid)
    found = ServedModel(predictor, report_invalid=True).predict(request(content_type, records)).probabilities
    only = ServedModel(predictor).predict(request(content_type, [valid] * len(errors))).probabilities
    np.testing.assert_array_equal(np.delete(found, list(errors), axis=0), only)
    assert np.isnan(found[list(errors)]).all()


@pytest.fixture
def calls(monkeypatch):
    """The number of calls of each step of preparing a part, by name."""
    counts = Counter()
    for owner, name in ((Part, "table"), (pa_csv, "read_csv"), (TextProcessor, "process")):
        function = getattr(owner, name)

        def counted(*args, function=function, name=name, **options):
            counts[name] += 1
            return function(*args, **options)

        monkeypatch.setattr(owner, name, counted)
    return counts


@pytest.mark.parametrize("every", [1, 2, 100])
@pytest.mark.parametrize("line", CSV_LINES, ids=lambda line: repr(line[:20]))
def test_a_part_with_many_invalid_lines_of_a_kind_is_read_twice(predictor, calls, line, every):
    lines = [VALID_LINE if i % every else line for i in range(PART_RECORDS)]
    assert len(reported(predictor, request(CSV, lines))) == PART_RECORDS // every
    assert calls["table"] <= 2
    assert calls["process"] <= 2
    assert calls["read_csv"] <= 5  # two for the header; an invalid cell needs up to three, to name it


@pytest.mark.parametrize("content_type", [CSV, JSON_LINES])
def test_the_number_of_times_that_a_part_is_read_depends_on_the_kinds_of_errors_only(predictor, calls, content_type):
    invalid = list(CSV_LINES if content_type == CSV else {**JSON_VALUES, **BROKEN_JSON})
    counts = []
    for number in (len(invalid), 600):
        calls.clear()
        errors = reported(predictor, request(content_type, [invalid[i % len(invalid)] for i in range(number)]))
        assert len(errors) == number
        counts.append(dict(calls))
    assert counts[0] == counts[1]
    assert calls["process"] == 1


def test_wrong_cells_in_different_columns_are_found_at_once(predictor, calls):
    lines = ["good,dear,2,a", "good,1,dear,a", "good,1e999,2,a", "good,1,1e999,a"] * 10
    assert len(reported(predictor, request(CSV, lines))) == len(lines)
    assert calls["table"] == 1


def test_an_unused_value_of_a_dictionary_does_not_make_records_invalid(predictor):
    texts = not_utf8([b"good"] * PART_RECORDS + [b"\xff"])
    count = len(texts)
    records = pa.table({"text": texts, "x": [1.0] * count, "y": [2] * count, "c": ["a"] * count})
    assert list(reported(predictor, request(PARQUET, records))) == [PART_RECORDS]


def test_a_part_of_csv_lines_has_at_most_its_bytes():
    lines = [f"{i},{'y' * 1000}" for i in range(600)]
    settings = LIMITS.model_copy(update={"serving_csv_columns": ("price", "chat")})
    found = list(read_request("\n".join(lines).encode(), CSV, settings).parts(["price", "chat"]))
    assert [part.first for part in found] == [0, 261, 522]
    assert [row for part in found for row in part.table()["price"].to_pylist()] == [str(i) for i in range(600)]


@pytest.mark.parametrize(
    ("header", "cause"),
    [
        (b'y,x,text,c"', "row 1, column 4: the cell does not begin with a quote"),
        (b"text,x,y,c,caf\xe9", "row 1, column '5': byte 0xE9 after 'caf' is not UTF-8"),
    ],
)
def test_a_damaged_header_is_an_error_of_the_request(predictor, header, cause):
    found = read_request(header + b"\n2,1.5,7,a\n", CSV, LIMITS)
    with pytest.raises(ContractError) as caught:
        reported(predictor, found)
    assert cause in caught.value.cause
