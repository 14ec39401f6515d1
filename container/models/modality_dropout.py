"""Modality dropout: in training, some records do without their table, or without a text."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from container.models.record_tokens import RecordTokens


class ModalityDropout(nn.Module):
    """Leaves out each modality of each record with probability p, but never all of a record's (Neverova et al. 2015).

    What is left out is 0 in training; nothing is scaled, because later all modalities are there. Draws from torch's
    generator, which the loop seeds by step and data rank: ranks that fuse the same records leave out the same.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(
        self, texts: Sequence[Tensor], table: Tensor | None, tokens: Sequence[RecordTokens] | None = None
    ) -> tuple[list[Tensor], Tensor | None]:
        """The same features, 0 where left out.

        Args:
            texts: [B, H] each, or [.., H] laid out as `tokens` says.
            table: [B, H], or [B, n, H] of fields.
        """
        texts = list(texts)
        if not self.training or self.p == 0:
            return texts, table
        num_records = len(texts[0]) if tokens is None else tokens[0].num_records
        num_modalities = len(texts) + (table is not None)
        draws = torch.rand(num_records, num_modalities, device=texts[0].device)  # [B, M]
        kept = ((draws >= self.p) | (draws == draws.amax(1, keepdim=True))).to(texts[0].dtype)  # [B, M]
        for i in range(len(texts)):
            own = kept[:, i, None]  # [B, 1]
            texts[i] = texts[i] * (own if tokens is None else tokens[i].spread(own))
        return texts, None if table is None else table * kept[:, -1].view(-1, *[1] * (table.ndim - 1))

    def extra_repr(self) -> str:
        return f"p={self.p}"
