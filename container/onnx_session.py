"""Open a graph in ONNX Runtime, with as many threads as it feeds."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime


def open_session(graph: Path | bytes, *, threads: int, spinning: bool = False) -> "onnxruntime.InferenceSession":
    """Return a session on the CPU.

    Args:
        graph: a file, or the content of one without external data.
        threads: that compute one request.
        spinning: whether a thread without work keeps its core busy for a while, which slows other work on these cores.
    """
    import onnxruntime  # takes 0.1 s

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    model = graph if isinstance(graph, bytes) else str(graph)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
