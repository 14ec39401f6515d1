"""The WSGI application: GET /ping, POST /invocations, GET /execution-parameters."""

import json
import logging
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

import numpy as np

from container.serving.errors import RequestError, error_body
from container.serving.hosting import Host
from container.serving.requests import check_size
from contracts.errors import ContractError
from contracts.serving import JSON, ServingSettings

logger = logging.getLogger(__name__)

StartResponse = Callable[[str, list[tuple[str, str]]], object]
_REMEMBERED = 100_000  # latencies kept for the log


class Application:
    """Answer HTTP requests with a host.

    Attributes:
        draining: the server is stopping: /ping answers 503, requests in progress are still answered.
        statuses: number of answers to /invocations by status.
    """

    def __init__(self, host: Host, settings: ServingSettings) -> None:
        self.draining = False
        self.statuses: Counter[int] = Counter()
        self._host = host
        self._settings = settings
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._counting = threading.Lock()
        self._routes: dict[str, tuple[str, Callable[[dict[str, Any]], tuple[HTTPStatus, bytes, str]]]] = {
            "/ping": ("GET", self._ping),
            "/invocations": ("POST", self._invocations),
            "/execution-parameters": ("GET", self._execution_parameters),
        }

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        headers: list[tuple[str, str]] = []
        if path not in self._routes:
            known = ", ".join(f"{verb} {name}" for name, (verb, _) in self._routes.items())
            status, media_type = HTTPStatus.NOT_FOUND, JSON
            body = error_body(status, f"{path} is not known", f"Use one of: {known}.")
        elif method != self._routes[path][0]:
            allowed = self._routes[path][0]
            status, media_type = HTTPStatus.METHOD_NOT_ALLOWED, JSON
            body = error_body(status, f"{path} takes no {method}", f"Use {allowed}.")
            headers.append(("Allow", allowed))
        else:
            status, body, media_type = self._routes[path][1](environ)
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("Retry-After", "1"))
        headers += [("Content-Type", media_type), ("Content-Length", str(len(body)))]
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    def summary(self) -> str:
        """Return the number of answers so far and their latency, as a line for the log."""
        answered = ", ".join(f"{count} with {status}" for status, count in sorted(self.statuses.items())) or "none"
        if not self._seconds:
            return f"requests answered: {answered}"
        half, most = np.percentile(np.array(self._seconds), [50, 99]) * 1000
        return f"requests answered: {answered}; p50 {half:.1f} ms, p99 {most:.1f} ms"

    def _ping(self, _environ: dict[str, Any]) -> tuple[HTTPStatus, bytes, str]:
        if self.draining or not self._host.healthy:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            return status, error_body(status, "stopping" if self.draining else "the model's worker has ended"), JSON
        return HTTPStatus.OK, b"{}", JSON

    def _execution_parameters(self, _environ: dict[str, Any]) -> tuple[HTTPStatus, bytes, str]:
        """Answer the request that a batch transform sends before it starts."""
        parameters = {
            "MaxConcurrentTransforms": min(100, self._settings.serving_concurrency),  # the service's limit
            "BatchStrategy": "MULTI_RECORD",
            "MaxPayloadInMB": min(100, max(1, self._settings.serving_max_bytes >> 20)),
        }
        return HTTPStatus.OK, json.dumps(parameters).encode(), JSON

    def _invocations(self, environ: dict[str, Any]) -> tuple[HTTPStatus, bytes, str]:
        began = time.perf_counter()
        status, body, media_type = self._answer(environ)
        with self._counting:
            self.statuses[status.value] += 1
            self._seconds.append(time.perf_counter() - began)
        return status, body, media_type

    def _answer(self, environ: dict[str, Any]) -> tuple[HTTPStatus, bytes, str]:
        try:
            check_size(int(environ.get("CONTENT_LENGTH") or 0), self._settings)
            encoding = environ.get("HTTP_CONTENT_ENCODING", "identity")
            if encoding.strip().lower() not in ("", "identity"):
                raise RequestError(
                    HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Encoding {encoding!r} is not read", "Send it plain."
                )
            body, media_type = self._host.answer(
                environ["wsgi.input"].read(), environ.get("CONTENT_TYPE"), environ.get("HTTP_ACCEPT")
            )
            return HTTPStatus.OK, body, media_type
        except RequestError as error:
            return error.status, error_body(error.status, error.cause, error.fix), JSON
        except ContractError as error:
            status = HTTPStatus.BAD_REQUEST
            return status, error_body(status, error.cause, error.fix), JSON
        except TimeoutError:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            waited = f"not computed within {self._settings.serving_timeout_seconds:g} s"
            return status, error_body(status, waited, "Send fewer records at once, or add instances."), JSON
        except Exception:
            number = uuid.uuid4().hex[:12]
            logger.exception("request %s failed", number)
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            return status, error_body(status, f"an error of the server; its log has it as request {number}"), JSON
