"""The WSGI application: GET /ping, POST /invocations, GET /execution-parameters."""

import io
import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, BinaryIO

from waitress.channel import ClientDisconnected

from container.errors import ClientGone
from container.serving.capture import Capture
from container.serving.errors import RequestError, as_request_error, check_limit, error_body
from container.serving.gunzip import Gunzipped
from container.serving.metrics import PROMETHEUS, Latencies, metrics_page
from container.serving.model_process import ModelProcess
from contracts.serving import (
    BODIES,
    JSON,
    JSON_LINES,
    MOST_TRANSFORM_MIB,
    PAYLOAD_MIB,
    TRANSFORM_REQUESTS,
    ServingSettings,
)

logger = logging.getLogger(__name__)

StartResponse = Callable[[str, list[tuple[str, str]]], object]
Response = tuple[HTTPStatus, bytes, str]  # status, body, Content-Type
PING = "/ping"
CLIENT = "container.client"  # the key of the client's socket in the environment of a request
RETRY = ("Retry-After", "1")  # a header of each response 503
_GONE = 499  # nginx's status of a request whose client closed the connection
_REMEMBERED = 100_000  # latencies kept for the log
_MIB = 1 << 20
_SHARE = 0.5  # of the time for a request that the computation of full payloads may take
_MEASURE_SECONDS = 0.5


class Application:
    """Respond to HTTP requests with the answers of the model's process.

    Attributes:
        draining: whether the server is stopping: /ping returns 503, and requests in progress are completed.
        statuses: number of responses to /invocations by status.
    """

    def __init__(self, model: ModelProcess, settings: ServingSettings) -> None:
        self.draining = False
        self.statuses: Counter[int] = Counter()
        self._model = model
        self._settings = settings
        folder = settings.serving_capture
        self._capture = None if folder is None else Capture(folder, settings)
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._latencies = Latencies()
        self._counting, self._measuring = threading.Lock(), threading.Lock()
        self._parameters: bytes | None = None  # of a batch transform
        self._requests, self._bytes = 0, 0  # in progress
        self._routes: dict[str, tuple[str, Callable[[dict[str, Any]], Response]]] = {
            PING: ("GET", self._ping),
            "/invocations": ("POST", self._invocations),
            "/execution-parameters": ("GET", self._execution_parameters),
            **({"/metrics": ("GET", self._metrics)} if settings.serving_metrics else {}),
        }

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        headers: list[tuple[str, str]] = []
        if path not in self._routes:
            known = ", ".join(f"{verb} {name}" for name, (verb, _) in self._routes.items())
            status, body, media_type = _error(HTTPStatus.NOT_FOUND, f"{path} is not known", f"Use one of: {known}.")
        elif method not in self._methods(path):
            allowed = ", ".join(self._methods(path))
            cause = f"{path} does not support {method}"
            status, body, media_type = _error(HTTPStatus.METHOD_NOT_ALLOWED, cause, f"Use {allowed}.")
            headers.append(("Allow", allowed))
        else:
            status, body, media_type = self._routes[path][1](environ)
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(RETRY)
        headers += [("Content-Type", media_type), ("Content-Length", str(len(body)))]
        start_response(f"{status.value} {status.phrase}", headers)
        if method == "HEAD":
            return []  # else the client takes the body for the next response
        return environ["wsgi.file_wrapper"](io.BytesIO(body))  # waitress writes other long bodies to a temporary file

    def summary(self) -> str:
        """Return the number of responses and their latency, as a line for the log."""
        answered = ", ".join(f"{count} with {status}" for status, count in sorted(self.statuses.items())) or "none"
        if not self._seconds:
            return f"requests answered: {answered}"
        ordered = sorted(self._seconds)
        half, most = (1000 * ordered[len(ordered) * percent // 100] for percent in (50, 99))
        return f"requests answered: {answered}; p50 {half:.1f} ms, p99 {most:.1f} ms"

    def _methods(self, path: str) -> tuple[str, ...]:
        method = self._routes[path][0]
        return ("GET", "HEAD") if method == "GET" else (method,)

    def _ping(self, _environ: dict[str, Any]) -> Response:
        if self.draining or not self._model.healthy:
            cause = "the server is stopping" if self.draining else "the model's process has ended"
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, cause)
        return HTTPStatus.OK, b"{}", JSON

    def _execution_parameters(self, _environ: dict[str, Any]) -> Response:
        """Return the settings that a batch transform requests before it starts; the first request measures."""

        def answer() -> tuple[bytes, str, HTTPStatus]:
            with self._measuring:
                if self._parameters is None:
                    self._parameters = json.dumps(execution_parameters(self._rate(), self._settings)).encode()
            return self._parameters, JSON, HTTPStatus.OK

        return self._respond(answer)

    def _rate(self) -> float | None:
        """Return the bytes that the model answers per second; None if that cannot be measured."""
        try:
            return measure(self._model.answer, self._model.sample_lines, max_bytes=self._settings.serving_max_bytes)
        except Exception:
            logger.exception("batch transform: the speed could not be measured; answering the defaults")
            return None

    def _invocations(self, environ: dict[str, Any]) -> Response:
        began = time.perf_counter()
        status, body, media_type = self._respond(partial(self._answer, environ))
        with self._counting:
            self.statuses[status.value] += 1
            seconds = time.perf_counter() - began
            self._seconds.append(seconds)
            self._latencies.add(seconds)
        return status, body, media_type

    def _metrics(self, _environ: dict[str, Any]) -> Response:
        with self._counting:
            gauges = {
                "requests_in_progress": (self._requests, "Requests that are computed or wait for the model."),
                "request_bytes_in_progress": (self._bytes, "Size of their bodies."),
                "up": (int(self._model.healthy and not self.draining), "1: /ping answers with 200."),
            }
            page = metrics_page(self.statuses, self._latencies, gauges)
        return HTTPStatus.OK, page.encode(), PROMETHEUS

    def _answer(self, environ: dict[str, Any]) -> tuple[bytes, str, HTTPStatus]:
        body, headers = environ["wsgi.input"], _headers(environ)
        num_bytes = int(headers.get("Content-Length") or 0)
        check_limit(num_bytes, "bytes", self._settings.serving_max_bytes)
        encoding = headers.pop("Content-Encoding", "").strip().lower()
        if encoding in ("gzip", "x-gzip"):
            body = Gunzipped(body, self._settings.serving_max_bytes)
            num_bytes = body.size
            headers["Content-Length"] = str(num_bytes)
        elif encoding not in ("", "identity"):
            cause = f"Content-Encoding {encoding!r} is not supported"
            raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, cause, "Send gzip, or the body without compression.")
        with self._place(num_bytes):
            answer, media_type, status = self._model.answer(body, headers, environ.get(CLIENT))
            if self._capture is not None and status == HTTPStatus.OK:
                self._capture.add(body, num_bytes, headers, (answer, media_type))
            return answer, media_type, status

    def _respond(self, answer: Callable[[], tuple[bytes, str, HTTPStatus]]) -> Response:
        """Return what `answer` returns, or the response for the error that it raises."""
        try:
            body, media_type, status = answer()
            return status, body, media_type
        except ClientGone as gone:
            with self._counting:
                self.statuses[_GONE] += 1
            raise ClientDisconnected from gone  # which waitress expects
        except Exception as error:
            refused = as_request_error(error, self._settings.serving_timeout_seconds)
            return _error(refused.status, refused.cause, refused.fix)

    @contextmanager
    def _place(self, num_bytes: int) -> Iterator[None]:
        """Count a request as in progress during a `with` block.

        Raises:
            RequestError: 503, too many requests or bytes are in progress.
        """
        with self._counting:
            most = BODIES * self._settings.serving_max_bytes
            if self._requests == self._settings.serving_concurrency or self._bytes + num_bytes > most:
                cause = f"{self._requests} requests with {self._bytes} bytes are in progress"
                raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, cause, "Send the request again, or add instances.")
            self._requests += 1
            self._bytes += num_bytes
        try:
            yield
        finally:
            with self._counting:
                self._requests -= 1
                self._bytes -= num_bytes


def _headers(environ: Mapping[str, Any]) -> dict[str, str]:
    """Return the request's headers, each named as "Content-Type"."""
    named = {name.removeprefix("HTTP_"): value for name, value in environ.items() if name.startswith("HTTP_")}
    named |= {name: environ[name] for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if name in environ}
    return {name.replace("_", "-").title(): value for name, value in named.items()}


def _error(status: HTTPStatus, cause: str, fix: str = "") -> Response:
    return status, error_body(status, cause, fix), JSON


def measure(
    answer: Callable[[BinaryIO, dict[str, str]], object], lines: Sequence[bytes], *, max_bytes: int
) -> float | None:
    """Return how many bytes are answered per second, for the slowest of `lines`; None without lines."""
    rates = []
    for line in lines:
        count, seconds = 1, 0.0
        while seconds < _MEASURE_SECONDS and 2 * count * len(line) <= min(max_bytes, _MIB):
            count *= 2
            began = time.perf_counter()
            answer(io.BytesIO(line * count), {"Content-Type": JSON_LINES, "Accept": JSON_LINES})
            seconds = time.perf_counter() - began
        if seconds:
            rates.append(count * len(line) / seconds)
            logger.info("measured: %.0f records/s of %d bytes", count / seconds, len(line))
    return min(rates, default=None)


def execution_parameters(bytes_per_second: float | None, settings: ServingSettings) -> dict[str, Any]:
    """Return the response to GET /execution-parameters, which a batch transform uses where its user sets nothing.

    All concurrent payloads together take at most half of SERVING_TIMEOUT_SECONDS.
    """
    room = min(MOST_TRANSFORM_MIB, BODIES * settings.serving_max_bytes / _MIB)
    if bytes_per_second is not None:
        room = min(room, _SHARE * settings.serving_timeout_seconds * bytes_per_second / _MIB)
    concurrent = max(1, min(TRANSFORM_REQUESTS, settings.serving_concurrency, int(room)))
    payload = max(1, min(PAYLOAD_MIB, settings.serving_max_bytes // _MIB, int(room / concurrent)))
    if bytes_per_second is not None:
        seconds = concurrent * payload * _MIB / bytes_per_second
        logger.info("batch transform: %d payloads of %d MiB take up to %.1f s", concurrent, payload, seconds)
        if seconds > settings.serving_timeout_seconds:
            logger.warning(
                "batch transform: a payload of 1 MiB can take longer than SERVING_TIMEOUT_SECONDS=%g. Set it, and "
                "InvocationsTimeoutInSeconds of the transform job, to more than %.0f, or use a larger instance.",
                settings.serving_timeout_seconds,
                seconds,
            )
    if settings.serving_max_bytes < _MIB:
        logger.warning(
            "batch transform: a payload of 1 MiB can exceed SERVING_MAX_BYTES=%d. Set it to at least %d.",
            settings.serving_max_bytes,
            _MIB,
        )
    return {"MaxConcurrentTransforms": concurrent, "BatchStrategy": "MULTI_RECORD", "MaxPayloadInMB": payload}
