"""A batch transform: files of lines, cut into payloads as SageMaker does, with invalid records, joins and filters."""

import json
import os
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.predictor import Predictor
from container.serving.application import execution_parameters
from container.serving.model import ServedModel
from contracts.errors import ContractError
from contracts.serving import CSV, JSON, JSON_LINES, PARQUET, ServingSettings
from testing.batch_transform import Transform
from testing.jobs import REPOSITORY, table
from testing.serving import serving

ROWS = 3000
INVALID = {"price": "dear"}, {"price": [{"usd": 1}]}, {"chat": "<&" * 5000}, {}
MIB = 1 << 20


@pytest.fixture(scope="module")
def transform_server(trained_job):
    """A server as a transform job starts it."""
    columns = "order_id,chat,price,quantity,color,label"
    with serving(
        trained_job.root, SERVING_INVALID_RECORDS="report", SERVING_CSV_COLUMNS=columns, SERVING_MAX_TOKENS="300"
    ) as server:
        yield server


@pytest.fixture(scope="module")
def scored(trained_job):
    """ROWS records with the probabilities that the Predictor gives them."""
    frame = table(ROWS, seed=7).drop(columns="events").astype({"price": object})
    frame = frame.astype(object).where(frame.notna(), None)
    return frame, Predictor.load(trained_job.model, threads=1).predict(frame.to_dict("records"))


def invalid_rows(rng):
    return sorted(rng.choice(ROWS, ROWS // 100, replace=False).tolist())


@pytest.mark.slow
def test_each_invalid_json_line_gets_an_error_in_its_place_and_the_others_their_scores(
    transform_server, scored, tmp_path
):
    frame, expected = scored
    records = frame.to_dict("records")
    bad = invalid_rows(np.random.default_rng(0))
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    for number, row in enumerate(bad):
        change = INVALID[number % 4]
        lines[row] = json.dumps({**records[row], **change}) if change else '{"chat": "broken", '
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    transform = Transform(JSON_LINES, payload_bytes=100_000)
    assert transform.run(transform_server.port, tmp_path / "in", tmp_path / "out") == ROWS
    answers = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [row for row, answer in enumerate(answers) if "error" in answer] == bad
    assert all(isinstance(answers[row]["error"], str) and len(answers[row]) == 1 for row in bad)
    causes = " ".join(answers[row]["error"] for row in bad)
    for cause in ("'dear' is not a number", "contains a list", "tokens", "is not JSON"):
        assert cause in causes
    good = np.setdiff1d(np.arange(ROWS), bad)
    found = np.array([answers[row]["probabilities"] for row in good])
    np.testing.assert_allclose(found, expected[good], atol=1e-5)


@pytest.mark.slow
def test_each_invalid_csv_line_gets_an_error_cell_and_only_the_first_payload_has_the_header(
    transform_server, scored, tmp_path
):
    frame, expected = scored
    bad = invalid_rows(np.random.default_rng(1))
    header, *lines = frame.to_csv(index=False).splitlines()
    for number, row in enumerate(bad):
        lines[row] = ("x,y", '1,"open,2,3,red,0', "1,chat,dear,2,red,0", "1,a,2,3,blue,0,7")[number % 4]
    (tmp_path / "in").write_text("\n".join([header, *lines]) + "\n")
    transform = Transform(CSV, payload_bytes=100_000)
    assert transform.run(transform_server.port, tmp_path / "in", tmp_path / "out") == ROWS
    found = pd.read_csv(tmp_path / "out", header=None, names=["label", "p0", "p1", "error"])
    assert np.flatnonzero(found["error"].notna()).tolist() == bad
    assert found.loc[bad, ["label", "p0", "p1"]].isna().all(axis=None)
    good = np.setdiff1d(np.arange(ROWS), bad)
    np.testing.assert_allclose(found.loc[good, ["p0", "p1"]].astype(float), expected[good], atol=1e-5)


@pytest.mark.slow
def test_a_request_of_invalid_records_only_is_answered(transform_server):
    for content_type, body in ((JSON_LINES, "{\n[]\n"), (CSV, '"\nx\n')):
        answer = transform_server.ask(body, content_type, accept="text/csv; header=present")
        assert answer.status == 200
        header, *lines = answer.body.decode().splitlines()
        assert header == "predicted_label,prob_class_0,prob_class_1,error"
        assert [line[:3] for line in lines] == [",,,"] * 2


@pytest.mark.slow
def test_a_request_that_cannot_be_divided_into_records_is_refused(transform_server):
    for content_type, body in ((JSON, '[{"chat": "a"}, {'), (PARQUET, b"PAR1"), (CSV, "order_id,chat,price,color\n")):
        assert transform_server.ask(body, content_type).status == 400


@pytest.mark.slow
def test_a_server_whose_csv_columns_lack_one_of_the_model_does_not_start(trained_job):
    with pytest.raises(ContractError, match="SERVING_CSV_COLUMNS: column 'color' is missing"):
        ServedModel.load(trained_job.model, ServingSettings(serving_csv_columns=("chat", "price", "quantity")))


@pytest.mark.slow
def test_a_model_uses_at_most_one_thread_per_core_and_says_so(trained_job, caplog, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    before = len(os.listdir("/proc/self/task"))
    model = ServedModel.load(trained_job.model, ServingSettings(serving_threads=1_024))
    assert model.feature_inputs  # keeps its threads alive
    assert len(os.listdir("/proc/self/task")) - before < 10
    assert "threads (SERVING_THREADS) is 1024, but this machine has 3 cores: the model uses 3" in caplog.text


# The parameters of a transform


@given(st.one_of(st.none(), st.floats(1, 1e12)), st.integers(1, 1 << 40), st.floats(0.01, 3600), st.integers(1, 10_000))
def test_all_payloads_together_fit_the_service_the_server_and_half_of_the_time(rate, max_bytes, seconds, concurrency):
    settings = ServingSettings(
        serving_max_bytes=max_bytes, serving_timeout_seconds=seconds, serving_concurrency=concurrency
    )
    found = execution_parameters(rate, settings)
    concurrent, payload = found["MaxConcurrentTransforms"], found["MaxPayloadInMB"]
    assert found["BatchStrategy"] == "MULTI_RECORD"
    assert 1 <= concurrent <= concurrency
    assert 1 <= payload <= max(1, max_bytes // MIB)
    assert concurrent * payload <= 100
    if concurrent * payload > 1:
        assert concurrent * payload * MIB <= 4 * max_bytes
        assert rate is None or concurrent * payload * MIB / rate <= seconds / 2


def test_a_fast_server_gets_eight_payloads_of_six_mib():
    expected = {"MaxConcurrentTransforms": 8, "BatchStrategy": "MULTI_RECORD", "MaxPayloadInMB": 6}
    assert execution_parameters(1e9, ServingSettings()) == execution_parameters(None, ServingSettings()) == expected


@pytest.mark.parametrize(("seconds", "concurrent", "payload"), [(6, 3, 1), (24, 8, 1), (32, 8, 2)])
def test_a_server_of_one_mib_per_second_uses_half_of_the_time(seconds, concurrent, payload):
    found = execution_parameters(MIB, ServingSettings(serving_timeout_seconds=seconds))
    assert (found["MaxConcurrentTransforms"], found["MaxPayloadInMB"]) == (concurrent, payload)


def test_a_payload_that_takes_longer_than_the_timeout_is_logged_with_its_time(caplog):
    found = execution_parameters(MIB / 100, ServingSettings())
    assert (found["MaxConcurrentTransforms"], found["MaxPayloadInMB"]) == (1, 1)
    assert "more than 100" in caplog.text


@pytest.mark.parametrize(("max_bytes", "is_logged"), [(MIB - 1, True), (MIB, False)])
def test_a_payload_that_the_server_refuses_for_its_size_is_logged(caplog, max_bytes, is_logged):
    assert execution_parameters(None, ServingSettings(serving_max_bytes=max_bytes))["MaxPayloadInMB"] == 1
    assert ("SERVING_MAX_BYTES" in caplog.text) == is_logged


@pytest.mark.slow
def test_a_server_measures_its_speed_once_and_logs_it(trained_job):
    with serving(trained_job.root, SERVING_TIMEOUT_SECONDS="600", SERVING_THREADS="1") as server:
        first, again = (server.ask(content_type=None, method="GET", path="/execution-parameters") for _ in range(2))
        log = server.log.read_text()
    assert first.status == 200
    assert first.body == again.body
    assert set(first.json) == {"MaxConcurrentTransforms", "BatchStrategy", "MaxPayloadInMB"}
    assert len(re.findall(r"measured: \d+ records/s of \d+ bytes", log)) == 2
    assert log.count("batch transform:") == 1


@pytest.mark.slow
def test_without_the_setting_an_invalid_record_refuses_the_request_with_its_number(trained_job):
    lines = [json.dumps({"chat": "hi", "price": 1})] * 2500
    lines[2200] = '{"chat": "hi", "price": "dear"}'
    with serving(trained_job.root) as server:
        answer = server.ask("\n".join(lines), JSON_LINES)
    assert answer.status == 400
    assert "record 2201, column 'price': 'dear' is not a number" in answer.json["error"]["message"]


def shape(output):
    """An output with P for every probability and L for every label, which depend on the model."""
    output = re.sub(r"0\.\d+(?:e-\d+)?", "P", output)
    return re.sub(r'[01](?=,P|, "prob)', "L", output)


@pytest.mark.slow
def test_the_documented_joins_and_filters_give_the_documented_lines(transform_server, tmp_path):
    text = (REPOSITORY / "docs" / "serving.md").read_text()
    blocks = re.findall(r"```(?:json)?\n(.*?)```", text[text.index("### Joins and filters") :], re.DOTALL)
    for content_type, (settings, source, target) in ((JSON_LINES, blocks[:3]), (CSV, blocks[3:6])):
        processing = json.loads(settings)["DataProcessing"]
        (tmp_path / "in").write_text(source)
        transform = Transform(
            content_type, join=processing["JoinSource"] == "Input", output_filter=processing["OutputFilter"]
        )
        transform.run(transform_server.port, tmp_path / "in", tmp_path / "out")
        assert shape((tmp_path / "out").read_text()) == shape(target)


@pytest.mark.slow
def test_an_input_filter_removes_the_id_and_the_label_of_a_csv_before_the_request(trained_job, tmp_path):
    (tmp_path / "in").write_text("A-1,works well,20.5,1,red,1\nA-2,never arrived,3,2,blue,0\n")
    transform = Transform(CSV, input_filter="$[1:-1]", join=True, output_filter="$[0,6]")
    with serving(trained_job.root) as server:
        assert transform.run(server.port, tmp_path / "in", tmp_path / "out") == 2
    assert re.fullmatch(r"A-1,[01]\nA-2,[01]\n", (tmp_path / "out").read_text())
