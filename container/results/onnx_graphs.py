"""Write the requested variants of model.onnx, keep those close enough to it, and measure what graphs cost to serve."""

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir
import torch

from container.companion.blend import BlendedCompanion
from container.data.split import PreparedSplit
from container.decision.decision import Decision
from container.errors import NotMade
from container.evaluation.evaluation_input import VariantReport
from container.evaluation.metrics import classification_metrics
from container.export.head import write_head
from container.export.onnx import export_onnx, feed_of
from container.export.variants import WRITERS
from container.models.ensemble import Ensemble, Network
from container.onnx_session import open_session
from container.results.attempt import Attempt
from container.results.explain import even_sample
from contracts import artifacts
from contracts.errors import first_line
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

RECORDS = 1000
LARGEST_FALL = 0.002
# As in the Predictor: the scales of int8 depend on all values of a batch, so that each batch has one record.
_BATCH = {"fused": 16, "int8": 1}
_TIMED_RECORDS = 32


def write_variants(
    folder: Path,
    model: Network,
    hp: Hyperparameters,
    *,
    val: PreparedSplit,
    expected: np.ndarray,
    class_labels: Sequence[int | str],
) -> tuple[VariantReport, ...]:
    """Write each of hp.onnx_variants next to model.onnx in `folder`, unless its AUROC on val falls too far.

    A variant that cannot be written does not fail the job: model.onnx is complete.

    Args:
        expected: the model's probabilities of every val record. [len(val), K]
        class_labels: names of the classes in messages. [K]
    """
    labels = val.column("label").to_numpy()
    sample = even_sample(labels, RECORDS, seed=hp.seed)
    sample = sample[np.argsort(val.token_counts(sample), kind="stable")]  # similar lengths need little padding
    reports = []
    for name in hp.onnx_variants:
        path = folder / artifacts.onnx_file(name)
        began = time.perf_counter()
        try:
            WRITERS[name](folder / artifacts.MODEL_ONNX, path, model)
            write_head(path, folder / artifacts.head_file(name))
            runs = _runs(path, model, hp, val=val, positions=sample, batch=_BATCH[name])
            probabilities = np.concatenate([np.empty((0, hp.num_classes), np.float32), *(found for found, _ in runs)])
        except NotMade as reason:
            report = VariantReport(name, False, reason=str(reason), possible=False)
        except Exception as error:  # of any type, from the tools that change the graph
            report = VariantReport(name, False, reason=f"{type(error).__name__}: {first_line(error)}")
        else:
            report = judge(
                name,
                labels=labels[sample],
                expected=expected[sample],
                found=probabilities,
                class_labels=class_labels,
                num_bytes=_num_bytes(path),
                seconds=time.perf_counter() - began,
            )
        if not report.written:
            for part in (*_files(path), folder / artifacts.head_file(name)):
                part.unlink(missing_ok=True)
        logger.log(logging.WARNING if report.possible and not report.written else logging.INFO, "%s", report)
        reports.append(report)
    return tuple(reports)


def judge(
    name: str,
    *,
    labels: np.ndarray,
    expected: np.ndarray,
    found: np.ndarray,
    class_labels: Sequence[int | str],
    num_bytes: int,
    seconds: float,
) -> VariantReport:
    """Compare a variant with its model, and keep it unless its AUROC falls by more than 0.002.

    Args:
        labels: class ids, all known. [N]
        expected, found: probabilities of the model and of the variant. [N, K] each
        class_labels: names of the classes in the reason. [K]
    """
    report = VariantReport(name, False, num_bytes=num_bytes, records=len(labels), seconds=seconds)
    if not np.isfinite(found).all():
        return replace(report, reason="a probability is not a number")
    difference = np.abs(found - expected)
    variant, model = (
        classification_metrics(labels, values, ["auroc"], class_labels=class_labels) for values in (found, expected)
    )
    auroc, before = variant.values["auroc"], model.values["auroc"]
    if auroc is None or before is None:
        reason = f"AUROC on val is undefined ({model.undefined['auroc']}), so that its loss cannot be judged"
        return replace(report, reason=reason)
    fall = before - auroc
    return replace(
        report,
        written=fall <= LARGEST_FALL,
        reason="" if fall <= LARGEST_FALL else f"AUROC on val falls by {fall:.4f}, more than {LARGEST_FALL}",
        max_difference=float(difference.max()),
        mean_difference=float(difference.mean()),
        auroc=auroc,
        auroc_difference=-fall,
    )


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
    of_ensemble: list[onnx_ir.Function],
) -> dict[str, OnnxCost]:
    """Return the cost of model.onnx in `folder` and, of an ensemble, that of the graph of one network; log them.

    Both graphs have the same decision and companion, and call the functions `of_ensemble` of the export.
    """
    positions = np.unique(np.linspace(0, len(val) - 1, _TIMED_RECORDS).astype(np.int64))
    costs = {"model.onnx": _cost(folder / artifacts.MODEL_ONNX, model, hp, val, positions)}
    if isinstance(model, Ensemble):
        with tempfile.TemporaryDirectory(dir=folder, prefix=".one-network.") as temporary:
            one = Path(temporary) / artifacts.MODEL_ONNX
            network, samples = Ensemble(model.members[:1]), [val.pack(positions[:4])]
            parts = {"decision": decision, "companion": companion, "of_ensemble": of_ensemble}
            with Attempt("cost of one network"):  # this graph is for the comparison only
                export_onnx(network, hp, one, samples=samples, **parts)
                costs["model.onnx with one network"] = _cost(one, network, hp, val, positions)
    logger.info("%s", "; ".join(f"{name}: {cost}" for name, cost in costs.items()))
    return costs


def _cost(path: Path, model: Network, hp: Hyperparameters, val: PreparedSplit, positions: np.ndarray) -> OnnxCost:
    runs = _runs(path, model, hp, val=val, positions=positions[[0, *range(len(positions))]], batch=1)
    seconds = [seconds for _, seconds in runs][1:]  # the first run is slow
    return OnnxCost(_num_bytes(path), float(np.median(seconds)))


def _runs(
    path: Path, model: Network, hp: Hyperparameters, *, val: PreparedSplit, positions: np.ndarray, batch: int
) -> Iterator[tuple[np.ndarray, float]]:
    """Yield the probabilities of the records at `positions` in batches, and the seconds that each took. [B, K]"""
    session = open_session(path, threads=torch.get_num_threads())
    for start in range(0, len(positions), batch):
        feed = feed_of(model, hp, val.pack(positions[start : start + batch]))
        began = time.perf_counter()
        found = np.asarray(session.run([artifacts.ONNX_OUTPUT], feed)[0])
        yield found, time.perf_counter() - began


def _files(path: Path) -> list[Path]:
    return [part for part in (path, path.with_name(f"{path.name}.data")) if part.exists()]


def _num_bytes(path: Path) -> int:
    return sum(part.stat().st_size for part in _files(path))
