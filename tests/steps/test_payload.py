"""Payload: sample requests are sent to the package in a fresh process, and its answers held against the predictions."""

import hashlib
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pandas as pd
import pytest

from container.serving.answers import write_answer
from container.serving.media_types import MediaType
from container.serving.model import Prediction
from container.steps import payload
from container.steps.archives import extract_archive, write_archive
from container.steps.payload import Package, _probabilities, request_body
from contracts.errors import ContractError
from contracts.serving import CSV, JSON, JSON_LINES, PARQUET, RecordSettings
from contracts.steps import ARCHIVED_MODEL, PACKAGE, PAYLOAD, PAYLOAD_ARCHIVE, PAYLOAD_CHECK
from testing.jobs import TWO_TEXTS, run_train, table, write_job
from testing.serving import read_records
from testing.step_runs import failure_of, give, run_step

pytestmark = pytest.mark.slow

TEST = table(24, seed=2)  # as testing.jobs.write_job makes the test split
EVERY_TYPE = ",".join((JSON, CSV, JSON_LINES, PARQUET))


@pytest.fixture(scope="module")
def package(trained_job, tmp_path_factory):
    root = give(tmp_path_factory.mktemp("package"), PACKAGE, model_input=trained_job.model)
    run_step(root, "package")
    return PACKAGE.output("packaged_model").path(root) / ARCHIVED_MODEL


def changed_package(package: Path, folder: Path, **files: str | None) -> Path:
    """The package with other contents of some files; `code__inference__py` is code/inference.py, None removes it."""
    members = {name: folder / "files" / name for name in extract_archive(package, folder / "files")}
    for name, content in files.items():
        path = "/".join(name.split("__")[:-1]) + "." + name.split("__")[-1]
        members.pop(path, None)
        if content is not None:
            members[path] = content.encode()
    write_archive(folder / ARCHIVED_MODEL, members)
    return folder / ARCHIVED_MODEL


def processed(frame=TEST, split="test"):
    return {f"{split}/{split}_processed_data.csv": frame.to_csv(index=False)}


@pytest.fixture
def given(package, trained_job):
    """The inputs of a check of the package against the training job's predictions."""
    return {"model_input": package, "processed_data": processed(), "eval_output": trained_job.output_data}


def predictions(job):
    return pd.read_csv(job.output_data / "test_predictions.csv", dtype={"order_id": str})


def output(root: Path, name: str) -> Path:
    return PAYLOAD.output("payload_sample").path(root) / name


def check(root: Path) -> dict:
    return json.loads(output(root, PAYLOAD_CHECK).read_text())


def samples(root: Path) -> dict[str, bytes]:
    with tarfile.open(output(root, PAYLOAD_ARCHIVE)) as tar:
        return {name: tar.extractfile(name).read() for name in tar.getnames()}


def test_a_sample_of_json_and_one_of_csv_are_written_and_were_answered(package, tmp_path):
    root = give(tmp_path, PAYLOAD, model_input=package)
    run_step(root, "payload", DEFAULT_NUMERIC_VALUE="3.5", FIELD_DEFAULTS='{"color": "red", "quantity": 2}')
    expected = {"chat": "DEFAULT_TEXT", "price": 3.5, "quantity": 2, "color": "red"}
    found = samples(root)
    assert list(found) == ["payload_application_json_0.json", "payload_text_csv_1.csv"]
    assert json.loads(found["payload_application_json_0.json"]) == expected
    assert found["payload_text_csv_1.csv"].decode() == "chat,price,quantity,color\r\nDEFAULT_TEXT,3.5,2,red\r\n"
    report = check(root)
    as_json, as_csv = (sample["answer"] for sample in report["samples"])
    answer = json.loads(as_json)["predictions"][0]
    assert as_csv == f"{answer['predicted_label']},{','.join(map(repr, answer['probabilities']))}\n"
    assert report["package_sha256"] == hashlib.sha256(package.read_bytes()).hexdigest()
    assert report["compared"] == []


def test_answers_in_every_format_are_held_against_the_training_jobs_predictions(given, tmp_path):
    root = give(tmp_path, PAYLOAD, **given)
    log = run_step(root, "payload", CONTENT_TYPES=EVERY_TYPE, CHECK_ROWS="20")
    assert "in a fresh process" in log
    assert [entry["content_type"] for entry in check(root)["compared"]] == EVERY_TYPE.split(",")
    for entry in check(root)["compared"]:
        assert (entry["split"], entry["records"]) == ("test", 20)
        assert entry["max_difference"] < 1e-6


@pytest.mark.parametrize(("settings", "tolerance"), [({}, 0.02), ({"TOLERANCE": "0.01"}, 0.01)])
def test_the_backend_of_the_server_is_held_against_them_with_the_tolerance_of_bfloat16_or_the_users(
    settings, tolerance, given, tmp_path
):
    root = give(tmp_path, PAYLOAD, **given)
    run_step(root, "payload", SERVING_BACKEND="openvino", **settings)
    assert all(entry["max_difference"] <= entry["tolerance"] == tolerance for entry in check(root)["compared"])


def test_a_split_of_several_files_is_held_against_the_one_file_of_predictions(package, trained_job, tmp_path):
    parts = {
        f"test/part-{i}.csv": TEST.iloc[rows].to_csv(index=False) for i, rows in enumerate((slice(13), slice(13, None)))
    }
    root = give(tmp_path, PAYLOAD, model_input=package, processed_data=parts, eval_output=trained_job.output_data)
    run_step(root, "payload", CHECK_ROWS="20")
    assert check(root)["compared"][0]["records"] == 20


def test_rows_beyond_the_limits_of_a_server_are_sent(package, tmp_path):
    long = {"test/part.csv": pd.concat([TEST.assign(chat="a" + " " * 600_000)] * 2).to_csv(index=False)}  # 29 MB
    root = give(tmp_path, PAYLOAD, model_input=package, processed_data=long)
    assert "413" not in run_step(root, "payload", CONTENT_TYPES=CSV, SERVING_MAX_BYTES="1")
    assert check(root)["compared"][0]["records"] == 48


def test_a_record_has_at_most_as_many_tokens_as_where_the_model_is_hosted(package, tmp_path):
    root = give(tmp_path, PAYLOAD, model_input=package, processed_data=processed())
    assert "at most 2 are accepted" in failure_of(root, "payload", SERVING_MAX_TOKENS="2")


def test_a_record_that_a_server_refuses_as_too_long_is_not_sent(package, trained_job, tmp_path):
    frame = TEST.assign(chat=["good shirt " * 200, *TEST["chat"][1:]])
    root = give(tmp_path, PAYLOAD, model_input=package, processed_data=processed(frame))
    log = run_step(root, "payload", SERVING_MAX_TOKENS="100")
    assert "1 of 24 records have more than SERVING_MAX_TOKENS=100 tokens" in log
    assert [entry["records"] for entry in check(tmp_path)["compared"]] == [23, 23]


def test_a_model_that_reads_no_header_gets_none(given, tmp_path):
    run_step(give(tmp_path, PAYLOAD, **given), "payload", CONTENT_TYPES=CSV, SERVING_CSV_HEADER="absent")
    assert check(tmp_path)["compared"][0]["max_difference"] < 1e-6
    assert samples(tmp_path)["payload_text_csv_0.csv"].startswith(b"DEFAULT_TEXT,")


def test_csv_has_the_columns_of_the_server_in_its_order(given, tmp_path):
    root = give(tmp_path, PAYLOAD, **given)
    columns = ["order_id", "color", "quantity", "price", "chat"]
    run_step(root, "payload", CONTENT_TYPES=CSV, SERVING_CSV_COLUMNS=json.dumps(columns), SERVING_CSV_HEADER="absent")
    assert samples(root)["payload_text_csv_0.csv"].decode() == ",DEFAULT_TEXT,0.0,0.0,DEFAULT_TEXT\r\n"
    assert check(root)["compared"][0]["max_difference"] < 1e-6


def test_a_wrong_default_is_answered_with_the_fix_of_its_error(package, tmp_path):
    root = give(tmp_path, PAYLOAD, model_input=package)
    message = failure_of(root, "payload", FIELD_DEFAULTS='{"price": "abc"}')
    assert "failed to answer: record 1" in message
    assert "See the traceback" not in message


def test_a_record_with_a_nul_character_which_csv_cannot_contain_is_not_compared(package, tmp_path):
    folder = PAYLOAD.input("processed_data").path(give(tmp_path, PAYLOAD, model_input=package)) / "test"
    folder.mkdir(parents=True)
    TEST.assign(chat=["a\0b", *TEST["chat"][1:]]).to_parquet(folder / "part.parquet")
    run_step(tmp_path, "payload")
    assert [entry["records"] for entry in check(tmp_path)["compared"]] == [23, 23]


@pytest.mark.long
def test_two_texts_and_three_classes_are_packaged_and_answer_as_training_did(tmp_path):
    classes = {"is_binary": False, "num_classes": 3, "multiclass_categories": [0, 1, 2]}
    job = write_job(tmp_path / "job", overrides={**TWO_TEXTS, **classes}, file_format="tsv", classes=3)
    run_train(job)
    root = give(tmp_path / "package", PACKAGE, model_input=job.model)
    run_step(root, "package")
    package = PACKAGE.output("packaged_model").path(root) / ARCHIVED_MODEL
    data = {"test/test_processed_data.tsv": table(24, seed=2, classes=3).to_csv(index=False, sep="\t")}
    root = give(tmp_path / "root", PAYLOAD, model_input=package, processed_data=data, eval_output=job.output_data)
    run_step(root, "payload", CONTENT_TYPES=EVERY_TYPE)
    assert len(json.loads(check(root)["samples"][0]["answer"])["predictions"][0]["probabilities"]) == 3
    assert [entry["max_difference"] < 1e-6 for entry in check(root)["compared"]] == [True] * 4


def test_the_same_inputs_give_the_same_files(given, tmp_path):
    contents = []
    for name in ("first", "second"):
        root = give(tmp_path / name, PAYLOAD, **given)
        run_step(root, "payload")
        contents.append([output(root, file).read_bytes() for file in (PAYLOAD_ARCHIVE, PAYLOAD_CHECK)])
    assert contents[0] == contents[1]


@pytest.mark.parametrize("folder", ["", "data/"], ids=["the service's", "local mode's"])
def test_parquet_tables_and_the_output_archive_are_read(package, trained_job, tmp_path, folder):
    frame = predictions(trained_job)
    name = "test_predictions.parquet"
    frame.to_parquet(tmp_path / name)
    write_archive(tmp_path / "output.tar.gz", {f"{folder}{name}": tmp_path / name})
    TEST.to_parquet(tmp_path / "test.parquet")
    data = {"test/test_processed_data.parquet": (tmp_path / "test.parquet").read_bytes()}
    archive = tmp_path / "output.tar.gz"
    root = give(tmp_path / "root", PAYLOAD, model_input=package, processed_data=data, eval_output=archive)
    run_step(root, "payload")
    assert check(root)["compared"][0]["max_difference"] < 1e-6


def test_a_packages_calibration_is_applied_to_what_is_expected(package, given, tmp_path):
    points = '{"scores": [0, 0.5, 1], "probabilities": [0, 0.1, 1]}'
    changed = changed_package(package, tmp_path / "changed", calibration__json=points)
    root = give(tmp_path / "root", PAYLOAD, **given | {"model_input": changed})
    run_step(root, "payload")
    assert check(root)["compared"][0]["max_difference"] < 1e-6


@pytest.mark.parametrize(
    "script",
    [
        "from container.serving.handler import input_fn, model_fn, predict_fn\n"
        "def output_fn(prediction, accept):\n    return 'as you like it'\n",
        "import os\ndef model_fn(model_dir, context): return os.environ['SM_MODEL_DIR'] == model_dir\n"
        "def transform_fn(model, data, kind, accept, context):\n"
        "    return 'as you like it' if model and kind == context.get_request_header(0, 'content-type') else data\n",
    ],
)
def test_an_inference_py_of_the_users_own_is_asked_and_not_compared(package, given, tmp_path, script):
    changed = changed_package(package, tmp_path / "changed", code__inference__py=script)
    root = give(tmp_path / "root", PAYLOAD, **given | {"model_input": changed})
    run_step(root, "payload")
    assert check(root)["samples"][0]["answer"] == "as you like it"
    assert check(root)["compared"][0]["max_difference"] is None


def test_a_package_that_answers_otherwise_than_training_did_is_refused(package, trained_job, tmp_path):
    frame = predictions(trained_job)
    frame.loc[7, "prob_class_0"] += 0.01
    frame.loc[7, "prob_class_1"] -= 0.01
    altered = {"test_predictions.csv": frame.to_csv(index=False)}
    root = give(tmp_path, PAYLOAD, model_input=package, processed_data=processed(), eval_output=altered)
    message = failure_of(root, "payload")
    assert "record '00007' of test, sent as application/json" in message
    assert "differ by 0.01, more than TOLERANCE=0.0001" in message
    assert not output(root, PAYLOAD_ARCHIVE).exists()
    run_step(root, "payload", TOLERANCE="0.02")


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        ({"code__emoji__py": "import torch\n"}, "failed to answer: ImportError: the package imports torch"),
        ({"code__emoji__py": "import socket\nsocket.create_connection(('127.0.0.1', 9))\n"}, "uses the network"),
        ({"code__container__data__records__py": None}, "No module named 'container.data.records'"),
    ],
    ids=["imports torch", "uses the network", "lacks a module"],
)
def test_a_package_that_could_not_answer_where_it_is_hosted_is_refused(package, tmp_path, files, cause):
    root = give(tmp_path / "root", PAYLOAD, model_input=changed_package(package, tmp_path / "changed", **files))
    assert cause in failure_of(root, "payload")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import time\ntime.sleep(60)\n", "did not end within 1 s"),
        ("import sys\nsys.exit(0)\n", "failed to answer: SystemExit: 0"),
    ],
)
def test_a_script_that_waits_or_exits_is_refused(tmp_path, monkeypatch, script, message):
    monkeypatch.setattr(payload, "_LONGEST", 1.0)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "inference.py").write_text(script)
    package = payload.Package(Path(ARCHIVED_MODEL), tmp_path, None, is_ours=False)
    with pytest.raises(ContractError, match=f"model.tar.gz: .*{message}"):
        payload._ask(package, {}, tmp_path, RecordSettings())


BAD_INPUTS = {
    "no archive": ({"model_input": {ARCHIVED_MODEL: b"x"}}, "model.tar.gz: is not a complete tar.gz"),
    "other rows": (
        {"processed_data": processed(TEST.iloc[::-1])},
        "test_predictions.csv: row 1 does not have the order_id of",
    ),
    "fewer predictions": (
        {"eval_output": {"test_predictions.csv": "order_id,label,prob_class_0,prob_class_1\n00000,1,0.5,0.5\n"}},
        "test_predictions.csv: row 2 does not have the order_id of",
    ),
    "no probabilities": (
        {"eval_output": {"test_predictions.csv": "order_id,label\n00000,1\n"}},
        "test_predictions.csv: column 'prob_class_0' is missing",
    ),
    "no row": ({"processed_data": processed(TEST.head(0))}, "test_processed_data.csv: has no row"),
    "a missing column": (
        {"processed_data": processed(TEST.drop(columns="color"))},
        "test_processed_data.csv: column 'color' is missing",
    ),
    "a wrong value": (
        {"processed_data": processed(TEST.assign(price="dear"))},
        "test_processed_data.csv: row 1, column 'price': 'dear' is not a number",
    ),
    "another split": ({"processed_data": processed(split="train")}, "processed_data: has no folder test"),
    "predictions of nothing known": (
        {"eval_output": {"train_predictions.csv": "order_id\n1\n"}},
        "eval_output: has no predictions of test or val",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_an_input_that_is_wrong_is_named_in_the_message(given, tmp_path, case):
    changes, named = BAD_INPUTS[case]
    root = give(tmp_path, PAYLOAD, **given | changes)
    assert named in failure_of(root, "payload")
    assert not output(root, PAYLOAD_ARCHIVE).exists()


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"CONTENT_TYPES": "application/json,image/png"}, "is invalid: 'image/png' is not served"),
     ({"FIELD_DEFAULTS": '{"prise": 1}'}, "FIELD_DEFAULTS: 'prise' is not a column that the model needs; did you mean"),
     ({"FIELD_DEFAULTS": '{"price": "dear"}'}, "column 'price': 'dear' is not a number"),
     ({"SERVING_ONNX_VARIANT": "int8"}, "model.int8.onnx"), ({"TOLERANCE": "2"}, "TOLERANCE: '2' is invalid")],
)  # fmt: skip
def test_a_setting_that_is_wrong_is_named_in_the_message(package, tmp_path, settings, named):
    root = give(tmp_path, PAYLOAD, model_input=package)
    assert named in failure_of(root, "payload", **settings)


@pytest.mark.parametrize("label", ["a, b", "two\nlines", "a\u2028b"])
def test_an_answer_in_csv_is_read_for_any_label(label):
    probabilities = np.array([[0.25, 0.75], [0.5, 0.5]])
    body = write_answer(Prediction(probabilities, [label, label], ["no", label]), MediaType(CSV))
    package = cast(Package, SimpleNamespace(fitted=SimpleNamespace(class_labels=("no", label))))
    found = _probabilities(body, CSV, package, records=2)
    np.testing.assert_array_equal(found, probabilities)


def test_text_with_commas_quotes_and_lines_survives_every_format():
    record = {"chat": 'a, "b"\nc\r\nd\re é😀', "price": 0.1, "color": None}
    for media_type in (CSV, JSON, JSON_LINES, PARQUET):
        for records in ([record], [record, record | {"chat": ""}, record | {"chat": "a\rb"}]):
            found = read_records(request_body(records, media_type), media_type, tuple(record)).to_pylist()
            assert [row["chat"] for row in found] == [row["chat"] for row in records], media_type
            assert float(found[0]["price"]) == 0.1
            assert not found[0]["color"]
