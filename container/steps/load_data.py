"""DataLoading: read a table or generate one; write part files of one format, the column names and metadata."""

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from container.demo_data import demo_table
from container.steps.program import StepRun
from container.tables.part_files import find_part_files
from container.tables.reading import Reading
from container.tables.writer import TableWriter
from contracts.errors import ContractError
from contracts.spelling import counted
from contracts.steps import SIGNATURE, TABLE_METADATA, DataLoadingSettings

logger = logging.getLogger(__name__)

ROWS_PER_BLOCK = 50_000


def run(step: StepRun) -> None:
    """Stream the table into part files of at most `rows_per_file` rows.

    Raises:
        ContractError: neither a table nor a number of rows to generate, both, or a damaged table.
    """
    began = time.monotonic()
    settings: DataLoadingSettings = step.settings
    folder = step.input("input_data")
    if (folder is None) == (settings.generate_rows == 0):
        cause = f"GENERATE_ROWS: is {settings.generate_rows}, but there is a table in {folder}"
        if folder is None:
            missing = (
                f"{step.contract.input('input_data').path(step.root)} contains no table, and GENERATE_ROWS is not set"
            )
            cause = f"{step.contract.name}: input input_data is missing: {missing}"
        raise ContractError(cause, "Either provide a table, or set GENERATE_ROWS to generate one.")
    if folder is None:
        source, tables = "generated", _generated(settings.generate_rows, settings.seed)
    else:
        parts = find_part_files(folder, reading=Reading(), scratch=step.scratch).single_valued()
        for note in parts.notes:
            logger.info("%s.", note)
        source = counted(len(parts.files), f"{parts.format} file")
        tables = (part.table for part in parts.iter_tables(_named(parts.columns)))
    written, schema = _write(tables, step.output("DATA"), settings)
    if schema is None or not written:
        raise ContractError(f"{folder}: has no rows", "Provide a table with rows.")
    names = json.dumps(schema.names, ensure_ascii=False)
    (step.output("SIGNATURE") / SIGNATURE).write_text(names, encoding="utf-8")
    rows = sum(written.values())
    metadata = {
        "source": source,
        "rows": rows,
        "format": settings.output_format,
        "files": written,
        "columns": {field.name: str(field.type) for field in schema},
    }
    text = json.dumps(metadata, indent=1, ensure_ascii=False)
    (step.output("METADATA") / TABLE_METADATA).write_text(text, encoding="utf-8")
    into = counted(len(written), "file")
    logger.info("%s, %s, into %s in %.1f s.", counted(rows, "row"), source, into, time.monotonic() - began)


def _named(columns: Sequence[str]) -> list[str]:
    """Return the columns without one of a blank name, such as the index that pandas writes."""
    named = [name for name in columns if name.strip()]
    if len(named) < len(columns):
        logger.info("A column without a name is left out: pandas writes one for its index.")
    return named


def _generated(rows: int, seed: int) -> Iterator[pa.Table]:
    """Yield the demo's records in blocks with consecutive ids."""
    for block, start in enumerate(range(0, rows, ROWS_PER_BLOCK)):
        frame = demo_table(min(ROWS_PER_BLOCK, rows - start), seed=seed + block)
        frame["order_id"] = [f"A-{row:06d}" for row in range(start, start + len(frame))]
        yield pa.Table.from_pandas(frame, preserve_index=False)


def _write(
    tables: Iterator[pa.Table], folder: Path, settings: DataLoadingSettings
) -> tuple[dict[str, int], pa.Schema | None]:
    """Write the part files. Return the number of rows by file name, and the schema: None without a table."""
    written: dict[str, int] = {}
    schema: pa.Schema | None = None
    writer: TableWriter | None = None
    with ExitStack() as current:
        for table in tables:
            schema = schema or table.schema.remove_metadata()
            start = 0
            while start < table.num_rows:
                if writer is None or writer.rows == settings.rows_per_file:
                    current.close()  # completes the previous file
                    name = f"part-{len(written):05d}.{settings.output_format.lower()}"
                    writer = current.enter_context(TableWriter(folder / name, schema))
                rows = table.slice(start, settings.rows_per_file - writer.rows)
                writer.write(rows.cast(schema))
                start += rows.num_rows
                written[writer.path.name] = writer.rows
    return written, schema
