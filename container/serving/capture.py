"""Write requests and their answers as SageMaker's data capture does, without delaying an answer."""

import base64
import json
import logging
import queue
import random
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from container.serving.gunzip import Body
from contracts.serving import ServingSettings

logger = logging.getLogger(__name__)

_INFERENCE_ID = "X-Amzn-Sagemaker-Inference-Id"  # a header
_MOST_WAITING = 256  # requests, with up to _MOST_BYTES each
_MOST_BYTES = 1 << 18
_FILES = 16  # that the folder has at least, when it is full
_OWN_FILES = "????/??/??/??/??-??-??????-*.jsonl"


@dataclass(frozen=True)
class _Captured:
    """A request and its answer, each a body and its media type."""

    when: datetime
    inference_id: str | None
    sent: tuple[bytes, str]
    answer: tuple[bytes, str]

    def line(self) -> bytes:
        parts = {
            f"endpoint{mode}": {
                "observedContentType": media_type,
                "mode": mode.upper(),
                "data": base64.b64encode(body).decode("ascii"),
                "encoding": "BASE64",
            }
            for mode, (body, media_type) in (("Input", self.sent), ("Output", self.answer))
        }
        event = {"eventId": str(uuid.uuid4()), "inferenceTime": self.when.strftime("%Y-%m-%dT%H:%M:%SZ")}
        event |= {} if self.inference_id is None else {"inferenceId": self.inference_id}
        return json.dumps({"captureData": parts, "eventMetadata": event, "eventVersion": "0"}).encode() + b"\n"


class Capture:
    """The folder of captured requests, written by a thread.

    A request that comes while too many wait, or that is too large, is not captured; a line in the log counts them.
    """

    def __init__(self, folder: str, settings: ServingSettings) -> None:
        self.lost = 0
        self._folder, self._most = Path(folder), settings.serving_capture_max_bytes
        self._share = settings.serving_capture_percentage / 100
        self._random = random.Random()
        self._waiting: queue.Queue[_Captured] = queue.Queue(_MOST_WAITING)
        threading.Thread(target=self._write, name="capture", daemon=True).start()

    def add(self, body: Body, size: int, headers: Mapping[str, str], answer: tuple[bytes, str]) -> None:
        """Capture a request, if it is of the share that is captured; returns at once."""
        if self._random.random() >= self._share:
            return
        if size + len(answer[0]) > _MOST_BYTES:
            self._lose("it or its answer is too large")
            return
        body.seek(0)
        sent = b"".join(iter(lambda: body.read(_MOST_BYTES), b"")), headers.get("Content-Type", "")
        try:
            self._waiting.put_nowait(_Captured(datetime.now(UTC), headers.get(_INFERENCE_ID), sent, answer))
        except queue.Full:
            self._lose("the disk is too slow")

    def _lose(self, why: str) -> None:
        self.lost += 1
        if self.lost & (self.lost - 1) == 0:  # 1, 2, 4, 8, ...
            logger.warning("capture: %d requests were not captured, the last one because %s", self.lost, why)

    def _write(self) -> None:
        file: IO[bytes] | None = None
        path, hour = self._folder, ""
        while True:
            captured = self._waiting.get()
            try:
                now = captured.when.strftime("%Y/%m/%d/%H")
                if file is None or now != hour or file.tell() > self._most // _FILES or not path.is_file():
                    if file is not None:
                        file.close()
                    self._remove_oldest()
                    path = self._folder / now / captured.when.strftime(f"%M-%S-%f-{uuid.uuid4()}.jsonl")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    file, hour = path.open("ab"), now
                file.write(captured.line())
                file.flush()
            except OSError as error:
                file = None
                self._lose(f"{self._folder} cannot be written: {error}")

    def _remove_oldest(self) -> None:
        """Leave room for the next file."""
        files = [(path, path.stat().st_size) for path in sorted(self._folder.glob(_OWN_FILES))]
        size = sum(of_file for _, of_file in files) + self._most // _FILES + 4 * _MOST_BYTES
        for path, of_file in files:
            if size <= self._most:
                return
            path.unlink(missing_ok=True)
            size -= of_file
