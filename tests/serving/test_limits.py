"""A server on a machine with little of something: descriptors, connections, processes or disk space."""

import contextlib
import os
import resource
import select
import socket
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from unittest.mock import Mock

import pytest

from container.serving.application import Application
from container.serving.model_process import ModelProcess
from container.serving.server import _open
from contracts.errors import ContractError
from contracts.serving import ServingSettings
from testing.jobs import run_python, wait_for
from testing.serving import ask, package, refused_start, serving
from tests.serving.test_model_process import ECHO, descriptors

pytestmark = pytest.mark.slow


def limited(option, value):
    """Return a command that runs its arguments with a hard limit of `ulimit`."""
    return ["bash", "-c", f'ulimit {option} {value} && exec "$@"', "bash"]


def processor_seconds(process):
    """Return the processor time that a process has taken."""
    with open(f"/proc/{process}/stat") as stat:
        user, system = stat.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


# Descriptors


def test_a_concurrency_that_needs_more_descriptors_than_the_limit_is_an_error_that_names_both(tmp_path):
    log = refused_start(package(tmp_path, ECHO), wrapper=limited("-n", 200), SERVING_CONCURRENCY="39")
    assert "SERVING_CONCURRENCY is 39: it needs 204 descriptors; the limit is 200" in log
    assert "`ulimit -n 204`, `docker run --ulimit nofile=204`" in log


@pytest.mark.parametrize("bytes_of_a_body", [10, 100_000])
def test_clients_that_need_more_descriptors_than_the_limit_all_get_an_answer(tmp_path, bytes_of_a_body):
    script = "def predict_fn(data, model):\n    time.sleep(0.01)\n    return data"
    root, together = package(tmp_path, f"{ECHO}\n{script}"), threading.Barrier(150)
    body = "x" * bytes_of_a_body

    def client(_):
        together.wait()
        return server.ask(body)

    with (
        serving(root, wrapper=limited("-n", 120), SERVING_CONCURRENCY="16") as server,
        ThreadPoolExecutor(150) as clients,
    ):
        statuses = Counter(answer.status for answer in clients.map(client, range(150)))
        assert statuses.keys() <= {200, 503}
        assert statuses[200] >= 16
        assert "Traceback" not in server.log.read_text()


def test_a_request_that_gets_no_descriptor_for_its_connection_to_the_model_gets_503_and_the_next_is_answered(tmp_path):
    with serving(package(tmp_path, ECHO)) as server:
        process = server.process.pid
        limits = resource.prlimit(process, resource.RLIMIT_NOFILE)
        # One descriptor is free: the accepted socket takes it.
        resource.prlimit(process, resource.RLIMIT_NOFILE, (descriptors(process) + 1, limits[1]))
        answer = server.ask("hi")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert "Too many open files" in server.log.read_text()
        resource.prlimit(process, resource.RLIMIT_NOFILE, limits)
        assert server.ask("hi").status == 200


def test_a_server_that_cannot_accept_a_connection_logs_it_once_waits_and_accepts_it_later(tmp_path):
    with serving(package(tmp_path, ECHO)) as server, ThreadPoolExecutor(1) as clients:
        process = server.process.pid
        limits = resource.prlimit(process, resource.RLIMIT_NOFILE)
        resource.prlimit(process, resource.RLIMIT_NOFILE, (descriptors(process), limits[1]))
        answer = clients.submit(server.ask, "hi")
        wait_for(lambda: "no connection can be accepted: [Errno 24]" in server.log.read_text())
        before = processor_seconds(process)
        time.sleep(1)
        assert processor_seconds(process) - before < 0.5
        resource.prlimit(process, resource.RLIMIT_NOFILE, limits)
        assert answer.result().status == 200
        assert server.log.read_text().count("no connection can be accepted") == 1


# Threads


def test_only_the_request_for_which_the_models_process_can_start_no_thread_gets_503(tmp_path):
    # Linux limits no processes of root, but no machine has memory for such a stack.
    script = (
        "from threading import stack_size\ndef predict_fn(data, model):\n    if data == 'full':\n"
        "        stack_size(1 << 60)\n        time.sleep(2)\n        stack_size(0)\n    return data"
    )
    with serving(package(tmp_path, f"{ECHO}\n{script}")) as server, ThreadPoolExecutor(1) as clients:
        first = clients.submit(server.ask, "full")
        time.sleep(1)
        assert server.ask("hi").status == 503
        assert first.result().status == 200
        assert server.ask("hi").status == 200
        assert "can't start new thread\nRaise the limit on processes" in server.log.read_text()


def test_a_server_that_cannot_start_its_threads_names_the_setting_and_the_limit():
    limits = ServingSettings(serving_concurrency=1)
    threading.stack_size(1 << 60)
    try:
        with pytest.raises(ContractError, match="SERVING_CONCURRENCY is 1: thread 1 of 5: can't start") as caught:
            _open(Application(Mock(), limits), {}, limits, host="127.0.0.1", port=0)
    finally:
        threading.stack_size(0)
    assert "`docker run --pids-limit`" in caught.value.fix


ONE_PROCESS = r"""
import os, resource, sys
from container.serving.runner import start_arrow
from container.serving.requests import read_request
from contracts.serving import ServingSettings
start_arrow()
if not os.getuid():
    os.setuid(65534)  # Linux limits no processes of root
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
print([part.table().to_pydict() for part in read_request(b"a,b\nx,1\n", "text/csv", ServingSettings()).parts(["a"])])
"""


def test_csv_is_read_where_no_thread_can_be_started():
    assert run_python(ONE_PROCESS).stdout == "[{'a': ['x']}]\n"


def test_a_model_process_that_cannot_be_started_is_an_error_that_names_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fork", Mock(side_effect=BlockingIOError(11, "Resource temporarily unavailable")))
    with pytest.raises(ContractError, match="the model's process cannot be started: .*temporarily") as caught:
        ModelProcess(tmp_path, timeout=1)
    assert "`docker run --pids-limit`" in caught.value.fix


# Disk space


@pytest.mark.parametrize("headers", [{}, {"transfer_encoding": "chunked"}])
def test_a_body_for_which_the_disk_has_no_room_gets_503_and_the_next_request_is_answered(full_disk, headers):
    server = full_disk
    body = "x" * (3 << 20)
    answer = server.ask(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body.encode()) if headers else body, **headers)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert "no room for the body" in answer.json["error"]["message"]
    log = server.log.read_text()
    assert f"its body cannot be written to {server.log.parent / 'tmp'}: [Errno 28] No space left" in log
    assert "set TMPDIR to another folder, or lower SERVING_MAX_BYTES." in log
    assert server.ask("x" * 100_000).status == 200


def test_a_long_answer_needs_no_disk_space(full_disk):
    assert full_disk.ask("long").body == b"y" * (3 << 20)


@pytest.fixture
def full_disk(tmp_path):
    """Run a server whose temporary folder has room for 1 MiB."""
    if subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no mount namespaces")
    script = "def predict_fn(data, model): return 'y' * (3 << 20) if data == 'long' else data"
    folder = tmp_path / "tmp"
    folder.mkdir()
    mount = ["unshare", "--map-root-user", "--mount", "bash", "-ec"]
    mount += [f'mount -t tmpfs -o size=1m tmpfs "{folder}"; exec "$@"', "bash"]
    with serving(package(tmp_path, f"{ECHO}\n{script}"), wrapper=mount, TMPDIR=str(folder)) as server:
        yield server


# Connections


def test_clients_that_read_no_response_block_no_health_check(tmp_path):
    # One of the answers leaves less to be sent than waitress keeps (16 MiB), and the pings behind it exceed this.
    script = "def predict_fn(data, model): return 'y' * int(data)"
    with serving(package(tmp_path, f"{ECHO}\n{script}")) as server, contextlib.ExitStack() as clients:
        for size in range(17_000_000, 24_000_000, 500_000):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            request = b"POST /invocations HTTP/1.1\r\nContent-Length: 8\r\n\r\n%d" % size
            client.sendall(request + b"GET /ping HTTP/1.1\r\n\r\n" * 5000)
            wait_for(lambda: select.select([client], [], [], 0)[0])  # noqa: B023
            assert server.ask(method="GET", path="/ping").status == 200
        clients.close()
        assert server.ask("1").status == 200
        assert server.stop() == 0


@contextlib.contextmanager
def crowded(tmp_path, script=""):
    """Run a server that accepts at most 22 connections."""
    root = package(tmp_path, f"{ECHO}\n{script}")
    with serving(root, wrapper=limited("-n", 96), SERVING_CONCURRENCY="4") as server, contextlib.ExitStack() as stack:

        def connect():
            return stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))

        yield server, connect


def test_ping_is_answered_in_time_while_clients_hold_more_idle_connections_than_the_server_accepts(tmp_path):
    with crowded(tmp_path) as (server, connect):
        for _ in range(40):
            connect()
        began = time.monotonic()
        assert server.ask(content_type=None, method="GET", path="/ping").status == 200
        assert time.monotonic() - began < 10  # waitress closes an idle connection after 120 s
        assert server.log.read_text().count("of at most 24: closing idle connections") == 1


def test_the_connection_that_was_used_last_stays_open_when_idle_ones_are_closed(tmp_path):
    with crowded(tmp_path) as (server, connect):
        used = HTTPConnection("127.0.0.1", server.port, timeout=30)
        used.connect()
        idle = [connect() for _ in range(18)]
        time.sleep(0.5)
        assert ask(used, "hi", None).status == 200
        time.sleep(1.5)
        idle += [connect() for _ in range(3)]
        assert idle[0].recv(1) == b""
        assert ask(used, "hi", None).status == 200
        assert select.select(idle[18:], [], [], 0)[0] == []


def test_a_request_in_progress_is_answered_when_idle_connections_are_closed(tmp_path):
    script = "def predict_fn(data, model):\n    time.sleep(4)\n    return data"
    with crowded(tmp_path, script) as (server, connect), ThreadPoolExecutor(1) as clients:
        answer = clients.submit(server.ask, "hi")
        time.sleep(0.5)
        idle = [connect() for _ in range(21)]
        assert idle[0].recv(1) == b""
        assert not answer.done()
        assert answer.result().status == 200


def test_a_crowded_server_closes_a_connection_after_its_response(tmp_path):
    with crowded(tmp_path) as (server, connect):
        assert "connection" not in server.ask("hi").headers
        for _ in range(20):
            connect()
        assert server.ask("hi").headers["connection"] == "close"
