"""Leave out the table or a text of some records in training."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from container.models.record_tokens import RecordTokens


class ModalityDropout(nn.Module):
    """Leave out each modality of a record with probability p, but at least one remains (Neverova et al. 2015).

    Features that are left out are 0; the others are not scaled, because evaluation uses all modalities. The draws use
    torch's generator, which the loop seeds by step and data rank: ranks that fuse the same records draw the same.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(
        self, texts: Sequence[Tensor], table: Tensor | None, tokens: Sequence[RecordTokens] = ()
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return the same features, with 0 for those that are left out.

        Args:
            texts: [B, H] each, or [.., H] in the layout of `tokens`, if there are any.
            table: [B, H], or [B, n, H] of fields.
        """
        texts = list(texts)
        if not self.training or self.p == 0:
            return texts, table
        num_records = tokens[0].num_records if tokens else len(texts[0])
        num_modalities = len(texts) + (table is not None)
        draws = torch.rand(num_records, num_modalities, device=texts[0].device)  # [B, M]
        kept = ((draws >= self.p) | (draws == draws.amax(1, keepdim=True))).to(texts[0].dtype)  # [B, M]
        for i in range(len(texts)):
            factor = kept[:, i, None]  # [B, 1]
            texts[i] = texts[i] * (tokens[i].spread(factor) if tokens else factor)
        return texts, None if table is None else table * kept[:, -1].view(-1, *[1] * (table.ndim - 1))

    def extra_repr(self) -> str:
        return f"p={self.p}"
