"""GET /metrics, which is off by default, and the address on which the server listens."""

import http.client
import json
import re
import socket
import subprocess
import sys
from collections import Counter

import pytest

from container.serving.metrics import PROMETHEUS, Latencies, metrics_page
from contracts.serving import JSON
from testing.jobs import REPOSITORY, table
from testing.serving import ask, serving

LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]+"\})? [0-9.]+')  # of Prometheus' text format, as far as it is used here


def values(page: str) -> dict[str, float]:
    """Return the value of each line that is no comment, by its name and label."""
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in lines)
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def get(port: int, path: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, response.getheader("Content-Type", ""), body


@pytest.mark.slow
def test_metrics_count_requests_by_status_and_their_times(trained_job):
    (record,) = table(1, seed=2).to_dict("records")
    with serving(trained_job.root, SERVING_METRICS="true") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        for body in (json.dumps(record), json.dumps(record), "{"):
            ask(connection, body, JSON)
        connection.close()
        status, media_type, page = get(server.port, "/metrics")
    assert (status, media_type) == (200, PROMETHEUS)
    found = values(page)
    assert found['text_table_server_requests_total{status="200"}'] == 2
    assert found['text_table_server_requests_total{status="400"}'] == 1
    assert found["text_table_server_request_seconds_count"] == 3
    assert found['text_table_server_request_seconds_bucket{le="+Inf"}'] == 3
    assert found["text_table_server_request_seconds_sum"] > 0
    assert found["text_table_server_requests_in_progress"] == 0
    assert found["text_table_server_up"] == 1


@pytest.mark.slow
def test_metrics_are_off_by_default_and_the_server_listens_on_the_given_address_alone(trained_job):
    with serving(trained_job.root, arguments=("--host", "127.0.0.1")) as server:
        assert get(server.port, "/metrics")[0] == 404
        assert get(server.port, "/ping")[0] == 200
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", server.port), timeout=30)
    with serving(trained_job.root) as server, socket.create_connection(("127.0.0.2", server.port), timeout=30):
        pass


@pytest.mark.slow
def test_an_address_of_another_machine_is_refused(trained_job):
    command = [sys.executable, "-m", "container", "serve", "--root", str(trained_job.root), "--host", "192.0.2.1"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "192.0.2.1, port 8080: cannot be opened" in ended.stderr + ended.stdout


def test_a_bucket_of_the_histogram_has_the_requests_up_to_its_bound():
    latencies = Latencies()
    for seconds in (0.005, 0.0051, 0.3, 100.0):
        latencies.add(seconds)
    found = values("\n".join(latencies.lines("t")))
    bounds = {bound: found[f't_bucket{{le="{bound}"}}'] for bound in ("0.005", "0.01", "0.25", "0.5", "60.0", "+Inf")}
    assert bounds == {"0.005": 1, "0.01": 2, "0.25": 2, "0.5": 3, "60.0": 3, "+Inf": 4}
    assert found["t_sum"] == pytest.approx(100.3101)


def test_every_metric_has_a_type_and_a_meaning():
    page = metrics_page(Counter({200: 1}), Latencies(), {"up": (1, "Whether it is up.")})
    described = {kind: set(re.findall(rf"^# {kind} (\w+) ", page, re.MULTILINE)) for kind in ("HELP", "TYPE")}
    assert described["HELP"] == described["TYPE"]
    names = {re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name) for name in values(page)}
    assert names == described["HELP"]
