"""A finished job in an MLflow tracking server: what is sent, again, after a failure, and loaded back."""

import json
import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tarfile
import time
from contextlib import closing

import numpy as np
import pytest

from container.commands import main
from container.predictor import Predictor
from container.tracking import send as sending
from container.tracking.process import send_results
from contracts.artifacts import HISTORY, HYPERPARAMETERS, METRICS
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.paths import JobPaths
from contracts.ports import free_port
from contracts.steps import ARCHIVED_MODEL, ARCHIVED_OUTPUT, TRACKED, TRACKING
from testing.jobs import CONFIGURATION, ONE_LAYER, metrics, run_train, table, write_job
from testing.mlflow_server import MlflowServer
from testing.step_runs import run_step

ARN = "arn:aws:sagemaker:eu-west-1:123456789012:mlflow-tracking-server/reviews"
RATES = {"rows_per_second", "tokens_per_second", "padding_percent"}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A completed job whose tracking server does not answer; read only."""
    settings = {
        "encoder_config": ONE_LAYER,
        "mlflow_tracking_uri": f"http://127.0.0.1:{free_port()}",
        "mlflow_experiment": "reviews",
        "mlflow_run_name": "first try",
        "mlflow_tags": {"team": "a"},
    }
    paths = write_job(tmp_path_factory.mktemp("tracked"), overrides=settings)
    run_train(paths)
    return paths


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = MlflowServer(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()


def track(paths, server, *arguments):
    return main(["track", "--root", str(paths.root), "--uri", server.uri, *arguments])


@pytest.fixture(scope="module")
def run(job, server):
    """The run of the job, sent once."""
    assert track(job, server) == 0
    return find_run(server)


def find_run(server, experiment="reviews"):
    import mlflow

    client = mlflow.MlflowClient(server.uri)
    (found,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return found


def history(paths):
    return json.loads((paths.output_data / HISTORY).read_text())["entries"]


def values_by_step(server, run, name):
    import mlflow

    return [(metric.step, metric.value) for metric in mlflow.MlflowClient(server.uri).get_metric_history(run, name)]


def rows_of(server, name):
    with closing(sqlite3.connect(server.database)) as database:
        return database.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0]


def artifacts_of(server, run, folder=""):
    import mlflow

    return {entry.path for entry in mlflow.MlflowClient(server.uri).list_artifacts(run.info.run_id, folder)}


@pytest.mark.slow
def test_a_job_whose_tracker_does_not_answer_completes_and_its_log_names_the_command(job):
    log = (job.root / "train.log").read_text()
    assert f"python -m container track --root {job.root}" in log
    assert "did not take the job" in log
    assert "completed in" in log.splitlines()[-1]


@pytest.mark.slow
def test_a_run_has_every_logged_value_at_its_step(job, server, run):
    entries = history(job)
    names = {name for entry in entries for name in entry} - {"step", "time"}
    assert {"train/loss", "lr", "epoch", "val/auroc"} <= names
    for name in names:
        expected = [(entry["step"], entry[name]) for entry in entries if entry.get(name) is not None]
        assert values_by_step(server, run.info.run_id, name) == expected, name


@pytest.mark.slow
def test_a_run_has_the_hyperparameters_the_final_metrics_and_the_tags(job, run):
    assert run.data.params["model_class"] == CONFIGURATION["model_class"]
    assert json.loads(run.data.params["tab_field_list"]) == CONFIGURATION["tab_field_list"]
    assert not [name for name in run.data.params if name.startswith("mlflow_")]
    for name, value in metrics(job).items():
        if name.startswith(("val/", "test/")):
            assert run.data.metrics[f"final/{name}"] == value
    assert run.data.tags["team"] == "a"
    assert (run.info.run_name, run.info.status) == ("first try", "FINISHED")
    assert run.info.start_time == round(1000 * history(job)[0]["time"])


@pytest.mark.slow
def test_a_run_has_the_report_the_metrics_and_the_plots(server, run):
    assert artifacts_of(server, run) == {"report.html", "metrics.json", "plots", "model"}
    assert artifacts_of(server, run, "plots") == {"plots/roc_curve.png", "plots/pr_curve.png"}


@pytest.mark.slow
def test_a_job_that_is_sent_again_updates_its_run_and_doubles_nothing(job, server, run, monkeypatch):
    import mlflow

    log_batch, sent = mlflow.MlflowClient.log_batch, []

    def recorded(client, run_id, metrics=(), **others):
        sent.extend(metrics)
        log_batch(client, run_id, metrics, **others)

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", recorded)
    tables = ("runs", "metrics", "params", "latest_metrics")
    before = {name: rows_of(server, name) for name in tables}
    assert track(job, server, "--run-name", "second try", "--tags", "team=b", "stage=test") == 0
    assert sent == []  # a server with another store than SQLite may keep a value that it gets twice
    assert {name: rows_of(server, name) for name in tables} == before
    again = find_run(server)
    assert again.info.run_id == run.info.run_id
    assert again.info.run_name == "second try"
    assert (again.data.tags["team"], again.data.tags["stage"]) == ("b", "test")


@pytest.mark.slow
@pytest.mark.parametrize("inside", ["", "data/"])
def test_the_archives_that_sagemaker_keeps_of_a_job_update_the_run_of_its_folder(job, server, run, tmp_path, inside):
    for archive, folder, place in ((ARCHIVED_MODEL, job.model, ""), (ARCHIVED_OUTPUT, job.output_data, inside)):
        with tarfile.open(tmp_path / archive, "w:gz") as packed:
            packed.add(folder, place or ".")
    before = rows_of(server, "metrics")
    assert main(["track", "--root", str(tmp_path), "--uri", server.uri]) == 0
    assert find_run(server).info.run_id == run.info.run_id
    assert rows_of(server, "metrics") == before


def give_results(root, job, *, archived):
    """Create the inputs of the step Tracking, as on SageMaker or as on this machine."""
    for name, archive, folder in (
        ("model_input", ARCHIVED_MODEL, job.model),
        ("eval_output", ARCHIVED_OUTPUT, job.output_data),
    ):
        place = TRACKING.input(name).path(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        if archived:
            place.mkdir()
            with tarfile.open(place / archive, "w:gz") as packed:
                packed.add(folder, ".")
        else:
            place.symlink_to(folder)
    return root


def tracked_problem(root):
    return json.loads((TRACKING.output("tracked").path(root) / TRACKED).read_text())["problem"]


@pytest.mark.slow
@pytest.mark.parametrize("archived", [True, False], ids=["archives", "folders"])
def test_the_step_sends_what_the_job_left_to_the_run_of_the_job(job, server, run, tmp_path, archived):
    root = give_results(tmp_path, job, archived=archived)
    tags = {"sent_by": f"{archived}", "note": "a = b, c"}
    where = {"MLFLOW_TRACKING_URI": server.uri, "MLFLOW_EXPERIMENT": "reviews", "MLFLOW_RUN_NAME": "-a job-"}
    run_step(root, TRACKING.command, **where, MLFLOW_TAGS=tags)
    assert tracked_problem(root) is None
    again = find_run(server)
    assert (again.info.run_id, again.info.run_name) == (run.info.run_id, "-a job-")
    assert {name: again.data.tags[name] for name in tags} == tags


@pytest.mark.slow
def test_the_step_completes_when_the_tracker_is_down_and_its_log_names_the_command(job, tmp_path):
    root = give_results(tmp_path, job, archived=True)
    uri = f"http://127.0.0.1:{free_port()}"
    log = run_step(root, TRACKING.command, MLFLOW_TRACKING_URI=uri)
    assert "were not sent" in tracked_problem(root)
    assert f"python -m container track --root FOLDER --uri={uri} --experiment=Default" in log


@pytest.mark.slow
def test_the_model_of_a_run_scores_raw_records_as_the_predictor_with_its_own_copy_of_the_code(
    job, server, run, tmp_path
):
    records = table(12, seed=2).drop(columns=["order_id", "label"])
    records.to_json(tmp_path / "records.json", orient="records")
    code = (
        "import json, sys, mlflow\n"
        f"mlflow.set_tracking_uri({server.uri!r})\n"
        f"model = mlflow.pyfunc.load_model('runs:/{run.info.run_id}/model')\n"
        "scored = model.predict(json.load(open('records.json')))\n"
        "scored.to_json('scored.json', orient='records', double_precision=15)\n"
        "import container; print(container.__file__)"
    )
    # In another folder, without this repository on the path.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "/model/code/container/" in done.stdout.splitlines()[-1]
    scored = json.loads((tmp_path / "scored.json").read_text())
    predictor = Predictor.load(job.model)
    raw = records.to_dict("records")
    expected = predictor.predict(raw)
    np.testing.assert_allclose([[row["prob_class_0"], row["prob_class_1"]] for row in scored], expected, atol=1e-9)
    assert [row["predicted_label"] for row in scored] == predictor.decide(raw)


@pytest.mark.slow
def test_mlflow_models_serve_answers_raw_records(job, server, run):
    import mlflow
    from fastapi.testclient import TestClient
    from mlflow.pyfunc import scoring_server

    mlflow.set_tracking_uri(server.uri)
    model = mlflow.pyfunc.load_model(f"runs:/{run.info.run_id}/model")
    records = table(5, seed=2).drop(columns=["order_id", "label"]).astype(object)
    raw = records.where(records.notna(), None).to_dict("records")
    with TestClient(scoring_server.init(model)) as client:
        response = client.post("/invocations", json={"dataframe_records": raw})
    assert response.status_code == 200, response.text
    found = [[row["prob_class_0"], row["prob_class_1"]] for row in response.json()["predictions"]]
    np.testing.assert_allclose(found, Predictor.load(job.model).predict(raw), atol=1e-9)


@pytest.mark.slow
def test_a_run_in_a_sagemaker_tracking_server_is_addressed_by_its_arn(job, server, run, monkeypatch, tmp_path):
    import mlflow
    from mlflow.tracking.request_header.registry import resolve_request_headers

    monkeypatch.setenv("SAGEMAKER_MLFLOW_CUSTOM_ENDPOINT", server.uri)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    # SageMaker's server keeps artifacts in S3, to which the client writes them itself.
    mlflow.MlflowClient(server.uri).create_experiment("on SageMaker", (tmp_path / "artifacts").as_uri())
    arguments = ["--uri", ARN, "--experiment", "on SageMaker"]
    assert main(["track", "--root", str(job.root), *arguments]) == 0
    assert find_run(server, "on SageMaker").info.status == "FINISHED"
    assert resolve_request_headers()["x-mlflow-sm-tracking-server-arn"] == ARN


@pytest.mark.long
def test_a_job_whose_tracker_is_killed_in_the_middle_is_completed_by_another_track(job, server, monkeypatch, capsys):
    import mlflow

    send_files = sending._send_files

    def killed(*arguments, **others):
        server.kill()
        send_files(*arguments, **others)

    experiment = ("--experiment", "killed")
    with monkeypatch.context() as patch:
        patch.setattr(sending, "_send_files", killed)
        assert track(job, server, *experiment) == 1
    assert "run the same command again" in capsys.readouterr().err
    server.start()
    half = find_run(server, "killed")
    assert half.info.status == "RUNNING"
    with closing(sqlite3.connect(server.database)) as database:  # as if the server had died a step earlier
        database.execute("DELETE FROM metrics WHERE run_uuid = ? AND step > 5", [half.info.run_id])
        database.commit()
    assert track(job, server, *experiment) == 0
    whole = find_run(server, "killed")
    assert (whole.info.run_id, whole.info.status) == (half.info.run_id, "FINISHED")
    losses = values_by_step(server, whole.info.run_id, "train/loss")
    assert sorted(losses) == [(entry["step"], entry["train/loss"]) for entry in history(job)]
    assert "model/MLmodel" in artifacts_of(server, whole, "model")
    assert mlflow.MlflowClient(server.uri).get_run(whole.info.run_id).data.metrics["final/test/auroc"]


def settings(**values):
    return parse_hyperparameters({**CONFIGURATION, **values})


@pytest.mark.long
def test_a_tracker_that_accepts_a_connection_and_never_answers_costs_the_limit_and_a_warning(job, tmp_path, caplog):
    paths = JobPaths(shutil.copytree(job.root, tmp_path / "job"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings_of_job = paths.model / HYPERPARAMETERS
        values = json.loads(settings_of_job.read_text())
        values["mlflow_tracking_uri"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings_of_job.write_text(json.dumps(values))
        started = time.monotonic()
        with caplog.at_level(logging.WARNING):
            send_results(paths, parse_hyperparameters(values), stopping=lambda: False, limit=15)
        silent.settimeout(0)
        silent.accept()  # raises unless the job connected
    assert time.monotonic() - started < 30
    assert "the results were not sent within 15 s" in caplog.text
    assert f"container track --root {paths.root}" in caplog.text


def test_a_job_that_is_stopped_while_it_sends_does_not_wait_for_the_tracker(job_folder, caplog):
    hp = settings(mlflow_tracking_uri="http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING):
        send_results(job_folder, hp, stopping=lambda: True)
    assert "the job was requested to stop" in caplog.text


def test_a_job_without_a_tracker_sends_nothing(job_folder, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    send_results(job_folder, settings(), stopping=lambda: False)


@pytest.fixture
def job_folder(tmp_path):
    return write_job(tmp_path)


@pytest.mark.parametrize(
    "uri",
    [
        "https://mlflow.example.com", "http://10.0.0.7:5000/tracking", ARN,
        "arn:aws:sagemaker:us-east-1:123456789012:mlflow-app/app-1",
    ],
)  # fmt: skip
def test_the_uri_of_a_server_is_accepted(uri):
    assert settings(mlflow_tracking_uri=uri).mlflow_tracking_uri == uri


@pytest.mark.parametrize(
    "uri",
    [
        "mlflow.example.com", "http://", "https://anna:secret@mlflow.example.com", "file:///tmp/mlruns", "",
        "arn:aws:s3:::bucket", "https://mlflow example.com",
    ],
)  # fmt: skip
def test_a_uri_that_is_no_server_or_has_a_password_is_refused(uri):
    with pytest.raises(ContractError, match="mlflow_tracking_uri: ") as caught:
        settings(mlflow_tracking_uri=uri)
    assert "MLFLOW_TRACKING_USERNAME" in caught.value.fix


def test_tags_may_be_json_and_must_be_texts():
    from contracts.hyperparameter_files import cast_value

    assert cast_value("mlflow_tags", '{"team": "a"}') == {"team": "a"}
    with pytest.raises(ContractError, match="mlflow_tags: "):
        settings(mlflow_tracking_uri=ARN, mlflow_tags={"team": 3})


@pytest.fixture
def finished_job(job_folder):
    """A folder with the files that a job is read from."""
    job_folder.model.mkdir()
    job_folder.output_data.mkdir(parents=True)
    (job_folder.model / HYPERPARAMETERS).write_text(json.dumps(CONFIGURATION))
    (job_folder.output_data / METRICS).write_text("{}")
    (job_folder.output_data / HISTORY).write_text('{"entries": []}')
    return job_folder


def test_without_mlflow_the_error_names_the_extra(finished_job, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert main(["track", "--root", str(finished_job.root), "--uri", "http://127.0.0.1:9"]) == 1
    assert "text-table-trainer[mlflow]" in capsys.readouterr().err


def test_a_folder_without_a_completed_job_is_an_error_that_names_the_missing_file(tmp_path, capsys):
    assert main(["track", "--root", str(tmp_path), "--uri", "http://127.0.0.1:9"]) == 1
    assert str(tmp_path / "model" / "hyperparameters.json") in capsys.readouterr().err


def test_a_job_without_a_server_is_an_error_that_names_the_argument(finished_job, capsys):
    assert main(["track", "--root", str(finished_job.root)]) == 1
    assert "Give --uri" in capsys.readouterr().err


def test_a_model_archive_without_the_archive_of_the_output_is_an_error_that_names_it(tmp_path, capsys):
    with tarfile.open(tmp_path / ARCHIVED_MODEL, "w:gz"):
        pass
    assert main(["track", "--root", str(tmp_path), "--uri", "http://127.0.0.1:9"]) == 1
    assert str(tmp_path / ARCHIVED_OUTPUT) in capsys.readouterr().err
