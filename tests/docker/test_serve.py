"""`docker run IMAGE serve` with a model mounted read-only, as the service starts an endpoint."""

import http.client
import io
import json

import numpy as np
import pandas as pd
import pytest

from contracts.serving import CSV, JSON, JSON_LINES, PARQUET
from testing.jobs import table
from testing.serving import ask
from tests.docker.engine import docker


@pytest.fixture
def endpoint(image, containers, trained_job):
    """Start the container, and return it with its port on this machine."""
    model = ("--volume", f"{trained_job.model}:/opt/ml/model:ro")
    container = containers("--publish", "127.0.0.1::8080", *model, image, "serve")
    container.wait_for("on port 8080")
    return container, int(docker("port", container.name, "8080").strip().rsplit(":", 1)[1])


@pytest.fixture
def serverless(image, containers, trained_job):
    """Start the container as a serverless endpoint does, on another port; return the port on this machine."""
    model = ("--volume", f"{trained_job.model}:/opt/ml/model:ro")
    limits = ("--read-only", "--tmpfs", "/tmp", "--memory", "2g", "--ipc", "none")  # none: without /dev/shm
    port = ("--publish", "127.0.0.1::8123", "--env", "SAGEMAKER_BIND_TO_PORT=8123")
    container = containers(*port, *model, *limits, image, "serve")
    container.wait_for("on port 8123")
    return int(docker("port", container.name, "8123").strip().rsplit(":", 1)[1])


def request(port, body=b"", content_type=None, **options):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        return ask(connection, body, content_type, **options)
    finally:
        connection.close()


def test_the_image_returns_the_jobs_predictions_in_every_format_and_stops_on_sigterm(endpoint, trained_job):
    container, port = endpoint
    assert request(port, method="GET", path="/ping").status == 200
    table = pd.read_csv(trained_job.channel("test") / "data.csv", dtype={"order_id": str})
    expected = pd.read_csv(trained_job.output_data / "test_predictions.csv")[["prob_class_0", "prob_class_1"]]
    records = json.loads(table.to_json(orient="records"))
    parquet = io.BytesIO()
    table.to_parquet(parquet)
    bodies = {
        JSON: json.dumps(records),
        JSON_LINES: "\n".join(map(json.dumps, records)),
        CSV: table.to_csv(index=False),
        PARQUET: parquet.getvalue(),
    }
    for content_type, body in bodies.items():
        answer = request(port, body, content_type, accept=JSON)
        assert answer.status == 200, answer.body
        np.testing.assert_allclose(answer.probabilities, expected, atol=1e-5, err_msg=content_type)
    assert request(port, '{"price": "dear"}', JSON).status == 400
    container.stop()
    assert container.wait() == 0


def test_the_image_answers_on_a_read_only_file_system_without_shared_memory(serverless):
    records = json.loads(table(600, seed=3).to_json(orient="records"))
    assert request(serverless, method="GET", path="/ping").status == 200
    answer = request(serverless, json.dumps(records), JSON)  # above 64 KiB: in a temporary file
    assert (answer.status, len(answer.json["predictions"])) == (200, 600)


def test_the_image_says_that_it_honours_the_port_of_a_shared_endpoint(image):
    labels = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", image))
    assert labels["com.amazonaws.sagemaker.capabilities.accept-bind-to-port"] == "true"
