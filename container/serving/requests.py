"""Read a request's body (CSV, JSON, JSON Lines or Parquet) as parts of raw records."""

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from container.serving.csv_requests import csv_parts
from container.serving.errors import RequestError, bad_request, check_limit
from container.serving.media_types import HEADERS, MediaType, request_type
from container.serving.parquet_requests import parquet_parts
from container.serving.parts import Part, grouped
from container.tables.json_files import REQUEST_DECODER
from container.tables.records import records_to_table
from contracts.errors import ContractError, shown
from contracts.serving import CSV, JSON, JSON_LINES, ServingSettings

_LISTED = ("instances", "records")  # {"instances": [...]}
_LINE = re.compile(rb"[^\n]++")  # as a batch transform cuts; \r is a blank of JSON
_BLANK = r"[ \t\r\n]*+"
_LIST_BEGIN = re.compile(
    rf'{_BLANK}(?P<brace>\{{{_BLANK}"(?:{"|".join(_LISTED)})"{_BLANK}:{_BLANK})?\[{_BLANK}(?P<end>\])?{_BLANK}'
)
_SEPARATOR = re.compile(rf"{_BLANK}(?:,|(?P<end>\])){_BLANK}")
_LIST_END = re.compile(rf"{_BLANK}(?P<brace>\}})?{_BLANK}")
_JSON_FIX = (
    'Send an object {column: value}, an array of them, or {"instances": [...]}; JSON Lines: one object per line.'
)


@dataclass(frozen=True)
class Request:
    """A request whose records are read in parts, so that many short records take little memory."""

    body: bytes
    media_type: MediaType
    limits: ServingSettings

    def parts(self, columns: Sequence[str]) -> Iterator[Part]:
        """Yield the records in order.

        A column that a JSON object lacks is a missing value, as in the JSON files that Preprocessing reads.

        Args:
            columns: the columns that the model needs, in its order.

        Raises:
            RequestError: 400, the body is not of its Content-Type, or has no record; a column of a table is missing.
                `Part.table` raises the errors of single records.
        """
        empty = True
        try:
            for part in self._parts(columns):
                empty = False
                yield part
        except RequestError:
            raise
        except ContractError as error:
            raise bad_request(error.cause, error.fix) from error
        if empty:
            raise bad_request("the request contains no record", "Send at least one.")

    def _parts(self, columns: Sequence[str]) -> Iterator[Part]:
        if self.media_type.name == CSV:
            stated = self.media_type.header
            header = HEADERS.get(self.limits.serving_csv_header) if stated is None else stated
            return csv_parts(self.body, columns, header=header, limits=self.limits)
        if self.media_type.name in (JSON, JSON_LINES):
            values = _json_values(self.body) if self.media_type.name == JSON else _lines(self.body)
            return _json_parts(values, columns)
        return parquet_parts(self.body, columns, self.limits)


def read_request(body: bytes, content_type: str | None, limits: ServingSettings) -> Request:
    """Check a body's size and Content-Type.

    Raises:
        RequestError: 400, the body is empty; 413, too many bytes; 415, unknown Content-Type.
    """
    media_type = request_type(content_type)
    check_limit(len(body), "bytes", limits.serving_max_bytes)
    if not body or body.isspace():
        raise bad_request("the request is empty", "Send at least one record.")
    return Request(body, media_type, limits)


def _json_parts(values: Iterable[tuple[Any, int]], columns: Sequence[str]) -> Iterator[Part]:
    """Group records, each with its size; a record that cannot be read is an error as a value."""

    def read(records: Sequence[Any], first: int) -> pa.Table:
        causes: dict[int, str] = {}
        for i, record in enumerate(records):
            if isinstance(record, RequestError):
                causes[i] = record.cause
            elif not isinstance(record, Mapping):
                causes[i] = f"record {first + i + 1}: {shown(record)} is not an object"
        if causes:
            raise ContractError.of_rows(causes, _JSON_FIX)
        return records_to_table(records, columns, first=first)

    blank = dict.fromkeys(columns)
    for rows, first in grouped(values):
        yield Part(rows, first, read, blank=blank)


def _lines(body: bytes) -> Iterator[tuple[Any, int]]:
    number, counted = 1, 0  # of the line that begins at `counted`
    for found in _LINE.finditer(body):
        line = found[0]
        if line.isspace():
            continue
        try:
            yield REQUEST_DECODER.decode(_decoded(line)), len(line)
        except ValueError as error:
            number, counted = number + body.count(b"\n", counted, found.start()), found.start()
            yield _not_json(f"line {number} is not JSON: {error}"), len(line)


class _OtherContent(ValueError):
    """JSON that begins as a list of records, and is something else."""


def _json_values(body: bytes) -> Iterator[tuple[Any, int]]:
    try:
        text = _decoded(body)
        begin = _LIST_BEGIN.match(text)
        if begin is not None:
            with suppress(_OtherContent):
                # Decoding twice takes less memory than keeping all records, and no broken list is computed in part.
                deque(_list_values(text, begin), maxlen=0)
                return _list_values(text, begin)
        content = REQUEST_DECODER.decode(text)
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
    return ((value, 0) for value in content)


def _list_values(text: str, begin: re.Match[str]) -> Iterator[tuple[Any, int]]:
    """Yield a list's records with their lengths, one by one, because the decoder holds the interpreter during a call.

    Raises:
        ValueError: a record is not JSON.
        _OtherContent: the text does not end with the list.
    """
    number = 0
    separator = begin
    while not separator["end"]:
        number += 1
        start = separator.end()
        try:
            record, position = REQUEST_DECODER.raw_decode(text, start)
        except ValueError as error:
            raise ValueError(f"record {number}: {error}") from error
        yield record, position - start
        following = _SEPARATOR.match(text, position)
        if following is None:
            raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
        separator = following
    complete = _LIST_END.fullmatch(text, separator.end())
    if not complete or bool(complete["brace"]) != bool(begin["brace"]):
        raise _OtherContent


def _decoded(body: bytes) -> str:
    return body.decode(json.detect_encoding(body), "surrogatepass")


def _not_json(cause: str) -> RequestError:
    return bad_request(cause, _JSON_FIX)
