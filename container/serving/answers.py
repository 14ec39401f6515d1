"""Write predictions as JSON, CSV or JSON Lines."""

import csv
import json
from collections.abc import Iterator
from typing import Any

from container.serving.media_types import MediaType
from container.serving.model import Prediction
from contracts.artifacts import PREDICTED_LABEL, probability_column
from contracts.serving import CSV, JSON

LABEL, PROBABILITIES, ERROR, REASONS = PREDICTED_LABEL, "probabilities", "error", "reasons"


def write_answer(prediction: Prediction, media_type: MediaType) -> bytes:
    """Return the body of a response: one entry or line per record, in the request's order.

    JSON: {"class_labels": [...], "predictions": [{"predicted_label": ..., "probabilities": [...]}, ...]}.
    JSON Lines: the objects of "predictions". CSV: the label, then the K probabilities; a header line only if the
    client requests it (`text/csv; header=present`), because a batch transform joins lines of responses to lines of
    input. Numbers keep all digits.

    If the client asks for reasons, an entry has "reasons", and a line of a CSV a cell with their JSON.

    The entry of an invalid record is {"error": "..."}. If errors are reported, each line of a CSV ends with a cell for
    it, and that of an invalid record has no other content.
    """
    if media_type.name == CSV:
        return _csv(prediction, header=bool(media_type.header))
    # One entry at a time: the encoder holds the interpreter during a call.
    entries = map(_json, _entries(prediction))
    if media_type.name == JSON:
        labels = _json(list(prediction.class_labels))
        return b'{"class_labels": ' + labels + b', "predictions": [' + b", ".join(entries) + b"]}"
    return b"".join(entry + b"\n" for entry in entries)


def _entries(prediction: Prediction) -> Iterator[dict[str, Any]]:
    errors, reasons = prediction.errors or {}, prediction.reasons
    for i, (label, probabilities) in enumerate(zip(prediction.decided, prediction.probabilities)):
        if i in errors:
            yield {ERROR: errors[i]}
        else:
            more = {} if reasons is None else {REASONS: reasons[i]}
            yield {LABEL: label, PROBABILITIES: probabilities.tolist(), **more}


def reasons_json(reasons: dict[str, Any] | None) -> str:
    """Return the reasons of a record as a cell of a table."""
    return json.dumps(reasons, ensure_ascii=False, allow_nan=False)


def _json(content: dict[str, Any] | list[Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


class _Lines:
    r"""Take the rows of a csv.writer and end them with \n. The writer must use \r\n: with \n, it leaves \r unquoted."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, row: str) -> None:
        self.written.append(row.removesuffix("\r\n") + "\n")


def _csv(prediction: Prediction, *, header: bool) -> bytes:
    lines = _Lines()
    writer = csv.writer(lines)
    count, errors, reasons = len(prediction.class_labels), prediction.errors, prediction.reasons
    if header:
        more = ([] if reasons is None else [REASONS]) + ([] if errors is None else [ERROR])
        writer.writerow([LABEL, *map(probability_column, range(count)), *more])
    for i, (label, probabilities) in enumerate(zip(prediction.decided, prediction.probabilities)):
        if errors is not None and i in errors:
            writer.writerow([*[""] * (count + 1 + (reasons is not None)), errors[i]])
        else:
            more = ([] if reasons is None else [reasons_json(reasons[i])]) + ([] if errors is None else [""])
            writer.writerow([label, *map(repr, probabilities.tolist()), *more])
    return "".join(lines.written).encode("utf-8", "replace")
