"""The two processes of a server: they end together, and a package's own inference.py disturbs neither."""

import http.client
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contracts.serving import JSON_LINES
from testing.jobs import REPOSITORY, table, wait_for
from testing.serving import bodies, model_process, package, refused_start, serving

pytestmark = pytest.mark.slow
ECHO = """
import multiprocessing, os, sys, time
def model_fn(folder): return None
def input_fn(body, content_type): return body if isinstance(body, str) else body.decode()
def predict_fn(data, model): return data
def output_fn(prediction, accept): return prediction
"""
# A process that has a copy of each descriptor of the model's process.
FORK = """
def fork():
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(120,), daemon=True)
    process.start()
    return str(process.pid)
"""


def start_loading(root):
    """Start a server, whose model does not load for two minutes; return it and the id of the model's process."""
    package(root, f"{ECHO}\nopen(r'{root}/loading', 'w').close()\ntime.sleep(120)")
    command = [sys.executable, "-m", "container", "serve", "--root", str(root), "--port", "0"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for((root / "loading").exists)
    return process, model_process(process.pid)


def runs(process):
    """Whether a process runs; a process that has ended may wait for the end of its parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descriptors(process):
    return len(os.listdir(f"/proc/{process}/fd"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_the_model_loads_ends_both_processes_with_0_and_no_message(tmp_path, number):
    server, model = start_loading(tmp_path)
    server.send_signal(number)
    lines = server.communicate(timeout=30)[0].splitlines()
    assert [line for line in lines if "inference.py sha256=" not in line] == []
    assert server.returncode == 0
    wait_for(lambda: not runs(model))


def test_the_models_process_ends_with_a_server_that_is_killed_while_the_model_loads(tmp_path):
    server, model = start_loading(tmp_path)
    server.kill()
    server.wait(timeout=30)
    wait_for(lambda: not runs(model))


def leave(server, body, content_type="application/json"):
    """Send a request, and close the connection before its response."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/invocations", body, {"Content-Type": content_type})
    time.sleep(0.1)
    connection.close()


def test_a_script_is_not_called_for_clients_that_have_gone(tmp_path):
    script = "def predict_fn(data, model):\n    print('computing')\n    time.sleep(1)\n    return data"
    with serving(package(tmp_path, f"{ECHO}\n{script}")) as server:
        for _ in range(5):
            leave(server, "hi")
        assert server.ask("hi").status == 200
        assert server.stop() == 0
        log = server.log.read_text()
    assert log.count("computing") == 2
    assert "requests answered: 1 with 200, 5 with 499" in log
    assert "Traceback" not in log


def test_a_client_that_sends_a_large_request_again_and_again_does_not_slow_the_others(trained_job):
    body = bodies(table(4000, seed=3))[JSON_LINES]
    with serving(trained_job.root) as server:

        def seconds():
            began = time.monotonic()
            assert server.ask(body, JSON_LINES).status == 200
            return time.monotonic() - began

        alone = min(seconds() for _ in range(2))
        for _ in range(15):
            leave(server, body, JSON_LINES)
        assert seconds() < 3 * alone + 0.5


@pytest.mark.parametrize(
    ("script", "line"),
    [("sys.exit('no licence')", "the model cannot be loaded: SystemExit: no licence"),
     ("def model_fn(folder): raise KeyError('weights')", "the model cannot be loaded: KeyError: 'weights'"),
     ("os._exit(0)", "the model's process ended with exit code 0"),
     ("os.abort()", "the model's process ended with signal 6"),
     (f"{FORK}\nfork()\nos._exit(3)", "the model's process ended with exit code 3")],
)  # fmt: skip
def test_a_server_whose_model_cannot_be_loaded_ends_with_1_and_says_why_once(tmp_path, script, line):
    log = refused_start(package(tmp_path, f"{ECHO}\n{script}"))
    assert log.splitlines()[-1].endswith(line)
    assert log.count(line) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_to_both_processes_lets_the_requests_in_progress_complete(tmp_path, number):
    script = "def predict_fn(data, model):\n    time.sleep(2)\n    return data"
    with serving(package(tmp_path, f"{ECHO}\n{script}")) as server, ThreadPoolExecutor(1) as clients:
        answer = clients.submit(server.ask, "hi")
        time.sleep(0.5)
        for process in (model_process(server.process.pid), server.process.pid):
            os.kill(process, number)
        assert answer.result().status == 200
        assert server.process.wait(timeout=30) == 0


def test_a_stop_ends_the_processes_that_an_inference_py_started(tmp_path):
    script = f"{FORK}\ndef model_fn(folder): return fork()\ndef predict_fn(data, model): return model"
    with serving(package(tmp_path, f"{ECHO}\n{script}")) as server:
        started = int(server.ask("hi").body)
        assert runs(started)
        assert server.stop() == 0
        wait_for(lambda: not runs(started))


def test_a_request_whose_model_process_ends_gets_503_at_once_also_if_a_process_has_copies_of_its_descriptors(tmp_path):
    script = f"{FORK}\ndef predict_fn(data, model):\n    fork()\n    os._exit(3)"
    with serving(package(tmp_path, f"{ECHO}\n{script}")) as server:
        began = time.monotonic()
        assert server.ask("hi").status == 503
        assert time.monotonic() - began < 20  # SERVING_GRACE_SECONDS is 25
        assert server.process.wait(timeout=30) == 1


def test_a_request_whose_inference_py_exits_gets_500_and_the_next_request_is_answered(tmp_path):
    script = "def predict_fn(data, model): return sys.exit('why') if data == 'exit' else data"
    with serving(package(tmp_path, f"{ECHO}\n{script}")) as server:
        assert [server.ask(body).status for body in ("exit", "hi")] == [500, 200]
        assert server.log.read_text().count("SystemExit: why") == 1


@pytest.mark.parametrize(
    ("returned", "cause"),
    [
        ("'', None", "output_fn returned None as the Content-Type"),
        ("'', b'text/csv'", "output_fn returned b'text/csv' as the Content-Type"),
        ("'', 'a\\r\\nSet-Cookie: b'", "output_fn returned 'a\\r\\nSet-Cookie: b' as the Content-Type"),
        ("'', 'é'", "output_fn returned 'é' as the Content-Type"),
        ("5", "output_fn returned int as the body; return str or bytes"),
    ],
)
def test_a_result_that_is_no_response_is_an_error_with_a_number_and_a_cause_in_the_log(tmp_path, returned, cause):
    script = f"def output_fn(prediction, accept): return {returned}"
    with serving(package(tmp_path, f"{ECHO}\n{script}")) as server:
        answer = server.ask("hi")
        number = answer.json["error"]["message"].split()[-1]
        assert answer.status == 500
        assert f"request {number} failed" in server.log.read_text()
        assert cause in server.log.read_text()


@pytest.mark.parametrize(("accept", "status"), [("text/pl\xe4in", 406), ("text/plain,\ttext/csv", 200)])
def test_an_accept_header_that_cannot_be_a_content_type_is_the_clients_error(tmp_path, accept, status):
    with serving(package(tmp_path, ECHO)) as server:
        assert server.ask("hi", accept=accept).status == status


def test_a_timeout_in_inference_py_is_an_error_with_its_traceback_in_the_log(tmp_path):
    script = "def predict_fn(data, model): raise TimeoutError('the database')"
    with serving(package(tmp_path, f"{ECHO}\n{script}")) as server:
        assert server.ask("hi").status == 500
        assert "TimeoutError: the database" in server.log.read_text()


def test_the_log_has_each_line_that_an_inference_py_prints_once_after_a_stop(tmp_path):
    script = "print('loaded')\ndef predict_fn(data, model):\n    print('asked')\n    return data"
    with serving(package(tmp_path, f"{ECHO}\n{script}"), PYTHONUNBUFFERED="") as server:
        assert server.ask("hi").status == 200
        assert server.stop() == 0
        lines = server.log.read_text().splitlines()
    assert [sum(line.endswith(text) for line in lines) for text in ("loaded", "asked")] == [1, 1]
    assert sum("serving" in line for line in lines) == 1


def test_requests_get_503_in_time_and_leave_no_descriptors_while_the_models_process_does_not_run(tmp_path):
    root = package(tmp_path, ECHO)
    with (
        serving(root, SERVING_TIMEOUT_SECONDS="2", SERVING_CONCURRENCY="400") as server,
        ThreadPoolExecutor(400) as clients,
    ):
        os.kill(model_process(server.process.pid), signal.SIGSTOP)
        answers = list(clients.map(server.ask, ["hi"] * 400))  # more than the control connection holds
        assert Counter(answer.status for answer in answers) == {503: 400}
        os.kill(model_process(server.process.pid), signal.SIGCONT)
        assert server.ask("hi").status == 200
        wait_for(lambda: descriptors(server.process.pid) < 40)


def test_a_server_whose_model_hangs_writes_where_it_hangs_and_ends_with_1(tmp_path):
    script = "def predict_fn(data, model):\n    while data == 'hang': time.sleep(1)\n    return data"
    with serving(package(tmp_path, f"{ECHO}\n{script}"), SERVING_TIMEOUT_SECONDS="0.3") as server:
        assert server.ask("hi").status == 200
        assert [server.ask("hang").status for _ in range(2)] == [503, 503]
        assert server.process.wait(timeout=30) == 1
        log = server.log.read_text()
    assert "the model hangs: a call runs for more than 3 s" in log
    assert 'inference.py", line 9 in predict_fn' in log


def test_calls_that_follow_each_other_without_a_pause_are_no_hang(tmp_path):
    script = "def predict_fn(data, model):\n    time.sleep(0.9)\n    return data"
    with (
        serving(package(tmp_path, f"{ECHO}\n{script}"), SERVING_TIMEOUT_SECONDS="0.25") as server,
        ThreadPoolExecutor(4) as clients,
    ):
        end = time.monotonic() + 6
        list(clients.map(lambda _: [server.ask("hi") for _ in iter(lambda: time.monotonic() < end, False)], range(4)))
        assert server.process.poll() is None


def test_requests_leave_no_descriptors_behind(tmp_path):
    script = "def predict_fn(data, model): return sys.exit(1) if data == 'exit' else data"
    with serving(package(tmp_path, f"{ECHO}\n{script}")) as server:
        both = (server.process.pid, model_process(server.process.pid))
        server.ask("hi")
        before = [descriptors(process) for process in both]
        for number in range(60):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            connection.request("POST", "/invocations", ("hi", "exit", "x" * 500_000)[number % 3])
            if number % 2:
                connection.getresponse().read()
            connection.close()
        assert server.ask("hi").status == 200
        # Clients that did not wait for their answers had requests in progress at the same time.
        wait_for(lambda: all(descriptors(p) < count + 40 for p, count in zip(both, before)))


def test_a_server_uses_all_descriptors_that_it_may_have(tmp_path):
    with serving(package(tmp_path, ECHO), wrapper=["bash", "-c", 'ulimit -Sn 200; exec "$@"', "bash"]) as server:
        for process in (server.process.pid, model_process(server.process.pid)):
            soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
            assert soft == hard


def test_a_models_process_without_a_free_descriptor_refuses_the_request_and_answers_the_next(tmp_path):
    with serving(package(tmp_path, ECHO)) as server:
        model = model_process(server.process.pid)
        limits = resource.prlimit(model, resource.RLIMIT_NOFILE)
        free = min({*range(100)} - {int(name) for name in os.listdir(f"/proc/{model}/fd")})
        resource.prlimit(model, resource.RLIMIT_NOFILE, (free, limits[1]))
        assert server.ask("hi").status == 503
        resource.prlimit(model, resource.RLIMIT_NOFILE, limits)
        assert server.ask("hi").status == 200


def test_the_process_with_the_sockets_loads_neither_arrow_nor_onnx_runtime(trained_job):
    with serving(trained_job.root) as server:
        processes = (server.process.pid, model_process(server.process.pid))
        mapped = [Path(f"/proc/{process}/maps").read_text() for process in processes]
    for library in ("libarrow", "onnxruntime"):
        assert [library in each for each in mapped] == [False, True]
