"""Score files of records with the package, as SageMaker's batch transform does: a server, and requests of lines."""

import csv
import http.client
import io
import json
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any

from contracts.atomic_files import AtomicFile
from contracts.errors import shown
from contracts.input_files import files_below
from contracts.serving import CSV
from contracts.steps import ARCHIVED_MODEL, BATCH_SCORE
from contracts.table_formats import MEDIA_TYPES
from pipeline.config import BatchScore
from pipeline.json_path import Select, compile_path
from pipeline.local.cache import StepDirectory
from pipeline.local.process import StepFailed
from pipeline.local.server import ask, serving

GIVEN, JOINED = "SageMakerInput", "SageMakerOutput"  # keys of a joined record: of one that is no object, of the scores
_DIGITS = re.compile(r'"\\u0000([-+.eE0-9]+)\\u0000"')  # a number with a point or an exponent keeps its digits
csv.field_size_limit(sys.maxsize)  # 131,072 characters by default


class _Failed(Exception):
    """A file cannot be scored."""


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

    def ask(self, path: str, body: bytes = b"") -> bytes:
        """Return the body of an answer with the status OK."""
        media = {"content_type": self.config.content_type, "accept": self.config.content_type}
        try:
            status, answer = ask(self.port, path, body, **media, seconds=self.config.timeout_seconds)
        except (OSError, http.client.HTTPException) as error:
            raise _Failed(f"no answer: {error!r}") from error
        if status != HTTPStatus.OK:
            raise _Failed(f"status {status}: {answer.decode(errors='replace')[:500]}")
        return answer

    def limits(self) -> tuple[int, int]:
        """Return the size of a request in MiB, and the requests at a time, as the server decides."""
        try:
            limits = json.loads(self.ask("/execution-parameters"))
        except _Failed as error:
            raise _Failed(f"/execution-parameters: {error}") from error
        return limits["MaxPayloadInMB"], limits["MaxConcurrentTransforms"]

    def score(self, payload: tuple[int, list[bytes]]) -> list[bytes]:
        """Return a line with a line break for each record."""
        first, records = payload
        try:
            request = [self._filtered(self.filters.request_line, line) for line in records]
            answer = self.ask("/invocations", b"\n".join([*request, b""]))
            answers = [line for line in answer.split(b"\n") if line.strip()]
            if len(answers) != len(request):
                counts = f"{len(request)} records got {len(answers)} scores"
                raise _Failed(f"{counts}; remove a header and quoted line breaks from CSV, or use JSON Lines")
            return [self._filtered(self.filters.result_line, *pair) + b"\n" for pair in zip(records, answers)]
        except _Failed as error:
            raise _Failed(f"lines {first} to {first + len(records) - 1}: {error}") from error

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
    blank, most = one_column and config.content_type == CSV, 1 if config.strategy == "SingleRecord" else None
    with serving(package, directory, variables, step=BATCH_SCORE.name, image=image) as port:
        client, place = _Client(port, config, Filters.of(config)), ""
        try:
            size, requests = config.payloads or client.limits()
            with ThreadPoolExecutor(requests) as pool:
                for path in files:
                    place, target = f"{path}, ", output / f"{path.relative_to(home)}.out"
                    target.parent.mkdir(parents=True, exist_ok=True)
                    payloads = read_payloads(path, size << 20, most=most, blank=blank)
                    with AtomicFile(target) as scores, scores.open("wb") as file:
                        while window := list(islice(payloads, requests)):
                            for lines in pool.map(client.score, window):
                                file.writelines(lines)
        except _Failed as error:
            raise StepFailed(BATCH_SCORE.name, f"{place}{error}", directory.log) from None


def read_payloads(path: Path, size: int, *, most: int | None, blank: bool = False) -> Iterator[tuple[int, list[bytes]]]:
    """Yield a file's lines in requests of at most `size` bytes and `most` records, with the number of the first line.

    Args:
        blank: whether a blank line is a record; otherwise it is left out, as the server does.

    Raises:
        _Failed: a record is longer than `size`.
    """
    first, records, length = 1, list[bytes](), 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            record = line.removeprefix(BOM_UTF8 if number == 1 else b"").removesuffix(b"\n").removesuffix(b"\r")
            if not record.strip() and not blank:
                continue
            if len(record) + 1 > size:
                raise _Failed(f"line {number}: {shown(record.decode(errors='replace'))} has more than {size} bytes")
            if records and (length + len(record) + 1 > size or len(records) == most):
                yield first, records
                first, records, length = number, [], 0
            records.append(record)
            length += len(record) + 1
    if records:
        yield first, records
