"""Read JSON files, an array of objects or a sequence of them, in two passes: the types of all rows, then the rows."""

import codecs
import io
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from container.tables.column_types import joined
from container.tables.records import class_of, column_of, common_type, flat
from container.tables.table_file import TableFile, check_names, open_plain
from contracts.errors import ContractError, first_line, shown
from contracts.json_text import InterruptibleDecoder, JsonDecoder

BLOCK_BYTES = 1 << 20
ROW_BYTES = 4 << 20
_SHOWN_BYTES = 40
_BETWEEN = " \t\r\n,"
# An object with single values, and the list of the rows under a name that web services use.
_WRAPPER = re.compile(
    r"""\{\s*(?:"[^"\\]*"\s*:\s*(?:"[^"\\]*"|[\w.+-]+)\s*,\s*)*"""
    r""""(?:data|records|rows|items|results?|values?|entries|documents|instances)"\s*:\s*\[(?=\s*\{)"""
)
_WRAPPER_END = re.compile(r"\s*(?:,.*)?\}\s*", re.DOTALL)
_MOST_DIGITS = 15  # of a whole number that is one; a longer one is the text of its digits


def _whole(text: str) -> int | str:
    return int(text) if len(text) <= _MOST_DIGITS else text


def _constant(name: str) -> float | None:
    return None if name == "NaN" else float(name)


_ROW_DECODER = JsonDecoder(parse_int=_whole, parse_constant=_constant)
REQUEST_DECODER = InterruptibleDecoder(parse_int=_whole, parse_constant=_constant)


class File(TableFile):
    """A JSON file: an array of objects, or objects one after the other."""

    converts = True

    @cached_property
    def _classes(self) -> dict[str, set[type]]:
        """Each name of all rows with the classes of its values."""
        classes: dict[str, set[type]] = {}
        first: dict[str, int] = {}  # the row of the first value
        for number, row in enumerate(self._rows(), start=1):
            for name, value in row.items():
                classes.setdefault(name, set()).add(class_of(value))
                if value is not None:
                    first.setdefault(name, number)
        objects = {name.rpartition(".")[0]: name for name in classes if "." in name}
        for name in list(classes):
            if name in objects and classes[name] <= {type(None)}:  # an object that some rows lack
                del classes[name]
            elif name in objects and objects[name] in first:
                raise ContractError(
                    f"{self.path}: {name!r} is an object in row {first[objects[name]]}, "
                    f"and a single value in row {first[name]}",
                    "Write an object or a value in every row, or leave it out where it is another one.",
                )
        check_names(list(classes), self.path)
        return classes

    def _rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows with a dotted name for each value in an object, and a text for each list of single values."""
        for number, row in enumerate(_rows(self.path), start=1):
            if not any(isinstance(value, dict | list) for value in row.values()):
                yield row
                continue
            try:
                yield {name: joined(value) for name, value in flat(row).items()}
            except ContractError as error:
                raise ContractError(f"{self.path}: row {number}: {error.cause}", error.fix) from None

    def schema(self) -> pa.Schema:
        return pa.schema([(name, common_type(classes)) for name, classes in self._classes.items()])

    def batches(self, schema: pa.Schema, *, rows: int) -> Iterator[pa.RecordBatch]:
        numbered = enumerate(self._rows(), start=1)
        while pending := list(islice(numbered, rows)):
            cells = [
                column_of([self._cell(row.get(field.name), field.name, number) for number, row in pending], field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(cells, schema=schema)

    def _cell(self, value: Any, name: str, number: int) -> Any:
        if not isinstance(value, list):
            return value
        raise ContractError(
            f"{self.path}: row {number}, column {name!r} contains a list of objects or of lists",
            "Give the column one text or number per row, or remove it from every row.",
        )


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    number = 0
    with open_plain(path) as stream:
        try:
            for row in _Objects(stream, path):
                number += 1
                yield row
        except UnicodeDecodeError as error:
            before = error.object[: error.start][-_SHOWN_BYTES:].decode(errors="ignore")
            raise ContractError(
                f"{path}: after row {number}: byte 0x{error.object[error.start]:02X} after {before!r} is not UTF-8",
                "Write the file again, in UTF-8.",
            ) from None
        except OSError as error:
            raise ContractError(f"{path}: cannot be read: {first_line(error)}", "Write the file again.") from error


class _Objects:
    """Decode the rows of a file, block by block."""

    def __init__(self, stream: io.BufferedIOBase, path: Path) -> None:
        self._text = codecs.getreader("utf-8-sig")(stream, "surrogatepass")  # as escaped surrogates
        self._path = path
        self._buffer, self._at, self._number = "", 0, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        in_array = self._next() == "["
        self._at += in_array
        is_wrapped = not in_array and self._enter_wrapper()
        in_array |= is_wrapped
        one_per_line = not in_array  # until a line is not an object
        while found := self._next():
            if in_array and found == "]":
                self._at += 1
                if is_wrapped and _WRAPPER_END.fullmatch(self._buffer[self._at :] + self._text.read()):
                    return
                if self._next():
                    raise self._error("text follows the end of the array", "Write an array, or an object per line.")
                return
            end = self._buffer.rfind("\n", self._at)
            if one_per_line and end > self._at:
                rows = _objects_of_lines(self._buffer[self._at : end])
                one_per_line = rows is not None
                if rows is not None:
                    self._number, self._at = self._number + len(rows), end
                    yield from rows
                    continue
            yield self._row()
        if in_array:
            raise self._error(f"the array has no end after row {self._number}", "Write the file again.")

    def _enter_wrapper(self) -> bool:
        """Go to the rows of a file that is one object with a list of them, {"data": [...]}; return whether it is."""
        if not (wrapper := _WRAPPER.match(self._buffer, self._at)):
            return False
        with suppress(ValueError):
            _, end = _ROW_DECODER.raw_decode(self._buffer, self._at)
            self._buffer += self._text.read(BLOCK_BYTES)
            if self._buffer[end:].strip(_BETWEEN):  # objects follow each other
                return False
        self._at = wrapper.end()
        return True

    def _next(self) -> str:
        """Return the next character that is not between rows; "" at the end of the file."""
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in _BETWEEN:
                self._at += 1
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            self._buffer, self._at = self._text.read(BLOCK_BYTES), 0
            if not self._buffer:
                if self._text.bytebuffer:
                    raise self._error(f"ends inside a character, after row {self._number}", "Write the file again.")
                return ""

    def _row(self) -> dict[str, Any]:
        """Decode one row, of at most ROW_BYTES."""
        number = self._number + 1
        while True:
            try:
                row, self._at = _ROW_DECODER.raw_decode(self._buffer, self._at)
                break
            except json.JSONDecodeError as error:
                more = self._text.read(BLOCK_BYTES) if len(self._buffer) - self._at < ROW_BYTES else ""
                if not more:
                    raise self._error(
                        f"row {number} is not JSON, or exceeds {ROW_BYTES >> 20} MiB: {error.msg}",
                        "Write an array of objects, or one object per line.",
                    ) from None
                self._buffer, self._at = self._buffer[self._at :] + more, 0
            except ValueError as error:
                raise self._error(
                    f"row {number}: {error}", "Write one flat object per row, with each column once."
                ) from None
        self._number = number
        if not isinstance(row, dict):
            raise self._error(f"row {number}: {shown(row)} is not an object", "Write each row as {column: value}.")
        return row

    def _error(self, cause: str, fix: str) -> ContractError:
        return ContractError(f"{self._path}: {cause}", fix)


def _objects_of_lines(text: str) -> list[dict[str, Any]] | None:
    """Decode lines of one object each in one call; return None where a line is not an object."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not all(line.lstrip().startswith("{") for line in lines):  # a comma may then join two lines to one object
        return None
    try:
        rows = _ROW_DECODER.decode("[" + ",\n".join(lines) + "]")  # \n is invalid in a string
    except ValueError:  # decoding row by row raises the error
        return None
    return rows if len(rows) == len(lines) and all(isinstance(row, dict) for row in rows) else None
