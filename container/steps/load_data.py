"""DataLoading: a user's table in, or a generated one; part files of one format, column names and metadata out."""

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from container.demo_data import demo_table
from container.steps.program import StepRun
from container.tables.part_files import find_part_files
from container.tables.writer import TableWriter
from contracts.errors import ContractError
from contracts.steps import SIGNATURE, TABLE_METADATA, DataLoadingSettings

logger = logging.getLogger(__name__)

GENERATED_AT_ONCE = 50_000


def run(step: StepRun) -> None:
    """Stream the table into part files of at most `rows_per_file` rows.

    Raises:
        ContractError: neither a table nor a number of rows to generate, both, or a damaged table.
    """
    began = time.monotonic()
    settings: DataLoadingSettings = step.settings
    folder = step.input("input_data")
    if (folder is None) == (settings.generate_rows == 0):
        where = step.contract.input("input_data").path(step.root)
        raise ContractError(
            f"{step.contract.name}: input input_data is missing: {where} holds no table, and GENERATE_ROWS is not set"
            if folder is None
            else f"GENERATE_ROWS: is {settings.generate_rows}, but there is a table in {folder}",
            "Hand over a table, or set GENERATE_ROWS to generate one.",
        )
    if folder is None:
        source, tables = "generated", _generated(settings.generate_rows, settings.seed)
    else:
        parts = find_part_files(folder, scratch=step.scratch)
        source, tables = f"{len(parts.files)} {parts.format} file(s)", (part.table for part in parts.iter_tables())
    written, schema = _write(tables, step.output("DATA"), settings)
    if schema is None or not sum(written.values()):
        raise ContractError(f"{folder}: holds no rows", "Hand over a table with rows.")
    signature = step.output("SIGNATURE") / SIGNATURE
    signature.write_text(json.dumps(schema.names, ensure_ascii=False), encoding="utf-8")
    metadata = {
        "source": source,
        "rows": sum(written.values()),
        "format": settings.output_format,
        "files": written,
        "columns": {field.name: str(field.type) for field in schema},
    }
    text = json.dumps(metadata, indent=1, ensure_ascii=False)
    (step.output("METADATA") / TABLE_METADATA).write_text(text, encoding="utf-8")
    seconds = time.monotonic() - began
    logger.info("%d rows, %s, into %d file(s) in %.1f s.", metadata["rows"], source, len(written), seconds)


def _generated(rows: int, seed: int) -> Iterator[pa.Table]:
    """Yield the demo's claims in blocks with consecutive ids."""
    for block, start in enumerate(range(0, rows, GENERATED_AT_ONCE)):
        frame = demo_table(min(GENERATED_AT_ONCE, rows - start), seed=seed + block)
        frame["order_id"] = [f"A-{row:06d}" for row in range(start, start + len(frame))]
        yield pa.Table.from_pandas(frame, preserve_index=False)


def _write(
    tables: Iterator[pa.Table], folder: Path, settings: DataLoadingSettings
) -> tuple[dict[str, int], pa.Schema | None]:
    """Return the number of rows by file name, and the schema; None where there was no table."""
    written: dict[str, int] = {}
    schema: pa.Schema | None = None
    writer: TableWriter | None = None
    try:
        for whole in tables:
            table = whole
            schema = schema or table.schema.remove_metadata()
            while table.num_rows:
                if writer is None:
                    name = f"part-{len(written):05d}.{settings.output_format.lower()}"
                    writer = TableWriter(folder / name, schema)
                taken = min(table.num_rows, settings.rows_per_file - writer.rows)
                writer.write(table.slice(0, taken).cast(schema))
                table = table.slice(taken)
                written[writer.path.name] = writer.rows
                if writer.rows == settings.rows_per_file:
                    writer.close()
                    writer = None
        if writer is not None:
            writer.close()
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise
    return written, schema
