"""Run a host in a process of its own, so that its work does not delay the process that answers /ping."""

import io
import json
import logging
import os
import shutil
import signal
import socket
import sys
import threading
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from container.processes import die_with_parent, end_process
from container.serving.errors import RequestError, as_request_error
from contracts.errors import ContractError

if TYPE_CHECKING:
    from container.serving.hosting import Host

logger = logging.getLogger(__name__)

_FAILED = 1
# Threads need the interpreter again after each system call. Python's default is 5 ms.
_SWITCH_SECONDS = 0.0005
_NICE = 5  # the server's process gets a core at once; raising this value needs no privilege
_BLOCK_BYTES = 1 << 18  # of a body that is copied


class ModelProcess:
    """A process that loads a model folder and answers requests.

    Each request has a connection of its own, a socket pair. The process receives its end through a control connection.
    It reads a header and a body, and writes a header and a body.

    Attributes:
        sample_lines: JSON Lines of typical records, to measure how fast they are answered.
    """

    def __init__(self, folder: Path, *, timeout: float) -> None:
        """Start the process and wait until it has loaded the model.

        Args:
            timeout: the most seconds in which a request is answered.

        Raises:
            ContractError: the model cannot be served, or the process ended.
        """
        self._timeout = timeout
        self._closed = False
        self._exit_code: int | None = None
        self._control, control = socket.socketpair()
        self._process_id = os.fork()
        if not self._process_id:
            self._control.close()
            _run(folder, control, timeout)
        control.close()
        try:
            loaded = _receive(self._control.makefile("rb"))[0]
        except ConnectionError as error:
            os.waitid(os.P_PID, self._process_id, os.WEXITED | os.WNOWAIT)
            raise ContractError(self.end_cause(), "See the log for the reason.") from error
        if "cause" in loaded:
            raise ContractError(loaded["cause"], loaded["fix"])
        self.sample_lines = [line.encode() for line in loaded["sample_lines"]]

    @property
    def healthy(self) -> bool:
        """Return whether the process runs; called from one thread."""
        if self._exit_code is None:
            ended, status = os.waitpid(self._process_id, os.WNOHANG)
            self._exit_code = os.waitstatus_to_exitcode(status) if ended else None
        return self._exit_code is None

    def end_cause(self) -> str:
        """Return why a process that is not healthy ended."""
        assert not self.healthy
        assert self._exit_code is not None
        code = f"signal {-self._exit_code}" if self._exit_code < 0 else f"exit code {self._exit_code}"
        memory = " (the machine may have too little memory)" if self._exit_code == -signal.SIGKILL else ""
        return f"the model's process ended with {code}{memory}"

    def answer(self, body: BinaryIO, content_type: str | None, accept: str | None) -> tuple[bytes, str]:
        """Return the response's body and its Content-Type; called from several threads.

        Raises:
            RequestError: the client's error, an error of the model, or 503 after `close`.
            TimeoutError: the process did not answer in time.
        """
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.settimeout(self._timeout)
            try:
                socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
                theirs.close()
                _send(ours.makefile("wb"), {"content_type": content_type, "accept": accept}, body)
                header, answer = _receive(ours.makefile("rb"))
            except ConnectionError as error:
                cause = "the server stopped before the request was computed" if self._closed else "the server failed"
                raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, cause, "Send the request again.") from error
        if "status" in header:
            raise RequestError(HTTPStatus(header["status"]), header["cause"], header["fix"])
        return answer, header["media_type"]

    def close(self) -> None:
        """End the process; requests in progress raise RequestError 503."""
        self._closed = True
        if self.healthy:
            os.kill(self._process_id, signal.SIGKILL)


def _run(folder: Path, control: socket.socket, timeout: float) -> NoReturn:
    try:
        die_with_parent()
        os.nice(_NICE)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # the server's process decides when this one ends
        sys.setswitchinterval(_SWITCH_SECONDS)
        host = _load(folder, control.makefile("wb"))
        while True:
            data, descriptors, *_ = socket.recv_fds(control, 1, 1)
            if not data or not host.healthy:
                break
            connection = socket.socket(fileno=descriptors[0])
            threading.Thread(target=_respond, args=(host, connection, timeout), daemon=True).start()
    except Exception:
        logger.exception("the model's process failed")
    finally:
        end_process(_FAILED)


def _load(folder: Path, sink: BinaryIO) -> "Host":
    # Imported here: Arrow and ONNX Runtime take memory, which the server's process does not need.
    from container.serving.hosting import load_host

    try:
        host = load_host(folder)
    except ContractError as error:
        _send(sink, {"cause": error.cause, "fix": error.fix}, io.BytesIO())
        end_process(_FAILED)
    _send(sink, {"sample_lines": [line.decode() for line in host.sample_lines()]}, io.BytesIO())
    return host


def _respond(host: "Host", connection: socket.socket, timeout: float) -> None:
    with connection:
        try:
            request, body = _receive(connection.makefile("rb"))
            header: dict[str, Any]
            try:
                answer, media_type = host.answer(body, request["content_type"], request["accept"])
                header = {"media_type": media_type}
            except Exception as error:
                refused = as_request_error(error, timeout)
                header = {"status": refused.status, "cause": refused.cause, "fix": refused.fix}
                answer = b""
            _send(connection.makefile("wb"), header, io.BytesIO(answer))
        except ConnectionError:
            pass  # the server's process waits no longer


def _send(sink: BinaryIO, header: dict[str, Any], body: BinaryIO) -> None:
    length = body.seek(0, os.SEEK_END)
    body.seek(0)
    sink.write(json.dumps({**header, "length": length}).encode() + b"\n")
    shutil.copyfileobj(body, sink, _BLOCK_BYTES)
    sink.flush()


def _receive(source: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """Return a header and a body; raise ConnectionError if the other process closed the connection."""
    line = source.readline()
    if not line.endswith(b"\n"):
        raise ConnectionResetError
    header = json.loads(line)
    body = source.read(header["length"])
    if len(body) < header["length"]:
        raise ConnectionResetError
    return header, body
