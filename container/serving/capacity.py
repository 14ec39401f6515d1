"""Measure how many bytes of records the server answers per second, and derive the parameters of a batch transform."""

import io
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from contracts.serving import BODIES, JSON_LINES, MOST_TRANSFORM_MIB, PAYLOAD_MIB, TRANSFORM_REQUESTS, ServingSettings

logger = logging.getLogger(__name__)

_MIB = 1 << 20
_SHARE = 0.5  # of the time for a request that the computation of full payloads may take
_MEASURE_SECONDS = 0.5
_WORDS = "the parcel arrived late and one item was missing so we would like a refund please "

Answer = Callable[[BinaryIO, dict[str, str]], object]


def sample_lines(columns: Sequence[str], texts: Sequence[str], *, characters: int) -> list[bytes]:
    """Return JSON Lines of two records: one with short texts, and one with texts of `characters` characters."""
    lines = []
    for length in (1, characters):
        text = (_WORDS * (length // len(_WORDS) + 1))[:length]
        lines.append(json.dumps(dict.fromkeys(columns) | dict.fromkeys(texts, text)).encode() + b"\n")
    return lines


def measure(answer: Answer, lines: Sequence[bytes], *, max_bytes: int) -> float | None:
    """Return how many bytes are answered per second, for the slowest of `lines`; None without lines."""
    rates = []
    for line in lines:
        count, seconds = 1, 0.0
        while seconds < _MEASURE_SECONDS and 2 * count * len(line) <= min(max_bytes, _MIB):
            count *= 2
            began = time.perf_counter()
            answer(io.BytesIO(line * count), {"Content-Type": JSON_LINES, "Accept": JSON_LINES})
            seconds = time.perf_counter() - began
        if seconds:
            rates.append(count * len(line) / seconds)
            logger.info("measured: %.0f records/s of %d bytes", count / seconds, len(line))
    return min(rates, default=None)


def execution_parameters(bytes_per_second: float | None, settings: ServingSettings) -> dict[str, Any]:
    """Return the response to GET /execution-parameters, which a batch transform uses where its user sets nothing.

    All concurrent payloads together take at most half of SERVING_TIMEOUT_SECONDS.
    """
    room = min(MOST_TRANSFORM_MIB, BODIES * settings.serving_max_bytes / _MIB)
    if bytes_per_second is not None:
        room = min(room, _SHARE * settings.serving_timeout_seconds * bytes_per_second / _MIB)
    concurrent = max(1, min(TRANSFORM_REQUESTS, settings.serving_concurrency, int(room)))
    payload = max(1, min(PAYLOAD_MIB, settings.serving_max_bytes // _MIB, int(room / concurrent)))
    if bytes_per_second is not None:
        seconds = concurrent * payload * _MIB / bytes_per_second
        logger.info("batch transform: %d payloads of %d MiB take up to %.1f s", concurrent, payload, seconds)
        if seconds > settings.serving_timeout_seconds:
            logger.warning(
                "batch transform: a payload of 1 MiB can take longer than SERVING_TIMEOUT_SECONDS=%g. Set it, and "
                "InvocationsTimeoutInSeconds of the transform job, to more than %.0f, or use a larger instance.",
                settings.serving_timeout_seconds,
                seconds,
            )
    if settings.serving_max_bytes < _MIB:
        logger.warning(
            "batch transform: a payload of 1 MiB can exceed SERVING_MAX_BYTES=%d. Set it to at least %d.",
            settings.serving_max_bytes,
            _MIB,
        )
    return {"MaxConcurrentTransforms": concurrent, "BatchStrategy": "MULTI_RECORD", "MaxPayloadInMB": payload}
