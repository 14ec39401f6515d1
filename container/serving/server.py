"""Run the HTTP server (`python -m container serve`), from loading the model to a clean stop."""

import logging
import signal
import sys
import threading
import time
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any

from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import BaseWSGIServer, create_server
from waitress.task import ErrorTask, WSGITask

from container.processes import available_cores, set_up_logging
from container.serving import handler
from container.serving.application import Application
from container.serving.errors import error_body
from container.serving.hosting import load_host
from contracts.errors import ContractError
from contracts.serving import JSON, ServingSettings

logger = logging.getLogger(__name__)

STOPPED, FAILED = 0, 1
# The server reads a body up to this multiple of the limit, so that the client can read the response. It then closes the
# connection.
_READ_THOUGH_REFUSED = 4
_POLL_SECONDS = 0.1


class _AnswerTask(WSGITask):
    """Close the connection after a response if the server is stopping."""

    def execute(self) -> None:
        application: Any = self.channel.server.application  # an Application
        if application.draining:
            self.set_close_on_finish()
        super().execute()


class _RefusalTask(ErrorTask):
    """Return JSON also for requests that waitress refuses."""

    def execute(self) -> None:
        error: Any = self.request.error  # pyright: ignore[reportAttributeAccessIssue]  # typeshed omits it
        status = HTTPStatus(error.code)
        body = error_body(status, str(error.body))
        self.status = f"{status.value} {status.phrase}"
        self.response_headers = [("Content-Type", JSON)]
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class _Channel(HTTPChannel):
    task_class = _AnswerTask
    error_task_class = _RefusalTask


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
    signal.signal(signal.SIGTERM, _exit)  # while the model is loaded
    began = time.monotonic()
    try:
        settings = handler.settings()
        host = load_host(model)
        application = Application(host, settings)
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
    _run(server, application, sockets, settings.serving_grace_seconds)
    host.close()
    logger.info("stopped; %s", application.summary())
    return STOPPED


def _open(
    application: Application, sockets: dict[int, Any], settings: ServingSettings, *, address: str, port: int
) -> BaseWSGIServer:
    try:
        server = create_server(
            application,
            sockets,
            host=address,
            port=port,
            threads=settings.serving_concurrency,
            connection_limit=4 * settings.serving_concurrency + 100,
            backlog=2048,
            max_request_body_size=_READ_THOUGH_REFUSED * settings.serving_max_bytes,
            asyncore_use_poll=True,  # select() ends at 1024 descriptors
            ident=None,
            clear_untrusted_proxy_headers=False,  # the application reads no proxy headers
        )
    except OSError as error:
        raise ContractError(f"port {port}: cannot be opened: {error}", "Set a --port that no process uses.") from error
    assert isinstance(server, BaseWSGIServer)  # one socket: `address` is an address, not a name
    server.channel_class = _Channel
    return server


def _run(server: BaseWSGIServer, application: Application, sockets: dict[int, Any], grace: float) -> None:
    """Serve until a signal; then complete requests in progress, for at most `grace` seconds."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    while not stop.is_set():
        wasyncore.loop(_POLL_SECONDS, use_poll=True, map=sockets, count=1)
    logger.info("stopping on request; completing requests in progress")
    application.draining = True
    _accept_backlog(server)
    wasyncore.dispatcher.close(server)  # the listening socket only; the threads' wake-up socket stays open
    deadline = time.monotonic() + grace
    quiet = 0
    # Two idle checks: data sent just before the first is still in the kernel.
    while quiet < 2 and time.monotonic() < deadline:
        wasyncore.loop(_POLL_SECONDS, use_poll=True, map=sockets, count=1)
        quiet = 0 if any(map(_busy, _channels(server))) else quiet + 1
    unanswered = sum(map(_busy, _channels(server)))
    if unanswered:
        logger.warning("%d requests were not answered within %g s", unanswered, grace)
    server.task_dispatcher.shutdown(timeout=1)
    wasyncore.close_all(sockets)


def _accept_backlog(server: BaseWSGIServer) -> None:
    """Accept the connections that are already in the kernel's backlog."""
    known = -1
    while known < len(_channels(server)):
        known = len(_channels(server))
        server.handle_accept()


def _channels(server: BaseWSGIServer) -> list[HTTPChannel]:
    by_descriptor: Any = server.active_channels  # a dict; typeshed declares a channel
    return list(by_descriptor.values())


def _busy(channel: HTTPChannel) -> bool:
    return bool(channel.requests or channel.request is not None or channel.total_outbufs_len)


def _exit(_number: int, _frame: FrameType | None) -> None:
    sys.exit(STOPPED)
