"""The connections of the HTTP server: waitress's classes, changed so that no client can block the others."""

import logging
import tempfile
import time
from collections import deque
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from waitress.buffers import OverflowableBuffer
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError, TransferEncodingNotImplemented
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher, WSGITask
from waitress.utilities import Error

from container.serving.application import CLIENT, PING, RETRY
from container.serving.errors import above_limit, error_body
from contracts.serving import JSON

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
# The server reads a body up to this multiple of the limit, so that the client can read the response. It then closes the
# connection.
READ_THOUGH_REFUSED = 4
_CROWDED = 0.9  # of the most connections; with more, the server closes connections that it could keep
_IDLE_SECONDS = 1.0  # without a request, until a crowded server may close a connection
_WARNING_SECONDS = 60  # between two warnings
_HINTS = {
    HTTPStatus.BAD_REQUEST: "Send a request as in RFC 9112, with Content-Length or Transfer-Encoding: chunked.",
    HTTPStatus.REQUEST_TIMEOUT: "Send the request faster, or in several requests.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "Send the records in several requests.",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "Send fewer or shorter headers.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Send the request again, or in several smaller requests.",
}


class _Body(OverflowableBuffer):
    """Drop a body for which the temporary folder has no room, so that the client can send it and read the response.

    Attributes:
        error: why the body is lost, or None.
    """

    error: OSError | None = None

    def append(self, s: bytes) -> None:
        if self.error is None:
            try:
                super().append(s)
            except OSError as error:
                self.error = error
                with suppress(OSError):  # the file's buffer still has bytes, which have no room
                    self.close()


class _NoRoom(Error):
    code, reason = HTTPStatus.SERVICE_UNAVAILABLE.value, HTTPStatus.SERVICE_UNAVAILABLE.phrase


class _Parser(HTTPRequestParser):
    """Respond with status 400 also where waitress raises an exception of Python, or responds with 501.

    Respond with status 503 to a request whose body cannot be written to a temporary file.
    """

    def received(self, data: bytes) -> int:
        consumed = super().received(data)
        if self.completed and self.error is None and self.body_rcv is not None:
            body: Any = self.body_rcv.getbuf()  # a _Body
            if body.error is not None:
                logger.warning(
                    "a request gets status 503: its body cannot be written to %s: %s\n"
                    "Free space there, set TMPDIR to another folder, or lower SERVING_MAX_BYTES.",
                    tempfile.gettempdir(),
                    body.error,
                )
                self.error = _NoRoom("the server has no room for the body")
        return consumed

    def parse_header(self, header_plus: bytes) -> None:
        try:
            super().parse_header(header_plus)
        except TransferEncodingNotImplemented as error:
            raise ParsingError(str(error)) from error
        except ValueError as error:  # a URI with "[", a Content-Length of more than 4300 digits
            raise ParsingError(f"Start line or Content-Length is invalid: {error}") from error
        # Proxies disagree about where such a request ends (RFC 9112, 6.1 and 6.3).
        if "TRANSFER_ENCODING" in self.headers or (self.chunked and "CONTENT_LENGTH" in self.headers):
            raise ParsingError("Transfer-Encoding together with Content-Length, or in another version than HTTP/1.1")
        if self.body_rcv is not None:
            self.body_rcv.buf = _Body(self.adj.inbuf_overflow)


class _TooSlow(Error):
    code, reason = HTTPStatus.REQUEST_TIMEOUT.value, HTTPStatus.REQUEST_TIMEOUT.phrase


class _AnswerTask(WSGITask):
    """Close the connection after a response if the server is stopping or crowded; tell the application the client."""

    def get_environment(self) -> dict[str, Any]:
        return {**super().get_environment(), CLIENT: self.channel.socket}

    def build_response_header(self) -> bytes:
        server: Any = self.channel.server  # a Server
        if server.application.draining or server.crowded:
            self.set_close_on_finish()
        return super().build_response_header()


class Dispatcher(ThreadedTaskDispatcher):
    """Keep requests of /ping for the thread that reads from the sockets, because all other threads may be busy.

    Only the one request of a connection that has taken all earlier responses: that thread must not wait for a client.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pings: deque[HTTPChannel] = deque()

    def add_task(self, task: Any) -> None:  # an HTTPChannel, whose first request is complete
        request = task.requests[0]
        is_alone = len(task.requests) == 1 and not task.total_outbufs_len
        if request.error is None and request.path == PING and is_alone:
            self._pings.append(task)
        else:
            super().add_task(task)

    def answer_pings(self) -> None:
        while self._pings:
            self._pings.popleft().service()


class Server(TcpWSGIServer):
    """Keep room for new connections, such as of a health check; log why one cannot be accepted."""

    _map: dict[int, Any]  # the open sockets; typeshed omits it
    _quiet_until = 0.0

    @property
    def crowded(self) -> bool:
        """Return whether few further connections can be accepted."""
        return len(self._map) > _CROWDED * self.adj.connection_limit  # as waitress counts

    def close_idle(self) -> None:
        """Close the connections that have no request for longest, until half of the most connections are open."""
        channels, most = open_channels(self), self.adj.connection_limit
        self.warn(
            "%d sockets are open, of at most %d: closing idle connections\n"
            "Have the clients close connections that they do not use, or add instances.",
            len(self._map),
            most,
        )
        latest = time.time() - _IDLE_SECONDS  # noqa: TID251 - the clock of waitress
        idle = [channel for channel in channels if not is_busy(channel) and channel.last_activity < latest]
        idle.sort(key=lambda channel: channel.last_activity)
        for channel in idle[: len(channels) - most // 2]:
            channel.handle_close()

    def accept(self) -> Any:
        try:
            return super().accept()
        except OSError as error:  # EMFILE, ENFILE: the connection stays in the kernel's backlog
            self.warn("no connection can be accepted: %s\nRaise the limit on descriptors (`ulimit -n`).", error)
            time.sleep(POLL_SECONDS)  # poll() reports the backlog again at once
            return None

    def warn(self, message: str, *values: object) -> None:
        """Log a warning, at most one a minute."""
        if time.monotonic() > self._quiet_until:
            self._quiet_until = time.monotonic() + _WARNING_SECONDS
            logger.warning(message, *values)


class _RefusalTask(ErrorTask):
    """Return JSON also for requests that waitress refuses."""

    def execute(self) -> None:
        error: Any = self.request.error  # pyright: ignore[reportAttributeAccessIssue]  # typeshed omits it
        status = HTTPStatus(error.code)
        cause = str(error.body)
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:  # waitress names the limit up to which it reads
            received: int = self.channel.adj.max_request_body_size  # pyright: ignore[reportAttributeAccessIssue]  # typeshed omits it
            cause = above_limit(received, "bytes", received // READ_THOUGH_REFUSED)
        body = error_body(status, cause, _HINTS.get(status, ""))
        self.status = f"{status.value} {status.phrase}"
        self.response_headers = [("Content-Type", JSON), *([RETRY] if status == _NoRoom.code else [])]
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class Channel(HTTPChannel):
    """A connection that refuses requests in JSON, also one that takes too long to arrive.

    Attributes:
        receiving_since: when the first bytes of the current request arrived, of time.monotonic().
    """

    parser_class = _Parser
    task_class = _AnswerTask
    error_task_class = _RefusalTask
    receiving_since = 0.0

    def received(self, data: bytes) -> bool:
        """Note when the first bytes of a request arrive."""
        request = self.request
        complete = super().received(data)
        if self.request is not request:
            self.receiving_since = time.monotonic()
        return complete

    def refuse_if_slow(self, seconds: float) -> None:
        """Respond with status 408 if the current request began to arrive `seconds` ago."""
        with self.requests_lock:  # pyright: ignore[reportAttributeAccessIssue]  # typeshed omits it
            request: Any = self.request
            if request is None or self.requests or time.monotonic() - self.receiving_since < seconds:
                return
            request.error = _TooSlow(f"the request did not arrive within {seconds:g} s")
            request.completed = True
            self.requests = [request]
            self.request = None
            server: Any = self.server
            server.add_task(self)


def open_channels(server: Server) -> list[Channel]:
    """Return the open connections."""
    by_descriptor: Any = server.active_channels  # a dict; typeshed declares a channel
    return list(by_descriptor.values())


def is_busy(channel: Channel) -> bool:
    """Return whether a request is arriving, or a response is not sent completely."""
    return bool(channel.requests or channel.request is not None or channel.total_outbufs_len)
