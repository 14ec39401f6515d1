"""PackedBatch: the records of one microbatch, with all chunks concatenated without padding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

UNLABELLED = -100


class UnknownLengths:
    """A number of lengths whose values must not be read: a graph serves all batches of its shapes."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __add__(self, others: "UnknownLengths") -> "UnknownLengths":
        return UnknownLengths(len(self) + len(others))

    def __getitem__(self, _: object) -> int:
        raise RuntimeError("its kernels depend on the lengths of chunks or records on the host")


@dataclass(frozen=True)
class PackedText:
    """One text field of a batch: S chunks of B records, N tokens in all.

    Attributes:
        tokens: token ids, special tokens included. [N] int64
        positions: position of each token in its chunk, from 0. [N] int64
        cu_seqlens: chunk i is tokens[cu_seqlens[i]:cu_seqlens[i + 1]]. [S + 1] int32
        chunk_record: record (0..B-1) that each chunk belongs to, ascending; every record has a chunk. [S] int64
        lengths: chunk lengths on the host, so that the attention layout never waits for the device. [S]
        record_lengths: number of tokens of each record, on the host. [B]
        bounds: upper bounds of the tokens of a chunk and of a record; None: those of these chunks and records.
    """

    tokens: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    chunk_record: Tensor
    lengths: tuple[int, ...]
    record_lengths: tuple[int, ...]
    bounds: tuple[int, int] | None = None

    @property
    def longest_chunk(self) -> int:
        """Return an upper bound of the tokens of a chunk."""
        return max(self.lengths) if self.bounds is None else self.bounds[0]

    @property
    def longest_record(self) -> int:
        """Return an upper bound of the tokens of a record."""
        return max(self.record_lengths) if self.bounds is None else self.bounds[1]

    @classmethod
    def of_chunks(
        cls, tokens: Tensor, *, lengths: Sequence[int] | Tensor, chunk_record: Tensor, positions: Tensor | None = None
    ) -> "PackedText":
        """Return the packed text of these chunks, on the host; `positions` are computed by default."""
        chunk_lengths = torch.as_tensor(lengths, dtype=torch.int64)
        cu_seqlens = F.pad(chunk_lengths.cumsum(0), (1, 0))
        if positions is None:
            positions = torch.arange(len(tokens)) - cu_seqlens[:-1].repeat_interleave(chunk_lengths)
        per_record = torch.bincount(chunk_record, weights=chunk_lengths.double()).long()
        return cls(
            tokens, positions, cu_seqlens.int(), chunk_record, tuple(chunk_lengths.tolist()), tuple(per_record.tolist())
        )

    @classmethod
    def joined(cls, texts: Sequence["PackedText"]) -> "PackedText":
        """Return the chunks of all `texts`, in order, as one text of the records of the first, then the next."""
        first, *rest = texts
        if not rest:
            return first
        tokens, records = len(first.tokens), len(first.record_lengths)
        boundaries, chunk_records = [first.cu_seqlens], [first.chunk_record]
        for text in rest:
            boundaries.append(text.cu_seqlens[1:] + tokens)
            chunk_records.append(text.chunk_record + records)
            tokens += len(text.tokens)
            records += len(text.record_lengths)
        return cls(
            torch.cat([text.tokens for text in texts]),
            torch.cat([text.positions for text in texts]),
            torch.cat(boundaries),
            torch.cat(chunk_records),
            reduce(add, (text.lengths for text in texts)),
            reduce(add, (text.record_lengths for text in texts)),
            None
            if any(text.bounds is None for text in texts)
            else (max(text.longest_chunk for text in texts), max(text.longest_record for text in texts)),
        )

    def to(self, device: torch.device | str) -> "PackedText":
        """Copy the tensors to `device`; see to_device."""
        return self.each(lambda tensor: to_device(tensor, device))

    def each(self, change: Callable[[Tensor], Tensor]) -> "PackedText":
        """Return a copy whose tensors are those that `change` returns."""
        names = ("tokens", "positions", "cu_seqlens", "chunk_record")
        return replace(self, **{name: change(getattr(self, name)) for name in names})


@dataclass(frozen=True)
class PackedBatch:
    """B records: their texts (in the order of Hyperparameters.text_fields), table and labels.

    Attributes:
        tabular: inputs of the table in the order of feature_columns.txt, before the numeric transform. [B, K] float32
        labels: class ids, or UNLABELLED. [B] int64
        rows: row number in the split; -1 for a record that only fills an empty slot. [B] int64
        weights: of weight_name or 1, and 0 for a record that only fills an empty slot. [B] float32
        targets: probabilities by other networks, to train on in addition to the labels; None without. [B, K] float32
    """

    texts: tuple[PackedText, ...]
    tabular: Tensor
    labels: Tensor
    rows: Tensor
    weights: Tensor
    targets: Tensor | None = None

    @property
    def num_records(self) -> int:
        """Return the number of records that do not only fill a batch."""
        return int((self.rows >= 0).sum())

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of these records, over all texts."""
        counts = (self.rows >= 0).tolist()
        return sum(tokens for text in self.texts for tokens, is_real in zip(text.record_lengths, counts) if is_real)

    def without_lengths(self) -> "PackedBatch":
        """Return the batch without the values on the host that differ between batches of equal shapes."""
        texts = (
            replace(
                text,
                lengths=cast("tuple[int, ...]", UnknownLengths(len(text.lengths))),
                record_lengths=cast("tuple[int, ...]", UnknownLengths(len(text.record_lengths))),
            )
            for text in self.texts
        )
        return replace(self, texts=tuple(texts))

    def to(self, device: torch.device | str) -> "PackedBatch":
        """Copy the tensors to `device`; see to_device."""
        return self.each(lambda tensor: to_device(tensor, device))

    def each(self, change: Callable[[Tensor], Tensor]) -> "PackedBatch":
        """Return a copy whose tensors are those that `change` returns."""
        names = ("tabular", "labels", "rows", "weights", "targets")
        changed = {name: change(tensor) for name in names if (tensor := getattr(self, name)) is not None}
        return replace(self, texts=tuple(text.each(change) for text in self.texts), **changed)


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy `tensor` to `device`. A GPU copies from pinned memory while the host goes on; the host waits for its own."""
    kind = torch.device(device).type
    if kind == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=kind != "cpu")


class HostCopy:
    """A copy of a scalar on the host, which waits for the device only when it reads the value."""

    def __init__(self, scalar: Tensor) -> None:
        self._copy = scalar.to("cpu", non_blocking=True)  # torch pins its memory
        self._is_complete = torch.cuda.Event() if scalar.is_cuda else None
        if self._is_complete is not None:
            self._is_complete.record()

    def item(self) -> float:
        if self._is_complete is not None:
            self._is_complete.synchronize()
        return self._copy.item()


def use_side_stream(device: torch.device) -> None:
    """Make `device` and a new stream current in this thread, which otherwise has GPU 0 and the training's stream."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))
