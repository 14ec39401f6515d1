"""Read a request's body, CSV, JSON, JSON Lines or Parquet, as a table of raw records."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from container.serving.errors import RequestError
from container.serving.media_types import request_type
from container.tables.channel_files import missing_column
from container.tables.records import records_to_table
from container.tables.values import written_float
from contracts.errors import ContractError, first_line
from contracts.serving import CSV, JSON, JSON_LINES, ServingSettings


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return content


# Numbers keep their written form, as in files: as categories, 1.10 and 1.1 differ.
_DECODER = json.JSONDecoder(parse_float=written_float, object_pairs_hook=_once)
_LISTED = ("instances", "records")  # {"instances": [...]}


@dataclass(frozen=True)
class Request:
    """The records of a request.

    Attributes:
        table: raw columns.
        header: whether a CSV's first row names the columns; None if only the model's columns can tell. True for
            formats whose columns always have names.
    """

    table: pa.Table
    header: bool | None = True

    def records(self, columns: Sequence[str], *, others: Sequence[str] = ()) -> pa.Table:
        """Return the table with named columns.

        A CSV's first row is a header if it holds the name of a column. Without one the fields are the columns that the
        model needs, in its order.

        Args:
            columns: what the model needs, in its order.
            others: columns of the training data that it does not need.

        Raises:
            RequestError: 400, no record, a column that is missing or there twice, or a wrong number of fields.
        """
        table = self.table
        if self.header is not True:
            first = [column[0].as_py().strip() for column in table.columns]
            has_header = self.header is None and not {*columns, *others}.isdisjoint(first)
            table = _named(table, first) if has_header else _unnamed(table, columns)
        if table.num_rows == 0:
            raise RequestError(HTTPStatus.BAD_REQUEST, "the request holds no record", "Send at least one.")
        for name in columns:
            if name not in table.column_names:
                error = missing_column(name, table.column_names, "the request")
                raise RequestError(HTTPStatus.BAD_REQUEST, error.cause, f"Send the columns {_list(columns)}.")
        return table


def read_request(body: bytes, content_type: str | None, limits: ServingSettings) -> Request:
    """Read a body.

    Raises:
        RequestError: 400 it is not what Content-Type says, 413 too many bytes or records, 415 an unknown Content-Type.
    """
    media_type = request_type(content_type)
    check_size(len(body), limits)
    if not body.strip():
        raise RequestError(HTTPStatus.BAD_REQUEST, "the request is empty", "Send at least one record.")
    try:
        if media_type.name == CSV:
            request = _read_csv(body, media_type.header)
        elif media_type.name == JSON:
            request = Request(_read_json(body, limits))
        elif media_type.name == JSON_LINES:
            request = Request(_read_lines(body, limits))
        else:
            request = Request(_read_parquet(body, limits))
    except RequestError:
        raise
    except ContractError as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, error.cause, error.fix) from error
    # A line of a CSV may be its header, so that one more than allowed is let through here.
    _check_records(request.table.num_rows - (request.header is None), limits)
    return request


def check_size(num_bytes: int, limits: ServingSettings) -> None:
    """Raise RequestError 413 if the body has more bytes than allowed."""
    if num_bytes > limits.serving_max_bytes:
        raise RequestError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the request has {num_bytes} bytes; at most {limits.serving_max_bytes} are taken",
            "Send the records in several requests.",
        )


def _check_records(num_records: int, limits: ServingSettings) -> None:
    if num_records > limits.serving_max_records:
        raise RequestError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the request holds {num_records} records; at most {limits.serving_max_records} are taken",
            "Send the records in several requests.",
        )


def _read_json(body: bytes, limits: ServingSettings) -> pa.Table:
    content = _parse_json(body, "the request")
    if isinstance(content, Mapping) and len(content) == 1:
        name, value = next(iter(content.items()))
        if name in _LISTED and isinstance(value, list):
            content = value
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, list):
        raise _not_json(f"the request is a {type(content).__name__}")
    _check_records(len(content), limits)
    return _table(content)


def _read_lines(body: bytes, limits: ServingSettings) -> pa.Table:
    lines = [line for line in body.splitlines() if line.strip()]
    _check_records(len(lines), limits)
    return _table([_parse_json(line, f"line {number}") for number, line in enumerate(lines, start=1)])


def _parse_json(text: bytes, where: str) -> Any:
    try:
        return _DECODER.decode(text.decode(json.detect_encoding(text), "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise _not_json(f"{where} is not JSON: {error}") from error


def _not_json(cause: str) -> RequestError:
    return RequestError(
        HTTPStatus.BAD_REQUEST, cause,
        'Send an object {column: value}, an array of them, or {"instances": [...]}; with JSON Lines one object a line.',
    )  # fmt: skip


def _table(records: list[Any]) -> pa.Table:
    table = records_to_table(records)
    if records and not table.num_columns:
        raise RequestError(HTTPStatus.BAD_REQUEST, "record 1: has no column", "Send {column: value}.")
    return table


def _read_csv(body: bytes, header: bool | None) -> Request:
    if not body.endswith(b"\n"):
        body += b"\n"  # Arrow finds no row in a single line without its end
    try:
        # Columns have no names yet, and all are text: 007 stays 007, as in training.
        count = _parse_csv(body, None).num_columns
        table = _parse_csv(body, [str(i) for i in range(count)])
    except (pa.ArrowException, UnicodeError) as error:
        cause = first_line(error)
        if "Empty CSV" in cause:
            cause = "a quote that opens a field is never closed"
        raise RequestError(
            HTTPStatus.BAD_REQUEST, f"the request is not CSV: {cause}",
            "Send UTF-8, the same number of fields in every line, quotes inside of a field twice.",
        ) from error  # fmt: skip
    if table.num_rows == 0:
        raise RequestError(HTTPStatus.BAD_REQUEST, "the request holds no record", "Send at least one line.")
    if header:
        return Request(_named(table, [column[0].as_py().strip() for column in table.columns]))
    return Request(table, header)


def _parse_csv(body: bytes, names: list[str] | None) -> pa.Table:
    return pa_csv.read_csv(
        pa.BufferReader(body),
        read_options=pa_csv.ReadOptions(
            use_threads=False,
            block_size=len(body) + 1,
            column_names=names,
            autogenerate_column_names=names is None,
        ),
        # With a single column an empty line is a record whose only field is empty.
        parse_options=pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=names is None or len(names) > 1),
        convert_options=pa_csv.ConvertOptions(
            column_types={name: pa.string() for name in names or ()}, strings_can_be_null=False
        ),
    )


def _named(table: pa.Table, names: Sequence[str]) -> pa.Table:
    for name in names:
        if names.count(name) > 1:
            raise RequestError(
                HTTPStatus.BAD_REQUEST, f"the column {name!r} is there twice", "Give each column a name of its own."
            )
    return table.slice(1).rename_columns(list(names))


def _unnamed(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    if table.num_columns != len(columns):
        raise RequestError(
            HTTPStatus.BAD_REQUEST,
            f"line 1 has {table.num_columns} fields and names no column; without a header line it takes {len(columns)}",
            f"Send a header line, or exactly these fields in this order: {_list(columns)}.",
        )
    return table.rename_columns(list(columns))


def _read_parquet(body: bytes, limits: ServingSettings) -> pa.Table:
    try:
        with pq.ParquetFile(pa.BufferReader(body)) as file:
            _check_records(file.metadata.num_rows, limits)
            names = file.schema_arrow.names
            groups = (file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
            _check_decoded(sum(groups), limits)
        texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        # As dictionaries, because the same long text may be in every row.
        table = pq.read_table(pa.BufferReader(body), read_dictionary=texts, use_threads=False)
        table.validate(full=True)  # checks that texts are UTF-8
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise RequestError(
            HTTPStatus.BAD_REQUEST, f"the request is not Parquet: {first_line(error)}",
            "Write the table again.",
        ) from error  # fmt: skip
    if len(set(names)) != len(names):
        raise RequestError(HTTPStatus.BAD_REQUEST, "a column is there twice", "Give each column a name of its own.")
    _check_decoded(sum(_decoded_bytes(column) for column in table.columns), limits)
    return table


def _decoded_bytes(column: pa.ChunkedArray) -> int:
    if not (pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)):
        return column.nbytes
    num_bytes = 0
    for chunk in column.chunks:
        lengths = pc.call_function("binary_length", [chunk.dictionary]).take(chunk.indices)
        num_bytes += pc.call_function("sum", [pc.cast(lengths, pa.int64())]).as_py() or 0
    return num_bytes


def _check_decoded(num_bytes: int, limits: ServingSettings) -> None:
    if num_bytes > limits.serving_max_decoded_bytes:
        raise RequestError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the request has {num_bytes} bytes once decompressed; at most {limits.serving_max_decoded_bytes} are "
            "taken",
            "Send the records in several requests.",
        )


def _list(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns))
