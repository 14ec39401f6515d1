"""Run requests on the model through the batching queue, or on a package's own inference.py."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numpy as np
import pyarrow as pa

from container.attribution.reasons import Work
from container.errors import DeadlineError
from container.serving import handler, inference
from container.serving.batching import BatchingQueue, result_within, unless_gone
from container.serving.errors import RequestError, bad_request
from container.serving.media_types import request_type, response_type
from container.serving.model import Scored
from container.tables.csv_blocks import Block, CsvText
from contracts.errors import ContractError
from contracts.fingerprint import digest_of_file
from contracts.inference_script import MODEL_FOLDER_VARIABLE, Context, Script, body_of
from contracts.serving import CODE_FOLDER, ENTRY_POINT, PARQUET

logger = logging.getLogger(__name__)

_LARGE_BYTES = 1 << 16
_SMALL_AT_ONCE = 4  # further threads would mostly wait for the interpreter

Result = TypeVar("Result")
Answer = tuple[bytes, str, HTTPStatus]  # body, Content-Type, status


class Turns:
    """Run calls of several threads one at a time, in a thread of its own.

    Attributes:
        current: number of the call that runs; None between calls.
    """

    def __init__(self) -> None:
        self.current: int | None = None
        self._numbers, self._thread = count(), ThreadPoolExecutor(1)

    def run(self, call: Callable[[], Result], timeout: float) -> Result:
        """Return the result of `call`, after the calls that came before it.

        Raises:
            DeadlineError: `timeout` seconds passed; a call that has begun is not interrupted.
            Exception: the error that `call` raised.
        """
        return result_within(self._thread.submit(self._numbered, call), timeout)

    def _numbered(self, call: Callable[[], Result]) -> Result:
        self.current = next(self._numbers)
        try:
            return call()
        finally:
            self.current = None


class ModelRunner:
    """This project's handler; it computes the records of several requests together.

    A request is read and prepared in parts, because that takes a multiple of a body's size in memory. Parts of large
    requests are prepared one by one. A request in Parquet counts as large, because its size after decompression is not
    known. Other requests do not wait for them.
    """

    def __init__(self, folder: Path) -> None:
        settings = handler.settings()
        try:
            response_type(settings.sagemaker_default_invocations_accept)
        except RequestError as error:
            raise _wrong_default(error.fix) from error
        self._model = handler.model_fn(str(folder))
        self._timeout = settings.serving_timeout_seconds
        self._turns = Turns()
        self._small = threading.BoundedSemaphore(_SMALL_AT_ONCE)
        self._queue = BatchingQueue(
            self._model.compute, batch_size=settings.serving_batch_size, max_tokens=settings.serving_max_tokens
        )

    @property
    def healthy(self) -> bool:
        return self._queue.alive

    def current(self) -> tuple[int | None, ...]:
        """Return the number of the call that each working thread runs; None between calls."""
        return self._turns.current, self._queue.current

    def answer(self, body: bytes, headers: Mapping[str, str], gone: Callable[[], bool] = lambda: False) -> Answer:
        """Return the response's body, its Content-Type and its status; called from several threads.

        Args:
            gone: returns whether the client has gone.

        Raises:
            RequestError, ContractError: the client's error.
            DeadlineError: the computation took too long, or the client has gone.
        """
        content_type, accept = headers.get("Content-Type"), _wanted(headers)
        response_type(accept)  # refuse an unsupported format before computing anything
        deadline = time.monotonic() + self._timeout
        large = len(body) > _LARGE_BYTES or request_type(content_type).name == PARQUET
        in_turn = self._turns.run if large else self._run_small

        def run(call: Callable[[], Result]) -> Result:
            return in_turn(partial(unless_gone, gone, call), _until(deadline))

        def compute(work: Work) -> np.ndarray:
            limits = {"timeout": _until(deadline), "gone": gone}
            return self._queue.compute(work.records, work.indices, function=work.compute, **limits)

        parts = self._model.prepare(handler.input_fn(body, content_type, Context("", headers)))
        scored: list[Scored] = []
        while (part := run(partial(next, parts, None))) is not None:
            scored.append(self._model.score(part, compute, run))
        return *handler.output_fn(self._model.decide(scored), accept), HTTPStatus.OK

    def sample_lines(self) -> list[bytes]:
        """Return JSON Lines of typical records, to measure how fast they are answered."""
        return self._model.sample_lines(handler.settings().serving_max_tokens)

    def _run_small(self, call: Callable[[], Result], timeout: float) -> Result:
        if not self._small.acquire(timeout=timeout):
            raise DeadlineError
        try:
            return call()
        finally:
            self._small.release()


class ScriptRunner:
    """A package's own code/inference.py, called for one request at a time: it may not be thread-safe.

    This project's handler supplies missing functions.
    """

    healthy = True

    def current(self) -> tuple[int | None, ...]:
        """Return the number of the script's call that runs; None between calls."""
        return (self._turns.current,)

    def sample_lines(self) -> list[bytes]:
        """Return nothing: the format of the script's requests is unknown."""
        return []

    def __init__(self, folder: Path, script: Path) -> None:
        os.environ.setdefault(MODEL_FOLDER_VARIABLE, str(folder))
        module = _load(script)
        try:
            self._script = Script(module, defaults=handler)
        except (TypeError, ValueError) as error:
            raise ContractError(f"{script}: {error}", "Correct the script of the package.") from error
        if not _is_header_value(handler.settings().sagemaker_default_invocations_accept):
            raise _wrong_default()
        self._script.load(str(folder))
        self._turns = Turns()
        self._timeout = handler.settings().serving_timeout_seconds

    def answer(self, body: bytes, headers: Mapping[str, str], gone: Callable[[], bool] = lambda: False) -> Answer:
        wanted = _wanted(headers).replace("\t", " ")
        if not _is_header_value(wanted):
            raise RequestError(HTTPStatus.NOT_ACCEPTABLE, f"Accept is malformed: {wanted!r}", "Send ASCII.")
        content_type = headers.get("Content-Type")
        try:
            content = body_of(body, content_type)
        except UnicodeDecodeError as error:
            raise bad_request(f"the request is not UTF-8: {error}", "Send UTF-8, or another Content-Type.") from error
        call = partial(self._script.answer, content, content_type, wanted, headers)
        text, media_type, status = self._turns.run(partial(unless_gone, gone, call), self._timeout)
        if not (isinstance(media_type, str) and _is_header_value(media_type)):
            raise TypeError(f"output_fn returned {media_type!r} as the Content-Type")
        if not isinstance(text, str | bytes | bytearray | memoryview):
            raise TypeError(f"output_fn returned {type(text).__name__} as the body; return str or bytes")
        return text.encode() if isinstance(text, str) else bytes(text), media_type, HTTPStatus(status)


Runner = ModelRunner | ScriptRunner


def _is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _wanted(headers: Mapping[str, str]) -> str:
    """Return the Accept header; the default where the client accepts anything, as in SageMaker's toolkits."""
    accept = headers.get("Accept", "").strip()
    return handler.settings().sagemaker_default_invocations_accept if accept in ("", "*/*") else accept


def _wrong_default(fix: str = "Write ASCII.") -> ContractError:
    value = handler.settings().sagemaker_default_invocations_accept
    return ContractError(
        f"environment variable SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT: {value!r} is no format of a response", fix
    )


def _until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def load_runner(folder: Path) -> Runner:
    """Return the runner of an unpacked package or of a job's model folder.

    Raises:
        ContractError: a missing or damaged artifact, a refused setting, or a script that is forbidden or cannot be
            loaded.
    """
    start_arrow()
    folder = Path(os.path.realpath(folder))  # a link may be moved before the model is loaded
    script = folder / CODE_FOLDER / ENTRY_POINT
    if not script.is_file() or script.read_bytes() == Path(inference.__file__).read_bytes():
        return ModelRunner(folder)
    digest = digest_of_file(script)
    if handler.settings().serving_script == "forbid":
        raise ContractError(
            f"{script}: SERVING_SCRIPT=forbid, but this package has a script of its own (sha256={digest})",
            "Package the model without the script, or set SERVING_SCRIPT=run if you trust it.",
        )
    logger.warning(
        f"{script} sha256={digest} uid={os.getuid()}: this script of the package runs with all permissions of the "
        "server. SERVING_SCRIPT=forbid refuses such packages."
    )
    return ScriptRunner(folder, script)


def start_arrow() -> None:
    """Start the one thread with which Arrow reads CSV: if it cannot be started later, Arrow ends the process."""
    pa.set_io_thread_count(1)
    Block(np.frombuffer(b"cell\n", np.uint8), CsvText("", ",", has_header=False, columns=("column",))).parse()


def _load(script: Path) -> ModuleType:
    # The script can import modules of its folder; the image's packages take precedence.
    sys.path.append(str(script.parent))
    spec = spec_from_file_location("inference", script)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import does: dataclasses and pickle look a class up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise ContractError(
            f"{script}: cannot be loaded: {type(error).__name__}: {error}", "Correct the script of the package."
        ) from error
    return module
