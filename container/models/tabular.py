"""The tabular branch: raw imputed numbers and risk values -> features."""

import math

import torch
from torch import Tensor, nn

from container.models.numeric_embedding import NumericEmbedding
from container.preprocessing.numeric_transform import NumericTransformParameters

# LayerNorm leaves n - 2 degrees of freedom of n numbers: nothing of one, and of two only which is larger.
_FEWEST_NORMED = 3


class NumericTransform(nn.Module):
    """The fitted scaling of the tabular inputs, as buffers: part of model.pth and of the exported graph."""

    def __init__(self, parameters: NumericTransformParameters) -> None:
        super().__init__()
        self.kind = parameters.kind
        if self.kind == "standard":
            self.register_buffer("mean", torch.tensor(parameters.mean, dtype=torch.float32))  # [n]
            self.register_buffer("scale", torch.tensor(parameters.scale, dtype=torch.float32))  # [n]
        elif self.kind == "quantile":
            self.register_buffer("quantiles", torch.tensor(parameters.quantiles, dtype=torch.float32))  # [n, Q]

    def forward(self, tabular: Tensor) -> Tensor:
        """[B, n] -> [B, n]"""
        if self.kind == "standard":
            return (tabular - self.mean) / self.scale
        if self.kind == "quantile":
            return spread_rank(tabular, self.quantiles)
        return tabular


def spread_rank(values: Tensor, quantiles: Tensor) -> Tensor:
    """Rank of each value between its column's quantiles, as NumericTransformParameters defines it: sqrt(3) * (2 u - 1).

    Args:
        values: [B, n]
        quantiles: ascending, ties allowed. [n, Q]

    Returns:
        [B, n], within sqrt(3) of 0
    """
    low, high = quantiles[:, :-1], quantiles[:, 1:]  # [n, Q - 1]
    width = high - low
    beyond = values[:, :, None] - low  # [B, n, Q - 1]
    slope = (beyond / width.where(width > 0, 1)).clamp(0, 1)
    step = (1 + beyond.sign()) / 2
    rank = slope.where(width > 0, step).mean(-1)  # [B, n]
    return math.sqrt(3) * (2 * rank - 1)


def scaled_edges(transform: NumericTransformParameters) -> Tensor | None:
    """Edges of the fitted bins, scaled as `transform` scales the inputs, columns of fewer bins filled up with their
    last edge. [n, T + 1], or None where no bins were fitted."""
    if not transform.bins:
        return None
    longest = max(map(len, transform.bins))
    filled = [[*column, *(longest - len(column)) * column[-1:]] for column in transform.bins]
    return NumericTransform(transform)(torch.tensor(filled, dtype=torch.float32).T).T


class TabularBranch(nn.Module):
    """Transform -> LayerNorm(n) -> Linear n -> H -> ReLU -> Dropout.

    With an embedding: Transform -> embedding of each input -> Linear n * d -> H -> ReLU -> Dropout.

    Attributes:
        num_inputs: n.
    """

    def __init__(
        self,
        num_inputs: int,
        width: int,
        *,
        transform: NumericTransformParameters,
        dropout: float,
        embedding: NumericEmbedding | None = None,
    ) -> None:
        super().__init__()
        self.num_inputs = num_inputs
        self.transform = NumericTransform(transform)
        normed = embedding is None and num_inputs >= _FEWEST_NORMED
        self.norm = nn.LayerNorm(num_inputs) if normed else nn.Identity()
        self.embedding = embedding
        self.linear = nn.Linear(num_inputs if embedding is None else num_inputs * embedding.width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tabular: Tensor) -> Tensor:
        """[B, n] -> [B, H]"""
        hidden = self.norm(self.transform(tabular))
        if self.embedding is not None:
            hidden = self.embedding(hidden).flatten(1)  # [B, n * d]
        return self.dropout(torch.relu(self.linear(hidden)))


class TabularFields(nn.Module):
    """Transform -> for each column i, value * weight_i + bias_i -> Dropout: a token of width H for each.

    The feature tokenizer of Gorishniy et al. 2021, "Revisiting Deep Learning Models for Tabular Data". With an
    embedding: Transform -> embedding of each input -> Linear d -> H, the same for all, + bias_i -> Dropout.
    """

    def __init__(
        self,
        num_inputs: int,
        width: int,
        *,
        transform: NumericTransformParameters,
        dropout: float,
        embedding: NumericEmbedding | None = None,
    ) -> None:
        super().__init__()
        self.num_inputs = num_inputs
        self.transform = NumericTransform(transform)
        self.embedding = embedding
        bound = 1 / math.sqrt(width)
        if embedding is None:
            self.weight = nn.Parameter(torch.empty(num_inputs, width).uniform_(-bound, bound))
        else:
            self.linear = nn.Linear(embedding.width, width, bias=False)
        self.bias = nn.Parameter(torch.empty(num_inputs, width).uniform_(-bound, bound))
        self.dropout = nn.Dropout(dropout)

    def forward(self, tabular: Tensor) -> Tensor:
        """[B, n] -> [B, n, H]"""
        values = self.transform(tabular)
        tokens = values[:, :, None] * self.weight if self.embedding is None else self.linear(self.embedding(values))
        return self.dropout(tokens + self.bias)
