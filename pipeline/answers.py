"""Ask a served model for the answers that were registered with it, and compare them."""

import csv
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.errors import ContractError, shown
from contracts.serving import CSV, JSON, MEDIA_TYPES
from contracts.steps import PAYLOAD, PAYLOAD_CHECK, PayloadSettings
from pipeline.plan import Plan


@dataclass(frozen=True)
class Sample:
    """A sample request, and the answer that the package gave before it was registered."""

    body: bytes
    content_type: str
    answer: str

    @property
    def accept(self) -> str:
        """The media type of the answer."""
        return CSV if MEDIA_TYPES[self.content_type] == CSV else JSON


def read_samples(archive: bytes, check: bytes | None, *, where: str) -> list[Sample]:
    """Return the sample requests of a version.

    Args:
        archive: payload.tar.gz.
        check: payload_check.json, which has the answers.

    Raises:
        ContractError: there are no answers.
    """
    if check is None:
        raise ContractError(f"{where}: has no {PAYLOAD_CHECK} with the answers", "Register the model again.")
    samples = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for answered in json.loads(check)["samples"]:
            body = files.extractfile(answered["file"])
            assert body is not None, "Payload writes files"
            samples.append(Sample(body.read(), answered["content_type"], answered["answer"]))
    return samples


def require_answers(samples: Sequence[Sample], ask: Callable[[Sample], str], plan: Plan, *, version: int) -> None:
    """Raise ContractError where a served version answers a sample request not as it was registered.

    Args:
        ask: sends a request, and returns the answer.
    """
    tolerance = PayloadSettings.from_environment(plan.step(PAYLOAD).environment).tolerance
    for sample in samples:
        difference = first_difference(sample.answer, ask(sample), sample.content_type, tolerance=tolerance)
        if difference is not None:
            raise ContractError(
                f"version {version}: answers the sample request ({sample.content_type}) differently: {difference}",
                "The service is unchanged. Compare the image and the environment with those of the registration.",
            )
        print(f"The sample request ({sample.content_type}) has the registered answer.", flush=True)


def first_difference(registered: str, answer: str, content_type: str, *, tolerance: float) -> str | None:
    """Return the first difference of two answers to the same request; None where they agree.

    Args:
        content_type: of the request, which decides the format of the answer.
        tolerance: largest difference of two numbers.
    """
    try:
        before, now = (_parsed(text, content_type) for text in (registered, answer))
    except (ValueError, csv.Error):
        return f"the answer {shown(answer)} cannot be read"
    return _difference(before, now, "", tolerance)


def _parsed(text: str, content_type: str) -> Any:
    if MEDIA_TYPES[content_type] == CSV:
        return [[_number(cell) for cell in cells] for cells in csv.reader(io.StringIO(text, newline=""))]
    return json.loads(text)


def _number(cell: str) -> str | float:
    try:
        return float(cell)
    except ValueError:
        return cell


def _difference(before: Any, now: Any, place: str, tolerance: float) -> str | None:
    if isinstance(before, dict) and isinstance(now, dict) and before.keys() == now.keys():
        parts = [(f"{place}.{key}", before[key], now[key]) for key in before]
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        parts = [(f"{place}[{n}]", *pair) for n, pair in enumerate(zip(before, now))]
    elif before == now or _are_close(before, now, tolerance):
        return None
    else:
        return f"{place or 'the answer'} is {shown(now)}, registered is {shown(before)}"
    differences = (_difference(old, new, key, tolerance) for key, old, new in parts)
    return next((found for found in differences if found), None)


def _are_close(before: Any, now: Any, tolerance: float) -> bool:
    return all(isinstance(value, (int, float)) for value in (before, now)) and abs(before - now) <= tolerance
