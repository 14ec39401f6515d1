"""Write the baseline of a model that an earlier version trained, from the data of its job."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from container.data.records import RecordArrays
from container.job.processes import set_up_logging
from container.monitoring.baseline import SAMPLE_ROWS, Baseline
from container.monitoring.observe import Collected, Labels, collect, prepared, score
from container.monitoring.profile import RecordProfile
from container.preprocessing.distributions import Categories, Distribution, TableDistributions, columns_of, labelled
from container.serving.predictor import Predictor
from container.tables.channel_files import iter_tables
from container.tables.data_files import find_data_files
from container.tables.table_file import Origin
from contracts import artifacts
from contracts.errors import ContractError
from contracts.input_files import exists, read_object
from contracts.paths import JobPaths

logger = logging.getLogger(__name__)

_SCORED_ROWS = 10_000
_SLICE_ROWS = 8192


def write_baseline(paths: JobPaths) -> int:
    """Write model/baseline.json of a finished job from its channels; return 0.

    Raises:
        ContractError: there is no model, or its data is missing.
    """
    set_up_logging()
    if not exists(paths.model):
        raise ContractError(f"{paths.model}: there is no model", "Set --root to the folder of a completed job.")
    predictor = Predictor.load(paths.model)
    fitted = predictor.preprocessor.fitted
    settings = read_object(paths.model / artifacts.HYPERPARAMETERS, artifacts.MODEL_FIX)
    of_splits: dict[str, tuple[RecordProfile, Collected]] = {}
    names: tuple[str, ...] = ()
    for split, rows in (("train", 1), ("val", SAMPLE_ROWS // 2), ("test", _SCORED_ROWS)):
        files = find_data_files(paths.channel(split), settings.get(f"{split}_filename"))
        if split == "train":
            names = columns_of(files)
        profile, labels = RecordProfile(fitted), Labels(fitted.labels)
        tables = _tables(files, [*fitted.feature_inputs, fitted.label_name])
        of_splits[split] = profile, collect(tables, profile, labels, sample_rows=rows)
    profile, collected = of_splits["train"]
    held_out = [prepared(predictor, of_splits[name][1].every, SAMPLE_ROWS // 2)[0] for name in ("val", "test")]
    counts = [0] * len(predictor.class_labels) if collected.counts is None else collected.counts.tolist()
    table = TableDistributions(
        rows=profile.rows,
        columns=names,
        labels=labelled(predictor.class_labels, counts),
        numbers={name: Distribution.of(summary) for name, summary in profile.numbers.items()},
        categories={name: Categories.of(of_column) for name, of_column in profile.categories.items()},
    )
    scores = score(predictor, *prepared(predictor, of_splits["test"][1].every, _SCORED_ROWS))
    Baseline.of(table, RecordArrays.joined(held_out), predictor.preprocessor, scores).save(paths.model)
    logger.info("%s: written from %d records of train", paths.model / artifacts.BASELINE, profile.rows)
    return 0


def _tables(files: list[Path], columns: list[str]) -> Iterator[tuple[pa.Table, Origin]]:
    for part in iter_tables(files, columns, rows_per_batch=_SLICE_ROWS):
        yield part.table, part.origin
