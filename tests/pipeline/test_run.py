"""python -m pipeline run, from a raw table to a registered model: stopped, resumed and cached."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from contracts.file_systems import alone_in
from testing.jobs import wait_for
from testing.pipelines import CONFIG, write_config
from testing.warm import WarmProcess

pytestmark = pytest.mark.slow

STEPS = ["DataLoading", "TabularPreprocessing", "PyTorchTraining", "ModelMetricsComputation"]
AFTERWARDS = ["Package", "Payload", "Registration"]
RECORDS = [{"order_id": number, "chat": f"item {number} never came", "price": number} for number in range(20)]
OUT_OF_REACH = {"metric": "test/auroc", "minimum": 1.0}


@dataclass(frozen=True)
class Ran:
    """A finished run."""

    exit_code: int
    printed: str
    errors: str
    seconds: float

    def states(self) -> dict[str, str]:
        """Return {step: state} of the last printed table, without steps that were not reached."""
        lines = re.findall(r"^(\w+) +(done|cached|failed)\b", self.printed, flags=re.MULTILINE)
        return dict(lines)


def start(folder: Path, **changes) -> WarmProcess:
    """Start the run, with its output in folder/printed.txt and its errors in folder/errors.txt."""
    config = write_config(folder, {**CONFIG, **changes})
    return WarmProcess(
        ["-m", "pipeline", "run", "--config", str(config), "--root", str(folder / "root")],
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
        output=folder / "printed.txt",
        errors=folder / "errors.txt",
    )


def read_output(folder: Path) -> tuple[str, str]:
    """Return the output and the errors of a run, and remove their files."""
    files = [folder / "printed.txt", folder / "errors.txt"]
    texts = [file.read_text() for file in files]
    for file in files:
        file.unlink()
    return texts[0], texts[1]


def run(folder: Path, **changes) -> Ran:
    began = time.monotonic()
    process = start(folder, **changes)
    try:
        exit_code = process.wait(timeout=300)
    finally:
        process.kill()
    return Ran(exit_code, *read_output(folder), time.monotonic() - began)


def kill_in_training(folder: Path, **changes) -> None:
    """Send SIGKILL after the first log line of training, which leaves no time to clean up."""
    process = start(folder, **changes)
    try:
        logs = (folder / "root/steps/PyTorchTraining").glob
        wait_for(lambda: process.poll() is not None or any(path.stat().st_size for path in logs("*/log.txt")))
        assert process.poll() is None, read_output(folder)
    finally:
        process.kill()
        process.wait()
        read_output(folder)


@dataclass(frozen=True)
class Story:
    """The same pipeline, six times."""

    root: Path
    refused: Ran
    accepted: Ran
    again: Ran
    scored: Ran
    stricter: Ran


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Killed in training; run with a threshold out of reach; with one in reach; again; with records to score; with
    another threshold."""
    folder = tmp_path_factory.mktemp("pipeline")
    kill_in_training(folder, condition=OUT_OF_REACH)
    refused = run(folder, condition=OUT_OF_REACH)
    nothing_packaged = not (folder / "root/steps/Package").exists() and not (folder / "root/registry").exists()
    assert nothing_packaged, "a model that the condition refuses is neither packaged nor registered"
    (folder / "records").mkdir()
    (folder / "records" / "new.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in RECORDS))
    scoring = {"batch_score": {"join_input": True}, "inputs": {"batch_input": "records"}}
    accepted, again, scored = run(folder), run(folder), run(folder, **scoring)
    return Story(folder / "root", refused, accepted, again, scored, run(folder, condition=OUT_OF_REACH))


def test_a_killed_run_continues_after_its_completed_steps(story):
    assert story.refused.states() == {
        "DataLoading": "cached",
        "TabularPreprocessing": "cached",
        "PyTorchTraining": "done",
        "ModelMetricsComputation": "done",
        "MetricCondition": "failed",
    }


def test_a_model_below_the_threshold_is_not_registered_and_the_metric_is_named(story):
    assert story.refused.exit_code == 1
    value = json.loads((story.root / "registry/demo/1/evaluation.json").read_text())["decision"]["value"]
    reason = f"The model was not registered: test/auroc is {value:.6g}, but must be at least 1 (condition.minimum)."
    assert reason in story.refused.printed


def test_another_threshold_runs_only_the_steps_after_it(story):
    assert story.accepted.exit_code == 0, story.accepted.errors
    expected = {**dict.fromkeys(STEPS, "cached"), "MetricCondition": "done", **dict.fromkeys(AFTERWARDS, "done")}
    assert story.accepted.states() == expected


def test_the_registered_model_is_whole_and_was_tested(story):
    folder = story.root / "registry/demo/1"
    assert {path.name for path in folder.iterdir()} >= {
        "model.tar.gz", "payload.tar.gz", "evaluation.json", "metrics.json", "model_package.json"
    }  # fmt: skip
    package = json.loads((folder / "model_package.json").read_text())
    assert package["ModelApprovalStatus"] == "PendingManualApproval"
    assert "application/jsonlines" in package["InferenceSpecification"]["SupportedContentTypes"]
    assert package["CustomerMetadataProperties"]["decision"].startswith("test/auroc is ")
    evaluated = json.loads((folder / "evaluation.json").read_text())["version"]
    properties = package["CustomerMetadataProperties"]
    assert properties.items() >= evaluated.items()
    assert int(properties["training_rows"]) > 100
    assert (story.root / properties["training_job"] / "step.json").is_file()
    assert properties["data_key"] == "generated"
    job = package["ModelCard"]["training_details"]["training_job_details"]
    assert {"name": "lr", "value": "0.002"} in job["hyper_parameters"]
    (check,) = (story.root / "steps/Payload").glob("*/ml/processing/output/payload_check.json")
    assert check.stat().st_size


def test_a_second_run_takes_every_step_from_the_cache(story):
    assert story.again.exit_code == 0
    assert story.again.states() == {
        **dict.fromkeys(STEPS, "cached"), "MetricCondition": "done", **dict.fromkeys(AFTERWARDS, "cached")
    }  # fmt: skip
    assert [path.name for path in (story.root / "registry/demo").glob("[0-9]*")] == ["1"]
    assert story.again.seconds < 20


def test_records_are_scored_by_the_registered_model_without_training_again(story):
    assert story.scored.exit_code == 0, story.scored.errors
    assert story.scored.states() == {**story.again.states(), "BatchScore": "done"}
    (scores,) = (story.root / "steps/BatchScore").glob("*/ml/batch/output/new.jsonl.out")
    lines = [json.loads(line) for line in scores.read_text().splitlines()]
    assert [line["order_id"] for line in lines] == list(range(20))
    assert all(0 <= line["SageMakerOutput"]["probabilities"][1] <= 1 for line in lines)


def test_a_refusal_takes_nothing_back_that_is_registered(story):
    assert story.stricter.exit_code == 1
    assert (story.root / "registry/demo/1/model.tar.gz").is_file()


def test_the_report_says_where_everything_is(story):
    report = (story.root / "report.md").read_text()
    for what in ("evaluation", "metrics", "plots", "log of PyTorchTraining"):
        (place,) = re.findall(rf"^\* {what}: (.+)$", report, flags=re.MULTILINE)
        assert Path(place).exists()
    assert "## Metrics" in report


@pytest.mark.long
def test_a_search_is_taken_from_the_cache_with_its_results(tmp_path):
    tuning = {"trials": 2, "space": {"lr": {"low": 1e-3, "high": 3e-3}}}
    first, again = (run(tmp_path, tuning=tuning, condition=OUT_OF_REACH) for _ in range(2))
    assert first.states()["PyTorchTraining"] == "done", first.errors
    assert again.states() == {**dict.fromkeys(STEPS, "cached"), "MetricCondition": "failed"}
    (trials,) = (tmp_path / "root/steps/PyTorchTraining").glob("*/ml/output/data/tuning/trials.csv")
    assert len(trials.read_text().splitlines()) == 1 + tuning["trials"]


def test_a_search_a_package_and_its_server_run_in_a_folder_of_any_name(tmp_path):
    folder = tmp_path / "a ?%20#[x]{}$HOME'\"é:b"
    (folder / "records").mkdir(parents=True)
    (folder / "records" / "new [1]?.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in RECORDS))
    tuning = {"trials": 1, "final_seeds": 1, "space": {"lr": {"low": 1e-3, "high": 3e-3}}}
    ran = run(folder, tuning=tuning, batch_score={}, inputs={"batch_input": "records"})
    assert ran.exit_code == 0, ran.errors
    (scores,) = (folder / "root/steps/BatchScore").glob("*/ml/batch/output/*")
    assert scores.name == "new [1]?.jsonl.out"
    assert len(scores.read_text().splitlines()) == len(RECORDS)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_step_that_fails_is_named_with_its_cause_and_nothing_is_registered(tmp_path):
    table = tmp_path / "table"
    table.mkdir()
    (table / "claims.csv").write_text("order_id,chat,shiptrack,price\n" + "1,hello,sent,2\n" * 40)
    ran = run(tmp_path, inputs={"input_data": str(table)}, settings={})
    assert ran.exit_code == 1
    assert ran.states() == {"DataLoading": "done", "TabularPreprocessing": "failed"}
    assert "TabularPreprocessing failed: " in ran.errors
    assert "'label'" in ran.errors.splitlines()[-2] + ran.errors.splitlines()[-3]
    assert not (tmp_path / "root/registry").exists()
    (failed,) = (tmp_path / "root/steps/TabularPreprocessing").iterdir()
    assert not (failed / "step.json").exists()
    assert not [path for path in failed.rglob("*processed_data*") if path.is_file()]


def test_a_wrong_column_of_the_metrics_is_named_before_the_training(tmp_path):
    wrong = {**CONFIG["settings"], "ModelMetricsComputation": {"group_fields": ["marketplaces"]}}
    ran = run(tmp_path, settings=wrong)
    assert ran.exit_code == 1
    assert ran.states() == {"DataLoading": "done"}
    cause = r"^settings\.ModelMetricsComputation\.group_fields: 'marketplaces' .*'marketplace'"
    assert re.search(cause, ran.errors, re.MULTILINE)


def test_a_missing_input_is_named_before_anything_runs(tmp_path):
    ran = run(tmp_path, inputs={"input_data": "nowhere"}, settings={})
    assert ran.exit_code == 1
    assert re.search(r"^inputs\.input_data: .*nowhere does not exist", ran.errors)
    assert not (tmp_path / "root").exists()


@pytest.fixture(scope="module")
def operate(story, tmp_path_factory):
    """Copy the registered version as a second one, and return a function that runs a command on the registry."""
    root = story.root
    second = root / "registry/demo/2"
    shutil.copytree(root / "registry/demo/1", second)
    package = json.loads((second / "model_package.json").read_text())
    (second / "model_package.json").write_text(json.dumps({**package, "ModelPackageVersion": 2}))
    config = write_config(tmp_path_factory.mktemp("operate"), CONFIG)

    def run_command(name: str, *arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "pipeline", name, "--config", str(config), "--root", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        return done.returncode, done.stdout, done.stderr

    return run_command


def test_the_life_of_a_version_here(story, operate):
    assert operate("deploy", "1")[2].startswith("version 1: is not approved (PendingManualApproval)\n")
    for number in ("1", "2"):
        assert operate("approve", number, "--why", "AUROC suffices")[0] == 0
    code, out, err = operate("deploy", "1")
    assert code == 0, err
    assert "The sample request (text/csv) has the registered answer." in out
    assert operate("deploy", "2", "--dry-run")[1].startswith("would start version 2")
    assert operate("deploy", "2")[0] == 0
    table = operate("versions")[1].splitlines()
    assert re.match(r"2 \* .* approved ", table[1]), table
    code, out, _ = operate("rollback")
    assert (code, "Version 1 is in service." in out) == (0, True)
    assert "has no earlier version" in operate("rollback")[2]
    assert operate("delete")[2].startswith("delete: nobody can answer")
    assert operate("delete", "--yes")[0] == 0
    assert not (story.root / "service/demo").exists()
    assert (story.root / "registry/demo/1/model.tar.gz").is_file()


def test_a_package_that_answers_otherwise_is_not_put_into_service_here(story, operate):
    check = story.root / "registry/demo/2/payload_check.json"
    kept = check.read_text()
    content = json.loads(kept)
    sample = content["samples"][0]
    sample["answer"] = sample["answer"].replace('"probabilities": [0.', '"probabilities": [1.')
    check.unlink()  # a link to that of the step
    check.write_text(json.dumps(content))
    assert operate("approve", "2", "--why", "AUROC suffices")[0] == 0
    code, _, err = operate("deploy", "2")
    check.write_text(kept)
    assert code == 1
    assert err.startswith("version 2: answers the sample request (application/json) differently: .predictions[0]")
    assert ": no version is in service." in operate("versions")[1]


@pytest.fixture
def changed(story, operate):
    """Return a function that changes a file of version 2, which is approved, until the test ends."""
    assert operate("approve", "2", "--why", "AUROC suffices")[0] == 0
    kept: dict[Path, bytes] = {}

    def change(name: str, content: bytes) -> Path:
        path = story.root / "registry/demo/2" / name
        kept[path] = path.read_bytes()
        path.unlink()  # a link to that of the step
        path.write_bytes(content)
        return path

    yield change
    for path, content in kept.items():
        path.write_bytes(content)


def test_a_package_that_is_not_the_registered_one_is_not_served(operate, changed):
    changed("model.tar.gz", b"cut")
    code, _, err = operate("deploy", "2")
    assert code == 1
    assert re.match(r"version 2: .*model\.tar\.gz is not the file that was registered", err)


def test_a_damaged_version_is_named_and_the_others_work(operate, changed):
    assert operate("deploy", "2")[0] == 0
    changed("model_package.json", b"{")
    code, out, err = operate("versions")
    assert code == 0
    assert out.splitlines()[1].startswith("1 ")
    assert "model_package.json" in err
    assert operate("approve", "1", "--why", "AUROC is enough")[0] == 0
    assert operate("deploy", "1")[0] == 0
    assert operate("delete", "--yes")[0] == 0


def test_another_model_with_the_number_of_the_one_in_service_is_not_in_service(story, operate, changed):
    assert operate("deploy", "2")[0] == 0
    file = story.root / "registry/demo/2/model_package.json"
    package = json.loads(file.read_text())
    package["CustomerMetadataProperties"]["package_digest"] = "another"
    changed("model_package.json", json.dumps(package).encode())
    assert not re.search(r"^2 \*", operate("versions")[1], re.MULTILINE)
    assert operate("deploy", "2", "--dry-run")[1].startswith("would start version 2")


def test_a_command_that_changes_the_service_waits_for_no_other_one(story, operate):
    with alone_in(story.root / "service"):
        code, _, err = operate("deploy", "1")
    assert (code, err.partition("\n")[0]) == (1, f"{story.root}/service: another command changes the service")


@pytest.mark.parametrize("content", ["{}", '{"deployed": 3}', "cut"])
def test_a_damaged_record_of_the_service_is_an_error_that_names_it(story, operate, content):
    file = story.root / "service/demo/service.json"
    kept = file.read_text() if file.is_file() else None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    code, _, err = operate("rollback")
    file.unlink() if kept is None else file.write_text(kept)
    assert code == 1
    assert err.startswith(str(file))
    assert "Delete the file, and deploy again." in err


def test_a_decision_without_a_reason_is_refused(operate):
    code, _, err = operate("reject", "1", "--why", " ")
    assert code == 2
    assert "--why: is empty" in err


def test_two_versions_are_compared_on_the_rows_that_both_scored(operate):
    code, out, err = operate("compare", "1", "2")
    assert code == 0, err
    assert out.startswith("No setting differs.")
    rows = re.findall(r"version-2: (\d+) of (\d+) and (\d+) records were paired by id", out)
    assert len(rows) == 1
    assert len(set(rows[0])) == 1


def test_the_newest_run_is_shown_with_its_steps_and_logs(operate):
    code, out, _ = operate("status")
    assert code == 0
    assert "run of demo in" in out.splitlines()[0]
    assert out.splitlines()[0].endswith("failed"), "its threshold is out of reach"
    assert re.search(r"PyTorchTraining +cached", out)
    assert operate("status", "--wait")[0] == 1
    assert "log.txt" in operate("status", "--logs", "ModelMetricsComputation")[1]
    assert "did you mean 'DataLoading'" in operate("status", "--logs", "DataLoad")[2]
