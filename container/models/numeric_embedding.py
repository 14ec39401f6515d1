"""Embed each tabular number as a vector.

Source: Gorishniy et al. 2022, "On Embeddings for Numerical Features in Tabular Deep Learning".
"""

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from contracts.hyperparameters import Hyperparameters


class NumericEncoding(Protocol):
    """Encode each number separately. [B, n] -> [B, n, width]"""

    width: int

    def __call__(self, inputs: Tensor) -> Tensor: ...


class PiecewiseLinear(nn.Module):
    """Encode a number by its position in each bin of its column: 0 below, 1 above, linear inside (equation 1).

    Numbers outside the range of train are clipped to it, as in a tree. The paper extrapolates linearly instead, with
    the slope of a bin that can be very narrow. Columns with fewer bins are padded with bins of width 0, which are
    always 0.

    Args:
        edges: ascending in each column. [n, T + 1]
    """

    low: Tensor
    slope: Tensor

    def __init__(self, edges: Tensor) -> None:
        super().__init__()
        low, high = edges[:, :-1], edges[:, 1:]  # [n, T]
        self.width = low.shape[1]
        self.register_buffer("low", low.clone())
        self.register_buffer("slope", torch.where(high > low, 1 / torch.where(high > low, high - low, 1), 0))

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, n] -> [B, n, T]"""
        return ((inputs[:, :, None] - self.low) * self.slope).clamp(0, 1)


class Periodic(nn.Module):
    """Encode a number x as sin(2 pi c x) and cos(2 pi c x) of k trained frequencies c per column (equation 2).

    Args:
        sigma: standard deviation of the initial frequencies.
    """

    def __init__(self, num_inputs: int, *, frequencies: int, sigma: float) -> None:
        super().__init__()
        self.width = 2 * frequencies
        self.frequencies = nn.Parameter(torch.randn(num_inputs, frequencies) * sigma)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, n] -> [B, n, 2 k]"""
        angles = 2 * math.pi * inputs[:, :, None] * self.frequencies  # [B, n, k]
        return torch.cat([angles.sin(), angles.cos()], dim=2)


class NumericEmbedding(nn.Module):
    """Encoding -> one Linear per column, to d -> ReLU (the paper's Q-LR and P-LR).

    Attributes:
        width: d.
    """

    def __init__(self, encoding: NumericEncoding, num_inputs: int, *, width: int) -> None:
        super().__init__()
        self.width = width
        self.encoding = encoding
        bound = 1 / math.sqrt(encoding.width)  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(num_inputs, encoding.width, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_inputs * width).uniform_(-bound, bound))  # 1-D: no weight decay

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, n] -> [B, n, d]"""
        encoded = self.encoding(inputs)[:, :, None]  # [B, n, 1, width of the encoding]
        embedded = torch.matmul(encoded, self.weight)[:, :, 0]  # [B, n, d]
        return torch.relu(embedded + self.bias.view(-1, self.width))


def build_numeric_embedding(hp: Hyperparameters, *, edges: Tensor | None, num_inputs: int) -> NumericEmbedding | None:
    """Build the embedding that hp.numeric_embedding names, or None.

    Args:
        edges: bin edges for piecewise_linear, scaled like the inputs. [n, T + 1]
    """
    if hp.numeric_embedding == "none":
        return None
    if hp.numeric_embedding == "piecewise_linear":
        assert edges is not None, "bins are fitted with the scaling"
        encoding = PiecewiseLinear(edges)
    else:
        encoding = Periodic(num_inputs, frequencies=hp.numeric_embedding_frequencies, sigma=hp.numeric_embedding_sigma)
    return NumericEmbedding(encoding, num_inputs, width=hp.numeric_embedding_dim)
