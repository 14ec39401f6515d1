"""Which tokens belong to which record: attention between the tokens of a record, and their mean, packed or dense."""

from dataclasses import dataclass
from typing import Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from container.data.batch import PackedText
from container.models.attention import varlen_attention


class RecordTokens(Protocol):
    """Where the tokens of B records lie: in [N, H] packed, in [B, T, H] dense (for an exported graph)."""

    @property
    def num_records(self) -> int:
        """B."""
        ...

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, keys: Self, heads: int) -> Tensor:
        """Attention of every token to the tokens that `keys` gives the same record.

        Args:
            query: laid out as self says. [.., H]
            key, value: laid out as `keys` says. [.., H]

        Returns:
            The context, in the shape of `query`.
        """
        ...

    def mean(self, tokens: Tensor) -> Tensor:
        """Mean of each record's tokens. [B, H]"""
        ...

    def spread(self, records: Tensor) -> Tensor:
        """What each record has, [B, 1], at each of its tokens. [.., 1]"""
        ...

    def of_fields(self, fields: Tensor) -> tuple[Tensor, Self]:
        """`fields` [B, n, H], n tokens for each record, laid out alike, and where they lie."""
        ...


@dataclass(frozen=True)
class PackedTokens:
    """Records end to end, no padding.

    Attributes:
        lengths: tokens of each record, on the host. [B]
        boundaries: record i is tokens [boundaries[i], boundaries[i + 1]). [B + 1] int32
    """

    lengths: tuple[int, ...]
    boundaries: Tensor

    @property
    def num_records(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, text: PackedText) -> "PackedTokens":
        """All chunks of a record together."""
        return cls._of_lengths(text.record_lengths, text.tokens.device)

    @classmethod
    def _of_lengths(cls, lengths: tuple[int, ...], device: torch.device) -> "PackedTokens":
        boundaries = F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()
        return cls(lengths, boundaries.to(device, non_blocking=True))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, keys: "PackedTokens", heads: int) -> Tensor:
        q, k, v = (tensor.unflatten(-1, (heads, -1)) for tensor in (query, key, value))  # [N, heads, H / heads]
        at_once = varlen_attention(
            q, k, v, (self.boundaries, keys.boundaries), longest=(max(self.lengths), max(keys.lengths))
        )
        if at_once is not None:
            return at_once.flatten(1)
        parts = zip(q.split(self.lengths), k.split(keys.lengths), v.split(keys.lengths), strict=True)
        contexts = [
            F.scaled_dot_product_attention(
                own_q.transpose(0, 1)[None], own_k.transpose(0, 1)[None], own_v.transpose(0, 1)[None]
            )[0].transpose(0, 1)
            for own_q, own_k, own_v in parts
        ]
        return torch.cat(contexts).flatten(1)

    def mean(self, tokens: Tensor) -> Tensor:
        tokens = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
        sums = tokens.new_zeros(len(self.lengths), tokens.shape[1]).index_add(0, self._record(), tokens)
        return sums / self.boundaries.diff()[:, None]

    def spread(self, records: Tensor) -> Tensor:
        return records[self._record()]

    def _record(self) -> Tensor:
        """The record of each token. [N]"""
        return torch.repeat_interleave(self.boundaries.diff(), output_size=sum(self.lengths))

    def of_fields(self, fields: Tensor) -> tuple[Tensor, "PackedTokens"]:
        return fields.flatten(0, 1), self._of_lengths((fields.shape[1],) * len(fields), fields.device)


@dataclass(frozen=True)
class DenseTokens:
    """A record per row, with padding anywhere in it.

    Attributes:
        mask: 1 for a token, 0 for padding; at least one token each. [B, T]
    """

    mask: Tensor

    @property
    def num_records(self) -> int:
        return len(self.mask)

    def spread(self, records: Tensor) -> Tensor:
        return records[:, None].expand(-1, self.mask.shape[1], -1)

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
