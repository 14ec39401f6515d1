"""Measure the size and the latency of the model of several networks, and of one of them, through ONNX Runtime."""

import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from container.companion.blend import BlendedCompanion
from container.data.split import PreparedSplit
from container.decision.decision import Decision
from container.export.onnx import export_onnx, feed_of
from container.models.ensemble import Ensemble, Network
from contracts import artifacts
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

_RECORDS = 32


@dataclass(frozen=True)
class OnnxCost:
    """The cost of serving a graph.

    Attributes:
        num_bytes: size of its files.
        seconds: of one val record alone, the median.
    """

    num_bytes: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.num_bytes / 1e6:.1f} MB, {self.seconds * 1e3:.2f} ms per record"


def measure_costs(
    folder: Path,
    model: Network,
    hp: Hyperparameters,
    *,
    val: PreparedSplit,
    decision: Decision,
    companion: BlendedCompanion | None,
) -> dict[str, OnnxCost]:
    """Return the cost of model.onnx in `folder` and, of an ensemble, that of the graph of one network; log them.

    Both graphs have the same decision and companion.
    """
    positions = np.unique(np.linspace(0, len(val) - 1, _RECORDS).astype(np.int64))
    costs = {"model.onnx": _cost(folder / artifacts.MODEL_ONNX, model, hp, val, positions)}
    if isinstance(model, Ensemble):
        with tempfile.TemporaryDirectory(dir=folder, prefix=".one-network.") as temporary:
            one = Path(temporary) / artifacts.MODEL_ONNX
            samples = [val.pack(positions[:4])]
            try:
                export_onnx(model.members[0], hp, one, samples=samples, decision=decision, companion=companion)
                costs["model.onnx with one network"] = _cost(one, model.members[0], hp, val, positions)
            except Exception:  # this graph is for the comparison only
                logger.exception("the graph of one network was not measured; the job continues")
    logger.info("%s", "; ".join(f"{name}: {cost}" for name, cost in costs.items()))
    return costs


def _cost(path: Path, model: Network, hp: Hyperparameters, val: PreparedSplit, positions: np.ndarray) -> OnnxCost:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = [feed_of(model, hp, val.pack(positions[i : i + 1])) for i in range(len(positions))]
    session.run([artifacts.ONNX_OUTPUT], feeds[0])  # the first run is slow
    seconds = []
    for feed in feeds:
        began = time.perf_counter()
        session.run([artifacts.ONNX_OUTPUT], feed)
        seconds.append(time.perf_counter() - began)
    files = (path, path.with_name(f"{path.name}.data"))
    return OnnxCost(sum(part.stat().st_size for part in files if part.exists()), float(np.median(seconds)))
