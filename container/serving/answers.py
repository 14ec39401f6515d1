"""Write predictions as JSON, CSV or JSON Lines."""

import csv
import io
import json
from typing import Any

from container.serving.media_types import MediaType
from container.serving.model import Prediction
from contracts.artifacts import probability_column
from contracts.serving import CSV, JSON

LABEL, PROBABILITIES = "predicted_label", "probabilities"


def write_answer(prediction: Prediction, media_type: MediaType) -> bytes:
    """Return the body of a response: one entry or line per record, in the request's order.

    JSON: {"class_labels": [...], "predictions": [{"predicted_label": ..., "probabilities": [...]}, ...]}.
    JSON Lines: the objects of "predictions". CSV: the label, then the K probabilities; a header line only if the
    client requests it (`text/csv; header=present`), because a batch transform joins lines of responses to lines of
    input. Numbers keep all digits.
    """
    if media_type.name == CSV:
        return _csv(prediction, header=bool(media_type.header))
    pairs = zip(prediction.decided, prediction.probabilities.tolist())
    entries = [{LABEL: label, PROBABILITIES: probabilities} for label, probabilities in pairs]
    if media_type.name == JSON:
        return _json({"class_labels": list(prediction.class_labels), "predictions": entries})
    return b"".join(_json(entry) + b"\n" for entry in entries)


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()


def _csv(prediction: Prediction, *, header: bool) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow([LABEL, *map(probability_column, range(len(prediction.class_labels)))])
    for label, probabilities in zip(prediction.decided, prediction.probabilities.tolist()):
        writer.writerow([label, *map(repr, probabilities)])
    return text.getvalue().encode()
