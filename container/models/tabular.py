"""Turn imputed numbers, indicators, risk values and category codes into features."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from container.preprocessing.numeric_transform import NumericTransformParameters

# LayerNorm keeps n - 2 degrees of freedom of n numbers: none of one, and of two only which is larger.
_FEWEST_NORMED = 3
# Larger squares overflow in LayerNorm, and PyTorch and onnxruntime then differ. No value of n training rows is more
# than sqrt(n) standard deviations from the mean, so training rows do not change, up to 1e8 of them.
_FURTHEST_SCALED = 1e4
_LARGEST_UNSCALED = 1e15


class NumericTransform(nn.Module):
    """Scale the tabular inputs with fitted buffers, which are part of model.pth and of the exported graph."""

    mean: Tensor
    scale: Tensor
    quantiles: Tensor

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
            varies = self.scale > 0
            scaled = (tabular - self.mean) / self.scale.where(varies, 1)
            return scaled.clamp(-_FURTHEST_SCALED, _FURTHEST_SCALED).where(varies, 0)
        if self.kind == "quantile":
            return spread_rank(tabular, self.quantiles)
        return tabular.clamp(-_LARGEST_UNSCALED, _LARGEST_UNSCALED)


def spread_rank(values: Tensor, quantiles: Tensor) -> Tensor:
    """Return each value's rank u between its column's quantiles as sqrt(3) * (2 u - 1).

    Args:
        values: [B, n]
        quantiles: ascending, ties allowed. [n, Q]

    Returns:
        [B, n], within sqrt(3) of 0; 0 for a column whose quantiles are equal
    """
    low, high = quantiles[:, :-1], quantiles[:, 1:]  # [n, Q - 1]
    width = high - low
    distance = values[:, :, None] - low  # [B, n, Q - 1]
    slope = (distance / width.where(width > 0, 1)).clamp(0, 1)
    step = (1 + distance.sign()) / 2
    rank = slope.where(width > 0, step).mean(-1)  # [B, n]
    return (math.sqrt(3) * (2 * rank - 1)).where(quantiles[:, -1] > quantiles[:, 0], 0)


def scaled_edges(transform: NumericTransformParameters) -> Tensor | None:
    """Return the edges of the fitted bins, scaled like the inputs; None if no bins were fitted.

    Columns with fewer edges are padded with their last one. [n, T + 1], T >= 1
    """
    if not transform.bins:
        return None
    longest = max(2, *map(len, transform.bins))
    filled = [[*column, *(longest - len(column)) * column[-1:]] for column in transform.bins]
    return NumericTransform(transform)(torch.tensor(filled, dtype=torch.float32).T).T


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
        self.register_buffer("low", low.clone())
        self.register_buffer("slope", torch.where(high > low, 1 / torch.where(high > low, high - low, 1), 0))

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, n] -> [B, n, T]"""
        return ((inputs[:, :, None] - self.low) * self.slope).clamp(0, 1)


class NumericEmbedding(nn.Module):
    """PiecewiseLinear -> one Linear per column, to d -> ReLU.

    This is Q-LR of Gorishniy et al. 2022, "On Embeddings for Numerical Features in Tabular Deep Learning".

    Args:
        edges: of bins, scaled like the inputs. [n, T + 1]
        width: d.
    """

    def __init__(self, edges: Tensor, *, width: int) -> None:
        super().__init__()
        self.width = width
        self.encoding = PiecewiseLinear(edges)
        num_inputs, bins = self.encoding.low.shape
        bound = 1 / math.sqrt(bins)  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(num_inputs, bins, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_inputs * width).uniform_(-bound, bound))  # 1-D: no weight decay

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, n] -> [B, n, d]"""
        encoded = self.encoding(inputs)[:, :, None]  # [B, n, 1, T]
        embedded = torch.matmul(encoded, self.weight)[:, :, 0]  # [B, n, d]
        return torch.relu(embedded + self.bias.view(-1, self.width))


class CategoryEmbedding(nn.Module):
    """Return a trained vector for each code of each column; code 0, for rare and unseen categories, starts as zeros.

    Args:
        num_codes: number of codes of each column. [c]

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


class _Tabular(nn.Module):
    """The parts that both readers of a table have.

    Args:
        num_numbers: number n of numbers, indicators and risk values.
        width: H.

    Attributes:
        num_inputs: n + c.
    """

    def __init__(
        self,
        num_numbers: int,
        width: int,
        *,
        transform: NumericTransformParameters,
        dropout: float,
        embedding: NumericEmbedding | None = None,
        categories: CategoryEmbedding | None = None,
    ) -> None:
        super().__init__()
        self.num_numbers = num_numbers
        self.num_inputs = num_numbers + (0 if categories is None else categories.num_columns)
        self.transform = NumericTransform(transform)
        self.embedding = embedding
        self.categories = categories
        self._build(width)
        self.dropout = nn.Dropout(dropout)

    def _build(self, width: int) -> None:
        """Make the layers to features of width H."""
        raise NotImplementedError


class TabularBranch(_Tabular):
    """Transform -> LayerNorm(n) -> Linear n -> H -> ReLU -> Dropout.

    With an embedding: Transform -> embedding of each input -> Linear n * d -> H -> ReLU -> Dropout. The vectors of c
    categories, of width e, are additional inputs of the Linear.
    """

    def _build(self, width: int) -> None:
        normed = self.embedding is None and self.num_numbers >= _FEWEST_NORMED
        self.norm = nn.LayerNorm(self.num_numbers) if normed else nn.Identity()
        in_width = self.num_numbers * (1 if self.embedding is None else self.embedding.width)
        if self.categories is not None:
            in_width += self.categories.num_columns * self.categories.width
        self.linear = nn.Linear(in_width, width)

    def forward(self, tabular: Tensor) -> Tensor:
        """[B, n + c] -> [B, H]"""
        hidden = self.norm(self.transform(tabular[:, : self.num_numbers]))
        if self.embedding is not None:
            hidden = self.embedding(hidden).flatten(1)  # [B, n * d]
        if self.categories is not None:
            vectors = self.categories(tabular[:, self.num_numbers :])  # [B, c, e]
            hidden = torch.cat([hidden, vectors.flatten(1)], dim=1)
        return self.dropout(torch.relu(self.linear(hidden)))


class TabularFields(_Tabular):
    """Transform -> for each column i, value * weight_i + bias_i -> Dropout: a token of width H per column.

    This is the feature tokenizer of Gorishniy et al. 2021, "Revisiting Deep Learning Models for Tabular Data". With an
    embedding: Transform -> embedding of each input -> one Linear d -> H for all, + bias_i -> Dropout. Each embedded
    category adds a token: Linear e -> H of its vector, + bias_i.
    """

    def _build(self, width: int) -> None:
        bound = 1 / math.sqrt(width)
        if self.embedding is None:
            self.weight = nn.Parameter(torch.empty(self.num_numbers, width).uniform_(-bound, bound))
        else:
            self.linear = nn.Linear(self.embedding.width, width, bias=False)
        if self.categories is not None:
            self.category_linear = nn.Linear(self.categories.width, width, bias=False)
        self.bias = nn.Parameter(torch.empty(self.num_inputs * width).uniform_(-bound, bound))  # 1-D: no weight decay

    def forward(self, tabular: Tensor) -> Tensor:
        """[B, n + c] -> [B, n + c, H]"""
        values = self.transform(tabular[:, : self.num_numbers])
        tokens = values[:, :, None] * self.weight if self.embedding is None else self.linear(self.embedding(values))
        if self.categories is not None:
            vectors = self.categories(tabular[:, self.num_numbers :])  # [B, c, e]
            tokens = torch.cat([tokens, self.category_linear(vectors)], dim=1)
        return self.dropout(tokens + self.bias.view(self.num_inputs, -1))
