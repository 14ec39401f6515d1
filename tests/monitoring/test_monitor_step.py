"""The step Monitoring: what it finds, which files it reads, and what it does with bad ones."""

import gzip
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from container.steps.archives import write_archive
from contracts.paths import JobPaths
from contracts.serving import JSON
from contracts.step_contract import message_file
from contracts.steps import MONITOR
from testing.jobs import wait_for
from testing.serving import serving
from testing.step_runs import message
from tests.monitoring.conftest import Monitored, captured, records


def as_csv(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False)


def rows(frame: pd.DataFrame) -> list[dict]:
    return json.loads(frame.to_json(orient="records"))


def test_records_like_those_of_training_are_within_bounds(monitored: Monitored) -> None:
    monitored.give("records", "week.csv", as_csv(records(2000, seed=7)))
    monitored.run(FAIL_ON_VIOLATION="true")
    assert monitored.metrics["violations"] == 0
    assert monitored.metrics["labelled"] == 2000
    assert monitored.metrics["metrics"]["auroc"]["value"] > 0.8
    assert "0 of" in (monitored.out / "monitor_report.html").read_text()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"x": lambda f: f.x + 0.3}, ("x", "distribution")),
        ({"x": lambda f: f.x.where(f.index % 20 > 0)}, ("x", "missing")),
        ({"y": lambda f: f.y.astype(str).where(f.index % 20 > 0, "many")}, ("y", "type")),
        ({"c": lambda f: f.c.where(f.index % 20 > 0, "new")}, ("c", "unseen")),
        ({"c": lambda f: f.c.where(f.index % 5 > 0, "c")}, ("c", "distribution")),
        ({"text": lambda f: f.text + " you you you"}, ("text", "length")),
        ({"text": lambda f: f.text.str.replace("late", "bad")}, ("text", "words")),
        ({"text": lambda f: f.text.where(f.index % 20 > 0, "日本 語 good bad shirt late")}, ("text", "unknown tokens")),
        ({"label": lambda f: 1 - f.label}, ("labels", "auroc")),
        ({"label": lambda f: (1 - f.label).where(f.index % 5 == 0, f.label)}, ("labels", "calibration")),
        ({"label": lambda f: f.label.where(f.index % 5 > 0, 2)}, ("labels", "unknown")),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_shift_is_found_where_it_is(monitored: Monitored, change: dict, expected: tuple[str, str]) -> None:
    monitored.give("records", "week.csv", as_csv(records(2000, seed=7).assign(**change)))
    monitored.run(expect=2, FAIL_ON_VIOLATION="true")
    assert expected in monitored.violations
    assert message(monitored.root).startswith("out of bounds: ")


def test_a_violation_alone_is_no_failure(monitored: Monitored) -> None:
    monitored.give("records", "week.csv", as_csv(records(500, seed=7).assign(x=9.0)))
    monitored.run()
    assert ("x", "distribution") in monitored.violations


def test_a_column_that_no_record_has_is_out_of_bounds_and_a_new_one_is_named(monitored: Monitored) -> None:
    frame = records(500, seed=7).rename(columns={"c": "color"})
    monitored.give("records", "week.csv", as_csv(frame))
    monitored.run()
    assert ("c", "absent") in monitored.violations
    assert monitored.metrics["new_columns"] == ["color"]


@pytest.mark.parametrize("encoding", ["BASE64", "JSON"])
def test_captured_requests_of_json_are_read_and_their_ids_join_late_labels(monitored: Monitored, encoding: str) -> None:
    frame = records(600, seed=7)
    given = rows(frame.drop(columns=["id", "label"]))
    lines = [
        captured(json.dumps({"instances": [row]} if i % 2 else row), encoding=encoding, inferenceId=name)
        for i, (row, name) in enumerate(zip(given, frame.id))
    ]
    monitored.give("records", "endpoint/AllTraffic/2026/11/01/10/a.jsonl", "".join(lines))
    monitored.give("labels", "labels.csv", as_csv(frame[["id", "label"]].iloc[:300]))
    monitored.run(FAIL_ON_VIOLATION="true")
    assert (monitored.metrics["records"], monitored.metrics["labelled"]) == (600, 300)
    assert monitored.metrics["left_out"] == {}


@pytest.mark.parametrize("whole_requests", [False, True])
def test_captured_requests_of_csv_are_read(monitored: Monitored, whole_requests: bool) -> None:
    frame = records(400, seed=7)[["text", "x", "y", "c"]]
    parts = (
        [frame.iloc[i : i + 100] for i in range(0, 400, 100)]
        if whole_requests
        else [frame.iloc[[i]] for i in range(400)]
    )
    lines = [captured(part.to_csv(index=False, header=whole_requests), "text/csv", encoding="CSV") for part in parts]
    monitored.give("records", "a.jsonl.gz", gzip.compress("".join(lines).encode()))
    monitored.run(FAIL_ON_VIOLATION="true")
    assert monitored.metrics["records"] == 400


def test_csv_without_a_header_as_a_batch_transform_reads_has_the_columns_of_the_model(monitored: Monitored) -> None:
    monitored.give(
        "records", "batch.csv", records(400, seed=7)[["text", "x", "y", "c"]].to_csv(index=False, header=False)
    )
    monitored.run(FAIL_ON_VIOLATION="true")
    assert monitored.metrics["records"] == 400


def test_what_cannot_be_read_is_named_counted_and_left_out(monitored: Monitored) -> None:
    frame = records(300, seed=7).drop(columns="label")
    good = "".join(captured(json.dumps(row)) for row in rows(frame))
    monitored.give("records", "ours/AllTraffic/a.jsonl", good + '{"captureData": {"endpointIn')
    monitored.give(
        "records",
        "ours/AllTraffic/b.jsonl",
        captured('{"other": 1}') + captured("[1, 2") + captured("a,b", "text/plain"),
    )
    monitored.give("records", "theirs/AllTraffic/c.jsonl", good)
    monitored.give("records", "ours/d.csv", "u,v\n1,2\n")
    monitored.give("records", "ours/e.parquet", b"PAR1 cut")
    monitored.run(ENDPOINT_NAME="ours")
    assert monitored.metrics["records"] == 300
    counts = {cause: count for cause, (count, _) in monitored.metrics["left_out"].items()}
    assert counts == {
        "a file that is cut": 1,
        "a record without any column of the model": 1,
        "a request that the model refuses": 2,
        "a capture of another endpoint than ours (ENDPOINT_NAME)": 1,
        "a file without any column of the model": 1,
        "a file that cannot be read to its end": 1,
    }
    assert monitored.metrics["left_out"]["a capture of another endpoint than ours (ENDPOINT_NAME)"][1].endswith(
        "theirs/AllTraffic/c.jsonl"
    )
    assert "left out" in (monitored.out / "monitor_report.html").read_text()


@pytest.mark.parametrize("zone", ["Z", ""])
def test_captured_requests_before_the_window_do_not_count(monitored: Monitored, zone: str) -> None:
    body = [json.dumps(row) for row in rows(records(100, seed=7).drop(columns="label"))]
    old = "".join(captured(each, inferenceTime=f"2020-01-01T00:00:00{zone}") for each in body)
    new = "".join(captured(each, inferenceTime=f"2999-01-01T00:00:00{zone}") for each in body[:60])
    monitored.give("records", "a.jsonl", old + new)
    monitored.run(WINDOW_HOURS="24")
    assert monitored.metrics["records"] == 60
    monitored.give("records", "a.jsonl", old)
    monitored.run(expect=1, WINDOW_HOURS="24")
    assert "has no records to compare; 100 are older than WINDOW_HOURS" in message(monitored.root)


@pytest.mark.parametrize("value", [{"value": 1.5}, [1, [2]]], ids=["an object", "a nested list"])
def test_a_value_with_parts_is_one_unreadable_cell(monitored: Monitored, value: object) -> None:
    body = rows(records(300, seed=7).drop(columns="label"))
    lines = "".join(captured(json.dumps({**row, "x": value} if i == 7 else row)) for i, row in enumerate(body))
    monitored.give("records", "a.jsonl", lines)
    monitored.run(FAIL_ON_VIOLATION="true")
    (of_type,) = (each for each in monitored.metrics["comparisons"] if (each["subject"], each["what"]) == ("x", "type"))
    assert of_type["distance"] == pytest.approx(1 / 300)
    assert json.dumps(value) in of_type["about"]


def test_records_without_text_are_missing(monitored: Monitored) -> None:
    frame = records(1000, seed=7)
    monitored.give("records", "a.csv", as_csv(frame.assign(text=frame.text.where(frame.index % 20 > 0))))
    monitored.run()
    assert ("text", "missing") in monitored.violations


def test_the_median_is_that_of_the_records_and_not_the_largest_of_train(monitored: Monitored) -> None:
    frame = records(500, seed=7)
    monitored.give("records", "a.csv", as_csv(frame.assign(x=frame.x.abs() * 1000)))
    monitored.run()
    (of_x,) = (
        each["about"]
        for each in monitored.metrics["comparisons"]
        if (each["subject"], each["what"]) == ("x", "distribution")
    )
    assert float(of_x.split()[-2]) == pytest.approx(frame.x.abs().median() * 1000, rel=0.05)


def test_unknown_labels_of_other_records_do_not_count(monitored: Monitored) -> None:
    frame = records(400, seed=7)
    labels = frame[["id", "label"]].assign(label=frame.label.astype(str))
    labels.loc[:3, "label"] = "spam"
    others = pd.DataFrame({"id": [f"old{i}" for i in range(300)], "label": "spam"})
    monitored.give("records", "a.csv", as_csv(frame.drop(columns="label")))
    monitored.give("labels", "labels.csv", as_csv(pd.concat([labels, others])))
    monitored.run()
    (unknown,) = (each for each in monitored.metrics["comparisons"] if each["what"] == "unknown")
    assert unknown["distance"] == pytest.approx(4 / 400)
    assert "spam" in unknown["about"]


def test_no_record_is_a_failure_that_says_what_was_left_out(monitored: Monitored) -> None:
    monitored.give("records", "a.csv", "u,v\n1,2\n")
    monitored.run(expect=1)
    assert "has no records to compare; left out: 1 x a file without any column of the model" in message(monitored.root)


def test_labels_of_other_records_are_a_failure_with_the_counts(monitored: Monitored) -> None:
    monitored.give("records", "a.csv", as_csv(records(50, seed=7).drop(columns="label")))
    monitored.give("labels", "labels.csv", "id,label\nq1,0\nq2,1\n")
    monitored.run(expect=1)
    assert "none of the 2 ids, such as 'q1', is the 'id' of one of the 50 records" in message(monitored.root)


def test_a_model_without_a_baseline_is_a_failure_that_says_how_to_write_one(
    tmp_path: Path, job: JobPaths, monitored: Monitored
) -> None:
    files = {path.relative_to(job.model).as_posix(): path for path in job.model.rglob("*") if path.is_file()}
    del files["baseline.json"]
    model = MONITOR.input("model_input").path(monitored.root)
    model.unlink()
    model.mkdir()
    write_archive(model / "model.tar.gz", files)
    monitored.give("records", "a.csv", as_csv(records(50, seed=7)))
    monitored.run(expect=1)
    assert "the model has no baseline" in message(monitored.root)
    assert "python -m container baseline --root JOB" in message_file(monitored.root).read_text()


def test_the_report_has_the_trend_over_earlier_runs(monitored: Monitored) -> None:
    for seed in (7, 8):
        monitored.give("records", "week.csv", as_csv(records(300, seed=seed)))
        monitored.run()
    history = [json.loads(line) for line in (monitored.out / "history.jsonl").read_text().splitlines()]
    assert [entry["records"] for entry in history] == [300, 300]
    assert history[0]["distances"] != history[1]["distances"]
    assert "<h3>Distances</h3>" in (monitored.out / "monitor_report.html").read_text()


def test_without_labels_in_the_baseline_average_precision_is_that_of_the_rarer_class_of_the_records(
    job: JobPaths, monitored: Monitored
) -> None:
    model = MONITOR.input("model_input").path(monitored.root)
    model.unlink()
    shutil.copytree(job.model, model)
    baseline = json.loads((model / "baseline.json").read_text())
    baseline["scores"] |= {"labelled": 0, "calibration": [], "metrics": None, "rarer": None}
    (model / "baseline.json").write_text(json.dumps(baseline))
    frame = records(600, seed=7)
    monitored.give("records", "week.csv", as_csv(frame[(frame.label == 0) | (frame.index % 10 == 0)]))
    monitored.run()
    assert "average precision of class 1" in (monitored.out / "monitor_report.html").read_text()


@pytest.mark.slow
def test_requests_that_the_server_captures_are_those_that_the_monitor_reads(
    monitored: Monitored, job: JobPaths, tmp_path: Path
) -> None:
    folder = tmp_path / "captured"
    with serving(job.root, SERVING_CAPTURE=str(folder)) as server:
        for row in rows(records(300, seed=11).drop(columns="label")):
            assert server.ask(json.dumps(row), JSON).status == 200
        wait_for(lambda: sum(path.read_text().count("\n") for path in folder.rglob("*.jsonl")) == 300)
    for path in folder.rglob("*.jsonl"):
        monitored.give("records", str(path.relative_to(folder)), path.read_bytes())
    monitored.run(FAIL_ON_VIOLATION="true")
    assert monitored.metrics["records"] == 300
