"""Read predictions of a training job (output/data, or packed as output.tar.gz) or of another scorer."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from container.decision.deciding_rows import OUT_OF_FOLD
from container.evaluation.predictions import SplitPredictions
from container.preprocessing.labels import UNLABELLED, Label, LabelMap, learned_labels
from container.steps.archives import extract_archive
from container.tables.channel_files import TableSlice
from container.tables.data_files import data_files
from container.tables.part_files import PartFiles, open_part_files
from container.tables.table_file import check_present
from container.tables.values import keys, numbers
from contracts import artifacts
from contracts.errors import ContractError
from contracts.input_files import expected_content, read_object
from contracts.steps import ARCHIVED_OUTPUT

ONLY_SPLIT = "test"  # the split of predictions whose file names have no split
_PREDICTIONS = re.compile(r"(?P<split>[^/]+?)_predictions[^/]*")
_METRICS_FIX = "Provide the metrics.json that the training job wrote, or remove it."
_SUM_TOLERANCE = 1e-3
_ROUNDING = 1e-6


@dataclass(frozen=True)
class PredictionFiles:
    """Predictions by split.

    Attributes:
        job_metrics: the training job's metrics.json, if it is in the same folder.
    """

    folder: Path
    splits: dict[str, PartFiles]
    job_metrics: dict[str, Any] | None

    @property
    def class_labels(self) -> tuple[Label, ...] | None:
        """The labels in the order of the classes, from the training job's metrics.json."""
        with expected_content(self.folder / artifacts.METRICS, _METRICS_FIX):
            classes = (self.job_metrics or {}).get("classes") or {}
            return next((tuple(each["label"] for each in of_split) for of_split in classes.values()), None)

    @property
    def threshold(self) -> float | None:
        """The training job's decision threshold."""
        with expected_content(self.folder / artifacts.METRICS, _METRICS_FIX):
            threshold = ((self.job_metrics or {}).get("decision") or {}).get("threshold")
            value = float(threshold["value"]) if threshold else None
            if value is not None and not math.isfinite(value):
                raise ValueError(f"the threshold {value}")
            return value


def find_predictions(folder: Path, *, scratch: Path) -> PredictionFiles:
    """Return the files named {split}_predictions..., or every table in the folder as one split.

    Args:
        scratch: folder for unpacked archives.

    Raises:
        ContractError: no predictions.
    """
    paths = data_files(folder)
    archives = [path for path in paths if path.name == ARCHIVED_OUTPUT]
    if archives and not any(_PREDICTIONS.fullmatch(path.name) for path in paths):
        if len(archives) > 1:
            raise ContractError(
                f"{folder}: has {len(archives)} archives: {archives[0]}, {archives[1]}", "Provide one training job's."
            )
        folder = _unpack(archives[0], scratch)
        paths = data_files(folder)
    by_split: dict[str, list[Path]] = {}
    for path in paths:
        match = _PREDICTIONS.fullmatch(path.name)
        if match and match["split"] != OUT_OF_FOLD:  # its ids may occur in train and in val; val's rows are in it
            by_split.setdefault(match["split"], []).append(path)
    if not by_split:
        by_split = {ONLY_SPLIT: [path for path in paths if path.name not in (artifacts.METRICS, ARCHIVED_OUTPUT)]}
    metrics = next((path for path in paths if path.name == artifacts.METRICS), None)
    splits = {
        name: open_part_files(files, folder=folder, scratch=scratch / f"{folder.name}-{name}")
        for name, files in sorted(by_split.items(), key=lambda entry: (entry[0] != "val", entry[0]))
    }
    return PredictionFiles(folder, splits, None if metrics is None else read_object(metrics, _METRICS_FIX))


def score_columns(files: PredictionFiles, configured: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of class probabilities in every split: the configured ones, or prob_class_0, 1, ...

    Raises:
        ContractError: a column is missing.
    """
    if configured:
        for split, parts in files.splits.items():
            check_present(configured, parts.columns, f"{split} predictions ({parts.files[0]})")
        return tuple(configured)
    counts = set()
    for split, parts in files.splits.items():
        matches = map(artifacts.PROBABILITY_COLUMN.fullmatch, parts.columns)
        classes = sorted(int(match[1]) for match in matches if match)
        counts.add(len(classes))
        if classes != list(range(len(classes))) or len(classes) < 2:
            raise ContractError(
                f"{split} predictions ({parts.files[0]}): have no columns prob_class_0, prob_class_1, ...; they have "
                f"{', '.join(map(repr, parts.columns))}",
                "Name the columns of class probabilities in SCORE_FIELDS.",
            )
    if len(counts) > 1:
        raise ContractError(f"{files.folder}: the splits have {sorted(counts)} classes", "Score them with one model.")
    return tuple(map(artifacts.probability_column, range(counts.pop())))


def read_split(
    split: str, parts: PartFiles, *, id_field: str, label_field: str, scores: Sequence[str]
) -> SplitPredictions:
    """Return a split's predictions, without encoded labels.

    Args:
        scores: columns of class probabilities; one column: class 1's.

    Raises:
        ContractError: a missing column, no rows, a score that is not a probability.
    """
    check_present((id_field, *scores), parts.columns, f"{split} predictions ({parts.files[0]})")
    has_label = label_field in parts.columns
    wanted = (id_field, label_field, *scores) if has_label else (id_field, *scores)
    ids, labels, probabilities = [], [], []
    for part in parts.iter_tables(list(dict.fromkeys(wanted))):
        ids.extend(part.table[id_field].chunks)
        labels.extend(part.table[label_field].chunks if has_label else [])
        probabilities.append(_probabilities(part, scores))
    if not ids or not sum(map(len, ids)):
        raise ContractError(f"{split} predictions ({parts.files[0]}): have no rows", "Provide predictions with rows.")
    raw_labels = pa.chunked_array(labels) if has_label else None
    stacked = np.concatenate(probabilities)  # [N, K]
    encoded = np.full(len(stacked), UNLABELLED, np.int64)
    return SplitPredictions(split, pa.chunked_array(ids), raw_labels, encoded, stacked)


def find_labels(
    splits: Sequence[SplitPredictions], *, label_field: str, given: Sequence[Label] | None, num_classes: int
) -> LabelMap:
    """Return the labels in the order of the classes: the given ones, or the labels in the data.

    Raises:
        ContractError: the labels and the classes do not match.
    """
    if given:
        if len(given) != num_classes:
            raise ContractError(
                f"CLASS_LABELS: has {len(given)} labels {list(given)}, but there are {num_classes} classes",
                "List one label per class, in the order of the score columns.",
            )
        return LabelMap(label_field, tuple(given))
    counts: dict[str, int] = {}
    for split in splits:
        for key in keys(split.raw_labels).drop_null().unique().to_pylist() if split.raw_labels is not None else []:
            counts[key] = counts.get(key, 0) + 1
    if counts.keys() <= {str(k) for k in range(num_classes)}:
        return LabelMap(label_field, tuple(range(num_classes)))
    if len(counts) != num_classes:
        raise ContractError(
            f"column {label_field!r}: has the {len(counts)} labels {sorted(counts)[:10]}; "
            f"the scores are of {num_classes} classes",
            "Set CLASS_LABELS to the label of each class, in the order of the score columns.",
        )
    return learned_labels(label_field, counts)


def _probabilities(part: TableSlice, scores: Sequence[str]) -> np.ndarray:
    """Return the checked probabilities; for one score, its complement comes first. [R, K]"""
    columns = []
    for name in scores:
        try:
            column = numbers(part.table[name], name, origin=part.origin)
        except ContractError as error:
            raise ContractError(error.cause, "Write numbers from 0 to 1, or correct SCORE_FIELDS.") from None
        columns.append(column)
        wrong = np.flatnonzero(~((column >= -_ROUNDING) & (column <= 1 + _ROUNDING)))  # NaN too
        if len(wrong):
            index = int(wrong[0])
            raise ContractError(
                f"{part.origin.row(index)}, column {name!r}: {part.table[name][index].as_py()!r} is not a probability",
                "Write numbers from 0 to 1, or correct SCORE_FIELDS.",
            )
    if len(columns) == 1:
        return np.stack([1 - columns[0], columns[0]], axis=1)
    stacked = np.stack(columns, axis=1)
    sums = stacked.sum(axis=1)
    off = np.flatnonzero(np.abs(sums - 1) > _SUM_TOLERANCE)
    if len(off):
        raise ContractError(
            f"{part.origin.row(off[0])}: the probabilities {', '.join(scores)} sum to {sums[off[0]]:.6g}, not 1",
            "Name one column per class in SCORE_FIELDS, or only class 1's column.",
        )
    return stacked


def _unpack(archive: Path, scratch: Path) -> Path:
    """Unpack the predictions and metrics of a training job's output.tar.gz."""
    target = scratch / f"unpacked-{archive.parent.name}"

    def wanted(member: str) -> bool:
        name = Path(member).name
        return bool(_PREDICTIONS.fullmatch(name)) or name == artifacts.METRICS

    if not extract_archive(archive, target, wanted=wanted):
        raise ContractError(f"{archive}: contains no predictions", "Provide the output of a completed training job.")
    return target
