"""Read prepared records as numpy views of Arrow buffers, and pack them. Without torch, because serving imports it."""

from collections.abc import Sequence
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

    def shapes(self) -> np.ndarray:
        """Return the chunks and the longest chunk of each record: its shape in the dense form. [R, 2]"""
        longest = np.maximum.reduceat(self.chunk_lengths, self.chunk_offsets[:-1])
        return np.column_stack([np.diff(self.chunk_offsets), longest])

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


def _take_lists(values: np.ndarray, offsets: np.ndarray, lists: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values and the offsets of some of the lists values[offsets[i]:offsets[i + 1]]."""
    starts, lengths = offsets[lists], np.diff(offsets)[lists]
    taken = np.concatenate([[0], np.cumsum(lengths)])
    return values[np.arange(taken[-1]) + np.repeat(starts - taken[:-1], lengths)], taken


@dataclass(frozen=True)
class PackedArrays:
    """The numpy arrays of a PackedText: tokens [N], positions [N], lengths [S], chunk_record [S]."""

    tokens: np.ndarray
    positions: np.ndarray
    lengths: np.ndarray
    chunk_record: np.ndarray


def pack_text(texts: Sequence[TextArrays], indices: Sequence[int]) -> PackedArrays:
    """Concatenate the chunks of record `indices[i]` of `texts[i]`, i = 0..B-1."""
    chunks = [text.chunks(i) for text, i in zip(texts, indices)]
    parts = [text.tokens[text.token_offsets[i] : text.token_offsets[i + 1]] for text, i in zip(texts, indices)]
    tokens = np.concatenate(parts).astype(np.int64)  # [N]
    lengths = np.concatenate(chunks).astype(np.int64)  # [S]
    starts = np.cumsum(lengths) - lengths
    return PackedArrays(
        tokens=tokens,
        positions=np.arange(len(tokens)) - np.repeat(starts, lengths),
        lengths=lengths,
        chunk_record=np.repeat(np.arange(len(texts)), [len(part) for part in chunks]),
    )


def pad_text(packed: PackedArrays, num_records: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the dense form for ONNX: (input_ids [B, C, T], attention_mask [B, C, T]), padded with zeros."""
    chunks = np.bincount(packed.chunk_record, minlength=num_records)
    first_chunk = np.cumsum(chunks) - chunks
    chunk_in_record = np.arange(len(packed.lengths)) - first_chunk[packed.chunk_record]  # [S]
    shape = (num_records, int(chunks.max()), int(packed.lengths.max()))
    input_ids = np.zeros(shape, np.int64)
    attention_mask = np.zeros(shape, np.int64)
    at = (*(np.repeat(part, packed.lengths) for part in (packed.chunk_record, chunk_in_record)), packed.positions)
    input_ids[at] = packed.tokens
    attention_mask[at] = 1
    return input_ids, attention_mask


def onnx_inputs(
    texts: Sequence[TextInputs], records: Sequence[RecordArrays], indices: Sequence[int]
) -> dict[str, np.ndarray]:
    """Return the inputs of model.onnx for record `indices[i]` of `records[i]`, i = 0..B-1: padded texts, the table."""
    packed = [pack_text([part.texts[i] for part in records], indices) for i in range(len(texts))]
    return _dense(texts, packed, np.stack([part.tabular[i] for part, i in zip(records, indices)]))


def onnx_inputs_of_all(texts: Sequence[TextInputs], part: RecordArrays) -> dict[str, np.ndarray]:
    """Return the inputs of model.onnx for all records of a copy that `RecordArrays.take` made."""
    packed = []
    for text in part.texts:
        starts = np.cumsum(text.chunk_lengths) - text.chunk_lengths
        packed.append(
            PackedArrays(
                tokens=text.tokens,
                positions=np.arange(len(text.tokens)) - np.repeat(starts, text.chunk_lengths),
                lengths=text.chunk_lengths,
                chunk_record=np.repeat(np.arange(len(part.row)), np.diff(text.chunk_offsets)),
            )
        )
    return _dense(texts, packed, part.tabular)


def _dense(texts: Sequence[TextInputs], packed: Sequence[PackedArrays], tabular: np.ndarray) -> dict[str, np.ndarray]:
    """Return the padded texts and the table of B records. [B, C, T] each, [B, K]"""
    inputs: dict[str, np.ndarray] = {}
    for names, text in zip(texts, packed, strict=True):
        ids, mask = pad_text(text, len(tabular))
        inputs |= {names.input_ids_key: ids, names.attention_mask_key: mask}
    return {**inputs, ONNX_TABULAR: tabular}
