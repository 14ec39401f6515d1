"""Requests in the shapes of MLflow, Hugging Face and TensorFlow Serving: the same records, also from their clients."""

import json
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from huggingface_hub.inference._providers import get_provider_helper
from mlflow.pyfunc.scoring_server.client import ScoringServerClient
from mlflow.utils.proto_json_utils import dump_input_data
from sagemaker.core.serializers import JSONSerializer

from container.predictor import Predictor
from container.serving.errors import RequestError
from container.serving.parts import MAX_COLUMNS
from container.serving.requests import read_request
from contracts.serving import JSON, JSON_LINES, ServingSettings
from testing.jobs import table
from testing.serving import read_records, serving

COLUMNS = ("chat", "price")
RECORDS = [{"chat": "hello", "price": "1.50"}, {"chat": 'a "quoted" ], }', "price": None}]
SPLIT = {"columns": ["price", "id", "chat"], "data": [[1.50, 7, "hello"], [None, 8, 'a "quoted" ], }']]}
BY_COLUMN = {"price": [1.50, None], "chat": ["hello", 'a "quoted" ], }']}
TEXTS = ["good", "bad"]


def read(content, columns=COLUMNS, content_type=JSON):
    """The records that a model with `columns` takes from a request."""
    body = content if isinstance(content, str) else json.dumps(content)
    return read_records(body, content_type, columns).to_pylist()


def refusal(content, columns=COLUMNS, content_type=JSON):
    with pytest.raises(RequestError) as caught:
        read(content, columns, content_type)
    assert caught.value.fix
    return int(caught.value.status), caught.value.cause


@pytest.mark.parametrize("beside", [{}, {"params": None}, {"parameters": {}}])
@pytest.mark.parametrize(
    "content",
    [
        {"instances": RECORDS},
        {"records": RECORDS},
        {"inputs": RECORDS},
        {"dataframe_records": RECORDS},
        {"dataframe_split": SPLIT},
        {"dataframe_split": {"index": [0, 1], **SPLIT}},
        {"dataframe_split": dict(reversed(SPLIT.items()))},
        {"inputs": BY_COLUMN},
        {"instances": BY_COLUMN},
    ],
)
def test_every_shape_gives_the_same_records(content, beside):
    expected = read(RECORDS)
    for whole in ({**content, **beside}, {**beside, **content}):
        found = read(whole)
        assert [record["chat"] for record in found] == [record["chat"] for record in expected]
        assert [record["price"] and float(record["price"]) for record in found] == [1.5, None]


@pytest.mark.parametrize("spaces", [{"indent": 3}, {"separators": (",", ":")}])
def test_blanks_between_the_parts_of_a_shape_do_not_matter(spaces):
    for content in ({"dataframe_split": SPLIT}, {"inputs": BY_COLUMN}, {"inputs": {"chat": "hello"}}):
        text = json.dumps(content, **spaces)
        assert read(f" \n{text}\r\n") == read(content)


@pytest.mark.parametrize("content", [{"inputs": RECORDS[0]}, {"inputs": [RECORDS[0]]}, [{"inputs": RECORDS[0]}]])
def test_one_record_may_be_the_input(content):
    assert read(content) == read(RECORDS[:1])


def test_a_list_beside_a_value_is_the_value_of_a_record():
    record = {"chat": ["hello", "again"], "price": 1}
    assert read({"inputs": record}) == read(record)


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        ({"inputs": TEXTS}, JSON),
        (TEXTS, JSON),
        ([{"inputs": text} for text in TEXTS], JSON),
        ({"inputs": {"chat": TEXTS}}, JSON),
        ("\n".join(json.dumps({"inputs": text, "parameters": {}}) for text in TEXTS), JSON_LINES),
        ("\n".join(map(json.dumps, TEXTS)), JSON_LINES),
    ],
)
def test_texts_are_the_records_of_a_model_of_one_column(content, content_type):
    assert read(content, ["chat"], content_type) == [{"chat": text} for text in TEXTS]


def test_a_single_text_is_the_record_of_a_model_of_one_column():
    assert read({"inputs": "good"}, ["chat"]) == [{"chat": "good"}]
    assert read({"inputs": "good"}, ["inputs"]) == [{"inputs": "good"}]
    assert refusal({"inputs": "good"})[1] == "record 1: 'good' is not an object"


def test_a_column_with_the_name_of_a_shape_is_a_column():
    columns = ["inputs", "instances"]
    assert read({"inputs": "a", "instances": "b"}, columns) == [{"inputs": "a", "instances": "b"}]
    assert read({"inputs": "a", "instances": ""}, columns) == [{"inputs": "a", "instances": ""}]
    assert read({"instances": [{"inputs": "a", "instances": "b"}]}, columns) == [{"inputs": "a", "instances": "b"}]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ({"inputs": RECORDS, "parameters": {"top_k": 2}}, "has no column of the model, only ['inputs', 'parameters']"),
        ({"inputs": RECORDS, "instances": RECORDS}, "has no column of the model, only ['inputs', 'instances']"),
        ({"dataframe_split": {"columns": ["chat"]}}, "'dataframe_split' has no lists 'columns' and 'data'"),
        ({"dataframe_split": [1]}, "'dataframe_split' has no lists 'columns' and 'data'"),
        ({"dataframe_split": {"columns": ["chat"], "data": [["a"]]}}, "column 'price' is missing"),
        ({"dataframe_split": {"columns": ["chat", "price", "chat"], "data": []}}, "'chat'"),
        ({"dataframe_split": {**SPLIT, "data": [[1, 2, "a"], [1]]}}, "record 2: [1] is not a list of 3 values"),
        ({"dataframe_split": {**SPLIT, "data": ["abc"]}}, "record 1: 'abc' is not a list of 3 values"),
        ({"dataframe_split": {**SPLIT, "data": []}}, "the request contains no record"),
        ({"inputs": {"chat": ["a", "b"], "price": [1]}}, "column 'chat' has 2 values, and 'price' has 1"),
        ({"inputs": {"chat": ["a"]}}, "column 'price' is missing"),
        ('{"inputs": [], "inputs": []}', "the key 'inputs' occurs more than once"),
        ('{"inputs": [{"chat": "a"}', "Expecting ',' delimiter"),
        ('{"inputs": [{"chat": "a"}} ', "Expecting ',' delimiter"),
        ('{"inputs" [1]}', "Expecting ':' delimiter"),
        ('{"inputs": [1], 2: 3}', "Expecting property name"),
        ('{"inputs": {"chat": ["a"], "price": [1}}', "Expecting ',' delimiter"),
        ('{"inputs": [{"chat": "a"}]} {}', "Extra data"),
        ('{"inputs": ', "Expecting value"),
        ('{"inputs": [{"chat": "a"}], "params"', "Expecting ':' delimiter"),
    ],
)
def test_what_is_wrong_with_a_shape_is_named(content, cause):
    status, found = refusal(content)
    assert status == 400
    assert cause in found


def test_the_columns_of_every_shape_are_limited():
    names = [f"c{number}" for number in range(MAX_COLUMNS + 1)]
    for content in ({"dataframe_split": {"columns": names, "data": []}}, {"inputs": {name: [] for name in names}}):
        assert refusal(content)[0] == 413


@pytest.mark.parametrize(
    "content",
    [
        {"dataframe_split": {"columns": ["chat", "price"], "data": [["a", 1]] * 50_000}},
        {"inputs": {"chat": ["a"] * 50_000, "price": [1] * 50_000}},
        {"inputs": [{"chat": "a", "price": 1}] * 50_000},
    ],
    ids=["split", "columns", "records"],
)
def test_the_records_of_a_large_request_are_not_kept(content):
    body = json.dumps(content).encode()
    tracemalloc.start()
    try:
        count = sum(len(part) for part in read_request(body, JSON, ServingSettings()).parts(COLUMNS))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 50_000
    assert most < 5 * len(body)


# Their clients


def test_the_request_of_hugging_faces_client_is_read():
    helper = get_provider_helper("hf-inference", task="text-classification", model="http://localhost/invocations")
    given = {"function_to_apply": None, "top_k": None}
    request = helper.prepare_request(
        inputs="good", parameters=given, headers={}, model="http://localhost/invocations", api_key=None
    )
    assert request.json is not None
    assert read(request.json, ["chat"]) == [{"chat": "good"}]


def test_the_requests_of_sagemakers_serializer_are_read():
    serializer = JSONSerializer()
    assert serializer.CONTENT_TYPE == JSON
    assert read(serializer.serialize({"inputs": TEXTS}), ["chat"]) == [{"chat": text} for text in TEXTS]
    assert read(serializer.serialize({"inputs": RECORDS})) == read(RECORDS)


def test_missing_numbers_and_times_of_mlflows_client_are_read():
    frame = pd.DataFrame({"chat": pd.to_datetime(["2024-01-02", None]), "price": [np.nan, 2.5]})
    found = read(dump_input_data(frame.astype({"chat": object}).where(frame.notna(), None)))
    assert [record["chat"] for record in found] == ["2024-01-02T00:00:00", None]
    assert [record["price"] and float(record["price"]) for record in found] == [None, 2.5]


@pytest.mark.slow
def test_mlflows_client_gets_the_probabilities_of_the_model(trained_job):
    frame = table(24, seed=2).drop(columns="label")
    expected = Predictor.load(trained_job.model, threads=1).predict(frame)
    records = json.loads(frame.to_json(orient="records"))
    with serving(trained_job.root) as server:
        client = ScoringServerClient("127.0.0.1", server.port)
        client.wait_server_ready(timeout=30)
        for data in (frame, records, {"dataframe_records": records}):
            found = client.invoke(json.dumps(data) if isinstance(data, dict) else data).get_predictions()
            np.testing.assert_allclose(np.stack(list(found["probabilities"])), expected, atol=1e-6)
