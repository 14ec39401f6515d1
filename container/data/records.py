"""Prepared records as numpy views over Arrow buffers, and their packing. Imports no torch: serving reads this too."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class TextArrays:
    """One text field of R records: record i has tokens[token_offsets[i]:token_offsets[i + 1]], cut into the chunks
    chunk_lengths[chunk_offsets[i]:chunk_offsets[i + 1]]."""

    tokens: np.ndarray
    token_offsets: np.ndarray
    chunk_lengths: np.ndarray
    chunk_offsets: np.ndarray

    @classmethod
    def from_columns(cls, tokens: pa.ListArray, chunk_lengths: pa.ListArray) -> "TextArrays":
        return cls(
            tokens.values.to_numpy(),
            tokens.offsets.to_numpy(),
            chunk_lengths.values.to_numpy(),
            chunk_lengths.offsets.to_numpy(),
        )


@dataclass(frozen=True)
class RecordArrays:
    """R prepared records: `row` [R], `label` [R], `tabular` [R, K], and one TextArrays per role."""

    row: np.ndarray
    label: np.ndarray
    tabular: np.ndarray
    texts: tuple[TextArrays, ...]

    @classmethod
    def from_batch(cls, batch: pa.RecordBatch, roles: Sequence[str]) -> "RecordArrays":
        """Views of the columns of `batch` (docs/architecture.md, Prepared split); nothing is copied."""
        tabular = batch.column("tabular")
        return cls(
            batch.column("row").to_numpy(),
            batch.column("label").to_numpy(),
            tabular.flatten().to_numpy().reshape(len(batch), tabular.type.list_size),
            tuple(
                TextArrays.from_columns(batch.column(f"{role}_tokens"), batch.column(f"{role}_chunk_lengths"))
                for role in roles
            ),
        )

    def padded_shapes(self, index: int) -> list[tuple[int, int]]:
        """(chunks, longest chunk) of each text of one record: what it takes in the dense form, alone."""
        found = []
        for text in self.texts:
            lengths = text.chunk_lengths[text.chunk_offsets[index] : text.chunk_offsets[index + 1]]
            found.append((len(lengths), int(lengths.max())))
        return found


@dataclass(frozen=True)
class PackedArrays:
    """The numpy side of a PackedText: tokens [N], positions [N], lengths [S], chunk_record [S]."""

    tokens: np.ndarray
    positions: np.ndarray
    lengths: np.ndarray
    chunk_record: np.ndarray


def pack_text(texts: Sequence[TextArrays], indices: Sequence[int]) -> PackedArrays:
    """Lay the chunks of record `indices[i]` of `texts[i]`, i = 0..B-1, end to end."""
    tokens, lengths, chunks = [], [], np.empty(len(texts), np.int64)
    for place, (text, i) in enumerate(zip(texts, indices)):
        tokens.append(text.tokens[text.token_offsets[i] : text.token_offsets[i + 1]])
        chunk_lengths = text.chunk_lengths[text.chunk_offsets[i] : text.chunk_offsets[i + 1]]
        lengths.append(chunk_lengths)
        chunks[place] = len(chunk_lengths)
    all_tokens = np.concatenate(tokens).astype(np.int64)  # [N]
    all_lengths = np.concatenate(lengths).astype(np.int64)  # [S]
    starts = np.cumsum(all_lengths) - all_lengths
    return PackedArrays(
        tokens=all_tokens,
        positions=np.arange(len(all_tokens)) - np.repeat(starts, all_lengths),
        lengths=all_lengths,
        chunk_record=np.repeat(np.arange(len(texts)), chunks),
    )


def pad_text(packed: PackedArrays, num_records: int) -> tuple[np.ndarray, np.ndarray]:
    """The dense form of packed chunks, for ONNX: (input_ids [B, C, T], attention_mask [B, C, T]), zeros as padding."""
    chunks = np.bincount(packed.chunk_record, minlength=num_records)
    first_chunk = np.cumsum(chunks) - chunks
    chunk_place = np.arange(len(packed.lengths)) - first_chunk[packed.chunk_record]  # [S]
    shape = (num_records, int(chunks.max()), int(packed.lengths.max()))
    input_ids = np.zeros(shape, np.int64)
    attention_mask = np.zeros(shape, np.int64)
    at = (
        np.repeat(packed.chunk_record, packed.lengths),
        np.repeat(chunk_place, packed.lengths),
        packed.positions,
    )
    input_ids[at] = packed.tokens
    attention_mask[at] = 1
    return input_ids, attention_mask
