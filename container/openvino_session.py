"""Open a graph in OpenVINO, which computes in bfloat16 where the processor does; the extra `openvino`."""

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from container.job.log_once import log_once
from contracts.errors import ContractError, first_line

logger = logging.getLogger(__name__)


class Input(NamedTuple):
    name: str


class OpenvinoSession:
    """The methods of ONNX Runtime's session that serving uses; thread-safe.

    Raises:
        ContractError: OpenVINO is not installed, or does not know an operator of the graph.
    """

    def __init__(self, path: Path, *, threads: int) -> None:
        try:
            import openvino  # takes 0.3 s
        except ImportError as error:
            raise ContractError(
                f"SERVING_BACKEND=openvino: OpenVINO is not installed: {first_line(error)}",
                "Install it with pip install 'text-table-trainer[openvino]', or use onnx.",
            ) from error
        core = openvino.Core()
        precision = "bf16" if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_HYPER_THREADING": True,  # the server's number of threads decides
            "ENABLE_CPU_PINNING": False,  # other processes have the same cores
        }
        try:
            model = core.compile_model(path, "CPU", settings)
        except Exception as error:  # OpenVINO's exceptions derive from RuntimeError and others
            raise ContractError(
                f"{path}: OpenVINO cannot load it: {_cause(error)}",
                "Use SERVING_BACKEND=onnx, or copy the model folder again.",
            ) from error
        log_once(logger, logging.INFO, f"{path.name}: OpenVINO {openvino.__version__} computes in {precision}")
        self._inputs = [Input(port.any_name) for port in model.inputs]
        self._request, self._lock = model.create_infer_request(), threading.Lock()

    def get_inputs(self) -> Sequence[Input]:
        return self._inputs

    def run(self, names: Sequence[str], feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with self._lock:
            self._request.infer(feed)
            return [self._request.get_tensor(name).data.copy() for name in names]


def _cause(error: Exception) -> str:
    """Return what OpenVINO says below the places in its sources."""
    lines = [line for line in str(error).splitlines() if line and not line.startswith("Exception from")]
    return lines[-1] if lines else first_line(error)
