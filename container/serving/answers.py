"""Write predictions as JSON, CSV or JSON Lines."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from container.serving.media_types import MediaType
from container.serving.model import Prediction
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
    if media_type.name == JSON:
        content = {"class_labels": list(prediction.class_labels), "predictions": list(_objects(prediction))}
        return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    lines = (json.dumps(entry, ensure_ascii=False, allow_nan=False) for entry in _objects(prediction))
    return "".join(f"{line}\n" for line in lines).encode()


def _objects(prediction: Prediction) -> Iterator[dict[str, Any]]:
    for label, probabilities in zip(prediction.decided, prediction.probabilities.tolist()):
        yield {LABEL: label, PROBABILITIES: probabilities}


def _csv(prediction: Prediction, *, header: bool) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow([LABEL, *(f"prob_class_{k}" for k in range(len(prediction.class_labels)))])
    for label, probabilities in zip(prediction.decided, prediction.probabilities.tolist()):
        writer.writerow([label, *map(repr, probabilities)])
    return text.getvalue().encode()
