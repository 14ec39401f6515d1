"""Convert raw files to one table: Parquet, CSV, TSV or JSON Lines."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from container.job.processes import set_up_logging
from container.tables.part_files import open_tables
from container.tables.reading import Reading
from container.tables.writer import TableWriter, check_output
from contracts.errors import ContractError
from contracts.spelling import counted


def convert(inputs: Sequence[Path], output: Path, *, reading: Reading) -> int:
    """Write the table of files, or folders of files, to one file; print how they were read.

    Args:
        output: its suffix decides the format.

    Returns:
        0.

    Raises:
        ContractError: the files are no table, or the output cannot be written.
    """
    set_up_logging()
    check_output(output)
    with tempfile.TemporaryDirectory(prefix="convert-") as scratch:
        parts = open_tables(inputs, option="IN", reading=reading, scratch=Path(scratch)).single_valued()
        if output.resolve() in {path.resolve() for path in parts.files}:
            raise ContractError(f"OUT: {output} is also an input", "Name another file.")
        print(*(f"{note}." for note in parts.notes), sep="\n", end="\n" if parts.notes else "")
        with ExitStack() as stack:
            writer = None
            for part in parts.iter_tables():
                writer = writer or stack.enter_context(TableWriter(output, part.table.schema))
                writer.write(part.table)
            if writer is None:
                raise ContractError(f"{parts.files[0]}: has no row", "Name a table with rows.")
    print(f"{output}: {counted(writer.rows, 'row')}, {counted(len(parts.columns), 'column')}.")
    return 0
