"""Score files of records with the package, as SageMaker's batch transform does: a server, and requests of lines."""

import csv
import http.client
import io
import json
import re
import sys
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from contracts.errors import shown
from contracts.input_files import files_below
from contracts.ports import LOOPBACK
from contracts.serving import CSV
from contracts.steps import ARCHIVED_MODEL, BATCH_SCORE
from contracts.table_formats import MEDIA_TYPES
from pipeline.config import BatchScore
from pipeline.json_path import Select, compile_path
from pipeline.local.cache import StepDirectory
from pipeline.local.process import StepFailed
from pipeline.local.server import serving

GIVEN, JOINED = "SageMakerInput", "SageMakerOutput"  # keys of a joined record: of one that is no object, of the scores
_DIGITS = re.compile(r'"\\u0000([-+.eE0-9]+)\\u0000"')  # a number with a point or an exponent keeps its digits
csv.field_size_limit(sys.maxsize)  # 131,072 characters by default


class _Failed(Exception):
    """A file cannot be scored."""


@dataclass(frozen=True)
class Payload:
    """The records of a request.

    Attributes:
        first: number of the first line in the file, from 1.
        lines: the records, without line breaks.
    """

    first: int
    lines: list[bytes]


@dataclass(frozen=True)
class Filters:
    """The parts of records that are sent and written; None: all of it."""

    is_csv: bool
    sent: Select | None
    joined: bool
    written: Select | None

    @classmethod
    def of(cls, config: BatchScore) -> "Filters":
        """Compile the filters of the configuration."""
        sent, written = (compile_path(path) if path else None for path in (config.input_filter, config.output_filter))
        return cls(config.content_type == CSV, sent, config.join_input, written)

    def request_line(self, record: bytes) -> bytes:
        """Return the part of a record to send; its JSON has no blanks, so that it is not longer than the record."""
        return record if self.sent is None else self._text(self.sent(self._value(record)), (",", ":"))

    def result_line(self, record: bytes, answer: bytes) -> bytes:
        if not self.joined and self.written is None:
            return answer
        result = self._value(answer)
        if self.joined:
            fields = self._value(record)
            if self.is_csv:
                result = [*fields, *result]
            else:
                result = {**(fields if isinstance(fields, dict) else {GIVEN: fields}), JOINED: result}
        return self._text(result if self.written is None else self.written(result))

    def _value(self, line: bytes) -> Any:
        text = line.decode()
        return next(csv.reader([text])) if self.is_csv else json.loads(text, parse_float="\0{}\0".format)

    def _text(self, value: Any, separators: tuple[str, str] = (", ", ": ")) -> bytes:
        if not self.is_csv:
            return _DIGITS.sub(r"\1", json.dumps(value, ensure_ascii=False, separators=separators)).encode()
        line = io.StringIO()
        csv.writer(line).writerow(value if isinstance(value, list) else [value])  # quotes \r and \n, which end lines
        return line.getvalue().removesuffix("\r\n").encode()


@dataclass(frozen=True)
class _Client:
    """Requests to the server of a package."""

    port: int
    config: BatchScore
    filters: Filters

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the body of a response; raise _Failed for a response without it."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=self.config.timeout_seconds)
        headers = {"Content-Type": self.config.content_type, "Accept": self.config.content_type}
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise _Failed(f"no answer: {error!r}") from error
        finally:
            connection.close()
        if response.status != HTTPStatus.OK:
            raise _Failed(f"status {response.status}: {answer.decode(errors='replace')[:500]}")
        return answer

    def score(self, payload: Payload) -> list[bytes]:
        """Return a line with a line break for each record."""
        try:
            request = [self._filtered(self.filters.request_line, line) for line in payload.lines]
            answer = self.ask("POST", "/invocations", b"\n".join([*request, b""]))
            answers = [line for line in answer.split(b"\n") if line.strip()]
            if len(answers) != len(request):
                counts = f"{len(request)} records got {len(answers)} scores"
                raise _Failed(f"{counts}; remove a header and quoted line breaks from CSV, or use JSON Lines")
            lines = zip(payload.lines, answers, strict=True)
            return [self._filtered(self.filters.result_line, record, answer) + b"\n" for record, answer in lines]
        except _Failed as error:
            last = payload.first + len(payload.lines) - 1
            raise _Failed(f"lines {payload.first} to {last}: {error}") from error

    def _filtered(self, apply: Callable[..., bytes], record: bytes, *answer: bytes) -> bytes:
        try:
            return apply(record, *answer)
        except (ValueError, LookupError, TypeError, csv.Error) as error:
            found = shown(record.decode(errors="replace"))
            raise _Failed(f"a filter does not fit the record {found}: {error!r}") from error


def score(
    config: BatchScore,
    directory: StepDirectory,
    inputs: Mapping[str, Path],
    variables: Mapping[str, str],
    *,
    one_column: bool,
    image: str | None = None,
) -> None:
    """Score every file of the input batch_input; write NAME.out with one line per record, in order.

    Args:
        inputs: folder or file of each input, by logical name.
        variables: the server's environment.
        one_column: whether the model reads a single column, so that a blank line of CSV is a record.
        image: the image of the server; None for a process.

    Raises:
        StepFailed: the server does not start, refuses a record, or answers with another number of lines.
    """
    records, output = inputs["batch_input"], directory.output(BATCH_SCORE, "scores")
    files = [records] if records.is_file() else files_below(records).files
    home = records.parent if records.is_file() else records
    for path in files:
        other = MEDIA_TYPES.get(path.suffix, config.content_type)
        if other != config.content_type:
            cause = f"{path}: its name shows {other}, but batch_score.content_type is {config.content_type}"
            cause = f"{cause}. Set content_type to {other}, or rename the file."
            raise StepFailed(BATCH_SCORE.name, cause, directory.log)
    package = inputs["packaged_model"] / ARCHIVED_MODEL
    with serving(package, directory, variables, step=BATCH_SCORE.name, image=image) as port:
        client = _Client(port, config, Filters.of(config))
        try:
            limits = json.loads(client.ask("GET", "/execution-parameters"))
        except _Failed as error:
            raise StepFailed(BATCH_SCORE.name, f"/execution-parameters: {error}", directory.log) from None
        size, requests = config.payloads or (limits["MaxPayloadInMB"], limits["MaxConcurrentTransforms"])
        with ThreadPoolExecutor(requests) as pool:
            for path in files:
                target = output / f"{path.relative_to(home)}.out"
                target.parent.mkdir(parents=True, exist_ok=True)
                most = 1 if config.strategy == "SingleRecord" else None
                payloads = read_payloads(path, size << 20, most=most, blank=one_column and config.content_type == CSV)
                try:
                    _score_file(client, pool, payloads, target, requests)
                except _Failed as error:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise StepFailed(BATCH_SCORE.name, f"{path}, {error}", directory.log) from None


def _score_file(
    client: _Client, pool: ThreadPoolExecutor, payloads: Iterator[Payload], target: Path, requests: int
) -> None:
    """Write the scores of a file's payloads in order; hold at most `requests` payloads in memory."""
    waiting: deque[Future[list[bytes]]] = deque()
    try:
        with target.open("wb") as file:
            for payload in payloads:
                waiting.append(pool.submit(client.score, payload))
                if len(waiting) >= requests:
                    file.writelines(waiting.popleft().result())
            while waiting:
                file.writelines(waiting.popleft().result())
    except _Failed:
        target.unlink()  # scores of a part of the file
        raise


def read_payloads(path: Path, size: int, *, most: int | None, blank: bool = False) -> Iterator[Payload]:
    """Yield a file's lines in payloads of at most `size` bytes and `most` records.

    Args:
        blank: whether a blank line is a record; otherwise it is left out, as the server does.

    Raises:
        _Failed: a record is longer than `size`.
    """
    payload, length = Payload(1, []), 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            record = line.removeprefix(BOM_UTF8 if number == 1 else b"").removesuffix(b"\n").removesuffix(b"\r")
            if not record.strip() and not blank:
                continue
            if len(record) + 1 > size:
                raise _Failed(f"line {number}: {shown(record.decode(errors='replace'))} has more than {size} bytes")
            if payload.lines and (length + len(record) + 1 > size or len(payload.lines) == most):
                yield payload
                payload, length = Payload(number, []), 0
            payload.lines.append(record)
            length += len(record) + 1
    if payload.lines:
        yield payload
