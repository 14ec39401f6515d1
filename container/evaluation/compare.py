"""Compare finished jobs: the settings that differ, and the test metrics with paired differences."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from container.decision.decision import Decision
from container.evaluation.bootstrap import Scores, paired_differences
from container.evaluation.tuning_report import shown_setting
from container.preprocessing.fitted import FittedPreprocessing
from container.tables.channel_files import iter_tables
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


@dataclass(frozen=True)
class _Job:
    """A finished job. [N] records of test."""

    folder: Path
    settings: dict[str, Any]
    metrics: dict[str, Any]
    class_labels: tuple[int | str, ...]
    ids: tuple[str | None, ...]
    labels: np.ndarray
    scores: Scores

    @classmethod
    def read(cls, folder: Path) -> "_Job":
        paths = JobPaths.resolve(folder)
        files = sorted(paths.output_data.glob(f"{SPLIT}_predictions.*"))
        if not files:
            raise ContractError(f"{folder}: has no {SPLIT} predictions in output/data", _FIX)
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
            read_object(paths.model / artifacts.HYPERPARAMETERS, _FIX),
            json.loads((paths.output_data / artifacts.METRICS).read_text()),
            tuple(fitted.class_labels),
            tuple(ids),
            np.concatenate(labels),
            Scores(probabilities, decision.decide(probabilities)),
        )


def compare(folders: Sequence[Path]) -> int:
    """Print how jobs differ from the first of them; return 0, or 1 with the cause on stderr."""
    try:
        if len(folders) < 2:
            raise ContractError(f"compare: {len(folders)} folder is given", "Name at least two finished jobs.")
        jobs = [_Job.read(folder) for folder in folders]
    except ContractError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    for line in [*_settings(jobs), "", *_metrics(jobs)]:
        print(line)
    return 0


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
    differences = [_differences(first, job) for job in others]
    header = [
        f"{SPLIT} metric",
        *(str(job.folder) for job in jobs),
        *(f"{job.folder} - {first.folder}" for job in others),
    ]
    rows = []
    for name in COMPARED:
        values = [job.metrics.get(f"{SPLIT}/{name}") for job in jobs]
        row = [name, *("-" if value is None else f"{value:.4f}" for value in values)]
        rows.append([*row, *("-" if found is None else found.get(name, "-") for found in differences)])
    yield from aligned([header, *rows])
    if None in differences:
        yield "Differences need the same records of test, with the same labels, in both jobs."
    else:
        yield "Differences: 95 % intervals of a paired bootstrap over the records of test; * excludes 0."


def _differences(first: _Job, second: _Job) -> dict[str, str] | None:
    """Return the written difference of each metric; None without the same records."""
    rows = {name: row for row, name in enumerate(second.ids)}
    order = (
        np.arange(len(first.ids)) if first.ids == second.ids else np.array([rows.get(name, -1) for name in first.ids])
    )
    same = first.class_labels == second.class_labels and len(second.ids) == len(order) == len(np.unique(order))
    if not same or (order < 0).any() or not np.array_equal(first.labels, second.labels[order]):
        return None
    scores = Scores(second.scores.probabilities[order], second.scores.decided[order])
    found = paired_differences(first.labels, first.scores, scores)
    return {
        name: f"{each.value:+.4f} (no interval)"
        if each.interval is None
        else f"{each.value:+.4f} ({each.interval[0]:+.4f} to {each.interval[1]:+.4f}){'*' if each.sign else ''}"
        for name, each in found.items()
    }
