"""BatchScore on this machine: payloads, filters, a real server; and `serve` for the newest registered model."""

import csv
import io
import json
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from container.predictor import Predictor
from container.serving.application import execution_parameters
from container.steps.archives import write_archive
from contracts.errors import ContractError
from contracts.serving import BODIES, CSV, ServingSettings
from contracts.steps import ARCHIVED_MODEL, BATCH_SCORE
from pipeline.config import BatchScore
from pipeline.json_path import compile_path
from pipeline.local import batch_score
from pipeline.local.batch_score import Filters, _Failed, read_payloads, score
from pipeline.local.cache import StepDirectory
from pipeline.local.process import StepFailed
from pipeline.local.run import require_inputs
from pipeline.plan import make_plan, serving_settings
from testing.jobs import table
from testing.pipelines import configuration

FRAME = table(60, seed=9)
RECORDS = json.loads(FRAME.drop(columns="label").to_json(orient="records"))
LINES = [json.dumps(record) for record in RECORDS]
SCORING = configuration(batch_score={})


@pytest.fixture(scope="module")
def package(trained_job, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packaged")
    files = [path for path in trained_job.model.rglob("*") if path.is_file()]
    write_archive(folder / ARCHIVED_MODEL, {str(path.relative_to(trained_job.model)): path for path in files})
    return folder


@pytest.fixture(scope="module")
def expected(trained_job):
    return Predictor.load(trained_job.model).predict(RECORDS)  # [N, K]


def scored(package, folder, files, variables=None, **section):
    """Score files of text by name, and return the folder of the scores."""
    for name, text in files.items():
        path = folder / "records" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    directory = StepDirectory(folder / "step")
    directory.folder.mkdir(exist_ok=True)
    inputs = {"packaged_model": package, "batch_input": folder / "records"}
    score(BatchScore(**section), directory, inputs, variables or {}, one_column=False)
    return directory.output(BATCH_SCORE, "scores")


def payloads(folder, text, size, most=None):
    (folder / "file").write_text(text)
    return list(read_payloads(folder / "file", size, most=most))


@pytest.mark.parametrize(
    ("size", "most", "expected"),
    [
        (100, None, [(1, [b"aa", b"bb", b"cc"])]),
        (6, None, [(1, [b"aa", b"bb"]), (4, [b"cc"])]),
        (100, 1, [(1, [b"aa"]), (2, [b"bb"]), (4, [b"cc"])]),
    ],
)
def test_a_payload_has_whole_lines_up_to_its_size(tmp_path, size, most, expected):
    assert payloads(tmp_path, "aa\nbb\r\n\ncc", size, most) == expected


def test_a_blank_line_is_a_record_of_one_column(tmp_path):
    (tmp_path / "file").write_text("a\n\nb\n")
    ((_, records),) = read_payloads(tmp_path / "file", 100, most=None, blank=True)
    assert records == [b"a", b"", b"b"]


def test_a_carriage_return_does_not_end_a_record(tmp_path):
    (tmp_path / "file").write_bytes(b'"a\rb",1\r\n \r\nc\r\r\n')
    ((_, records),) = read_payloads(tmp_path / "file", 100, most=None)
    assert records == [b'"a\rb",1', b"c\r"]


def test_a_byte_order_mark_is_no_part_of_a_record(tmp_path):
    (tmp_path / "file").write_text('{"a": "\ufeff"}\n\ufeff\n', encoding="utf-8-sig")
    ((_, records),) = read_payloads(tmp_path / "file", 100, most=None)
    filters = Filters.of(BatchScore(input_filter="$.a"))
    assert filters.request_line(records[0]) == '"\ufeff"'.encode()
    assert records[1] == "\ufeff".encode(), "only the file's first characters are a mark"


def test_a_record_beyond_a_payload_is_named(tmp_path):
    with pytest.raises(_Failed, match="line 2: 'bbbbbb' has more than 6 bytes"):
        payloads(tmp_path, "aa\nbbbbbb\n", 6)


RECORD = {"a": {"b": [1, 2, 3]}, "c": 4, "d": [{"x": 5, "y": 7}, {"x": 6}]}


@pytest.mark.parametrize(
    ("path", "selected"),
    [
        ("$", RECORD),
        ("$.a.b", [1, 2, 3]),
        ("$['a']['b'][-1]", 3),
        ("$.a.b[0:2]", [1, 2]),
        ("$.a.b[1:]", [2, 3]),
        ("$.a.b[0,-1]", [1, 3]),
        ("$.a.b[0,1:]", [1, 2, 3]),
        ("$.a.b[ 2 , :1 ]", [3, 1]),
        ("$['c','a']", {"c": 4, "a": {"b": [1, 2, 3]}}),
        ("$.a.['b']", [1, 2, 3]),
        ("$.a.*", [[1, 2, 3]]),
        ("$.a.*[0]", [1]),
        ("$.d[*].x", [5, 6]),
        ("$.d[0:1].x", [5]),
        ("$.d.*.*", [5, 7, 6]),
        ("$.a.*[0:2]", [1, 2]),
        ("$.a.b[*]", [1, 2, 3]),
    ],
)
def test_a_path_selects_a_part_of_a_record(path, selected):
    assert compile_path(path)(RECORD) == selected


def test_a_position_in_a_text_is_refused():
    with pytest.raises(TypeError, match="a position selects a value of an array, and this is a str"):
        compile_path("$[*][0]")(["xyz", "b"])


@pytest.mark.parametrize("key", ["input_filter", "output_filter"])
@pytest.mark.parametrize(
    "path",
    ["$[", "$.", "$a", "$.a[", "$..x", "$[?(@.a>1)]", "$.a.length()", "$.a,b", '$."a"', "$[٣]", '$["a"]', "$[0:9:2]"],
)
def test_a_path_that_a_filter_does_not_have_is_refused_when_the_configuration_is_read(path, key):
    with pytest.raises(ValidationError, match=f"batch_score.{key}\n.*none of .name"):
        configuration(batch_score={key: path})


@pytest.mark.parametrize("path", ["$.a", "$['a','b']", "$[0].a"])
def test_a_filter_of_csv_has_only_positions(path):
    with pytest.raises(ValidationError, match="output_filter: .* names a key, but CSV has only positions"):
        BatchScore(content_type=CSV, output_filter=path)


@pytest.mark.parametrize(
    ("section", "record", "answer", "sent", "written"),
    [
        ({}, "1,a", "0,0.9", "1,a", "0,0.9"),
        ({"input_filter": "$[1:]"}, '1,"a,b"', "0,0.9", '"a,b"', "0,0.9"),
        ({"join_input": True}, '1,"a,b"', "0,0.9", '1,"a,b"', '1,"a,b",0,0.9'),
        ({"join_input": True, "output_filter": "$[0,-1]"}, "1,a", "0,0.9", "1,a", "1,0.9"),
        ({"output_filter": "$[1]"}, "1,a", "0,0.9", "1,a", "0.9"),
        ({"join_input": True, "output_filter": "$[0,2:]"}, "1,a", "0,0.9", "1,a", "1,0,0.9"),
        ({"join_input": True, "output_filter": "$[0,-2,-1]"}, "1,a", "0,0.9,", "1,a", "1,0.9,"),  # errors are reported
        ({"join_input": True, "output_filter": "$[0,-2,-1]"}, "1,a", ",,a: no number", "1,a", "1,,a: no number"),
        ({"input_filter": "$[1:]", "join_input": True}, '1,"a\rb"', "0,0.9", '"a\rb"', '1,"a\rb",0,0.9'),
    ],
)
def test_filters_of_csv_select_cells(section, record, answer, sent, written):
    filters = Filters.of(BatchScore(content_type=CSV, **section))
    assert filters.request_line(record.encode()) == sent.encode()
    assert filters.result_line(record.encode(), answer.encode()) == written.encode()


def test_filters_of_json_lines_select_keys():
    filters = Filters.of(
        BatchScore(input_filter="$.features", join_input=True, output_filter="$['id','SageMakerOutput']")
    )
    record = b'{"id":7,"features":{"chat":"\xc3\xa9","size":1.10}}'
    assert filters.request_line(record) == b'{"chat":"\xc3\xa9","size":1.10}', (
        "as long and with the digits of the record"
    )
    assert filters.result_line(record, b'{"p": 1e400}') == b'{"id": 7, "SageMakerOutput": {"p": 1e400}}'


def test_a_joined_record_that_is_no_object_has_a_key_of_its_own():
    filters = Filters.of(BatchScore(join_input=True))
    assert filters.result_line(b"[1, 2]", b'{"p": 1}') == b'{"SageMakerInput": [1, 2], "SageMakerOutput": {"p": 1}}'


def test_a_cell_of_csv_may_be_long():
    filters = Filters.of(BatchScore(content_type=CSV, join_input=True))
    cell = b"x" * 200_000
    assert filters.result_line(cell, b"0,0.9") == cell + b",0,0.9"


def test_a_folder_without_records_is_refused_before_anything_runs(tmp_path):
    config = configuration(batch_score={}, inputs={"batch_input": str(tmp_path)})
    with pytest.raises(ContractError, match=r"inputs\.batch_input: .* has no files"):
        require_inputs(config, tmp_path.parent / "root")


def test_the_service_limit_of_concurrent_payloads_is_checked():
    with pytest.raises(ValidationError, match="at most 100"):
        BatchScore(max_payload_mb=6, concurrency=17)


@pytest.mark.parametrize(
    ("payload", "concurrency", "expected"),
    [(None, None, None), (6, None, (6, 8)), (20, None, (20, 5)), (100, None, (100, 1)), (None, 4, (6, 4)),
     (None, 50, (2, 50)), (None, 100, (1, 100)), (5, 20, (5, 20))],
)  # fmt: skip
def test_a_payload_or_concurrency_that_is_not_set_follows_from_the_other(payload, concurrency, expected):
    assert BatchScore(max_payload_mb=payload, concurrency=concurrency).payloads == expected


@given(st.none() | st.integers(1, 100), st.none() | st.integers(1, 100), st.booleans())
def test_the_server_accepts_all_payloads_that_are_in_progress_at_a_time(payload, concurrency, filtered):
    assume((payload or 1) * (concurrency or 1) <= 100)
    section = BatchScore(max_payload_mb=payload, concurrency=concurrency, input_filter="$.a" if filtered else None)
    settings = ServingSettings(**serving_settings(SCORING.model_copy(update={"batch_score": section}), BATCH_SCORE))
    decided = execution_parameters(None, settings)
    size, requests = section.payloads or (decided["MaxPayloadInMB"], decided["MaxConcurrentTransforms"])
    assert size * requests <= 100
    sent = (2 if filtered else 1) * size << 20
    assert sent <= settings.serving_max_bytes
    assert sent * requests <= BODIES * settings.serving_max_bytes
    assert requests <= settings.serving_concurrency


@pytest.mark.parametrize("changes", [{"inputs": {"batch_input": "x"}}, {"settings": {"BatchScore": {}}}])
def test_what_belongs_to_the_step_is_refused_while_it_is_off(changes):
    config = configuration(**changes)
    with pytest.raises(ContractError, match="is for the step BatchScore, which is off"):
        make_plan(config, config.inputs)


@pytest.mark.parametrize(
    ("section", "setting"),
    [
        ({"content_type": "text/csv"}, {"serving_csv_header": "present"}),
        ({"timeout_seconds": 60}, {"serving_timeout_seconds": 600}),
        ({"max_payload_mb": 20}, {"serving_max_bytes": 1 << 20}),
        ({"max_payload_mb": 1, "concurrency": 8}, {"serving_max_bytes": 1 << 20}),
        ({"concurrency": 8}, {"serving_concurrency": 2}),
    ],
)
def test_a_setting_of_the_server_that_contradicts_the_section_is_refused(section, setting):
    (name,) = setting
    config = configuration(batch_score=section)
    config = config.model_copy(update={"settings": {**config.settings, "BatchScore": setting}})
    with pytest.raises(ContractError, match=rf"settings.BatchScore.{name}: .* contradicts batch_score"):
        make_plan(config, {"batch_input": "x"})


def test_the_servers_limits_follow_from_the_section_unless_they_are_set():
    section = {"timeout_seconds": 1000, "max_payload_mb": 6}
    config = configuration(batch_score=section)
    environment = make_plan(config, {"batch_input": "x"}).step(BATCH_SCORE).environment
    assert environment == {
        "SERVING_TIMEOUT_SECONDS": "995.0", "SERVING_MAX_BYTES": str(12 << 20), "SERVING_CSV_HEADER": "absent"
    }  # fmt: skip
    own = {**config.settings, "BatchScore": {"serving_batch_size": 5, "serving_threads": 2}}
    changed = make_plan(config.model_copy(update={"settings": own}), {"batch_input": "x"}).step(BATCH_SCORE).environment
    assert changed == {**environment, "SERVING_BATCH_SIZE": "5", "SERVING_THREADS": "2"}


@pytest.mark.slow
def test_every_record_of_every_file_is_scored_in_order(package, expected, tmp_path):
    files = {"a.jsonl": "\n".join(LINES[:40]), "later/b.jsonl": "\n".join(LINES[40:]) + "\n", "empty.jsonl": ""}
    folder = scored(package, tmp_path, files, strategy="SingleRecord", concurrency=4)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.out")) == [
        "a.jsonl.out", "empty.jsonl.out", "later/b.jsonl.out"
    ]  # fmt: skip
    written = [(folder / f"{name}.out").read_text().splitlines() for name in files]
    assert list(map(len, written)) == [40, 20, 0]
    found = np.array([json.loads(line)["probabilities"] for line in written[0] + written[1]])
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_records_of_csv_are_joined_with_their_scores(package, expected, tmp_path):
    columns = ["chat", "price", "quantity", "color"]  # as the server reads them without a header
    text = FRAME[columns].to_csv(index=False, header=False)
    section = {"content_type": CSV, "join_input": True, "output_filter": "$[1,-1]"}
    folder = scored(package, tmp_path, {"a.csv": text}, **section)
    rows = list(csv.reader(io.StringIO((folder / "a.csv.out").read_text())))
    assert [row[0] for row in rows] == [line[1] for line in csv.reader(io.StringIO(text))]
    np.testing.assert_allclose([float(row[1]) for row in rows], expected[:, 1], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "text", "cause"),
    [
        ({}, LINES[0] + '\n{"price": "dear"}\n', "a.txt, lines 1 to 2: status 400: .*'price'"),
        (
            {"input_filter": "$.chat.x"},
            LINES[0],
            "a.txt, lines 1 to 1: a filter does not fit the record .*order_id.*: TypeError",
        ),
        ({"content_type": CSV}, "chat,price,quantity,color\nhello,1,2,red\n", "2 records got 1 scores; remove"),
    ],
)
def test_a_file_that_cannot_be_scored_is_named_with_the_lines(package, tmp_path, section, text, cause):
    with pytest.raises(StepFailed, match=cause):
        scored(package, tmp_path, {"a.txt": text}, **section)
    assert not list(tmp_path.rglob("a.txt.out"))


def test_a_file_whose_name_shows_another_format_is_refused_before_the_server_starts(tmp_path):
    with pytest.raises(StepFailed, match="a.csv: its name shows text/csv, .* Set content_type to text/csv"):
        scored(tmp_path, tmp_path, {"a.csv": "hello\n"})


def test_a_server_that_ends_before_its_first_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_score, "serving", lambda *_, **__: nullcontext(1))  # nothing listens on port 1
    with pytest.raises(StepFailed, match="/execution-parameters: no answer"):
        scored(tmp_path, tmp_path, {"a": LINES[0]})


@pytest.mark.slow
def test_a_server_that_does_not_start_is_named(package, tmp_path):
    with pytest.raises(StepFailed, match="the server did not start"):
        scored(package, tmp_path, {"a": LINES[0]}, variables={"SERVING_THREADS": "none"})
    assert "SERVING_THREADS" in (tmp_path / "step" / "log.txt").read_text()
