"""A running server and requests that no client should send: a status and a reason for each, and never 500."""

import json
import os
import select
import signal
import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from waitress import wasyncore

from container.errors import DeadlineError
from container.serving.application import Application, execution_parameters
from container.serving.errors import RequestError
from container.serving.server import _checked_port, _open, _poll
from contracts.errors import ContractError
from contracts.serving import CSV, JSON, JSON_LINES, PARQUET, ServingSettings
from contracts.steps import BATCH_SCORE
from pipeline.plan import serving_settings
from testing.jobs import table, wait_for
from testing.pipelines import configuration
from testing.serving import Answer, ask, model_process, serving

pytestmark = pytest.mark.slow
RECORD = {"chat": "hello there", "price": 3.5, "quantity": 2, "color": "red"}
SPARSE = {"chat": "hello there"}
PING_SECONDS = 0.1  # the median; a single answer may be late on a busy machine


@pytest.fixture(scope="module")
def server(trained_job):
    with serving(
        trained_job.root, SERVING_MAX_BYTES="200000", SERVING_CONCURRENCY="2", SERVING_MAX_TOKENS="300"
    ) as one:
        yield one


def send(server, data):
    """Send bytes over a new connection: the first answer, and what follows it until the server closes or is silent."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(data)
        response = HTTPResponse(connection, method=data.split(b" ")[0].decode("latin-1"))
        response.begin()
        answer = Answer(
            response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}
        )
        connection.settimeout(0.3)
        try:
            return answer, connection.recv(1000)
        except TimeoutError:
            return answer, None
        except ConnectionResetError:  # the server closed before it had read everything
            return answer, b""


def post(*headers, body=b"", path=b"/invocations"):
    """A request with these headers, as bytes."""
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: x", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def check_error(answer):
    error = answer.json["error"]
    assert answer.headers["content-type"] == JSON
    assert error["status"] == answer.status
    assert error["message"]
    assert error["hint"]


BODY = json.dumps(RECORD).encode()
JSON_TYPE = b"Content-Type: application/json"
LENGTH = b"Content-Length: %d" % len(BODY)
PARAMETERS = b"GET /execution-parameters HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "status", "closes"),
    [(post(JSON_TYPE, LENGTH, body=BODY), 200, False),
     (post(JSON_TYPE, LENGTH, b"Expect: 100-continue", body=BODY), 200, False),
     (post(JSON_TYPE, b"Transfer-Encoding: chunked", body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)), 200, False),
     (post(JSON_TYPE, b"Transfer-Encoding: chunked", body=b"1\r\n%s\r\n0\r\n\r\n" % BODY), 400, True),
     (post(JSON_TYPE, b"Transfer-Encoding: chunked", body=b"-1\r\n"), 400, True),
     (post(JSON_TYPE, b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), 400, True),
     (post(JSON_TYPE, LENGTH, b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"), 400, True),
     (post(JSON_TYPE, b"Transfer-Encoding: chunked", b"Connection: keep-alive").replace(b"1.1", b"1.0"), 400, True),
     (post(JSON_TYPE, b"Content-Length: -1"), 400, True),
     (post(JSON_TYPE, b"Content-Length: 1, 1", body=b"{"), 400, True),
     (post(JSON_TYPE, b"Content-Length: " + b"9" * 5000), 400, True),
     (post(JSON_TYPE, b"Content-Length: 99999999999999"), 413, True),
     (post(JSON_TYPE), 400, False), (post(JSON_TYPE, LENGTH, b"Content-Encoding: br", body=BODY), 415, False),
     (post(b"Content-Type: text/csv; charset*=utf-8''utf-16", LENGTH, body=BODY), 415, False),
     (post(JSON_TYPE, JSON_TYPE, LENGTH, body=BODY), 415, False),
     (post(JSON_TYPE, LENGTH, b"Accept: text/csv; header*=x", body=BODY), 406, False),
     (post(b"X: " + b"y" * 300_000), 431, True), (post(b"No colon"), 400, True), (post(path=b"http://["), 400, True),
     (post(path=b"/\xff"), 400, True), (post(path=b"/%00%ff"), 404, False),
     (b"HEAD /ping HTTP/1.1\r\n\r\n", 200, False), (b"HEAD /invocations HTTP/1.1\r\n\r\n", 405, False),
     (b"OPTIONS * HTTP/1.1\r\n\r\n", 404, False),
     (b"PUT /ping HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 405, False), (b"GET\r\n\r\n", 400, True)],
)  # fmt: skip
def test_a_request_that_is_not_as_in_the_standard_gets_a_reason(server, data, status, closes):
    answer, rest = send(server, data)
    if answer.status != 200 and not data.startswith(b"HEAD"):
        check_error(answer)
    assert answer.status == status
    # What follows a refused request must not be read as the next request.
    assert rest == (b"" if closes else None)


def test_a_head_request_gets_no_body_that_the_next_answer_would_begin_with(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"HEAD /invocations HTTP/1.1\r\n\r\nGET /ping HTTP/1.1\r\nConnection: close\r\n\r\n")
        answers = b"".join(iter(lambda: connection.recv(10_000), b""))
    head, ping = answers.split(b"\r\n\r\n", 1)
    assert b" 405 " in head
    assert ping.startswith(b"HTTP/1.1 200")


TEXTS = st.one_of(
    st.text(max_size=20), st.sampled_from(["\ud800", "\0", "<&" * 500, "[bom][eom]", "x" * 5000, "\U0001f600" * 99])
)
VALUES = st.one_of(
    TEXTS, st.none(), st.booleans(), st.integers(), st.floats(), st.just([1]), st.just({}), st.just(10**400)
)
RECORDS = st.lists(
    st.dictionaries(st.one_of(st.sampled_from(list(RECORD)), TEXTS), VALUES, max_size=5), min_size=1, max_size=4
)
JSON_BODIES = st.one_of(RECORDS, RECORDS.map(lambda records: {"instances": records}), VALUES).map(json.dumps)
LINES = RECORDS.map(lambda records: "\n".join(map(json.dumps, records)))
DEEP = st.sampled_from(["[" * 50_000, '{"a":' * 50_000, '{"chat":' + "[" * 900 + "]" * 900 + "}", '"\\ud800"'])
BODIES = st.one_of(
    st.tuples(st.just(JSON), st.one_of(JSON_BODIES, DEEP)),
    st.tuples(st.just(JSON_LINES), LINES),
    st.tuples(st.just(CSV), st.text(st.sampled_from(list('a1,"\n\r\0.\x85')), max_size=60)),
    st.tuples(st.sampled_from([CSV, JSON, JSON_LINES, PARQUET]), st.binary(max_size=60)),
)
HEADERS = st.one_of(
    st.none(),
    st.sampled_from(
        ["*/*", "text/csv", "text/csv; header=present", "application/jsonlines;q=nan", ";;;", "\xe9", 'a="']
    ),
    st.text(st.characters(max_codepoint=255, exclude_characters="\0\r\n", exclude_categories=["Cc"]), max_size=30),
)


@seed(1)
@settings(max_examples=150, database=None, suppress_health_check=list(HealthCheck))
@given(BODIES, st.one_of(st.none(), HEADERS), HEADERS)
def test_no_request_is_answered_with_500(server, sent, content_type, accept):
    named, body = sent
    body = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    answer = server.ask(body, content_type or named, **({} if accept is None else {"Accept": accept.encode("latin-1")}))
    assert answer.status == 200 or 400 <= answer.status < 500
    if answer.status != 200:
        check_error(answer)
    elif content_type is None and named in (JSON, JSON_LINES):
        assert _answers(answer) == (_records(body) if named == JSON else len(body.splitlines()))


def _records(body):
    content = json.loads(body)
    content = content.get("instances", content) if isinstance(content, dict) and len(content) == 1 else content
    return len(content) if isinstance(content, list) else 1


def _answers(answer):
    if answer.headers["content-type"] == JSON:
        return len(answer.json["predictions"])
    return answer.body.count(b"\n") - answer.body.startswith(b"predicted_label")


def test_requests_that_are_computed_together_do_not_lend_each_other_columns(server):
    with ThreadPoolExecutor(2) as clients:
        answers = [clients.submit(server.ask, json.dumps(one)) for one in (RECORD, {"id": 1}) * 10]
        assert {answer.result().status for answer in answers[1::2]} <= {400, 503}
        assert {answer.result().status for answer in answers[::2]} <= {200, 503}


def test_a_record_with_too_many_tokens_is_refused_with_its_number_and_the_limit(server):
    answer = server.ask(json.dumps([RECORD, {"chat": "<&" * 50_000}]))
    assert answer.status == 413
    check_error(answer)
    error = answer.json["error"]
    assert "record 2: has at least" in error["message"]
    assert "at most 300" in error["message"]
    assert "column 'chat'" in error["message"]
    assert "SERVING_MAX_TOKENS" in error["hint"]
    assert "chunk_trancate" in error["hint"]


def test_a_full_server_answers_503_and_pings_and_ends_in_time_with_an_answer_for_each(trained_job):
    records = json.loads(table(24, seed=2).drop(columns=["label", "order_id"]).to_json(orient="records"))
    with serving(
        trained_job.root, SERVING_CONCURRENCY="1", SERVING_GRACE_SECONDS="0.1", SERVING_BATCH_SIZE="1"
    ) as server:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/invocations", json.dumps(records * 400), {"Content-Type": JSON})
        deadline = time.monotonic() + 20
        time.sleep(1)  # a request before the first one has arrived would take its place
        while (other := server.ask(BODY, accept="x")).status == 406:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert (other.status, other.headers["retry-after"]) == (503, "1")
        check_error(other)
        assert server.ask(content_type=None, method="GET", path="/ping").status == 200
        server.process.terminate()
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Connection")) == (503, "close")
        assert "the server stopped" in json.loads(answer.read())["error"]["message"]
        assert server.process.wait(timeout=20) == 0
        assert "1 requests were not answered within 0.1 s" in server.log.read_text()


class Busy:
    """A host whose requests wait until they are released."""

    healthy = True

    def __init__(self):
        self.released = threading.Event()
        self.accepted = []

    sample_lines = (b"{}\n",)

    def answer(self, *_):
        self.accepted.append(True)
        assert self.released.wait(120)
        return b"{}", JSON, HTTPStatus.OK


@pytest.mark.parametrize("error", [DeadlineError(), RequestError(HTTPStatus.BAD_REQUEST, "too long"), OSError("disk")])
def test_a_measurement_that_fails_is_logged_and_the_defaults_are_answered(error, caplog):
    class Failing(Busy):
        def answer(self, *_):
            raise error

    application, statuses = Application(Failing(), ServingSettings()), []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/execution-parameters", "wsgi.file_wrapper": lambda body: body}
    body = application(environ, lambda status, _: statuses.append(status))
    assert statuses == ["200 OK"]
    assert json.load(body) == execution_parameters(None, ServingSettings())
    assert "the speed could not be measured" in caplog.text
    assert type(error).__name__ in caplog.text


@pytest.mark.parametrize("text", ["abc", "8_0", "65536", "-1", "80.0", "٣"])
def test_a_variable_that_is_no_port_is_named(text):
    with pytest.raises(ContractError, match=f"environment variable SAGEMAKER_BIND_TO_PORT: '{text}' is not a whole"):
        _checked_port(None, {"SAGEMAKER_BIND_TO_PORT": text})


def test_the_port_is_that_of_the_command_line_else_of_the_environment_else_8080():
    environment = {"SAGEMAKER_BIND_TO_PORT": "8123"}
    found = [_checked_port(*given) for given in ((0, environment), (None, environment), (None, {}))]
    assert found == [0, 8123, 8080]


def answered(connections):
    return select.select(connections, [], [], 0)[0]


@contextmanager
def connections(port, number):
    """Yield this number of connections to a server."""
    with ExitStack() as stack:
        open_one = partial(socket.create_connection, ("127.0.0.1", port), timeout=60)
        yield [stack.enter_context(open_one()) for _ in range(number)]


@contextmanager
def busy_server(requests, **settings):
    """Yield a server and its host while each of these requests has a thread or a response, and their connections."""
    host, sockets, stop = Busy(), {}, threading.Event()
    limits = ServingSettings(**settings)
    server = _open(Application(host, limits), sockets, limits, host="127.0.0.1", port=0)

    def loop():
        while not stop.is_set():
            _poll(server, sockets)

    thread = threading.Thread(target=loop)
    thread.start()
    with connections(server.effective_port, len(requests)) as waiting:
        try:
            for connection, request in zip(waiting, requests, strict=True):
                connection.sendall(request)
            wait_for(lambda: server.task_dispatcher.active_count + len(answered(waiting)) >= len(requests))
            yield server, host, waiting
        finally:
            host.released.set()
            stop.set()
            thread.join()
            server.task_dispatcher.shutdown()
            wasyncore.close_all(sockets)


def median_ping(port):
    """Return the median seconds of 51 answers to /ping, each over a new connection."""
    seconds = []
    for _ in range(51):
        began = time.perf_counter()
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"GET /ping HTTP/1.1\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def test_ping_is_answered_while_every_thread_is_busy_and_200_requests_wait():
    requests = [post(JSON_TYPE, LENGTH, body=BODY)] * 200 + [PARAMETERS] * 4
    with busy_server(requests, serving_concurrency=200) as (server, host, waiting):
        assert median_ping(server.effective_port) < PING_SECONDS
        assert answered(waiting) == []
        host.released.set()
        assert all(connection.recv(100).startswith(b"HTTP/1.1 200 OK") for connection in waiting)


@pytest.mark.parametrize("input_filter", [None, "$.features"])
def test_eight_full_payloads_of_a_batch_transform_are_answered_at_once(input_filter):
    section = {"max_payload_mb": 6, "concurrency": 8, "input_filter": input_filter}
    settings = serving_settings(configuration(batch_score=section), BATCH_SCORE)
    settings["serving_max_bytes"] >>= 10
    size = (12 if input_filter else 6) << 10  # of 1 KiB, instead of 1 MiB
    payload = post(JSON_TYPE, b"Content-Length: %d" % size, body=b" " * size)
    with busy_server([payload] * 8, **settings) as (_, host, waiting):
        wait_for(lambda: len(host.accepted) + len(answered(waiting)) == 8)
        assert answered(waiting) == []
        host.released.set()
        assert [connection.recv(12) for connection in waiting] == [b"HTTP/1.1 200"] * 8


def test_ping_is_answered_while_the_models_process_does_not_run_and_200_requests_wait(trained_job):
    with serving(trained_job.root) as server:
        model = model_process(server.process.pid)
        os.kill(model, signal.SIGSTOP)
        with connections(server.port, 200) as waiting:
            for connection in waiting:
                connection.sendall(post(JSON_TYPE, LENGTH, body=BODY))
            assert median_ping(server.port) < PING_SECONDS
            assert answered(waiting) == []
            os.kill(model, signal.SIGCONT)
            assert all(connection.recv(100).startswith(b"HTTP/1.1 200 OK") for connection in waiting)


def test_a_request_that_arrives_byte_by_byte_is_refused_and_others_are_answered(trained_job):
    impatient = {"SERVING_TIMEOUT_SECONDS": "3", "SERVING_CONCURRENCY": "1"}
    with serving(trained_job.root, **impatient) as server, connections(server.port, 8) as slow:
        stop = threading.Event()

        def drip():
            for byte in post(JSON_TYPE, LENGTH, body=BODY):
                for connection in slow:
                    try:
                        connection.send(bytes([byte]))
                    except OSError:
                        return
                if stop.wait(0.3):
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        fast = HTTPConnection("127.0.0.1", server.port, timeout=30)
        assert ask(fast, BODY, JSON).status == 200
        for connection in slow:
            assert connection.recv(100).startswith(b"HTTP/1.0 408 Request Timeout")
        stop.set()
        dripping.join()
        assert ask(fast, BODY, JSON).status == 200
        fast.close()
