"""Reasons in requests and answers: asked for in JSON or a header, limited by SERVING_EXPLAIN, in every format."""

import csv
import io
import json
import threading
import time

import numpy as np
import pyarrow.csv
import pytest

from container.attribution.parts import Question
from container.predictor import Predictor
from container.serving.batching import BatchingQueue
from container.serving.errors import RequestError
from container.serving.predict import predict
from container.serving.requests import asked_in_header, read_question, read_request
from contracts.errors import ContractError
from contracts.serving import CSV, JSON, JSON_LINES, ServingSettings
from testing.jobs import table
from testing.serving import serving

ALLOWED = ServingSettings(serving_explain="text")
HEADER = "X-Amzn-SageMaker-Custom-Attributes"
COLUMNS = ["chat", "price", "quantity", "color"]
RECORDS = json.loads(table(4, seed=9)[COLUMNS].to_json(orient="records"))
LINES = "\n".join(map(json.dumps, RECORDS))


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (None, None), ("", None), ("trace=7,c000b4f9", None), ("top=3", None), ("explain=off,top=3", None),
        ("explain", Question()), ("explain=true", Question()), ("EXPLAIN=text", Question("text")),
        ("trace=7, explain=word; top=3", Question("word", 3)),
    ],
)  # fmt: skip
def test_custom_attributes_ask_for_reasons_beside_others(attributes, expected):
    assert read_question(asked_in_header(attributes), ALLOWED) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, None), (False, None), ({}, None), (True, Question()), ("word", Question("word")),
        ({"level": "text", "top": "5"}, Question("text", 5)), ({"top": "2"}, Question(top=2)),
    ],
)  # fmt: skip
def test_a_field_of_json_asks_for_reasons(asked, expected):
    assert read_question(asked, ALLOWED) == expected


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("columns", "level: 'columns'.*column, text, word"), (["text"], "level:.*column, text, word"),
        ("1", "level: '1'"), ({"level": "column", "top": "0"}, "top: is 0.*at least 1"),
        ({"top": "1.5"}, "top: is '1.5'"), ({"top": [1]}, "top: is"), ({"top": "9" * 5000}, "top: is"),
        ({"levels": "text"}, "'levels' is not known.*column, text, word"), ({"level": None}, "level: None"),
    ],
)  # fmt: skip
def test_another_level_or_top_is_400_with_the_allowed_ones(asked, message):
    with pytest.raises(RequestError, match=f"(?s){message}") as error:
        read_question(asked, ALLOWED)
    assert error.value.status == 400


@pytest.mark.parametrize(
    ("allowed", "level"), [("off", "column"), ("off", "word"), ("column", "text"), ("column", "word")]
)
def test_what_the_server_does_not_allow_is_403_before_the_body_is_read(allowed, level):
    with pytest.raises(RequestError, match=f"SERVING_EXPLAIN is {allowed}") as error:
        read_request(b"{", JSON, ServingSettings(serving_explain=allowed), attributes=f"explain={level}")
    assert error.value.status == 403


@pytest.mark.parametrize(
    "body",
    [
        {"explain": "text", "instances": [{"chat": "late"}]}, {"instances": [{"chat": "late"}], "explain": "text"},
        {"chat": "late", "explain": {"level": "text"}}, {"inputs": {"chat": ["late"]}, "explain": "text"},
    ],
)  # fmt: skip
def test_the_field_can_be_beside_the_records_of_every_shape(body):
    (part,) = read_request(json.dumps(body).encode(), JSON, ALLOWED).parts(["chat"])
    assert part.question == Question("text")
    assert part.table()["chat"].to_pylist() == ["late"]


def test_the_field_is_a_value_where_the_model_has_a_column_of_its_name():
    (part,) = read_request(b'{"explain": "text"}', JSON, ALLOWED).parts(["explain"])
    assert part.question is None
    assert part.table()["explain"].to_pylist() == ["text"]


def test_reasons_take_turns_with_predictions_in_the_queue():
    order, started, go = [], threading.Event(), threading.Event()

    def compute(_, indices):
        started.set()
        go.wait(10)
        order.append(("predict", len(indices)))
        return np.zeros((len(indices), 2))

    def encode(_, indices):
        order.append(("encode", len(indices)))
        return np.zeros(len(indices), object)

    class Records:
        def padded_tokens(self, _):
            return 1

    queue = BatchingQueue(compute, batch_size=8)
    one, many = [Records()], [Records()] * 64
    threads = [threading.Thread(target=queue.compute, args=(one, [0]))]
    threads[0].start()
    started.wait(10)
    threads += [
        threading.Thread(target=queue.compute, args=(many, range(64)), kwargs={"function": encode}),
        threading.Thread(target=queue.compute, args=(one, [0])),
    ]
    for number, thread in enumerate(threads[1:], start=1):
        thread.start()
        while len(queue._waiting) < number:
            time.sleep(0.001)
    go.set()
    for thread in threads:
        thread.join(10)
    assert order[:3] == [("predict", 1), ("encode", 4), ("predict", 1)]
    assert sum(count for kind, count in order if kind == "encode") == 64


@pytest.fixture(scope="module")
def server(calibrated_job):
    with serving(calibrated_job.root, SERVING_EXPLAIN="text", SERVING_INVALID_RECORDS="report") as running:
        yield running


@pytest.fixture(scope="module")
def expected(calibrated_job):
    return Predictor.load(calibrated_job.model).explain(RECORDS)


def values(reasons):
    return {each["part"]: each["contribution"] for each in reasons["contributions"]}


@pytest.mark.slow
def test_every_format_has_the_reasons_of_the_predictor(server, expected):
    asked = {HEADER: "explain=column"}
    in_json = server.ask(json.dumps({"instances": RECORDS, "explain": True})).json["predictions"]
    lines = server.ask(LINES, JSON_LINES, accept=JSON_LINES, **asked).body.splitlines()
    rows = csv.DictReader(
        io.StringIO(server.ask(LINES, JSON_LINES, accept=f"{CSV}; header=present", **asked).body.decode())
    )
    answers = [
        [each["reasons"] for each in in_json],
        [json.loads(line)["reasons"] for line in lines],
        [json.loads(row["reasons"]) for row in rows],
    ]
    for answer in answers:
        for found, reasons in zip(answer, expected, strict=True):
            assert found["class"] == reasons["class"]
            assert values(found) == pytest.approx(values(reasons), abs=1e-5)


@pytest.mark.slow
def test_a_request_in_csv_gets_reasons_in_csv(server, expected):
    body = table(4, seed=9)[COLUMNS].to_csv(index=False)
    rows = list(csv.reader(io.StringIO(server.ask(body, CSV, accept=CSV, **{HEADER: "explain"}).body.decode())))
    assert [len(row) for row in rows] == [5] * 4  # the label, two probabilities, reasons, error
    assert values(json.loads(rows[0][3])) == pytest.approx(values(expected[0]), abs=1e-5)


@pytest.mark.slow
def test_a_request_that_does_not_ask_gets_no_reasons(server):
    assert "reasons" not in server.ask(json.dumps(RECORDS)).json["predictions"][0]
    assert len(server.ask(LINES, JSON_LINES, accept=CSV).body.splitlines()[0].split(b",")) == 4


@pytest.mark.slow
def test_numbers_of_json_are_numbers_in_the_reasons(server):
    reasons = server.ask(json.dumps({**RECORDS[0], "price": 31.5, "explain": True})).json["predictions"][0]["reasons"]
    assert {each["part"]: each["value"] for each in reasons["contributions"]}["price"] == 31.5


@pytest.mark.slow
def test_four_megabytes_of_words_are_refused_with_the_limit_and_the_other_record_is_explained(server):
    lines = [json.dumps(RECORDS[0]), json.dumps({"chat": "late parcel " * 350_000})]
    began = time.perf_counter()
    answer = server.ask("\n".join(lines), JSON_LINES, accept=JSON_LINES, **{HEADER: "explain=word"})
    explained, refused = map(json.loads, answer.body.splitlines())
    assert time.perf_counter() - began < 10
    assert "reasons" in explained
    assert refused["error"].startswith("record 2: its texts have more than 256 parts at level 'word'")


@pytest.mark.slow
def test_the_default_server_explains_columns_and_refuses_texts(calibrated_job):
    with serving(calibrated_job.root) as running:
        assert "reasons" in running.ask(json.dumps({**RECORDS[0], "explain": True})).json["predictions"][0]
        answer = running.ask(json.dumps({**RECORDS[0], "explain": "text"}))
        assert (answer.status, answer.json["error"]["reason"]) == (403, "Forbidden")
        too_long = running.ask(json.dumps({**RECORDS[0], "explain": {"top": 0}}))
        assert too_long.status == 400


@pytest.mark.slow
def test_predicted_files_get_a_column_of_reasons(calibrated_job, tmp_path, expected):
    table(4, seed=9).to_csv(tmp_path / "in.csv", index=False)
    assert predict(calibrated_job.model, [tmp_path / "in.csv"], tmp_path / "out.csv", level="column", top=1) == 0
    found = [json.loads(cell) for cell in pyarrow.csv.read_csv(tmp_path / "out.csv")["reasons"].to_pylist()]
    assert [list(values(each)) for each in found] == [list(values(each))[:1] for each in expected]


@pytest.mark.slow
def test_predict_names_an_unknown_level(calibrated_job, tmp_path):
    table(4, seed=9).to_csv(tmp_path / "in.csv", index=False)
    with pytest.raises(ContractError, match="column, text, word"):
        predict(calibrated_job.model, [tmp_path / "in.csv"], tmp_path / "out.csv", level="rows")


@pytest.mark.slow
def test_a_part_without_a_valid_record_has_its_errors_and_no_reasons(server):
    answer = server.ask("\n".join(["oops"] * 3), JSON_LINES, accept=JSON_LINES, **{HEADER: "explain"})
    assert answer.status == 200
    assert ["error" in json.loads(line) for line in answer.body.splitlines()] == [True] * 3
