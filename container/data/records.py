"""Read prepared records as numpy views of Arrow buffers, and pack them. Without torch, because serving imports it."""

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from contracts.artifacts import ONNX_TABULAR
from contracts.text_fields import TextInputs


@dataclass(frozen=True)
class TextArrays:
    """One text field of R records.

    Record i has tokens[token_offsets[i]:token_offsets[i + 1]], in chunks of the lengths
    chunk_lengths[chunk_offsets[i]:chunk_offsets[i + 1]].
    """

    tokens: np.ndarray
    token_offsets: np.ndarray
    chunk_lengths: np.ndarray
    chunk_offsets: np.ndarray

    def chunks(self, record: int) -> np.ndarray:
        """Return the lengths of a record's chunks."""
        return self.chunk_lengths[self.chunk_offsets[record] : self.chunk_offsets[record + 1]]

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the record of each chunk of a copy [S], and the position of each token in its chunk [N]."""
        chunks = self.chunk_offsets[1:] - self.chunk_offsets[:-1]
        starts = np.cumsum(self.chunk_lengths) - self.chunk_lengths
        positions = np.arange(len(self.tokens)) - np.repeat(starts, self.chunk_lengths)
        return np.repeat(np.arange(len(chunks)), chunks), positions

    def shapes(self) -> np.ndarray:
        """Return the chunks and the longest chunk of each record: its shape in the dense form. [R, 2]"""
        longest = np.maximum.reduceat(self.chunk_lengths, self.chunk_offsets[:-1])
        return np.column_stack([np.diff(self.chunk_offsets), longest])

    @classmethod
    def gathered(cls, parts: Sequence["TextArrays"], records: Sequence[int]) -> "TextArrays":
        """Return a copy of record records[i] of parts[i]."""
        tokens = [part.tokens[part.token_offsets[i] : part.token_offsets[i + 1]] for part, i in zip(parts, records)]
        chunks = [part.chunks(i) for part, i in zip(parts, records)]
        return cls(np.concatenate(tokens), offsets_of(tokens), np.concatenate(chunks), offsets_of(chunks))

    def take(self, records: np.ndarray) -> "TextArrays":
        """Return a copy of some records."""
        return TextArrays(
            *_take_lists(self.tokens, self.token_offsets, records),
            *_take_lists(self.chunk_lengths, self.chunk_offsets, records),
        )


@dataclass(frozen=True)
class RecordArrays:
    """R prepared records: `row`, `label`, `weight` [R], `tabular` [R, K], one TextArrays per role, and `unit` [R].

    The unit is the number of the record's group, or else of its row; records of a unit belong to the same fold.
    """

    row: np.ndarray
    label: np.ndarray
    tabular: np.ndarray
    texts: tuple[TextArrays, ...]
    weight: np.ndarray
    group: np.ndarray | None = None

    @property
    def unit(self) -> np.ndarray:
        return self.row if self.group is None else self.group

    @property
    def token_counts(self) -> np.ndarray:
        """The number of tokens of each text. [R, texts]"""
        return _columns(self, [np.diff(text.token_offsets)[:, None] for text in self.texts])

    @property
    def shapes(self) -> np.ndarray:
        """The chunks and the longest chunk of each text. [R, 2 texts]"""
        return _columns(self, [text.shapes() for text in self.texts])

    @classmethod
    def from_batch(cls, batch: pa.RecordBatch, roles: Sequence[str]) -> "RecordArrays":
        """Return views of the columns of `batch` (docs/architecture.md, Prepared split), without copies."""
        texts = []
        for role in roles:
            lists = (batch.column(f"{role}_tokens"), batch.column(f"{role}_chunk_lengths"))
            texts.append(TextArrays(*(part.to_numpy() for column in lists for part in (column.values, column.offsets))))
        tabular = batch.column("tabular")
        table = tabular.flatten().to_numpy().reshape(len(batch), tabular.type.list_size)
        row, label = (batch.column(name).to_numpy() for name in ("row", "label"))
        weighted = "weight" in batch.schema.names
        weight = batch.column("weight").to_numpy() if weighted else np.ones(len(row), np.float32)
        group = batch.column("group").to_numpy() if "group" in batch.schema.names else None
        return cls(row, label, table, tuple(texts), weight, group)

    @classmethod
    def gathered(cls, parts: Sequence["RecordArrays"], records: Sequence[int]) -> "RecordArrays":
        """Return a copy of record records[i] of parts[i], without groups."""
        row, label, tabular, weight = (
            np.array([getattr(part, name)[i] for part, i in zip(parts, records)])
            for name in ("row", "label", "tabular", "weight")
        )
        texts = tuple(TextArrays.gathered(of_role, records) for of_role in zip(*(part.texts for part in parts)))
        return cls(row, label, tabular, texts, weight)

    @classmethod
    def joined(cls, parts: Sequence["RecordArrays"]) -> "RecordArrays":
        """Return the records of all parts, without groups."""
        places = [(part, row) for part in parts for row in range(len(part.row))]
        return cls.gathered(*zip(*places))

    def take(self, records: np.ndarray) -> "RecordArrays":
        """Return a copy of some records."""
        texts = tuple(text.take(records) for text in self.texts)
        group = None if self.group is None else self.group[records]
        taken = (self.row[records], self.label[records], self.tabular[records])
        return RecordArrays(*taken, texts, self.weight[records], group)

    def padded_shapes(self, index: int) -> list[tuple[int, int]]:
        """Return (chunks, longest chunk) of each text of one record: its shape in the dense form."""
        return [(len(chunks), int(chunks.max())) for chunks in (text.chunks(index) for text in self.texts)]

    def padded_tokens(self, index: int) -> int:
        """Return the tokens of one record in the dense form, including padding."""
        return sum(chunks * longest for chunks, longest in self.padded_shapes(index))


def _columns(records: RecordArrays, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return columns side by side; without a text there are none."""
    return np.concatenate([np.empty((len(records.row), 0), np.int64), *parts], axis=1)


def _take_lists(values: np.ndarray, offsets: np.ndarray, lists: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values and the offsets of some of the lists values[offsets[i]:offsets[i + 1]]."""
    starts, lengths = offsets[lists], np.diff(offsets)[lists]
    taken = np.concatenate([[0], np.cumsum(lengths)])
    return values[np.arange(taken[-1]) + np.repeat(starts - taken[:-1], lengths)], taken


def offsets_of(lists: Iterable[Sized]) -> np.ndarray:
    """Return the begin of each of some lists that follow each other, and the end of the last. [n] -> [n + 1]"""
    return np.cumsum([0, *map(len, lists)])


def pad_text(text: TextArrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the dense form of a copy for ONNX: (input_ids [B, C, T], attention_mask [B, C, T]), padded with zeros."""
    record, position = text.places()
    chunk = np.arange(len(record)) - text.chunk_offsets[record]
    shape = (len(text.chunk_offsets) - 1, int(chunk.max()) + 1, int(text.chunk_lengths.max()))
    input_ids, attention_mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    at = (np.repeat(record, text.chunk_lengths), np.repeat(chunk, text.chunk_lengths), position)
    input_ids[at] = text.tokens
    attention_mask[at] = 1
    return input_ids, attention_mask


def onnx_inputs(texts: Sequence[TextInputs], records: RecordArrays) -> dict[str, np.ndarray]:
    """Return the inputs of model.onnx for a copy of B records: padded texts, the table."""
    inputs: dict[str, np.ndarray] = {}
    for names, text in zip(texts, records.texts, strict=True):
        ids, mask = pad_text(text)
        inputs |= {names.input_ids_key: ids, names.attention_mask_key: mask}
    return {**inputs, ONNX_TABULAR: records.tabular}
