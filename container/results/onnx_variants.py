"""Write the requested variants of model.onnx, and keep those whose AUROC is close enough to the model's."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from container.data.split import PreparedSplit
from container.errors import NotMade
from container.evaluation.explanation import even_sample
from container.evaluation.variant_report import VariantReport, judge
from container.export.head import write_head
from container.export.onnx import feed_of
from container.export.variants import WRITERS
from container.models.ensemble import Network
from contracts import artifacts
from contracts.errors import first_line
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

RECORDS = 1000
# As in the Predictor: the scales of int8 depend on all values of a batch, so that each batch has one record.
_BATCH = {"fused": 16, "int8": 1}


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
            probabilities = _probabilities(path, model, hp, val=val, positions=sample, batch=_BATCH[name])
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
                num_bytes=sum(part.stat().st_size for part in _files(path)),
                seconds=time.perf_counter() - began,
            )
        if not report.written:
            for part in (*_files(path), folder / artifacts.head_file(name)):
                part.unlink(missing_ok=True)
        logger.log(logging.WARNING if report.possible and not report.written else logging.INFO, "%s", report)
        reports.append(report)
    return tuple(reports)


def _files(path: Path) -> list[Path]:
    return [part for part in (path, path.with_name(f"{path.name}.data")) if part.exists()]


def _probabilities(
    path: Path, model: Network, hp: Hyperparameters, *, val: PreparedSplit, positions: np.ndarray, batch: int
) -> np.ndarray:
    """Return the probabilities of the records at `positions`. [len(positions), K]"""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    parts = [positions[start : start + batch] for start in range(0, len(positions), batch)]
    feeds = (feed_of(model, hp, val.pack(part)) for part in parts)
    outputs = [np.asarray(session.run([artifacts.ONNX_OUTPUT], feed)[0]) for feed in feeds]
    return np.concatenate(outputs) if outputs else np.empty((0, hp.num_classes), np.float32)
