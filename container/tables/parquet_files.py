"""Read Parquet files."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import pyarrow as pa
import pyarrow.parquet as pq

from container.tables.column_types import checked_cells, flat_table
from container.tables.reading import Reading
from container.tables.table_file import Origin, TableFile, is_gzip, open_plain
from contracts.errors import ContractError, first_line
from contracts.input_files import check_stand_in

BYTES_AT_ONCE = 16 << 20  # uncompressed, as the metadata states it


class File(TableFile):
    """A Parquet file; a gzipped one is decompressed, because reading begins at its end."""

    def __init__(self, path: Path, *, reading: Reading | None = None, scratch: Path | None = None) -> None:
        super().__init__(path, reading=reading, scratch=scratch)
        self._data = path
        if is_gzip(path):
            assert scratch is not None, "channels have no gzipped Parquet files"
            scratch.mkdir(parents=True, exist_ok=True)
            with open_plain(path) as stream, NamedTemporaryFile(dir=scratch, delete=False) as out:
                self._data = Path(out.name)
                shutil.copyfileobj(stream, out, 1 << 20)

    def schema(self) -> pa.Schema:
        return flat_table(self._open().schema_arrow.empty_table()).schema

    def batches(self, schema: pa.Schema, *, rows: int) -> Iterator[pa.RecordBatch]:
        first = 0
        try:
            with self._open() as file:
                for batch in file.iter_batches(batch_size=rows, columns=schema.names, use_threads=False):
                    table = flat_table(pa.Table.from_batches([batch])).select(schema.names).combine_chunks()
                    row = Origin(self.path, first).row
                    cells = [
                        checked_cells(column.chunk(0), field, row=row)
                        for column, field in zip(table.columns, table.schema)
                    ]
                    yield pa.RecordBatch.from_arrays(cells, schema.names)
                    first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise ContractError(
                f"{self.path}: damaged Parquet data: {first_line(error)}", "Write the file again."
            ) from error

    def rows_at_once(self, most: int) -> int:
        try:
            metadata = pq.read_metadata(self._data)
        except (pa.ArrowException, OSError):
            return most  # damaged; reading it raises the error
        size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        return max(1, min(most, BYTES_AT_ONCE * max(metadata.num_rows, 1) // max(size, 1)))

    def count_rows(self) -> int:
        return pq.read_metadata(self._data).num_rows

    def _open(self) -> pq.ParquetFile:
        try:
            # A small buffer for column chunks: a row group may be as large as the file.
            file = pq.ParquetFile(self._data, buffer_size=1 << 20, pre_buffer=False)
            _ = file.schema_arrow.names  # which may not be UTF-8
            return file
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            with suppress(OSError):
                check_stand_in(self._data)
            raise ContractError(
                f"{self.path}: cannot be read as Parquet: {first_line(error)}",
                "Write it again, or give the file name the suffix of its format.",
            ) from error
