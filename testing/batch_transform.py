"""Run a batch transform as SageMaker does: cut a file into payloads of lines, send several at a time, join the answers.

The joins and filters follow AWS's pages of CreateTransformJob and DataProcessing; nothing here was compared with AWS.
"""

import csv
import http.client
import io
import json
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.serving import CSV, JSON_LINES
from testing.serving import ask

_KEYS = re.compile(r"'([^']*)'")


@dataclass(frozen=True)
class Transform:
    """The settings of a transform job with SplitType=Line, BatchStrategy=MultiRecord and AssembleWith=Line.

    Attributes:
        content_type: of input and output: text/csv or application/jsonlines.
        payload_bytes: MaxPayloadInMB in bytes.
        concurrent: MaxConcurrentTransforms.
        input_filter, output_filter: JSONPath of keys, as $['id','SageMakerOutput'], or of cells, as $[1:] or $[0,-1].
        join: whether JoinSource is Input.
    """

    content_type: str
    payload_bytes: int = 6 << 20
    concurrent: int = 8
    input_filter: str = "$"
    join: bool = False
    output_filter: str = "$"

    def run(self, port: int, source: Path, target: Path) -> int:
        """Send the lines of `source`, write the output file and return its number of lines.

        Raises:
            AssertionError: a request is not answered with one line per record; on SageMaker it fails the file.
        """
        written = 0
        pending: deque[tuple[list[bytes], Future[bytes]]] = deque()
        with source.open("rb") as stream, target.open("wb") as sink, ThreadPoolExecutor(self.concurrent) as pool:
            for lines in self._payloads(stream):
                pending.append((lines, pool.submit(self._send, port, lines)))
                while len(pending) > self.concurrent:
                    written += self._write(sink, *pending.popleft())
            while pending:
                written += self._write(sink, *pending.popleft())
        return written

    def _payloads(self, stream: io.BufferedReader) -> Iterator[list[bytes]]:
        lines: list[bytes] = []
        size = 0
        for line in stream:
            if lines and size + len(line) > self.payload_bytes:
                yield lines
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        if lines:
            yield lines

    def _send(self, port: int, lines: list[bytes]) -> bytes:
        body = b"".join(lines)
        if self.input_filter != "$":
            body = b"".join(self._line(select(self._value(line), self.input_filter)) for line in lines)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        try:
            answer = ask(connection, body, self.content_type, accept=self.content_type)
        finally:
            connection.close()
        assert answer.status == 200, answer.body[:500]
        return answer.body

    def _write(self, sink: io.BufferedWriter, lines: list[bytes], answer: "Future[bytes]") -> int:
        outputs = io.BytesIO(answer.result()).readlines()  # cut at line feeds only
        if not self.join:
            sink.writelines(outputs)
            return len(outputs)
        assert len(outputs) == len(lines), f"{len(outputs)} lines for {len(lines)}"
        for line, output in zip(lines, outputs):
            value, found = self._value(line), self._value(output)
            joined = value + found if self.content_type == CSV else {**value, "SageMakerOutput": found}
            sink.write(self._line(select(joined, self.output_filter)))
        return len(outputs)

    def _value(self, line: bytes) -> Any:
        return next(csv.reader([line.decode()])) if self.content_type == CSV else json.loads(line)

    def _line(self, value: Any) -> bytes:
        if self.content_type == JSON_LINES:
            return json.dumps(value, ensure_ascii=False).encode() + b"\n"
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(value)
        return text.getvalue().encode()


def select(value: Any, path: str) -> Any:
    """Return the part of an object or a list that a JSONPath of the service names."""
    if path == "$":
        return value
    if keys := _KEYS.findall(path):
        return {key: value[key] for key in keys if key in value}
    selected = []
    for part in path.removeprefix("$[").removesuffix("]").split(","):
        if ":" in part:
            selected += value[slice(*(int(end) if end else None for end in part.split(":")))]
        else:
            selected.append(value[int(part)])
    return selected
