"""Trained vectors of categories, beside their risk values."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class CategoryEmbedding(nn.Module):
    """A vector for each code of each column, all in one table; code 0, of rare and unseen categories, starts as zeros.

    Args:
        num_codes: of each column. [c]

    Attributes:
        num_columns: c.
        width: e.
    """

    first: Tensor

    def __init__(self, num_codes: Sequence[int], width: int) -> None:
        super().__init__()
        self.num_columns = len(num_codes)
        self.width = width
        first = torch.tensor([0, *num_codes[:-1]]).cumsum(0)  # [c]
        self.register_buffer("first", first, persistent=False)
        self.table = nn.Embedding(sum(num_codes), width)
        with torch.no_grad():
            self.table.weight.normal_(std=width**-0.5)
            self.table.weight[first] = 0

    def forward(self, codes: Tensor) -> Tensor:
        """Codes as floats [B, c] -> [B, c, e]"""
        return self.table(codes.long() + self.first)
