"""Read the records that a model received: tables, and the data capture of an endpoint or of the server."""

import base64
import gzip
import io
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from container.serving.errors import RequestError
from container.serving.media_types import request_type
from container.serving.requests import Request, json_records
from container.tables.data_files import data_files
from container.tables.part_files import open_part_files
from container.tables.records import records_to_table
from container.tables.table_file import Origin
from contracts.errors import ContractError, first_line
from contracts.serving import CSV, JSON, JSON_LINES, ServingSettings

logger = logging.getLogger(__name__)

CAPTURE = "captureData"  # a key of each line of a data capture
_ROWS = 4096  # records that become a table together, because a table takes time
_LOOKED_AT = 1 << 16  # bytes of a file's beginning

Table = tuple[pa.Table, Origin]


@dataclass
class RecordFiles:
    """The records below a folder, read once.

    Attributes:
        columns: that the model needs. id_name: the column of ids, which a captured request's own id may replace.
        endpoint: the part of the paths of the captures of one endpoint; None: of all.
        since: the first time of the captured requests that count.
        left_out: requests and files that were left out, by cause; examples: the place of the first of each.
        earlier: requests before `since`.
    """

    folder: Path
    columns: Sequence[str]
    id_name: str | None = None
    endpoint: str | None = None
    since: datetime | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    earlier: int = 0

    def tables(self, scratch: Path) -> Iterator[Table]:
        """Yield the records; name, count and leave out what cannot be read or is of something else."""
        for path in data_files(self.folder):
            if not is_capture(path):
                try:
                    yield from self._table(path, scratch)
                except ContractError as error:
                    self._leave_out("a file that cannot be read to its end", error.cause)
            elif self.endpoint is None or self.endpoint in path.relative_to(self.folder).parts:
                yield from self._captured(path)
            else:
                self._leave_out(f"a capture of another endpoint than {self.endpoint} (ENDPOINT_NAME)", path)

    @property
    def causes(self) -> str:
        """What was left out, with the number and the first place of each cause."""
        return "; ".join(f"{count:,} x {cause}, e.g. {self.examples[cause]}" for cause, count in self.left_out.items())

    def _leave_out(self, cause: str, place: object) -> None:
        if cause not in self.examples:
            self.examples[cause] = str(place)
            logger.warning("left out: %s: %s", cause, place)
        self.left_out[cause] += 1

    def _table(self, path: Path, scratch: Path) -> Iterator[Table]:
        parts = open_part_files([path], folder=path.parent, scratch=scratch)
        if set(self.columns).isdisjoint(parts.columns):
            if not (parts.format == "csv" and len(parts.columns) == len(self.columns)):
                names = ", ".join(parts.columns[:5])
                self._leave_out("a file without any column of the model", f"{path} has {names}")
                return
            # CSV without a header, as a batch transform reads it, has the columns of the model.
            parts = open_part_files([path], folder=path.parent, signature=self.columns, scratch=scratch)
        for piece in parts.single_valued(self.columns).iter_tables():
            yield piece.table, piece.origin

    def _captured(self, path: Path) -> Iterator[Table]:
        rows: list[Mapping[str, Any]] = []
        lines: list[tuple[bytes, str | None]] = []  # of CSV without a header, with a record each, and its id
        for place, captured in self._lines(path):
            try:
                given, event = captured[CAPTURE]["endpointInput"], captured.get("eventMetadata") or {}
                data, media_type = given["data"], request_type(given.get("observedContentType"))
                body = base64.b64decode(data, validate=True) if given["encoding"] == "BASE64" else data.encode()
                own = event.get("inferenceId") or event.get("eventId")
                if media_type.name in (JSON, JSON_LINES):
                    rows += self._rows(body, media_type.name, own, place)
                elif media_type.name == CSV and b"\n" not in body.strip():
                    lines.append((body.strip(), own))
                else:
                    yield from self._parts(Request(body, media_type, ServingSettings()), path)
            except (RequestError, ContractError) as error:
                self._leave_out("a request that the model refuses", f"{place}: {error.cause}")
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                self._leave_out("a line that is no captured request", f"{place}: {first_line(error)}")
            if len(rows) >= _ROWS:
                yield records_to_table(rows), Origin(path)
                rows = []
            if len(lines) >= _ROWS:
                yield from self._csv(lines, path)
                lines = []
        if rows:
            yield records_to_table(rows), Origin(path)
        if lines:
            yield from self._csv(lines, path)

    def _rows(self, body: bytes, media_type: str, own: str | None, place: str) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = []
        for row in json_records(body, media_type, self.columns):
            if isinstance(row, Mapping) and not set(self.columns).isdisjoint(row):
                rows.append({name: self._single(name, value) for name, value in row.items()})
            else:
                self._leave_out("a record without any column of the model", place)
        if self.id_name is not None and own is not None and len(rows) == 1 and rows[0].get(self.id_name) is None:
            rows = [{**rows[0], self.id_name: own}]
        return rows

    def _single(self, name: str, value: Any) -> Any:
        """Return the text of a value with parts, which would make all values of its column unreadable."""
        if isinstance(value, Mapping):
            return value if any(column.startswith(f"{name}.") for column in self.columns) else json.dumps(value)
        nested = isinstance(value, list) and any(isinstance(part, list | Mapping) for part in value)
        return json.dumps(value) if nested else value

    def _csv(self, lines: Sequence[tuple[bytes, str | None]], path: Path) -> Iterator[Table]:
        """Yield records without a header as a table; halves of them, if one is refused."""
        body = b"\n".join(line for line, _ in lines)
        request = Request(body, request_type(f"{CSV}; header=absent"), ServingSettings())
        try:
            table = pa.concat_tables([part for part, _ in self._parts(request, path)], promote_options="permissive")
            if self.id_name is not None and len(table) == len(lines):
                table = table.append_column(self.id_name, pa.array([own for _, own in lines], pa.string()))
            yield table, Origin(path)
        except (RequestError, ContractError) as error:
            if len(lines) == 1:
                self._leave_out("a request that the model refuses", f"{path}: {error.cause}")
            else:
                middle = len(lines) // 2
                yield from self._csv(lines[:middle], path)
                yield from self._csv(lines[middle:], path)

    def _parts(self, request: Request, path: Path) -> Iterator[Table]:
        for part in request.parts(self.columns):
            yield part.table(), Origin(path, part.first)

    def _lines(self, path: Path) -> Iterator[tuple[str, Any]]:
        """Yield the place and the content of each line since the time that counts."""
        number = 0
        try:
            with _open(path) as file:
                for number, line in enumerate(file, start=1):
                    place = f"{path}, line {number}"
                    try:
                        captured = json.loads(line)
                        when = self.since and _time(captured["eventMetadata"]["inferenceTime"])
                    except (KeyError, TypeError, ValueError) as error:
                        cause = "a line that is no captured request" if line.endswith(b"\n") else "a file that is cut"
                        self._leave_out(cause, f"{place}: {first_line(error)}")
                        continue
                    if self.since is None or (when is not None and when >= self.since):
                        yield place, captured
                    else:
                        self.earlier += 1
        except (EOFError, OSError) as error:
            self._leave_out("a file that is cut", f"{path}, after line {number}: {first_line(error)}")


def _time(text: str) -> datetime:
    """Return when a request was answered; a time without a zone is UTC, as the service writes it."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def is_capture(path: Path) -> bool:
    """Return whether a file has captured requests in its lines."""
    try:
        with _open(path) as file:
            start = file.read(_LOOKED_AT).lstrip()
    except (EOFError, OSError):
        return False
    return start.startswith(b"{") and f'"{CAPTURE}"'.encode() in start


def _open(path: Path) -> io.BufferedIOBase:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")
