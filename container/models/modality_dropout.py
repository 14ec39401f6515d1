"""Modality dropout: in training, some records do without their table, or without a text."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ModalityDropout(nn.Module):
    """Leaves out each modality of each record with probability p, but never all of a record's (Neverova et al. 2015).

    What is left out is 0 in training; nothing is scaled, because later all modalities are there. Draws from torch's
    generator, which the loop seeds by step and data rank: ranks that fuse the same records leave out the same.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, modalities: Sequence[Tensor]) -> list[Tensor]:
        """Features of the modalities, [B, H] each -> the same, 0 where left out."""
        if not self.training or self.p == 0:
            return list(modalities)
        draws = torch.rand(len(modalities[0]), len(modalities), device=modalities[0].device)  # [B, M]
        kept = (draws >= self.p) | (draws == draws.amax(1, keepdim=True))  # [B, M]
        return [features * kept[:, i, None] for i, features in enumerate(modalities)]

    def extra_repr(self) -> str:
        return f"p={self.p}"
