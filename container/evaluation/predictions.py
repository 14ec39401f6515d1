"""Write predictions in the input's format: id, label, prob_class_0..K-1, predicted_label, a row per record in order."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from container.tables.writer import TableWriter
from contracts.artifacts import PREDICTED_LABEL, probability_column
from contracts.atomic_files import AtomicFile
from contracts.table_formats import FORMATS

_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True)
class SplitPredictions:
    """A split's predictions.

    Attributes:
        ids: as in the input. [N]
        raw_labels: as in the input; None if predictions are read from a table without a label column. [N]
        labels: class ids, negative if unlabelled. [N]
        probabilities: [N, K]
        weights: of the records; None without weight_name. [N]
    """

    split: str
    ids: pa.ChunkedArray
    raw_labels: pa.ChunkedArray | None
    labels: np.ndarray
    probabilities: np.ndarray
    weights: np.ndarray | None = None


def write_out_of_fold(
    path: Path, *, places: Mapping[str, np.ndarray], labels: np.ndarray, probabilities: np.ndarray
) -> None:
    """Write the probabilities of the rows of train by the network that did not train on them, atomically, as Parquet.

    Args:
        places: columns that name each row. [N] each
        labels: class ids, negative if unlabelled. [N]
        probabilities: not calibrated. [N, K]
    """
    columns = {**places, "label": pa.array(labels), **_probability_columns(probabilities)}
    with AtomicFile(path) as temporary:
        pyarrow.parquet.write_table(pa.table(columns), temporary, row_group_size=_ROWS_AT_ONCE)


def _probability_columns(probabilities: np.ndarray) -> dict[str, pa.Array]:
    """[N, K] -> K columns"""
    return {probability_column(k): pa.array(np.ascontiguousarray(column)) for k, column in enumerate(probabilities.T)}


def write_predictions(
    folder: Path,
    predictions: SplitPredictions,
    *,
    predicted: pa.Array,
    id_name: str,
    label_name: str,
    file_format: str,
) -> Path:
    """Write {split}_predictions.{csv,tsv,jsonl,parquet} into `folder`, atomically; return its path.

    Those of an earlier run whose input had another format are removed: they may be of another model.

    Ids and labels are written as they were read: a CSV's are strings, so 007 stays 007. Probabilities keep all digits
    needed to read back the same numbers.

    Args:
        predicted: the decided label of each record. [N]
    """
    assert len(predictions.ids) == len(predictions.probabilities), "one prediction per id"
    assert predictions.raw_labels is not None, "every channel has the label column"
    columns = {id_name: predictions.ids, label_name: predictions.raw_labels}
    table = pa.table({PREDICTED_LABEL: predicted, **columns, **_probability_columns(predictions.probabilities)})
    table = table.select([name for name in table.column_names if name != PREDICTED_LABEL] + [PREDICTED_LABEL])
    path = folder / f"{predictions.split}_predictions.{file_format}"
    with TableWriter(path, table.schema) as writer:
        writer.write(table)
    for other in FORMATS:
        if other.name != file_format:
            path.with_suffix(f".{other.name}").unlink(missing_ok=True)
    return path
