"""Measure the loss of quality of a variant of model.onnx."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from container.evaluation.metrics import classification_metrics

LARGEST_FALL = 0.002


@dataclass(frozen=True)
class VariantReport:
    """A variant of model.onnx compared with the model, on val records.

    Attributes:
        name: fused or int8.
        written: whether the variant was kept.
        reason: why the variant was not kept; empty if it was.
        num_bytes: size of the file.
        records: number of labelled val records compared.
        max_difference, mean_difference: of a probability; None if they could not be measured.
        auroc, auroc_difference: AUROC on these records (macro), and its difference from the model's.
        seconds: time to write and measure it.
        possible: False if the variant could not be faster than model.onnx, so that there is none.
    """

    name: str
    written: bool
    reason: str = ""
    num_bytes: int = 0
    records: int = 0
    max_difference: float | None = None
    mean_difference: float | None = None
    auroc: float | None = None
    auroc_difference: float | None = None
    seconds: float = 0.0
    possible: bool = True

    def __str__(self) -> str:
        if self.max_difference is None:
            return f"model.{self.name}.onnx is not written: {self.reason}"
        measured = (
            f"{self.num_bytes / 1e6:.1f} MB; on {self.records} val records probabilities differ by at most "
            f"{self.max_difference:.1e}, {self.mean_difference:.1e} on average, AUROC by {self.auroc_difference:+z.5f}"
        )
        return f"model.{self.name}.onnx{'' if self.written else f' is not written: {self.reason}'} ({measured})"


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
