"""Predict the records of files with a trained model: a table in, a table of predictions out, in bounded memory."""

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from container.attribution.parts import Level, Question
from container.job.processes import set_up_logging
from container.serving.answers import ERROR, LABEL, REASONS, reasons_json
from container.serving.model import Prediction, ServedModel
from container.serving.parts import Part
from container.tables.channel_files import TableSlice
from container.tables.column_types import label_column
from container.tables.part_files import PartFiles, open_tables
from container.tables.reading import Reading
from container.tables.table_file import check_names, check_present
from container.tables.writer import TableWriter, check_output
from contracts.artifacts import ROW_NUMBER
from contracts.errors import ContractError
from contracts.serving import ServingSettings
from contracts.spelling import as_named

logger = logging.getLogger(__name__)

_BATCH_SIZE = 256  # records computed together, unless SERVING_BATCH_SIZE is set


def predict(
    model: Path,
    inputs: Sequence[Path],
    output: Path,
    *,
    reading: Reading = Reading(),  # noqa: B008 - frozen
    level: str | None = None,
    top: int | None = None,
    watch: Callable[[TableSlice], object] = lambda _: None,
) -> int:
    """Write a row per record: id, predicted label, a probability per class, the error of an invalid record.

    With a level, a column "reasons" has the reasons of each record as JSON.

    Records are computed as `serve` does, with the settings SERVING_*; an invalid one does not stop the others.

    Args:
        model: the model folder of a completed job, or an unpacked package.
        inputs: files or folders of one table, in any format that `init` reads.
        output: the file to write; its suffix decides the format.
        reading: how the files are read.
        level, top: as for Predictor.explain.
        watch: is called with each slice of the records.

    Returns:
        0.

    Raises:
        ContractError: there are no predictions.
    """
    set_up_logging()
    began = time.monotonic()
    question = None if level is None else Question(cast(Level, level), top)
    rows, invalid, error = _predict(model, inputs, output, reading, question, watch=watch)
    seconds = time.monotonic() - began
    logger.info("%s: %s records predicted in %.1f s", output, f"{rows - invalid:,}", seconds)
    if invalid:
        logger.warning(
            f"{invalid:,} of {rows:,} records {'has' if invalid == 1 else 'have'} no prediction; the column {ERROR!r} "
            f"says why. The first: {error}"
        )
    return 0


def _predict(
    model: Path,
    inputs: Sequence[Path],
    output: Path,
    reading: Reading,
    question: Question | None,
    *,
    watch: Callable[[TableSlice], object],
) -> tuple[int, int, str]:
    """Return the number of records, the number of invalid ones among them, and the error of the first."""
    check_output(output)
    if not model.is_dir():
        raise ContractError(
            f"{model}: there is no model", "Set --root to the folder of a completed job, or --model to a model folder."
        )
    defaults = {"SERVING_BATCH_SIZE": str(_BATCH_SIZE)}
    environment = {**defaults, **os.environ, "SERVING_INVALID_RECORDS": "report"}
    served = ServedModel.load(model, ServingSettings.from_environment(environment))
    rows, invalid, error = 0, 0, ""
    with tempfile.TemporaryDirectory(prefix="predict-") as scratch:
        table = open_tables(inputs, option="--input", reading=reading, scratch=Path(scratch))
        for note in table.notes:
            logger.info("%s.", note)
        if output.resolve() in {path.resolve() for path in table.files}:
            raise ContractError(f"--output: {output} is also an input", "Name another file.")
        names = as_named(table.columns, [*served.feature_inputs, *filter(None, [served.id_name])])
        check_present(served.feature_inputs, names, str(table.files[0]))
        id_name = served.id_name if served.id_name in names else None
        columns = [*served.feature_inputs, *([id_name] if id_name and id_name not in served.feature_inputs else [])]
        with ExitStack() as stack:
            writer = None
            for piece, prediction in _predictions(served, table, columns, question):
                watch(piece)
                found = _rows(piece, prediction, id_name)
                writer = writer or stack.enter_context(TableWriter(output, found.schema))
                writer.write(found)
                errors = prediction.errors or {}
                error = error or next(iter(errors.values()), "")
                invalid += len(errors)
                rows += found.num_rows
            if invalid == rows:
                cause = f"none of the {rows} records is valid: {error}" if rows else f"{table.files[0]}: has no row"
                raise ContractError(cause, "Correct the table.")
    return rows, invalid, error


def _predictions(
    served: ServedModel, table: PartFiles, columns: Sequence[str], question: Question | None
) -> Iterator[tuple[TableSlice, Prediction]]:
    is_terminal = sys.stderr.isatty()
    total = _count_rows(table) if is_terminal else None
    with tqdm(total=total, unit=" records", unit_scale=True, file=sys.stderr, disable=not is_terminal) as bar:
        for piece in table.iter_tables(columns):
            part = Part(piece.table, piece.first_row, origin=piece.origin, question=question)
            yield piece, served.decide([served.score(served.prepare_part(part))])
            bar.update(len(part))


def _count_rows(table: PartFiles) -> int | None:
    """Return the number of rows for the bar, about; None if it is not known without reading the values."""
    counts = [source.count_rows() for source in table.sources]
    return None if None in counts else sum(filter(None, counts))


def _rows(piece: TableSlice, prediction: Prediction, id_name: str | None) -> pa.Table:
    """Return the rows of the output."""
    count = piece.table.num_rows
    numbers = pa.array(np.arange(piece.first_row, piece.first_row + count))
    errors = prediction.errors or {}
    is_invalid = np.array([row in errors for row in range(count)], bool)
    labels = label_column(prediction.decided, prediction.class_labels)
    columns = [
        (id_name or ROW_NUMBER, piece.table[id_name] if id_name else numbers),
        (LABEL, labels),
        *(
            (f"prob_{label}", pa.array(prediction.probabilities[:, k].copy(), mask=is_invalid))
            for k, label in enumerate(prediction.class_labels)
        ),
        *(
            []
            if prediction.reasons is None
            else [(REASONS, pa.array([each and reasons_json(each) for each in prediction.reasons], pa.string()))]
        ),
        (ERROR, pa.array([errors.get(row) for row in range(count)], pa.string())),
    ]
    names = [name for name, _ in columns]
    check_names(names, "the predictions")
    return pa.table([values for _, values in columns], names=names)
