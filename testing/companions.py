"""Prepared rows for the tests of the companion: token ids and numbers from which the label follows in part."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from container.companion.fit import Fitted, fit_companion
from container.data.records import RecordArrays, TextArrays
from contracts.text_fields import ModelTextField, resolve_text_field
from testing.table_jobs import settings

FIELD = resolve_text_field(settings(tokenizer="from_scratch"), "text")


class Split:
    """A split of the file batches `parts`."""

    def __init__(self, *parts: RecordArrays) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(len(part.row) for part in self.parts)

    def arrays(self) -> list[RecordArrays]:
        return list(self.parts)

    def weights(self) -> np.ndarray:
        return self.column("weight").to_numpy()

    def units(self) -> np.ndarray:
        return self.column("unit").to_numpy()

    def column(self, name: str) -> pa.ChunkedArray:
        return pa.chunked_array([getattr(part, name) for part in self.parts])


def text(records: Sequence[Sequence[Sequence[int]]]) -> TextArrays:
    """Records of chunks of token ids."""
    chunks = [chunk for record in records for chunk in record]
    return TextArrays(
        tokens=np.array([token for chunk in chunks for token in chunk], np.int32),
        token_offsets=np.cumsum([0, *(sum(map(len, record)) for record in records)]),
        chunk_lengths=np.array([len(chunk) for chunk in chunks], np.int32),
        chunk_offsets=np.cumsum([0, *map(len, records)]),
    )


def rows(
    number: int, *, classes: int = 2, columns: int = 2, seed: int = 0, labels: np.ndarray | None = None
) -> RecordArrays:
    """Rows in whose texts a token of the class is a little more frequent, and whose first number grows with it."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, number) if labels is None else labels
    records = []
    for y in label:
        chunks = [rng.integers(0, 12, rng.integers(1, 12)).tolist() for _ in range(rng.integers(1, 3))]  # 0 pads too
        if rng.random() < 0.5:
            chunks[0].append(100 + int(y))
        records.append([[2, *chunk, 3] for chunk in chunks])
    tabular = (rng.normal(size=(number, columns)) + np.arange(columns, 0, -1) * label[:, None] * 0.5).astype(np.float32)
    return RecordArrays(
        np.arange(number), label.astype(np.int64), tabular, (text(records),), np.ones(number, np.float32)
    )


def without_meaning(part: RecordArrays) -> RecordArrays:
    """The rows with the texts of rows that have other labels."""
    return replace(part, texts=rows(len(part.row), seed=99).texts)


def fitted(
    train: RecordArrays, *, classes: int = 2, fields: Sequence[ModelTextField] = (FIELD,), seed: int = 0
) -> Fitted:
    return fit_companion([train], fields, class_weights=[1.0] * classes, seed=seed)
