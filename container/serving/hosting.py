"""Run requests on the model through the batching queue, or on a package's own inference.py."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from container.serving import handler, inference
from container.serving.batching import BatchingQueue
from container.serving.media_types import request_type, response_type
from contracts.errors import ContractError
from contracts.serving import CODE_FOLDER, ENTRY_POINT, JSON, PARQUET

_LARGE_BYTES = 1 << 16


class Turns:
    """Let one request pass at a time, until closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def take(self, timeout: float) -> Iterator[None]:
        """Wait for the other requests during a `with` block.

        Raises:
            TimeoutError: `timeout` seconds passed, or the host was closed.
        """
        if not self._lock.acquire(timeout=timeout):
            raise TimeoutError("other requests took too long")
        try:
            if self._closed:
                raise TimeoutError("the host is closed")
            yield
        finally:
            self._lock.release()

    def close(self) -> None:
        """Let no further request pass."""
        self._closed = True

    def join(self, timeout: float) -> bool:
        """Wait for the request in progress; return whether it has ended."""
        ended = self._lock.acquire(timeout=timeout)
        if ended:
            self._lock.release()
        return ended


class ModelHost:
    """This project's handler; it computes the records of several requests together.

    Large requests are read and prepared one by one, because that takes a multiple of a body's size in memory. A request
    in Parquet counts as large, because its size after decompression is not known. Other requests do not wait for them.
    """

    def __init__(self, folder: Path) -> None:
        settings = handler.settings()
        self._model = handler.model_fn(str(folder))
        self._timeout = settings.serving_timeout_seconds
        self._turns = Turns()
        self._queue = BatchingQueue(
            self._model.compute, batch_size=settings.serving_batch_size, max_tokens=settings.serving_max_tokens
        )

    @property
    def healthy(self) -> bool:
        return self._queue.alive

    def answer(self, body: bytes, content_type: str | None, accept: str | None) -> tuple[bytes, str]:
        """Return the response's body and its Content-Type; called from several threads.

        Raises:
            RequestError, ContractError: the client's error.
            TimeoutError: the computation took too long.
        """
        response_type(accept)  # refuse an unsupported format before computing anything
        deadline = time.monotonic() + self._timeout
        large = len(body) > _LARGE_BYTES or request_type(content_type).name == PARQUET
        with self._turns.take(self._timeout) if large else nullcontext():
            prepared = self._model.prepare(handler.input_fn(body, content_type))
        probabilities = self._queue.compute(prepared, timeout=max(0.0, deadline - time.monotonic()))
        return handler.output_fn(self._model.decide(probabilities), accept)

    def close(self) -> None:
        """Make all unanswered requests raise TimeoutError."""
        self._turns.close()
        self._queue.close()

    def join(self, timeout: float) -> bool:
        """Wait for the work in progress after `close`; return whether it has ended."""
        return self._turns.join(timeout) and self._queue.join(timeout)


class ScriptHost:
    """A package's own code/inference.py, called for one request at a time: it may not be thread-safe.

    As in SageMaker's toolkits, this project's handler supplies missing functions, and output_fn may return only a body.
    """

    healthy = True

    def __init__(self, folder: Path, script: Path) -> None:
        module = _load(script)
        names = ("model_fn", "input_fn", "predict_fn", "output_fn")
        load, self._input, self._predict, self._output = (
            getattr(module, name, getattr(handler, name)) for name in names
        )
        self._model = load(str(folder))
        self._turns = Turns()
        self._timeout = handler.settings().serving_timeout_seconds

    def answer(self, body: bytes, content_type: str | None, accept: str | None) -> tuple[bytes, str]:
        wanted = accept or JSON
        with self._turns.take(self._timeout):
            answer: Any = self._output(self._predict(self._input(body, content_type), self._model), wanted)
        text, media_type = answer if isinstance(answer, tuple) else (answer, JSON if wanted == "*/*" else wanted)
        return text.encode() if isinstance(text, str) else bytes(text), media_type

    def close(self) -> None:
        """Make all waiting requests raise TimeoutError."""
        self._turns.close()

    def join(self, timeout: float) -> bool:
        """Wait for the request in progress after `close`; return whether it has ended."""
        return self._turns.join(timeout)


Host = ModelHost | ScriptHost


def load_host(folder: Path) -> Host:
    """Return the host of an unpacked package or of a job's model folder.

    Raises:
        ContractError: a missing or damaged artifact, a refused setting, or a script that cannot be loaded.
    """
    script = folder / CODE_FOLDER / ENTRY_POINT
    if not script.is_file() or script.read_bytes() == Path(inference.__file__).read_bytes():
        return ModelHost(folder)
    return ScriptHost(folder, script)


def _load(script: Path) -> ModuleType:
    # The script can import modules of its folder; the image's packages take precedence.
    sys.path.append(str(script.parent))
    spec = spec_from_file_location("inference", script)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ContractError(
            f"{script}: cannot be loaded: {type(error).__name__}: {error}", "Correct the script of the package."
        ) from error
    return module
