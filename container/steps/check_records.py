"""The records of processed_data that a package must answer as the training job predicted them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from container.archives import extract_archive
from container.data.records import RecordArrays
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.transform import Preprocessor
from container.serving.calibration import calibrated
from container.steps.sample_requests import Record
from container.tables.channel_files import Origin, TableSlice, read_head
from container.tables.data_files import find_data_files
from container.tables.values import keys, numbers, texts
from contracts import artifacts
from contracts.errors import ContractError
from contracts.package_inputs import CalibrationMap
from contracts.serving import CALIBRATION, CSV
from contracts.steps import ARCHIVED_OUTPUT

logger = logging.getLogger(__name__)

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

    def only(self, kept: Sequence[int]) -> "Expected":
        """Return the records at these positions."""
        return Expected(
            self.split,
            [self.ids[row] for row in kept],
            [self.records[row] for row in kept],
            None if self.probabilities is None else self.probabilities[kept],
        )


def expected_records(
    data: Path | None,
    evaluation: Path | None,
    *,
    package: Path,
    fitted: FittedPreprocessing,
    count: int,
    most_tokens: int,
    scratch: Path,
) -> Expected | None:
    """Return the first `count` rows of a split, without those that a server refuses; None without processed_data.

    Args:
        data: processed_data, if it exists.
        evaluation: eval_output, if it exists.
        package: the unpacked package.
        most_tokens: of a record that a server accepts.
        scratch: folder for an unpacked archive.
    """
    predictions = None if evaluation is None else _predictions_folder(evaluation, scratch)
    if data is None:
        if predictions is not None:
            logger.info("eval_output is not compared, because the input processed_data is missing.")
        return None
    for split in _SPLITS:
        files = sorted(predictions.glob(f"{split}_predictions.*")) if predictions else []
        if predictions is not None and not files:
            continue
        if not (data / split).is_dir():
            if predictions is None:
                continue
            raise ContractError(
                f"input processed_data: has no folder {split}, and eval_output has predictions of {split}",
                "Provide the splits that the model was trained and evaluated on.",
            )
        return _first_rows(split, data / split, files, package, fitted, count=count, most_tokens=most_tokens)
    names = " nor ".join(f"{split}_predictions" if predictions else f"folder {split}" for split in _SPLITS)
    raise ContractError(
        f"input {'eval_output' if predictions else 'processed_data'}: has neither {names}",
        "Provide the outputs of the same pipeline's training and preprocessing.",
    )


def _predictions_folder(folder: Path, scratch: Path) -> Path:
    if not (folder / ARCHIVED_OUTPUT).is_file():
        return folder
    unpacked = scratch / "eval"
    extract_archive(folder / ARCHIVED_OUTPUT, unpacked)
    # The service packs the content of output/data, the SDK's local mode the content of output.
    return next((path.parent for path in sorted(unpacked.rglob("*_predictions.*"))), unpacked)


def _first_rows(
    split: str,
    data: Path,
    predictions: Sequence[Path],
    package: Path,
    fitted: FittedPreprocessing,
    *,
    count: int,
    most_tokens: int,
) -> Expected:
    """Return the first `count` rows of a split, without those that have more than `most_tokens`."""
    columns = [*filter(None, [fitted.id_name]), *fitted.feature_inputs]
    rows = read_head(find_data_files(data), columns, count, numeric=fitted.numeric_columns)
    ids = keys(rows.table[fitted.id_name]).to_pylist() if fitted.id_name else [*map(str, range(rows.table.num_rows))]
    records = _records(rows.table, fitted, rows.origin)
    served = _servable(rows, package, most_tokens)
    if not predictions:
        return Expected(split, ids, records, None).only(served)
    names = [*map(artifacts.probability_column, range(len(fitted.class_labels)))]
    id_name = fitted.id_name or artifacts.ROW_NUMBER
    predicted = read_head(predictions[:1], [id_name, *names], count)
    fix = "Provide the records that the predictions belong to."
    for row, (here, there) in enumerate(zip(ids, keys(predicted.table[id_name]).to_pylist())):
        if here != there:
            problem = f"has the {id_name} {there!r}, but {rows.origin.row(row)} has {here!r}"
            raise ContractError(f"{predicted.origin.row(row)} {problem}", fix)
    found = predicted.table.num_rows
    if found != len(ids):
        comparison = f"has {'fewer' if found < len(ids) else 'more'} rows than the table that begins with"
        raise ContractError(f"{predicted.origin.file}: {comparison} {rows.origin.file}", fix)
    probabilities = np.stack(
        [numbers(predicted.table[name], name, origin=predicted.origin) for name in names], axis=1
    )  # [N, K]
    calibration = package / CALIBRATION
    if calibration.is_file():
        probabilities = calibrated(probabilities, CalibrationMap.read(calibration))
    return Expected(split, ids, records, probabilities).only(served)


def _servable(rows: TableSlice, package: Path, most_tokens: int) -> list[int]:
    """Return the positions of the records that a server does not refuse as too long."""
    preprocessor = Preprocessor.load(package)
    transformed = preprocessor.transform(rows.table, origin=rows.origin, max_tokens=most_tokens)
    records = RecordArrays.from_batch(transformed.batch, [text.role for text in preprocessor.fitted.text_fields])
    tokens = [records.padded_tokens(row) for row in range(rows.table.num_rows)]
    served = [row for row, each in enumerate(tokens) if each <= most_tokens]
    if len(served) < len(tokens):
        logger.warning(
            "%d of %d records have more than SERVING_MAX_TOKENS=%d tokens: a server refuses them, and they are not "
            "compared. Raise SERVING_MAX_TOKENS, or train with chunk_trancate.",
            len(tokens) - len(served), len(tokens), most_tokens,
        )  # fmt: skip
    return served


def _records(table: pa.Table, fitted: FittedPreprocessing, origin: Origin) -> list[Record]:
    """Return rows as a client sends them: numbers unquoted, missing values null."""
    columns: dict[str, list[Any]] = {}
    for name in fitted.feature_inputs:
        if name in fitted.number_format:
            columns[name] = texts(table[name])
        elif name in fitted.numeric_columns:
            values = numbers(table[name], name, origin=origin)
            columns[name] = [None if np.isnan(value) else value for value in values.tolist()]
        elif name in fitted.categorical_columns:
            columns[name] = keys(table[name]).to_pylist()
        else:
            columns[name] = texts(table[name])
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def expressible(expected: Expected, media_type: str) -> Expected:
    """Return the records that a format can contain: CSV has no NUL characters."""
    if media_type != CSV:
        return expected
    kept = [row for row, record in enumerate(expected.records) if "\0" not in "".join(map(str, record.values()))]
    if len(kept) < len(expected.records):
        logger.info("%d records have NUL characters, and are not sent as CSV.", len(expected.records) - len(kept))
    return expected.only(kept)
