"""Compare finished jobs: the settings that differ, and the metrics of a split with paired differences."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from container.decision.deciding_rows import OUT_OF_FOLD
from container.decision.decision import Decision
from container.evaluation.bootstrap import Scores, paired_differences
from container.evaluation.companion_report import MODEL_IS_THE_TREES, kind_of, model_is_the_trees
from container.evaluation.tuning_report import shown_setting
from container.preprocessing.fitted import FittedPreprocessing
from container.tables.channel_files import column_names, iter_tables
from container.tables.data_files import find_data_files
from container.tables.duplicate_ids import content_hashes, occurrences
from container.tables.values import keys
from contracts import artifacts
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from contracts.input_files import read_object
from contracts.metrics import COMPARED
from contracts.paths import JobPaths
from contracts.spelling import aligned

SPLIT = "test"
_FIX = "Name the folders of completed jobs."
_ROWS_AT_ONCE = 65_536
_FEW_OF_TEST = 500  # records, which say less than all rows out of fold


@dataclass(frozen=True)
class _Job:
    """A finished job. [N] records of the compared split.

    Attributes:
        ids: None without an id column.
        rows: numbers of the records in the split; None with an id column.
    """

    folder: Path
    split: str
    settings: dict[str, Any]
    metrics: dict[str, Any]
    class_labels: tuple[int | str, ...]
    ids: list[str | None] | None
    rows: np.ndarray | None
    labels: np.ndarray
    scores: Scores

    @classmethod
    def read(cls, folder: Path, split: str) -> "_Job":
        paths = JobPaths.resolve(folder)
        files = sorted(paths.output_data.glob(f"{split}_predictions.*"))
        if not files:
            raise ContractError(f"{folder}: has no {split} predictions in output/data", _FIX)
        fitted, decision = FittedPreprocessing.load(paths.model), Decision.load(paths.model)
        names = [artifacts.probability_column(k) for k in range(len(fitted.class_labels))]
        id_name = fitted.id_name or artifacts.ROW_NUMBER
        columns = [id_name, fitted.label_name, *names]
        ids: list[str | None] = []
        labels, parts = [], []
        for part in iter_tables(files[:1], columns, rows_per_batch=_ROWS_AT_ONCE):
            ids += keys(part.table[id_name]).to_pylist()
            labels.append(fitted.labels.encode(part.table[fitted.label_name], origin=part.origin))
            parts.append(np.stack([part.table[name].to_numpy().astype(np.float64) for name in names], axis=1))
        probabilities = np.concatenate(parts)
        return cls(
            folder,
            split,
            read_object(paths.model / artifacts.HYPERPARAMETERS, _FIX),
            json.loads((paths.output_data / artifacts.METRICS).read_text()),
            tuple(fitted.class_labels),
            None if fitted.id_name is None else ids,
            np.array(ids, np.int64) if fitted.id_name is None else None,
            np.concatenate(labels),
            Scores(probabilities, decision.decide(probabilities)),
        )

    def contents(self) -> np.ndarray | None:
        """Return a key of each record: a hash of all its columns, and how often it occurred before. [N]

        None without the files of the split.
        """
        channels, of_channels = ("train", "val") if self.split == OUT_OF_FOLD else (self.split,), []
        for split in channels:
            channel = JobPaths.resolve(self.folder).channel(split)
            if not channel.is_dir():
                return None
            files = find_data_files(channel, self.settings.get(f"{split}_filename"))
            parts = iter_tables(files, column_names(files[0]), rows_per_batch=_ROWS_AT_ONCE)
            of_channels.append(np.concatenate([content_hashes(part.table) for part in parts]))
        hashes = np.concatenate(of_channels)
        rows = np.arange(len(self.labels)) if self.rows is None else self.rows
        rows = rows + len(of_channels[0]) * (np.diff(rows, prepend=0) < 0).cumsum()  # each channel counts from 0
        hashes = hashes[rows] if rows.max(initial=-1) < len(hashes) else hashes[:0]
        return np.char.add(np.char.add(hashes.astype(str), "/"), occurrences(hashes).astype(str))


def compare(folders: Sequence[Path], *, split: str | None = None) -> int:
    """Print how jobs differ from the first of them; return 0, or 1 with the cause on stderr.

    Args:
        split: whose predictions are compared; None: those out of fold where all jobs have them and few of test.
    """
    try:
        if len(folders) < 2:
            raise ContractError(f"compare: {len(folders)} folder is given", "Name at least two finished jobs.")
        jobs = [_Job.read(folder, split or SPLIT) for folder in folders]
        if split is None and min(len(job.labels) for job in jobs) < _FEW_OF_TEST:
            outputs = [JobPaths.resolve(folder).output_data for folder in folders]
            if all(any(output.glob(f"{OUT_OF_FOLD}_predictions.*")) for output in outputs):
                jobs = [_Job.read(folder, OUT_OF_FOLD) for folder in folders]
        lines = [*_settings(jobs), *_same_trees(jobs), "", *_metrics(jobs)]
    except ContractError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    for line in lines:
        print(line)
    return 0


def _same_trees(jobs: Sequence[_Job]) -> Iterator[str]:
    """Yield a sentence for each job whose model is the trees of the first job's."""

    def trees_of(job: _Job) -> bytes | None:
        companion = job.metrics.get("companion") or {"kept": False, "factors": None}
        file = JobPaths.resolve(job.folder).model / artifacts.COMPANION
        is_model = file.is_file() and model_is_the_trees(companion["kept"], companion["factors"])
        return onnx.load(str(file)).graph.SerializeToString(deterministic=True) if is_model else None

    first = trees_of(jobs[0])
    for job in jobs[1:]:
        if first is not None and trees_of(job) == first:
            kind = kind_of(job.metrics["companion"].get("models", ""))
            yield f"The models of {jobs[0].folder} and {job.folder} are the same {kind}: in both, {MODEL_IS_THE_TREES}."


def _settings(jobs: Sequence[_Job]) -> list[str]:
    defaults = {name: field.default for name, field in Hyperparameters.model_fields.items()}
    rows = []
    defaults.pop("resume")  # of a job's start, not of its result
    for name, default in defaults.items():
        values = [job.settings.get(name, default) for job in jobs]
        if any(value != values[0] for value in values):
            rows.append([name, *map(shown_setting, values)])
    if not rows:
        return ["No setting differs."]
    return aligned([["setting", *(str(job.folder) for job in jobs)], *rows])


def _metrics(jobs: Sequence[_Job]) -> Iterator[str]:
    first, *others = jobs
    compared = [_differences(first, job) for job in others]
    header = [
        f"{first.split} metric",
        *(str(job.folder) for job in jobs),
        *(f"{job.folder} - {first.folder}" for job in others),
    ]
    rows = []
    for name in (*COMPARED, *(f"weighted/{name}" for name in COMPARED)):
        values = [job.metrics.get(f"{first.split}/{name}") for job in jobs]
        row = [name, *("-" if value is None else f"{value:.4f}" for value in values)]
        if name in COMPARED or any(value is not None for value in values):
            rows.append([*row, *(differences.get(name, "-") for differences, _ in compared)])
    yield from aligned([header, *rows])
    if any(differences for differences, _ in compared):
        yield f"Differences: 95 % intervals of a paired bootstrap over the records of {first.split}; * excludes 0."
    for job, (_, how) in zip(others, compared, strict=True):
        yield f"{job.folder}: {how}."


def _differences(first: _Job, second: _Job) -> tuple[dict[str, str], str]:
    """Return the written difference of each metric, none without common records, and how records were paired."""
    by_id = first.ids is not None and second.ids is not None
    old, new = (np.array([*map(str, job.ids or ())]) if by_id else job.contents() for job in (first, second))
    how = "id" if by_id else "equal values in every column, because a job has no id_name"
    if old is None or new is None:
        return {}, f"without id_name, records are paired by their columns, and input/data/{first.split} is missing"
    if any(len(np.unique(keys)) < len(keys) for keys in (old, new)):
        return {}, f"no differences, because ids of {first.split} repeat"
    _, here, there = np.intersect1d(old, new, assume_unique=True, return_indices=True)
    counts = f"{len(here):,} of {len(first.labels):,} and {len(second.labels):,} records were paired by {how}"
    if first.class_labels != second.class_labels or not np.array_equal(first.labels[here], second.labels[there]):
        return {}, f"no differences, because labels differ: {counts}"
    both = (
        Scores(job.scores.probabilities[rows], job.scores.decided[rows])
        for job, rows in ((first, here), (second, there))
    )
    found = paired_differences(first.labels[here], *both)
    written = {
        name: f"{each.value:+.4f} (no interval)"
        if each.interval is None
        else f"{each.value:+.4f} ({each.interval[0]:+.4f} to {each.interval[1]:+.4f}){_star(each.interval)}"
        for name, each in found.items()
    }
    return written, counts


def _star(interval: tuple[float, float]) -> str:
    low, high = (round(end, 4) for end in interval)  # as written: models that differ by rounding are equal
    return "*" if low > 0 or high < 0 else ""
