"""PackedBatch: the records of one microbatch, all chunks end to end, no padding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

UNLABELLED = -100


@dataclass(frozen=True)
class PackedText:
    """One text field of a batch: S chunks of B records, N tokens in all.

    Attributes:
        tokens: token ids, special tokens included. [N] int64
        positions: position of each token in its chunk, from 0. [N] int64
        cu_seqlens: chunk i is tokens[cu_seqlens[i]:cu_seqlens[i + 1]]. [S + 1] int32
        chunk_record: record (0..B-1) that each chunk belongs to, ascending; every record has a chunk. [S] int64
        lengths: chunk lengths on the host, so that laying out attention never waits for the device. [S]
        record_lengths: tokens of each record, on the host. [B]
    """

    tokens: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    chunk_record: Tensor
    lengths: tuple[int, ...]
    record_lengths: tuple[int, ...]

    @classmethod
    def of_chunks(
        cls, tokens: Tensor, *, lengths: Sequence[int] | Tensor, chunk_record: Tensor, positions: Tensor | None = None
    ) -> "PackedText":
        """On the host, from what does not follow from the rest; every record has a chunk.

        Args:
            tokens: [N]
            lengths: of the chunks. [S]
            chunk_record: [S]
            positions: [N]; computed where they are not at hand.
        """
        chunk_lengths = torch.as_tensor(lengths, dtype=torch.int64)
        cu_seqlens = F.pad(chunk_lengths.cumsum(0), (1, 0))
        if positions is None:
            positions = torch.arange(len(tokens)) - cu_seqlens[:-1].repeat_interleave(chunk_lengths)
        per_record = torch.bincount(chunk_record, weights=chunk_lengths.double()).long()
        return cls(
            tokens, positions, cu_seqlens.int(), chunk_record, tuple(chunk_lengths.tolist()), tuple(per_record.tolist())
        )

    def to(self, device: torch.device | str) -> "PackedText":
        return replace(
            self,
            tokens=self.tokens.to(device, non_blocking=True),
            positions=self.positions.to(device, non_blocking=True),
            cu_seqlens=self.cu_seqlens.to(device, non_blocking=True),
            chunk_record=self.chunk_record.to(device, non_blocking=True),
        )


@dataclass(frozen=True)
class PackedBatch:
    """B records: their texts (in the order of Hyperparameters.text_fields), table and labels.

    Attributes:
        tabular: imputed numbers and risk values, before the numeric transform. [B, K] float32
        labels: class ids, UNLABELLED where there is none. [B] int64
        rows: row number in the split; -1 for a record that only fills an empty slot. [B] int64
        weights: 1, or 0 for a record that only fills an empty slot. [B] float32
    """

    texts: tuple[PackedText, ...]
    tabular: Tensor
    labels: Tensor
    rows: Tensor
    weights: Tensor

    @property
    def num_records(self) -> int:
        """Records that count (weight above 0)."""
        return int((self.rows >= 0).sum())

    @property
    def num_tokens(self) -> int:
        return sum(sum(text.lengths) for text in self.texts)

    def to(self, device: torch.device | str) -> "PackedBatch":
        return replace(
            self,
            texts=tuple(text.to(device) for text in self.texts),
            tabular=self.tabular.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
            rows=self.rows.to(device, non_blocking=True),
            weights=self.weights.to(device, non_blocking=True),
        )
