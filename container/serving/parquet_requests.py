"""Read a Parquet body in parts: a small body may contain large values many times."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from container.serving.errors import bad_request, check_limit
from container.serving.parts import MAX_COLUMNS, PART_BYTES, PART_RECORDS, Part, check_columns, grouped
from container.tables.column_types import is_text, plain_type, refused_cells
from container.tables.records import records_to_table
from container.tables.table_file import check_names
from contracts.errors import first_line
from contracts.serving import ServingSettings
from contracts.spelling import as_named

_BATCH_BYTES = 16 << 20  # with a smaller limit, more bodies are read one record at a time, at about 30 µs per record
_FIXED_BYTES = 16  # of a number, time or decimal, or of a text's offset
_DECOMPRESSED = "bytes after it is decompressed"


def parquet_parts(body: bytes, columns: Sequence[str], limits: ServingSettings) -> Iterator[Part]:
    """Yield the records of a Parquet body.

    Args:
        columns: the columns that the model needs.

    Raises:
        RequestError: 400, the body is not Parquet, or a column is missing; 413, too many columns or decoded bytes.
        ContractError: a column name that occurs twice.
    """
    max_bytes = limits.serving_max_decoded_bytes
    try:
        with pq.ParquetFile(pa.BufferReader(body)) as file:
            schema, metadata = file.schema_arrow, file.metadata
            check_limit(metadata.num_columns, "columns", MAX_COLUMNS)
            check_names(schema.names, "the request")
            sizes = (metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
            check_limit(sum(sizes), _DECOMPRESSED, max_bytes)
            if metadata.num_rows:
                names = as_named(schema.names, columns)
                check_columns(columns, names)
                in_body = dict(zip(names, schema.names))
                for pieces, first in grouped(_pieces(file, [in_body[name] for name in columns], max_bytes), len):
                    yield Part(pa.concat_tables(pieces).rename_columns(list(columns)), first, _checked)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise bad_request(f"the request is not Parquet: {first_line(error)}", "Write the table again.") from error


def _checked(rows: pa.Table, first: int) -> pa.Table:
    return records_to_table(rows, first=first)


def _pieces(file: pq.ParquetFile, columns: Sequence[str], max_bytes: int) -> Iterator[tuple[pa.Table, int]]:
    """Yield decoded tables of at most PART_BYTES or of one record, each with the bytes that reading it takes."""
    schema = file.schema_arrow  # each access builds it
    fields = [schema.field(name) for name in columns]
    # A column without single values is an error for its type. Its values are not read, because one may have any size.
    readable = {field.name: field for field in fields if plain_type(field) and not pa.types.is_nested(field.type)}
    rows_at_once = _rows_at_once(file, readable, max_bytes)
    decoded = 0
    for selected in file.iter_batches(rows_at_once, columns=list(readable), use_threads=False):
        batch = selected.select(list(readable))  # for the column a.b, Arrow also reads the field b of a column a
        ends = np.cumsum(_row_bytes(batch))  # [N]
        decoded += int(ends[-1])
        check_limit(decoded, _DECOMPRESSED, max_bytes)
        start = before = 0
        while start < len(ends):
            stop = max(start + 1, int(np.searchsorted(ends, before + PART_BYTES, side="right")))
            rows = batch.slice(start, stop - start)
            arrays = [
                _decoded(rows[field.name]) if field.name in readable else refused_cells(field, len(rows))
                for field in fields
            ]
            kept = pa.schema([field.with_type(array.type) for field, array in zip(fields, arrays)])
            # Arrow copies a dictionary for each batch, so that few records may take much time.
            yield pa.Table.from_arrays(arrays, schema=kept), max(int(ends[stop - 1]) - before, batch.nbytes)
            start, before = stop, int(ends[stop - 1])


def _rows_at_once(file: pq.ParquetFile, fields: Mapping[str, pa.Field], max_bytes: int) -> int:
    """Return how many records take at most _BATCH_BYTES when they are decoded; 1 if one may take more.

    In each encoding, a text has at most the bytes of its column chunk, and every record may contain the same text.
    Dictionaries take the bytes of their chunks only, because Arrow does not decode them.
    """
    schema = file.schema
    leaves = [(i, leaf) for i in range(len(schema)) if (leaf := schema.column(i)).path in fields]
    of_bytes = [(i, leaf) for i, leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    texts = [i for i, leaf in of_bytes if not pa.types.is_dictionary(fields[leaf.path].type)]
    widths = sum(leaf.length for _, leaf in leaves)  # of fixed_size_binary; 0 for other types
    check_limit(widths, _DECOMPRESSED, max_bytes)
    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
    largest = max((sum(group.column(i).total_uncompressed_size for i in texts) for group in groups), default=0)
    row_bytes = max(largest + widths + _FIXED_BYTES * len(leaves), 1)
    return max(1, min(PART_RECORDS, _BATCH_BYTES // row_bytes))


def _row_bytes(batch: pa.RecordBatch) -> np.ndarray:
    """Return the decoded bytes of each record. [N]"""
    sizes = np.zeros(len(batch))
    for column in batch.columns:
        stored = column.storage if isinstance(column, pa.ExtensionArray) else column
        kind = plain_type(pa.field("", stored.type))
        is_read_as_text = kind is not None and is_text(kind)
        sizes += pc.fill_null(_lengths(stored), 0).to_numpy() if is_read_as_text else column.nbytes / len(batch)
    return sizes


def _lengths(column: pa.Array) -> pa.Array:
    if isinstance(column, pa.DictionaryArray):
        return _lengths(column.dictionary).take(column.indices)
    return pc.call_function("binary_length", [column.cast(pa.large_binary())])


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
