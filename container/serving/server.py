"""Run the HTTP server (`python -m container serve`), from loading the model to a clean stop."""

import logging
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any

from waitress import wasyncore
from waitress.buffers import OverflowableBuffer
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError, TransferEncodingNotImplemented
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher, WSGITask
from waitress.utilities import Error

from container.processes import available_cores, set_up_logging
from container.serving.application import PING, RETRY, Application
from container.serving.errors import error_body
from container.serving.model_process import MORE_THREADS, STOP_SIGNALS, ModelProcess
from contracts.errors import ContractError
from contracts.serving import JSON, PORT_VARIABLE, ServingSettings

logger = logging.getLogger(__name__)

STOPPED, FAILED = 0, 1
# The server reads a body up to this multiple of the limit, so that the client can read the response. It then closes the
# connection.
_READ_THOUGH_REFUSED = 4
_POLL_SECONDS = 0.1
_REFUSE_SECONDS = 2.0  # to send responses 503 after the grace time
_SPARE_THREADS = 4  # respond to requests beyond SERVING_CONCURRENCY, and to requests other than /invocations
_LEAST_CONNECTIONS = 1000  # a health check must be able to connect while many clients wait
_PER_CONNECTION = 2  # descriptors: the socket, and the temporary file of a body
_PER_COMPUTATION = 2  # further descriptors of a request in progress: a socket pair, one end of which stays open
_OTHER_DESCRIPTORS = 32  # the log, the listening socket, the control connection, and a reserve
_CROWDED = 0.9  # of the most connections; with more, the server closes connections that it could keep
_IDLE_SECONDS = 1.0  # without a request, until a crowded server may close a connection
_CHECK_SECONDS = 0.5  # between two looks at all connections
_WARNING_SECONDS = 60  # between two warnings
_READ_BYTES = 1 << 17  # from a socket at once
_MEMORY_PER_BODY = 1 << 16  # bytes of a body in memory before its request is complete; the rest is in a temporary file
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
    """Close the connection after a response if the server is stopping or crowded."""

    def build_response_header(self) -> bytes:
        server: Any = self.channel.server  # a _Server
        if server.application.draining or server.crowded:
            self.set_close_on_finish()
        return super().build_response_header()


class _Dispatcher(ThreadedTaskDispatcher):
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


class _Server(TcpWSGIServer):
    """Keep room for new connections, such as of a health check; log why one cannot be accepted."""

    _map: dict[int, Any]  # the open sockets; typeshed omits it
    _quiet_until = 0.0

    @property
    def crowded(self) -> bool:
        """Return whether few further connections can be accepted."""
        return len(self._map) > _CROWDED * self.adj.connection_limit  # as waitress counts

    def close_idle(self) -> None:
        """Close the connections that have no request for longest, until half of the most connections are open."""
        channels, most = _channels(self), self.adj.connection_limit
        self.warn(
            "%d sockets are open, of at most %d: closing idle connections\n"
            "Have the clients close connections that they do not use, or add instances.",
            len(self._map),
            most,
        )
        latest = time.time() - _IDLE_SECONDS
        idle = [channel for channel in channels if not _busy(channel) and channel.last_activity < latest]
        idle.sort(key=lambda channel: channel.last_activity)
        for channel in idle[: len(channels) - most // 2]:
            channel.handle_close()

    def accept(self) -> Any:
        try:
            return super().accept()
        except OSError as error:  # EMFILE, ENFILE: the connection stays in the kernel's backlog
            self.warn("no connection can be accepted: %s\nRaise the limit on descriptors (`ulimit -n`).", error)
            time.sleep(_POLL_SECONDS)  # poll() reports the backlog again at once
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
        body = error_body(status, str(error.body), _HINTS.get(status, ""))
        self.status = f"{status.value} {status.phrase}"
        self.response_headers = [("Content-Type", JSON), *([RETRY] if status == _NoRoom.code else [])]
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class _Channel(HTTPChannel):
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


def serve(model: Path, *, port: int, address: str = "0.0.0.0") -> int:
    """Serve a model folder until SIGTERM or SIGINT.

    The port opens after the model is loaded. On a signal, the server completes requests in progress and refuses new
    connections.

    Args:
        model: an unpacked package, or model/ of a job.

    Returns:
        0 after a stop, 1 if the server could not start; the log has the reason.
    """
    set_up_logging()
    logging.getLogger("waitress").setLevel(logging.ERROR)
    for number in STOP_SIGNALS:  # while the model is loaded
        signal.signal(number, _exit)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # a request in progress takes two or three
    began = time.monotonic()
    try:
        settings = ServingSettings.from_environment(os.environ)
        process = ModelProcess(model, timeout=settings.serving_timeout_seconds)
        application = Application(process, settings)
        sockets: dict[int, Any] = {}
        server = _open(application, sockets, settings, address=address, port=port)
    except ContractError as error:
        logger.error("%s", error)
        return FAILED
    logger.info(
        "serving %s on port %s after %.1f s, %d cores",
        model,
        server.effective_port,  # pyright: ignore[reportAttributeAccessIssue]  # typeshed omits it
        time.monotonic() - began,
        available_cores(),
    )
    _serve_until_signal(server, process, sockets, settings.serving_timeout_seconds)
    failed = not process.healthy
    if failed:
        logger.error("%s", process.end_cause())
        process.close()  # processes that it started have its connections too
    else:
        logger.info("stopping on request; completing requests in progress")
    application.draining = True
    _drain(server, process, sockets, settings.serving_grace_seconds)
    logger.info("stopped; %s", application.summary())
    return FAILED if failed else STOPPED


def _open(
    application: Application, sockets: dict[int, Any], settings: ServingSettings, *, address: str, port: int
) -> _Server:
    concurrency = settings.serving_concurrency
    if not 0 <= port < 1 << 16:  # the C library would take the rest of a division
        raise ContractError(f"port {port}: is not between 0 and 65535", f"Set --port, or {PORT_VARIABLE}, to a port.")
    dispatcher = _Dispatcher()
    try:
        dispatcher.set_thread_count(concurrency + _SPARE_THREADS)
    except RuntimeError as error:  # the limit on processes
        thread = f"thread {len(dispatcher.threads)} of {concurrency + _SPARE_THREADS}"
        raise ContractError(f"SERVING_CONCURRENCY is {concurrency}: {thread}: {error}", MORE_THREADS) from error
    try:
        server = _Server(
            application,
            sockets,
            dispatcher=dispatcher,
            host=address,
            port=port,
            connection_limit=_connection_limit(concurrency),
            backlog=2048,
            recv_bytes=_READ_BYTES,
            inbuf_overflow=_MEMORY_PER_BODY,
            max_request_body_size=_READ_THOUGH_REFUSED * settings.serving_max_bytes,
            asyncore_use_poll=True,  # select() ends at 1024 descriptors
            ident=None,
            clear_untrusted_proxy_headers=False,  # the application reads no proxy headers
        )
    except OSError as error:
        raise ContractError(f"port {port}: cannot be opened: {error}", "Set a --port that no process uses.") from error
    server.channel_class = _Channel
    return server


def _connection_limit(concurrency: int) -> int:
    """Return the most connections that may be open, so that the descriptors suffice for each and its request.

    Raises:
        ContractError: they do not suffice for `concurrency` requests in progress.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = concurrency + _SPARE_THREADS
    reserved = _OTHER_DESCRIPTORS + _PER_COMPUTATION * least
    needed = reserved + _PER_CONNECTION * least
    if needed > descriptors:
        raise ContractError(
            f"SERVING_CONCURRENCY is {concurrency}: it needs {needed} descriptors; the limit is {descriptors}",
            f"Raise the limit (`ulimit -n {needed}`, `docker run --ulimit nofile={needed}`), or lower "
            "SERVING_CONCURRENCY.",
        )
    return min(max(_LEAST_CONNECTIONS, 4 * concurrency + 100), (descriptors - reserved) // _PER_CONNECTION)


def _serve_until_signal(server: _Server, process: ModelProcess, sockets: dict[int, Any], most_seconds: float) -> None:
    """Serve until a signal or the end of the model's process; refuse requests that take too long to arrive."""
    stop = threading.Event()
    checked = time.monotonic()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: stop.set())
    while not stop.is_set() and process.healthy:
        _poll(server, sockets)
        if time.monotonic() - checked > _CHECK_SECONDS:
            checked = time.monotonic()
            for channel in _channels(server):
                channel.refuse_if_slow(most_seconds)
            if server.crowded:
                server.close_idle()


def _poll(server: _Server, sockets: dict[int, Any]) -> None:
    """Read from the sockets and write to them, or wait for a moment; accept connections; answer /ping."""
    known = len(_channels(server))
    wasyncore.loop(_POLL_SECONDS, use_poll=True, map=sockets, count=1)
    if len(_channels(server)) > known:  # waitress accepts one in a loop
        _accept_backlog(server)
    dispatcher: Any = server.task_dispatcher  # a _Dispatcher
    dispatcher.answer_pings()


def _drain(server: _Server, process: ModelProcess, sockets: dict[int, Any], grace: float) -> None:
    """Complete requests in progress for at most `grace` seconds; then answer the others with status 503."""
    _accept_backlog(server)
    wasyncore.dispatcher.close(server)  # the listening socket only; the threads' wake-up socket stays open
    unanswered = _wait_for_answers(server, sockets, grace)
    if unanswered:
        logger.warning("%d requests were not answered within %g s", unanswered, grace)
    process.close()
    _wait_for_answers(server, sockets, _REFUSE_SECONDS)
    server.task_dispatcher.shutdown(timeout=1)
    wasyncore.close_all(sockets)


def _wait_for_answers(server: _Server, sockets: dict[int, Any], seconds: float) -> int:
    """Return the number of requests that are not answered after `seconds` seconds at most."""
    deadline = time.monotonic() + seconds
    quiet = 0
    # Two idle checks: data sent just before the first is still in the kernel.
    while quiet < 2 and time.monotonic() < deadline:
        _poll(server, sockets)
        quiet = 0 if any(map(_busy, _channels(server))) else quiet + 1
    return sum(map(_busy, _channels(server)))


def _accept_backlog(server: _Server) -> None:
    """Accept the connections that are already in the kernel's backlog."""
    known = -1
    while known < len(_channels(server)) and server.readable():
        known = len(_channels(server))
        server.handle_accept()


def _channels(server: _Server) -> list[_Channel]:
    by_descriptor: Any = server.active_channels  # a dict; typeshed declares a channel
    return list(by_descriptor.values())


def _busy(channel: _Channel) -> bool:
    return bool(channel.requests or channel.request is not None or channel.total_outbufs_len)


def _exit(_number: int, _frame: FrameType | None) -> None:
    sys.exit(STOPPED)
