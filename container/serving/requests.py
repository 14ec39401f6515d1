"""Read a request's body (CSV, JSON, JSON Lines or Parquet) as parts of raw records."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import count
from typing import Any

import pyarrow as pa

from container.attribution.parts import LEVELS, Question
from container.serving.csv_requests import csv_parts
from container.serving.errors import RequestError, bad_request, check_limit
from container.serving.media_types import HEADERS, MediaType, request_type
from container.serving.parquet_requests import parquet_parts
from container.serving.parts import MAX_COLUMNS, Part, check_columns, grouped
from container.tables.json_files import REQUEST_DECODER
from container.tables.records import records_to_table
from container.tables.table_file import check_names
from contracts.errors import ContractError, shown
from contracts.serving import CSV, JSON, JSON_LINES, ServingSettings

# The names beside which TensorFlow Serving, MLflow and Hugging Face send records.
_SPLIT = "dataframe_split"  # {"columns": [...], "data": [[...], ...]}
_WRAPPERS = ("instances", "records", "inputs", "dataframe_records", _SPLIT)
_LEVELS = 2  # of objects around a list of records or of values: {"inputs": {"price": [...]}}
_LINE = re.compile(rb"[^\n]++")  # as a batch transform cuts; \r is a blank of JSON
_BLANK = r"[ \t\r\n]*+"
_BLANKS = re.compile(_BLANK)
_HAS_LIST = re.compile(rf'{_BLANK}(?:\[|\{{{_BLANK}"(?:{"|".join(_WRAPPERS)})")')
_COLON = re.compile(rf"{_BLANK}:{_BLANK}")
_IN_LIST, _IN_OBJECT = (re.compile(rf"{_BLANK}(?:,|(?P<end>{end})){_BLANK}") for end in (r"\]", r"\}"))
_EMPTY_LIST = re.compile(rf"\[{_BLANK}\]")
_JSON_FIX = (
    'Send an object {column: value}, an array of them, or {"instances": [...]}; JSON Lines: one object per line.'
)

# Which reasons a request asks for: a field of JSON, or a header, which any Content-Type can have.
FIELD = "explain"
HEADER = "X-Amzn-SageMaker-Custom-Attributes"
_EXPLAIN_FORM = (
    f'Send one of {", ".join(LEVELS)}, or in JSON {{"level": "column", "top": 5}}; in {HEADER}: explain=column,top=5.'
)
ABSENT = b"absent"  # in the metadata of a table of records: the columns that none of them has, as JSON
_SEPARATOR = re.compile(r"[,;\s]+")
_YES, _NO = ("", "true", "True", True), ("false", "False", "off", False, None, {})
_LARGEST = 9  # digits of `top`


@dataclass(frozen=True)
class Request:
    """A request whose records are read in parts, so that many short records take little memory."""

    body: bytes
    media_type: MediaType
    limits: ServingSettings
    asked: Any = None  # for reasons, in a header

    def parts(self, columns: Sequence[str]) -> Iterator[Part]:
        """Yield the records in order.

        A column that a JSON object lacks is a missing value, as in the JSON files that Preprocessing reads.

        Args:
            columns: the columns that the model needs, in its order.

        Raises:
            RequestError: 400, the body is not of its Content-Type, or has no record; a column of a table is missing.
                `Part.table` raises the errors of single records. 400 and 403 as `read_question`.
        """
        empty = True
        try:
            asked, parts = self._parts(columns)
            question = read_question(asked, self.limits)
            for part in parts:
                empty = False
                yield part if question is None else replace(part, question=question)
        except RequestError:
            raise
        except ContractError as error:
            raise bad_request(error.cause, error.fix) from error
        if empty:
            raise bad_request("the request contains no record", "Send at least one.")

    def _parts(self, columns: Sequence[str]) -> tuple[Any, Iterator[Part]]:
        """Return the reasons that the request asks for, and its parts."""
        if self.media_type.name == CSV:
            stated = self.media_type.header
            header = HEADERS.get(self.limits.serving_csv_header) if stated is None else stated
            return self.asked, csv_parts(self.body, columns, header=header, limits=self.limits)
        if self.media_type.name == JSON:
            content, asked = _json_content(self.body, columns)
            return self.asked if asked is None else asked, _json_parts(_json_values(content, columns), columns)
        if self.media_type.name == JSON_LINES:
            return self.asked, _json_parts(_lines(self.body), columns)
        return self.asked, parquet_parts(self.body, columns, self.limits)


def read_request(
    body: bytes, content_type: str | None, limits: ServingSettings, *, attributes: str | None = None
) -> Request:
    """Check a body's size and Content-Type.

    Args:
        attributes: the header X-Amzn-SageMaker-Custom-Attributes, which may ask for reasons.

    Raises:
        RequestError: 400, the body is empty; 413, too many bytes; 415, unknown Content-Type; as `read_question`.
    """
    asked = asked_in_header(attributes)
    read_question(asked, limits)  # refuse what is not allowed before anything is read
    media_type = request_type(content_type)
    check_limit(len(body), "bytes", limits.serving_max_bytes)
    if not body or body.isspace():
        raise bad_request("the request is empty", "Send at least one record.")
    return Request(body, media_type, limits, asked)


def json_records(body: bytes, media_type: str, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the records of a JSON or JSON Lines body with all their columns; raise RequestError if it is neither."""
    lines = media_type == JSON_LINES
    for value, _ in _lines(body) if lines else _json_values(_json_content(body, columns)[0], columns):
        if isinstance(value, RequestError):
            raise value
        yield _record(value, columns)


def _json_parts(values: Iterable[tuple[Any, int]], columns: Sequence[str]) -> Iterator[Part]:
    """Group records, each with its size; a record that cannot be read is an error as a value."""

    def read(records: Sequence[Any], first: int) -> pa.Table:
        causes: dict[int, str] = {}
        records = [_record(each, columns) for each in records]
        for i, record in enumerate(records):
            if isinstance(record, RequestError):
                causes[i] = record.cause
            elif not isinstance(record, Mapping):
                causes[i] = f"record {first + i + 1}: {shown(record)} is not an object"
        if causes:
            raise ContractError.of_rows(causes, _JSON_FIX)
        table = records_to_table(records, columns, first=first)
        absent = [name for name in columns if table[name].null_count == len(records)]
        absent = [name for name in absent if not any(name in record for record in records)]
        return table.replace_schema_metadata({ABSENT: json.dumps(absent)}) if absent else table

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


@dataclass(frozen=True)
class _List:
    """A list in a JSON text, whose values are decoded one by one, each time that they are read.

    Decoding twice takes less memory than keeping all records, and no broken list is computed in part. The decoder holds
    the interpreter during a call.
    """

    text: str
    begin: int
    count: int

    def __len__(self) -> int:
        return self.count

    def values(self) -> Iterator[tuple[Any, int]]:
        """Yield the values, each with its length."""
        for value, length, _ in _items(self.text, self.begin) if self.count else ():
            yield value, length


def _json_content(body: bytes, columns: Sequence[str]) -> tuple[Any, Any]:
    """Return the content of a body, and the field beside the records that asks for reasons."""
    try:
        text = _decoded(body)
        if _HAS_LIST.match(text):
            content, end = _content(text, _end_of_blanks(text, 0), _LEVELS)
            if _end_of_blanks(text, end) < len(text):
                raise json.JSONDecodeError("Extra data", text, end)
        else:
            content = REQUEST_DECODER.decode(text)
    except ValueError as error:
        raise _not_json(f"the request is not JSON: {error}") from error
    return content, content.pop(FIELD, None) if isinstance(content, dict) and FIELD not in columns else None


def _json_values(content: Any, columns: Sequence[str]) -> Iterator[tuple[Any, int]]:
    name, content = _unwrapped(content, columns, (list, _List, Mapping))
    if name == _SPLIT:
        return _split_values(content, columns)
    if name and isinstance(content, Mapping) and content and all(isinstance(v, list | _List) for v in content.values()):
        return _column_values(content, columns)
    if isinstance(content, Mapping):  # one record; a list in it is a value
        content = [{key: _plain(value) for key, value in content.items()}]
    if not isinstance(content, list | _List):
        raise _not_json("the request is neither an object nor a list")
    return _each(content)


def _content(text: str, at: int, levels: int) -> tuple[Any, int]:
    """Return the value at a position and its end; the lists of `levels` levels of objects are of the type _List.

    Raises:
        ValueError: it is not JSON.
    """
    if text.startswith("[", at):
        if empty := _EMPTY_LIST.match(text, at):
            return _List(text, at, 0), empty.end()
        num_values, end = 0, at
        for num_values, (_, _, end) in enumerate(_items(text, at), start=1):  # noqa: B007 - the last ones
            pass
        return _List(text, at, num_values), end
    if not levels or not text.startswith("{", at):
        return REQUEST_DECODER.raw_decode(text, at)
    members: dict[str, Any] = {}
    at = _end_of_blanks(text, at + 1)
    if text.startswith("}", at):
        return members, at + 1
    while True:
        if not text.startswith('"', at):
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        name, end = REQUEST_DECODER.raw_decode(text, at)
        colon = _COLON.match(text, end)
        if colon is None:
            raise json.JSONDecodeError("Expecting ':' delimiter", text, end)
        if name in members:
            raise ValueError(f"the key {name!r} occurs more than once")
        members[name], end = _content(text, colon.end(), levels - 1)
        following = _following(text, end, _IN_OBJECT)
        at = following.end()
        if following["end"]:
            return members, at


def _items(text: str, at: int) -> Iterator[tuple[Any, int, int]]:
    """Yield the values of a list that is not empty, each with its length, and the position behind what follows it."""
    at = _end_of_blanks(text, at + 1)
    for number in count(1):
        try:
            value, end = REQUEST_DECODER.raw_decode(text, at)
        except ValueError as error:
            raise ValueError(f"record {number}: {error}") from error
        following = _following(text, end, _IN_LIST)
        yield value, end - at, following.end()
        at = following.end()
        if following["end"]:
            return


def _following(text: str, end: int, separator: re.Pattern[str]) -> re.Match[str]:
    found = separator.match(text, end)
    if found is None:
        raise json.JSONDecodeError("Expecting ',' delimiter", text, end)
    return found


def _end_of_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    assert found is not None  # the pattern matches an empty text too
    return found.end()


def _each(values: list[Any] | _List) -> Iterator[tuple[Any, int]]:
    return values.values() if isinstance(values, _List) else ((value, 0) for value in values)


def _plain(value: Any) -> Any:
    return [each for each, _ in value.values()] if isinstance(value, _List) else value


def _unwrapped(value: Any, columns: Sequence[str], kinds: tuple[type, ...]) -> tuple[str, Any]:
    """Return NAME and CONTENT of {NAME: CONTENT}, if it is a wrapper; else no name and the value itself.

    Beside the content, only empty values are accepted, such as Hugging Face's "parameters": the server has none.
    """
    if isinstance(value, Mapping):
        name = next((name for name in _WRAPPERS if isinstance(value.get(name), kinds)), "")
        others = value.keys() - {name}
        if name and others.isdisjoint(columns) and not any(value[other] for other in others):
            return name, value[name]
    return "", value


def _record(value: Any, columns: Sequence[str]) -> Any:
    """Return {column: value} for {"inputs": {column: value}}, and for the text of a model of one column."""
    _, value = _unwrapped(value, columns, (str, Mapping))
    return {columns[0]: value} if isinstance(value, str) and len(columns) == 1 else value


def _split_values(content: Any, columns: Sequence[str]) -> Iterator[tuple[Any, int]]:
    named, rows = (content.get(name) if isinstance(content, Mapping) else None for name in ("columns", "data"))
    if not (isinstance(named, list | _List) and isinstance(rows, list | _List)):
        raise _not_json(f"{_SPLIT!r} has no lists 'columns' and 'data'")
    names = [str(name) for name, _ in _each(named)]
    _check_names(names, columns)
    for number, (row, length) in enumerate(_each(rows), start=1):
        if isinstance(row, list) and len(row) == len(names):
            yield dict(zip(names, row)), length
        else:
            yield _not_json(f"record {number}: {shown(row)} is not a list of {len(names)} values"), length


def _column_values(content: Mapping[str, Any], columns: Sequence[str]) -> Iterator[tuple[Any, int]]:
    _check_names(list(content), columns)
    counts = {name: len(values) for name, values in content.items()}
    first = next(iter(counts))
    other = next((name for name in counts if counts[name] != counts[first]), None)
    if other is not None:
        raise _not_json(f"column {first!r} has {counts[first]} values, and {other!r} has {counts[other]}")
    for cells in zip(*map(_each, content.values())):
        yield dict(zip(content, (value for value, _ in cells))), sum(length for _, length in cells)


def _check_names(names: Sequence[str], columns: Sequence[str]) -> None:
    check_limit(len(names), "columns", MAX_COLUMNS)
    check_names(names, "the request")
    check_columns(columns, names)


def _decoded(body: bytes) -> str:
    return body.decode(json.detect_encoding(body), "surrogatepass")


def _not_json(cause: str) -> RequestError:
    return bad_request(cause, _JSON_FIX)


def asked_in_header(attributes: str | None) -> Any:
    """Return what the custom attributes ask for, as in the JSON field; None if nothing."""
    items = (item.partition("=")[::2] for item in _SEPARATOR.split(attributes or ""))
    found = {name.strip().lower(): value.strip() for name, value in items}
    if FIELD not in found:
        return None
    level = found[FIELD]
    return {"level": level, "top": found["top"]} if "top" in found and level not in _NO else level


def read_question(asked: Any, limits: ServingSettings) -> Question | None:
    """Return the question of a JSON field or header; None if it asks for no reasons.

    Raises:
        RequestError: 400, an unknown level or a `top` that is no number of parts; 403, the server does not allow it.
    """
    if asked in _NO:
        return None
    given: Mapping[str, Any] = asked if isinstance(asked, Mapping) else {"level": asked}
    if unknown := given.keys() - {"level", "top"}:
        raise bad_request(f"{FIELD}: {shown(sorted(unknown)[0])} is not known", _EXPLAIN_FORM)
    level: Any = given.get("level", True)
    try:
        question = Question(level=LEVELS[0] if level in _YES else level, top=_number(given.get("top")))
    except ContractError as error:
        raise bad_request(f"{FIELD}: {error.cause}", error.fix) from error
    allowed = limits.serving_explain
    if allowed == "off" or (allowed == "column" and question.level != "column"):
        cause = f"{FIELD}: reasons at level {question.level!r} are not allowed: SERVING_EXPLAIN is {allowed}"
        fix = "Ask for level 'column'." if allowed == "column" else "Send the request without it."
        raise RequestError(HTTPStatus.FORBIDDEN, cause, fix)
    return question


def _number(value: Any) -> Any:
    """Return the number of a text: the decoder of requests reads numbers as text."""
    is_number = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _LARGEST
    return int(value) if is_number else value
