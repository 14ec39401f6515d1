"""Read a request's body (CSV, JSON, JSON Lines or Parquet) as a table of raw records."""

import codecs
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from container.serving.errors import RequestError, bad_request
from container.serving.media_types import request_type
from container.tables.channel_files import check_names, missing_column
from container.tables.csv_blocks import CsvText
from container.tables.csv_files import read_csv
from container.tables.json_files import REQUEST_DECODER
from container.tables.records import records_to_table
from contracts.errors import ContractError, first_line, shown
from contracts.serving import CSV, JSON, JSON_LINES, PARQUET, ServingSettings


def _repeated(names: Sequence[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


_MAX_COLUMNS = 10_000  # Arrow takes 10 kB of memory per column
_OTHER_DELIMITER = re.compile(r"[;\t|]")
_LISTED = ("instances", "records")  # {"instances": [...]}
_LINE = re.compile(rb"[^\r\n]++")
_BLANK = r"[ \t\r\n]*+"
_LIST_BEGIN = re.compile(
    rf'{_BLANK}(?P<brace>\{{{_BLANK}"(?:{"|".join(_LISTED)})"{_BLANK}:{_BLANK})?\[{_BLANK}(?P<end>\])?{_BLANK}'
)
_SEPARATOR = re.compile(rf"{_BLANK}(?:,|(?P<end>\])){_BLANK}")
_LIST_END = re.compile(rf"{_BLANK}(?P<brace>\}})?{_BLANK}")


@dataclass(frozen=True)
class Request:
    """The records of a request.

    Attributes:
        content: raw columns; dicts from JSON.
        header: whether a CSV's first row names the columns; None if the model's columns decide it. True for other
            formats.
        empty_lines: first rows of a CSV that are empty lines; before a header, they are no records.
    """

    content: pa.Table | list[Any]
    header: bool | None = True
    empty_lines: int = 0

    def records(self, columns: Sequence[str], *, others: Sequence[str] = ()) -> pa.Table:
        """Return the table with named columns.

        A CSV's first row is a header if it contains the name of a column. Without a header, the fields are `columns`.
        A column that a JSON object lacks is a missing value, as in the JSON files that Preprocessing reads.

        Args:
            columns: the columns that the model needs, in its order.
            others: columns of the training data that it does not need.

        Raises:
            RequestError: 400, no record, a record that is not an object or has none of `columns`, a missing or repeated
                column, or a wrong number of fields.
        """
        try:
            table = records_to_table(self.content, columns)
        except ContractError as error:
            raise bad_request(error.cause, error.fix) from error
        if self.header is not True:
            rest = table.slice(self.empty_lines)
            first = _first_row(rest)
            stripped = {name.strip() for name in first}  # a misspelled header is no record
            has_header = self.header is None and not {*columns, *others}.isdisjoint({*first, *stripped})
            table = _named(rest, first) if has_header else _unnamed(table, columns, first=first)
        if table.num_rows == 0:
            raise bad_request("the request contains no record", "Send at least one.")
        for name in columns:
            if name not in table.column_names:
                error = missing_column(name, table.column_names, "the request")
                raise bad_request(error.cause, f"Send the columns {_list(columns)}; in CSV, separate them by commas.")
        return table


def read_request(body: bytes, content_type: str | None, limits: ServingSettings) -> Request:
    """Read a body.

    Raises:
        RequestError: 400, not a body of this Content-Type; 413, too many bytes or records; 415, unknown Content-Type.
    """
    media_type = request_type(content_type)
    check_limit(len(body), "bytes", limits.serving_max_bytes)
    if not body.strip():
        raise bad_request("the request is empty", "Send at least one record.")
    try:
        if media_type.name == CSV:
            request = _read_csv(body, media_type.header)
        else:
            read = {JSON: _read_json, JSON_LINES: _read_lines, PARQUET: _read_parquet}[media_type.name]
            request = Request(read(body, limits))
    except RequestError:
        raise
    except ContractError as error:
        raise bad_request(error.cause, error.fix) from error
    # The first line of a CSV may be a header, which does not count.
    check_limit(len(request.content) - (request.header is None), "records", limits.serving_max_records)
    return request


def check_limit(count: int, unit: str, limit: int) -> None:
    """Raise RequestError 413 if `count` exceeds `limit`."""
    if count > limit:
        cause = f"the request has at least {count} {unit}; at most {limit} are accepted"
        fix = "Send only columns of the model." if unit == "columns" else "Send the records in several requests."
        raise RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, cause, fix)


def _read_json(body: bytes, limits: ServingSettings) -> list[Any]:
    try:
        content = _parse_json(body, most=limits.serving_max_records)
    except ValueError as error:
        raise _not_json(f"the request is not JSON: {error}") from error
    if isinstance(content, Mapping) and len(content) == 1:
        name, value = next(iter(content.items()))
        if name in _LISTED and isinstance(value, list):
            content = value
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, list):
        raise _not_json("the request is neither an object nor a list")
    check_limit(len(content), "records", limits.serving_max_records)
    return content


def _read_lines(body: bytes, limits: ServingSettings) -> list[Any]:
    filled = (line for line in _LINE.finditer(body) if line[0].strip())
    lines = list(islice(filled, limits.serving_max_records + 1))
    check_limit(len(lines), "records", limits.serving_max_records)
    records: list[Any] = []
    for line in lines:
        try:
            records.append(_parse_json(line[0]))
        except ValueError as error:
            number = len(body[: line.start()].splitlines()) + 1
            raise _not_json(f"line {number} is not JSON: {error}") from error
    return records


def _parse_json(body: bytes, *, most: int = 0) -> Any:
    """Return the content; of a list of more than `most` records, at least most + 1 records."""
    text = body.decode(json.detect_encoding(body), "surrogatepass")
    records = _parse_list(text, most) if most else None
    return REQUEST_DECODER.decode(text) if records is None else records


def _parse_list(text: str, most: int) -> list[Any] | None:
    """Return a list's first most + 1 records, or None for other content.

    It decodes them one by one, because the decoder holds the interpreter during a call.
    """
    begin = _LIST_BEGIN.match(text)
    if begin is None:
        return None
    records: list[Any] = []
    separator = begin
    while not separator["end"]:
        try:
            record, position = REQUEST_DECODER.raw_decode(text, separator.end())
        except ValueError as error:
            raise ValueError(f"record {len(records) + 1}: {error}") from error
        records.append(record)
        if len(records) > most:
            return records
        separator = _SEPARATOR.match(text, position)
        if separator is None:
            raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
    complete = _LIST_END.fullmatch(text, separator.end())
    return records if complete and bool(complete["brace"]) == bool(begin["brace"]) else None


def _not_json(cause: str) -> RequestError:
    return bad_request(
        cause,
        'Send an object {column: value}, an array of them, or {"instances": [...]}; JSON Lines: one object per line.',
    )


def _read_csv(body: bytes, header: bool | None) -> Request:
    # All columns are strings: 007 stays 007, as in training.
    text = CsvText("the request", ",", header)
    table = read_csv(body, text, lambda count: check_limit(count, "columns", _MAX_COLUMNS))
    if table.num_rows == 0:
        raise bad_request("the request contains no record", "Send at least one line.")
    body = body.removeprefix(codecs.BOM_UTF8)
    begin = body[: len(body) - len(body.lstrip(b"\r\n"))]
    empty_lines = len(begin.splitlines()) if table.num_columns == 1 else 0  # with more columns, they are skipped
    if header:
        table = table.slice(empty_lines)
        return Request(_named(table, _first_row(table)))
    return Request(table, header, empty_lines)


def _first_row(table: pa.Table) -> list[str]:
    return [column[0].as_py() for column in table.columns]


def _named(table: pa.Table, names: Sequence[str]) -> pa.Table:
    _check_unique(names)
    return table.slice(1).rename_columns(list(names))


def _check_unique(names: Sequence[str]) -> None:
    repeated = _repeated(names)
    if repeated is not None:
        raise bad_request(f"the column {repeated!r} occurs more than once", "Give each column a different name.")


def _unnamed(table: pa.Table, columns: Sequence[str], *, first: Sequence[str]) -> pa.Table:
    if table.num_columns != len(columns):
        found = f"{len(first)} fields" if len(first) > 1 else f"1 field, {shown(first[0])},"
        other = _OTHER_DELIMITER.search(first[0]) if len(first) == 1 else None
        delimiter = f"commas, not by {other[0]!r}" if other else "commas"
        raise bad_request(
            f"line 1 has {found} and no column name; without a header, {len(columns)} are needed",
            f"Separate fields by {delimiter}. Send a header line, or exactly these fields in this order: "
            f"{_list(columns)}.",
        )
    return table.rename_columns(list(columns))


def _read_parquet(body: bytes, limits: ServingSettings) -> pa.Table:
    decompressed = "bytes after it is decompressed"
    try:
        with pq.ParquetFile(pa.BufferReader(body)) as file:
            check_limit(file.metadata.num_rows, "records", limits.serving_max_records)
            check_limit(file.metadata.num_columns, "columns", _MAX_COLUMNS)
            check_names(file.schema_arrow.names, "the request")
            groups = (file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
            check_limit(sum(groups), decompressed, limits.serving_max_decoded_bytes)
        texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        # Dictionaries, because every row may contain the same long text.
        table = pq.read_table(pa.BufferReader(body), read_dictionary=texts, use_threads=False)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise bad_request(f"the request is not Parquet: {first_line(error)}", "Write the table again.") from error
    num_bytes = sum(_decoded_bytes(column) for column in table.columns)
    check_limit(num_bytes, decompressed, limits.serving_max_decoded_bytes)
    return table


def _decoded_bytes(column: pa.ChunkedArray) -> int:
    if not (pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)):
        return column.nbytes
    num_bytes = 0
    for chunk in column.chunks:
        lengths = pc.call_function("binary_length", [chunk.dictionary]).take(chunk.indices)
        num_bytes += pc.call_function("sum", [pc.cast(lengths, pa.int64())]).as_py() or 0
    return num_bytes


def _list(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns))
