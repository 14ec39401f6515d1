"""Run the model in a process of its own, so that its work does not delay the process that answers /ping."""

import atexit
import faulthandler
import io
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from container.errors import ClientGone, DeadlineError
from container.serving.errors import RequestError, as_request_error
from container.serving.gunzip import Body
from contracts.errors import ContractError, first_line
from contracts.program import FAILED, die_with_parent, end_process, handle_stops

if TYPE_CHECKING:
    from container.serving.runner import Runner

logger = logging.getLogger(__name__)

# Threads need the interpreter again after each system call. Python's default is 5 ms.
_SWITCH_SECONDS = 0.0005
_NICE = 5  # the server's process gets a core at once; raising this value needs no privilege
_BLOCK_BYTES = 1 << 18  # of a body that is copied
_POLL_SECONDS = 0.1
MORE_THREADS = "Raise the limit on processes (`ulimit -u`, `docker run --pids-limit`), or lower SERVING_CONCURRENCY."
_MOST_TIMEOUTS = 10  # a call that runs longer than this many time limits hangs


class ModelProcess:
    """A process that loads a model folder and answers requests.

    It leads a process group, to which the processes that a package's own inference.py starts belong too.

    Each request in progress has a connection, a socket pair, which later requests use again. The process receives its
    end through a control connection. It reads a header and a body, and writes a header and a body.

    Attributes:
        sample_lines: JSON Lines of typical records, to measure how fast they are answered.
    """

    def __init__(self, folder: Path, *, timeout: float) -> None:
        """Start the process and wait until it has loaded the model. It ends when this process exits.

        Args:
            timeout: the most seconds in which a request is answered.

        Raises:
            ContractError: the model cannot be served, or the process ended.
        """
        self._timeout = timeout
        self._closed = False
        self._idle: deque[socket.socket] = deque()
        self._control, control = socket.socketpair()
        server = os.getpid()
        try:
            self._process_id = os.fork()
        except OSError as error:
            raise ContractError(f"the model's process cannot be started: {error}", MORE_THREADS) from error
        if not self._process_id:
            self._control.close()
            _run(folder, control, timeout, server)
        os.setpgid(self._process_id, self._process_id)
        control.close()
        atexit.register(self.close)
        while not select.select([self._control], [], [], _POLL_SECONDS)[0]:
            if not self.healthy:  # processes that it started have the control connection too
                self.close()
        try:
            loaded, _ = _receive(self._control)
        except ConnectionError as error:
            raise ContractError(self.end_cause()) from error
        if "cause" in loaded:
            raise ContractError(loaded["cause"], loaded["fix"])
        self.sample_lines = [line.encode() for line in loaded["sample_lines"]]
        self._control.settimeout(timeout)

    @property
    def healthy(self) -> bool:
        """Return whether the process runs."""
        return os.waitid(os.P_PID, self._process_id, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def end_cause(self) -> str:
        """Wait until the process has ended, and return why."""
        ended = os.waitid(os.P_PID, self._process_id, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        if ended.si_code == os.CLD_EXITED:
            return f"the model's process ended with exit code {ended.si_status}"
        memory = " (the machine may have too little memory)" if ended.si_status == signal.SIGKILL else ""
        return f"the model's process ended with signal {ended.si_status}{memory}"

    def answer(
        self, body: Body, headers: Mapping[str, str], client: socket.socket | None = None
    ) -> tuple[bytes, str, HTTPStatus]:
        """Return the response's body, its Content-Type and its status; called from several threads.

        Args:
            headers: of the request, named as "Content-Type".
            client: the connection of the client.

        Raises:
            RequestError: the client's error, an error of the model, or 503 after `close`.
            DeadlineError: the process did not answer in time, or the client has closed its connection; the process
                computes no more of the request.
        """
        try:
            with self._connection() as connection:
                _send(connection, {"headers": headers}, body)
                self._wait(connection, client)
                header, answer = _receive(connection)
        except TimeoutError as error:  # of the connection
            raise DeadlineError from error
        except ConnectionError as error:
            cause = "the server stopped before the request was computed" if self._closed else "the server failed"
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, cause, "Send the request again.") from error
        except OSError as error:  # EMFILE, ENFILE
            logger.warning("a request gets status 503: it cannot be sent to the model's process: %s", error)
            cause = "the server has too few resources for the request"
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, cause, "Send the request again.") from error
        status = HTTPStatus(header["status"])
        if "cause" in header:
            raise RequestError(status, header["cause"], header["fix"])
        return answer, header["media_type"], status

    def _wait(self, connection: socket.socket, client: socket.socket | None) -> None:
        """Wait until the process answers."""
        ends = select.poll()
        ends.register(connection, select.POLLIN)
        if client is not None:
            try:
                ends.register(client, select.POLLRDHUP)
            except ValueError:  # it is closed here too
                raise ClientGone from None
        ready = [descriptor for descriptor, _ in ends.poll(1000 * self._timeout)]
        if not ready:
            raise TimeoutError
        if connection.fileno() not in ready:
            raise ClientGone

    def close(self) -> None:
        """End the process and those that it started; requests in progress raise RequestError 503."""
        self._closed = True
        os.killpg(self._process_id, signal.SIGKILL)

    @contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        connection = None
        with suppress(IndexError):
            connection = self._idle.pop()
        if connection is None:
            connection = self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def _connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.settimeout(self._timeout)
            socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
        return ours


def _run(folder: Path, control: socket.socket, timeout: float, server: int) -> NoReturn:
    try:
        handle_stops(lambda *_: None)  # the server's process decides when this one ends
        die_with_parent(server)
        os.nice(_NICE)
        sys.setswitchinterval(_SWITCH_SECONDS)
        runner = _load(folder, control)
        threading.Thread(target=_end_if_it_hangs, args=(runner, timeout), daemon=True).start()
        while True:
            data, descriptors, *_ = socket.recv_fds(control, 1, 1)
            if not data:
                break
            if descriptors:  # else this process has too many; the server's process gets ConnectionError
                connection = socket.socket(fileno=descriptors[0])
                try:
                    threading.Thread(target=_respond, args=(runner, connection, timeout), daemon=True).start()
                except RuntimeError as error:  # the limit on processes
                    logger.warning("a request gets status 503: %s\n%s", error, MORE_THREADS)
                    connection.close()
    except Exception:
        logger.exception("the model's process failed")
    finally:
        end_process(FAILED)


def _end_if_it_hangs(runner: "Runner", timeout: float) -> NoReturn:
    """End the process if a call runs for _MOST_TIMEOUTS times the time limit of a request.

    Seconds are counted: those in which a service freezes the whole machine must not end it.
    """
    seen, seconds = runner.current(), 0
    while seconds <= _MOST_TIMEOUTS * timeout:
        time.sleep(1)
        current = runner.current()
        hangs = any(call is not None and call == before for call, before in zip(current, seen, strict=True))
        seen, seconds = current, seconds + 1 if hangs else 0
    logger.error("the model hangs: a call runs for more than %d s; the stack of each thread follows", seconds - 1)
    faulthandler.dump_traceback()
    end_process(FAILED)


def _load(folder: Path, control: socket.socket) -> "Runner":
    # Imported here: Arrow and ONNX Runtime take memory, which the server's process does not need.
    from container.serving.runner import load_runner

    try:
        runner = load_runner(folder)
    except BaseException as error:  # a package's own inference.py may call sys.exit
        cause, fix = f"the model cannot be loaded: {type(error).__name__}: {first_line(error)}", ""
        if isinstance(error, ContractError):
            cause, fix = error.cause, error.fix
        else:
            logger.exception("the traceback of the model's process")
        _send(control, {"cause": cause, "fix": fix}, io.BytesIO())
        end_process(FAILED)
    _send(control, {"sample_lines": [line.decode() for line in runner.sample_lines()]}, io.BytesIO())
    return runner


def _respond(runner: "Runner", connection: socket.socket, timeout: float) -> None:
    with connection, suppress(ConnectionError):  # the server's process waits no longer
        while True:  # without names for a request and its answer: an idle thread holds no memory
            _send(connection, *_answer(runner, *_receive(connection), partial(_is_closed, connection), timeout))


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the server's process has closed the connection, which it does if the client has gone."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError as error:
        return not isinstance(error, BlockingIOError)


def _answer(
    runner: "Runner", request: dict[str, Any], body: bytes, gone: Callable[[], bool], timeout: float
) -> tuple[dict[str, Any], BinaryIO]:
    try:
        answer, media_type, status = runner.answer(body, request["headers"], gone)
        return {"media_type": media_type, "status": status}, io.BytesIO(answer)
    except BaseException as error:  # a package's own inference.py may call sys.exit
        if not runner.healthy:
            logger.exception("the model's process failed")
            end_process(FAILED)
        refused = as_request_error(error, timeout)
        return {"status": refused.status, "cause": refused.cause, "fix": refused.fix}, io.BytesIO()


def _send(connection: socket.socket, header: dict[str, Any], body: Body) -> None:
    length = body.seek(0, os.SEEK_END)
    body.seek(0)
    block = json.dumps({**header, "length": length}).encode() + b"\n" + body.read(_BLOCK_BYTES)
    while block:
        connection.sendall(block)
        block = body.read(_BLOCK_BYTES)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Return a header and a body; raise ConnectionError if the other process closed the connection."""
    with connection.makefile("rb") as source:
        line = source.readline()
        if line.endswith(b"\n"):
            header = json.loads(line)
            body = source.read(header["length"])
            if len(body) == header["length"]:
                return header, body
    raise ConnectionResetError
