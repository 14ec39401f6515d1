"""Attend between the tokens of each record, and average them, in packed or dense layout."""

from dataclasses import dataclass
from typing import Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from container.data.batch import PackedText
from container.models.attention import has_flash, rounded_length, varlen_attention, warn_if_slow
from container.models.encoder import mean_over_groups


class RecordTokens(Protocol):
    """Describe the layout of the tokens of B records: packed [N, H], or dense [B, T, H] (for an exported graph)."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, keys: Self, heads: int) -> Tensor:
        """Attend from every token of `query` to the tokens of the same record in `key`.

        Args:
            query: in this layout. [.., H]
            key, value: in the layout `keys`. [.., H]

        Returns:
            The context, in the shape of `query`.
        """
        ...

    def mean(self, tokens: Tensor) -> Tensor:
        """Return the mean of each record's tokens. [B, H]"""
        ...

    def of_fields(self, fields: Tensor) -> tuple[Tensor, Self]:
        """Return `fields` [B, n, H], n tokens per record, in this kind of layout, and that layout."""
        ...


@dataclass(frozen=True)
class PackedTokens:
    """Concatenated records without padding.

    Attributes:
        lengths: number of tokens of each record, on the host. [B]
        boundaries: record i is tokens [boundaries[i], boundaries[i + 1]). [B + 1] int32
        longest: upper bound of the lengths.
    """

    lengths: tuple[int, ...]
    boundaries: Tensor
    longest: int

    @classmethod
    def of(cls, text: PackedText) -> "PackedTokens":
        """Return the layout of `text`, with the chunks of a record joined."""
        records = torch.arange(len(text.record_lengths) + 1, device=text.tokens.device)
        first_chunks = torch.searchsorted(text.chunk_record, records)  # [B + 1]
        return cls(text.record_lengths, text.cu_seqlens.index_select(0, first_chunks), text.longest_record)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, keys: "PackedTokens", heads: int) -> Tensor:
        q, k, v = (tensor.unflatten(-1, (heads, -1)) for tensor in (query, key, value))  # [N, heads, H / heads]
        context = varlen_attention(
            q,
            k,
            v,
            (self.boundaries, keys.boundaries),
            longest=(rounded_length(self.longest), rounded_length(keys.longest)),
            flash=has_flash(v.device),
        )
        if context is not None:
            return context.flatten(1)
        warn_if_slow(q)
        contexts = []
        for record in zip(q.split(self.lengths), k.split(keys.lengths), v.split(keys.lengths), strict=True):
            q, k, v = (tensor.transpose(0, 1)[None] for tensor in record)  # [1, heads, n, H / heads]
            contexts.append(F.scaled_dot_product_attention(q, k, v).squeeze(0).transpose(0, 1))
        return torch.cat(contexts).flatten(1)

    def mean(self, tokens: Tensor) -> Tensor:
        record = torch.repeat_interleave(self.boundaries.diff(), output_size=len(tokens))  # [N]
        return mean_over_groups(tokens, record, num_groups=len(self.lengths))

    def of_fields(self, fields: Tensor) -> tuple[Tensor, "PackedTokens"]:
        records, count, _ = fields.shape
        boundaries = torch.arange(records + 1, dtype=torch.int32, device=fields.device) * count
        return fields.flatten(0, 1), PackedTokens((count,) * records, boundaries, count)


@dataclass(frozen=True)
class DenseTokens:
    """One record per row, with padding anywhere.

    Attributes:
        mask: 1 for a token, 0 for padding; at least one token per record. [B, T]
    """

    mask: Tensor

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, keys: "DenseTokens", heads: int) -> Tensor:
        q, k, v = (tensor.unflatten(-1, (heads, -1)).transpose(1, 2) for tensor in (query, key, value))
        seen = keys.mask.bool()[:, None, None, :]  # [B, 1, 1, T]
        bias = torch.zeros((), dtype=q.dtype, device=q.device).where(seen, torch.finfo(q.dtype).min)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)

    def mean(self, tokens: Tensor) -> Tensor:
        real = self.mask[..., None].to(tokens.dtype)  # [B, T, 1]
        return (tokens * real).sum(1) / real.sum(1)

    def of_fields(self, fields: Tensor) -> tuple[Tensor, "DenseTokens"]:
        return fields, DenseTokens(torch.ones_like(fields[..., 0]))
