"""Run requests on the model through the batching queue, or on a package's own inference.py."""

import sys
import threading
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from container.serving import handler, inference
from container.serving.batching import BatchingQueue
from container.serving.media_types import response_type
from contracts.errors import ContractError
from contracts.serving import CODE_FOLDER, ENTRY_POINT, JSON


class ModelHost:
    """This project's handler; it computes the records of several requests together."""

    def __init__(self, folder: Path) -> None:
        settings = handler.settings()
        self._model = handler.model_fn(str(folder))
        self._timeout = settings.serving_timeout_seconds
        self._queue = BatchingQueue(self._model.compute, batch_size=settings.serving_batch_size)

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
        request = handler.input_fn(body, content_type)
        prediction = self._model.predict(request, lambda records: self._queue.compute(records, timeout=self._timeout))
        return handler.output_fn(prediction, accept)

    def close(self) -> None:
        self._queue.close()


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
        self._one_at_a_time = threading.Lock()

    def answer(self, body: bytes, content_type: str | None, accept: str | None) -> tuple[bytes, str]:
        wanted = accept or JSON
        with self._one_at_a_time:
            answer: Any = self._output(self._predict(self._input(body, content_type), self._model), wanted)
        text, media_type = answer if isinstance(answer, tuple) else (answer, JSON if wanted == "*/*" else wanted)
        return text.encode() if isinstance(text, str) else bytes(text), media_type

    def close(self) -> None:
        """Do nothing: there is no queue."""


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
