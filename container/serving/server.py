"""Run the HTTP server (`python -m container serve`), from loading the model to a clean stop."""

import logging
import os
import resource
import time
from argparse import ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from waitress import wasyncore

from container.cores import available_cores
from container.job.processes import set_up_logging
from container.serving.application import Application
from container.serving.connections import (
    POLL_SECONDS,
    READ_THOUGH_REFUSED,
    Channel,
    Dispatcher,
    Server,
    is_busy,
    open_channels,
)
from container.serving.model_process import MORE_THREADS, ModelProcess
from contracts.declaration import checked_number
from contracts.errors import ContractError
from contracts.program import COMPLETED, FAILED, StopHandler, Stopped, handle_stops
from contracts.serving import HOST, PORT, PORT_VARIABLE, VARIABLE_PREFIX, ServingSettings
from contracts.spelling import did_you_mean
from contracts.value_types import Port

logger = logging.getLogger(__name__)

_REFUSE_SECONDS = 2.0  # to send responses 503 after the grace time
_SPARE_THREADS = 4  # respond to requests beyond SERVING_CONCURRENCY, and to requests other than /invocations
_LEAST_CONNECTIONS = 1000  # a health check must be able to connect while many clients wait
_PER_CONNECTION = 2  # descriptors: the socket, and the temporary file of a body
_PER_COMPUTATION = 2  # further descriptors of a request in progress: a socket pair, one end of which stays open
_OTHER_DESCRIPTORS = 32  # the log, the listening socket, the control connection, and a reserve
_CHECK_SECONDS = 0.5  # between two looks at all connections
_READ_BYTES = 1 << 17  # from a socket at once
_MEMORY_PER_BODY = 1 << 16  # bytes of a body in memory before its request is complete; the rest is in a temporary file


def serve(model: Path, *, port: int | None = None, host: str = HOST) -> int:
    """Serve a model folder until SIGTERM or SIGINT.

    The port opens after the model is loaded. On a signal, the server completes requests in progress and refuses new
    connections.

    Args:
        model: an unpacked package, or model/ of a job.
        port: None = the variable PORT_VARIABLE, else PORT.
        host: the address to listen on.

    Returns:
        0 after a stop, 1 if the server could not start; the log has the reason.
    """
    set_up_logging()
    logging.getLogger("waitress").setLevel(logging.ERROR)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # a request in progress takes two or three
    began = time.monotonic()
    stop = StopHandler()
    handle_stops(stop)
    try:
        settings = ServingSettings.from_environment(os.environ)
        port = _checked_port(port, os.environ)
        _warn_about_unknown_settings(os.environ)
        process = ModelProcess(model, timeout=settings.serving_timeout_seconds)
        application = Application(process, settings)
        sockets: dict[int, Any] = {}
        server = _open(application, sockets, settings, host=host, port=port)
        stop.interrupts = False
    except Stopped:
        return COMPLETED
    except ContractError as error:
        logger.error("%s", error)
        return FAILED
    logger.info(
        "serving %s at %s on port %s after %.1f s, %d cores",
        model,
        host,
        server.effective_port,  # pyright: ignore[reportAttributeAccessIssue]  # typeshed omits it
        time.monotonic() - began,
        available_cores(),
    )
    _serve_until(stop, server, process, sockets, most_seconds=settings.serving_timeout_seconds)
    failed = not process.healthy
    if failed:
        logger.error("%s", process.end_cause())
        process.close()  # processes that it started have its connections too
    else:
        logger.info("stopping on request; completing requests in progress")
    application.draining = True
    _drain(server, process, sockets, settings.serving_grace_seconds)
    logger.info("stopped; %s", application.summary())
    return FAILED if failed else COMPLETED


def _warn_about_unknown_settings(environment: Mapping[str, str]) -> None:
    known = ServingSettings.variables()
    for name in sorted(environment):
        if name.startswith(VARIABLE_PREFIX) and name not in known:
            logger.warning("environment variable %s: is not a setting of the server%s", name, did_you_mean(name, known))


def _checked_port(given: int | None, environment: Mapping[str, str]) -> int:
    """Return the port to open: the given one, that of the environment, or the default."""
    text = environment.get(PORT_VARIABLE, "").strip()
    if given is not None or not text:
        return PORT if given is None else given
    try:
        return checked_number(text, kind=Port)
    except ArgumentTypeError as error:
        raise ContractError(
            f"environment variable {PORT_VARIABLE}: {error}", "Set it to the number of a port."
        ) from None


def _open(
    application: Application, sockets: dict[int, Any], settings: ServingSettings, *, host: str, port: int
) -> Server:
    concurrency = settings.serving_concurrency
    dispatcher = Dispatcher()
    try:
        dispatcher.set_thread_count(concurrency + _SPARE_THREADS)
    except RuntimeError as error:  # the limit on processes
        thread = f"thread {len(dispatcher.threads)} of {concurrency + _SPARE_THREADS}"
        raise ContractError(f"SERVING_CONCURRENCY is {concurrency}: {thread}: {error}", MORE_THREADS) from error
    try:
        server = Server(
            application,
            sockets,
            dispatcher=dispatcher,
            host=host,
            port=port,
            connection_limit=_connection_limit(concurrency),
            backlog=2048,
            recv_bytes=_READ_BYTES,
            inbuf_overflow=_MEMORY_PER_BODY,
            max_request_body_size=READ_THOUGH_REFUSED * settings.serving_max_bytes,
            asyncore_use_poll=True,  # select() ends at 1024 descriptors
            ident=None,
            clear_untrusted_proxy_headers=False,  # the application reads no proxy headers
        )
    except (OSError, ValueError) as error:  # waitress raises ValueError for a host that it cannot resolve
        fix = "Set a --host of this machine, and a --port that no process uses."
        raise ContractError(f"{host}, port {port}: cannot be opened: {error}", fix) from error
    server.channel_class = Channel
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


def _serve_until(
    stop: StopHandler, server: Server, process: ModelProcess, sockets: dict[int, Any], *, most_seconds: float
) -> None:
    """Serve until a signal or the end of the model's process; refuse requests that take too long to arrive."""
    checked = time.monotonic()
    while not stop.requested and process.healthy:
        _poll(server, sockets)
        if time.monotonic() - checked > _CHECK_SECONDS:
            checked = time.monotonic()
            for channel in open_channels(server):
                channel.refuse_if_slow(most_seconds)
            if server.crowded:
                server.close_idle()


def _poll(server: Server, sockets: dict[int, Any]) -> None:
    """Read from the sockets and write to them, or wait for a moment; accept connections; answer /ping."""
    known = len(open_channels(server))
    wasyncore.loop(POLL_SECONDS, use_poll=True, map=sockets, count=1)
    if len(open_channels(server)) > known:  # waitress accepts one in a loop
        _accept_backlog(server)
    dispatcher: Any = server.task_dispatcher  # a Dispatcher
    dispatcher.answer_pings()


def _drain(server: Server, process: ModelProcess, sockets: dict[int, Any], grace: float) -> None:
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


def _wait_for_answers(server: Server, sockets: dict[int, Any], seconds: float) -> int:
    """Return the number of requests that are not answered after `seconds` seconds at most."""
    deadline = time.monotonic() + seconds
    quiet = 0
    # Two idle checks: data sent just before the first is still in the kernel.
    while quiet < 2 and time.monotonic() < deadline:
        _poll(server, sockets)
        quiet = 0 if any(map(is_busy, open_channels(server))) else quiet + 1
    return sum(map(is_busy, open_channels(server)))


def _accept_backlog(server: Server) -> None:
    """Accept the connections that are already in the kernel's backlog."""
    known = -1
    while known < len(open_channels(server)) and server.readable():
        known = len(open_channels(server))
        server.handle_accept()
