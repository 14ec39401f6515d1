"""Compute a companion over many records, in batches of limited size."""

from collections.abc import Iterator, Sequence

import numpy as np

from container.companion.graph import Companion
from container.data.records import RecordArrays, onnx_inputs_of_all
from contracts.text_fields import TextInputs

_MOST_TOKENS = 65_536  # of the companion's inputs, with padding


def predict(
    companion: Companion, parts: Sequence[RecordArrays], texts: Sequence[TextInputs]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits [N, K] and the scores [N, S] of the records of `parts`, computed as in serving."""
    logits, scores = [], []
    for part in parts:
        shapes = np.concatenate([text.shapes() for text in part.texts], axis=1)
        order = np.lexsort(shapes.T[::-1])  # similar shapes need little padding
        found = [companion(onnx_inputs_of_all(texts, part.take(some))) for some in _batches(shapes, order)]
        back = np.argsort(order)
        for kept, columns in zip((logits, scores), zip(*found), strict=True):
            kept.append(np.concatenate(columns)[back])
    return np.concatenate(logits), np.concatenate(scores)


def _batches(shapes: np.ndarray, records: np.ndarray) -> Iterator[np.ndarray]:
    """Divide `records` into parts of at most _MOST_TOKENS padded tokens, or one record.

    Args:
        shapes: chunks and longest chunk of each text of all records. [R, 2 n]
    """
    largest = shapes[records].max(axis=0).reshape(-1, 2)
    if len(records) == 1 or len(records) * largest.prod(axis=1).sum() <= _MOST_TOKENS:
        yield records
        return
    for half in np.array_split(records, 2):
        yield from _batches(shapes, half)
