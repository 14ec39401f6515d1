"""The records of processed_data that a package must answer as the training job predicted them."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from container.data.records import RecordArrays
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.transform import Preprocessor
from container.serving.calibration import calibrated
from container.steps.metrics.read_predictions import find_predictions
from container.steps.program import StepRun
from container.tables.channel_files import TableSlice, read_head
from container.tables.data_files import find_data_files
from container.tables.values import keys, numbers, texts
from contracts import artifacts
from contracts.errors import ContractError
from contracts.package_inputs import CalibrationMap
from contracts.serving import CALIBRATION

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]

_SPLITS = ("test", "val")  # the first of them that exists is compared


@dataclass(frozen=True)
class Expected:
    """Records of a split and the training job's predictions for them.

    Attributes:
        ids: [N]
        records: sent to the package. [N]
        probabilities: None without predictions. [N, K]
    """

    split: str
    ids: Sequence[str | None]
    records: Sequence[Record]
    probabilities: np.ndarray | None


def expected_records(step: StepRun, package: Path, fitted: FittedPreprocessing) -> Expected | None:
    """Return the first CHECK_ROWS rows of a split that a server accepts; None without processed_data.

    Args:
        package: the unpacked package.
    """
    data, evaluation = step.input("processed_data"), step.input("eval_output")
    if data is None:
        if evaluation is not None:
            logger.info("eval_output is not compared, because the input processed_data is missing.")
        return None
    predicted = None if evaluation is None else find_predictions(evaluation, scratch=step.scratch).splits
    present = [path.name for path in data.iterdir()] if predicted is None else predicted
    split = next((name for name in _SPLITS if name in present), None)
    if split is None or not (data / split).is_dir():
        where, what = ("processed_data", "folder") if split or predicted is None else ("eval_output", "predictions of")
        raise ContractError(
            f"input {where}: has no {what} {split or ' or '.join(_SPLITS)}",
            "Provide the outputs of the same pipeline's training and preprocessing.",
        )
    columns = [*filter(None, [fitted.id_name]), *fitted.feature_inputs]
    rows = read_head(find_data_files(data / split), columns, step.settings.check_rows, numeric=fitted.raw_numbers)
    records = _records(rows, fitted)
    ids = keys(rows.table[fitted.id_name]) if fitted.id_name else pa.array(map(str, range(len(records))))
    probabilities = None
    if predicted is not None:
        files = predicted[split].files
        probabilities = _probabilities(files, rows, ids, package, fitted, count=step.settings.check_rows)
    kept = _accepted(rows, records, package, step.settings.serving_max_tokens)
    return Expected(
        split,
        ids.take(pa.array(kept, pa.int64())).to_pylist(),
        [records[row] for row in kept],
        None if probabilities is None else probabilities[kept],
    )


def _records(rows: TableSlice, fitted: FittedPreprocessing) -> list[Record]:
    """Return rows as a client sends them: numbers unquoted, missing values null."""
    columns: dict[str, list[Any]] = {}
    for name in fitted.feature_inputs:
        cells = rows.table[name]
        if name in fitted.number_format:
            columns[name] = texts(cells)
        elif name in fitted.raw_numbers:
            values = fitted.numbers_of(cells, name, origin=rows.origin).tolist()
            columns[name] = [None if np.isnan(value) else value for value in values]
        else:
            columns[name] = keys(cells).to_pylist() if name in fitted.categorical_columns else texts(cells)
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _probabilities(
    files: Sequence[Path],
    rows: TableSlice,
    ids: pa.Array,
    package: Path,
    fitted: FittedPreprocessing,
    *,
    count: int,
) -> np.ndarray:
    """Return the predicted probabilities of these rows, with the package's calibration. [N, K]"""
    names = [*map(artifacts.probability_column, range(len(fitted.class_labels)))]
    id_name = fitted.id_name or artifacts.ROW_NUMBER
    predicted = read_head(files, [id_name, *names], count)
    others = keys(predicted.table[id_name])
    if not ids.equals(others):
        both = enumerate(zip(ids.to_pylist(), others.to_pylist()))
        row = next((row for row, (here, there) in both if here != there), min(len(ids), len(others)))
        raise ContractError(
            f"{predicted.origin.row(row)} does not have the {id_name} of {rows.origin.row(row)}",
            "Provide the records that the predictions belong to, in their order.",
        )
    columns = [numbers(predicted.table[name], name, origin=predicted.origin) for name in names]
    probabilities = np.stack(columns, axis=1)
    calibration = package / CALIBRATION
    return calibrated(probabilities, CalibrationMap.read(calibration)) if calibration.is_file() else probabilities


def _accepted(rows: TableSlice, records: Sequence[Record], package: Path, most_tokens: int) -> list[int]:
    """Return the positions of the records that a server accepts in every format."""
    preprocessor = Preprocessor.load(package)
    transformed = preprocessor.transform(rows.table, origin=rows.origin, max_tokens=most_tokens)
    prepared = RecordArrays.from_batch(transformed.batch, [text.role for text in preprocessor.fitted.text_fields])
    long = [prepared.padded_tokens(row) > most_tokens for row in range(len(records))]
    if any(long):
        logger.warning(
            f"{sum(long)} of {len(long)} records have more than SERVING_MAX_TOKENS={most_tokens} tokens: a server "
            "refuses them, and they are not compared. Raise SERVING_MAX_TOKENS, or train with chunk_trancate."
        )
    nul = ["\0" in "".join(map(str, record.values())) for record in records]  # CSV cannot contain it
    if any(nul):
        logger.info("%d records have NUL characters, and are not compared.", sum(nul))
    return [row for row in range(len(records)) if not (long[row] or nul[row])]
