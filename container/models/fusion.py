"""Fuse the features of texts and table into logits: one head for each value of ModelClass.fusion."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from container.models.record_tokens import RecordTokens
from contracts.hyperparameters import Hyperparameters


class FusionHead(nn.Module):
    """Define the interface of a head, which is built from the hyperparameters and the widths of its inputs.

    Class attributes:
        text_features: output of the text branches. "projected": Dropout and Linear d -> H on the mean of a record's
            chunk vectors; "mean": that mean [B, d]; "tokens": Dropout and Linear d -> H on each token's state [.., H].
        table_features: "vector": one for the whole table [B, H]; "fields": one for each column [B, n, H].
        branches_out: inputs are used in several places. Zero-bubble pipelines, whose weight passes compute the
            gradients of one place after the other, cannot split such a head.

    Attributes:
        penalty: addition to each record's loss from the last forward pass in training [B]; None for most heads.

    Args:
        text_width: width of each text branch's features.
        num_texts: number of text branches.
        table_width: width of the tabular branch's features; 0 without one.
    """

    text_features: Literal["projected", "mean", "tokens"] = "projected"
    table_features: Literal["vector", "fields"] = "vector"
    branches_out: bool = False
    penalty: Tensor | None = None

    def forward(self, texts: Sequence[Tensor], table: Tensor | None, tokens: Sequence[RecordTokens], /) -> Tensor:
        """Return logits.

        Args:
            texts: one [B, text_width] per text, or [.., text_width] in the layout of `tokens`.
            table: [B, table_width], or [B, n, table_width] of fields; None without a table.
            tokens: layout of the tokens of each text's records; empty if `text_features` is not "tokens".

        Returns:
            [B, K]
        """
        raise NotImplementedError


class TextOnly(FusionHead):
    """Dropout -> Linear d -> K."""

    text_features = "mean"

    def __init__(self, hp: Hyperparameters, *, text_width: int, num_texts: int, table_width: int) -> None:
        super().__init__()
        assert (num_texts, table_width) == (1, 0)
        self.dropout = nn.Dropout(hp.dropout)
        self.output = nn.Linear(text_width, hp.num_classes)

    def forward(self, texts: Sequence[Tensor], table: Tensor | None, _tokens: Sequence[RecordTokens]) -> Tensor:
        assert table is None
        return self.output(self.dropout(texts[0]))


class Concat(FusionHead):
    """concat -> ReLU -> Linear -> K."""

    def __init__(self, hp: Hyperparameters, *, text_width: int, num_texts: int, table_width: int) -> None:
        super().__init__()
        self.output = nn.Linear(num_texts * text_width + table_width, hp.num_classes)

    def forward(self, texts: Sequence[Tensor], table: Tensor | None, _tokens: Sequence[RecordTokens]) -> Tensor:
        return self.output(torch.relu(concat(texts, table)))


class States(Concat):
    """Mean of the chunk vectors -> Linear -> K; with a table, concat -> ReLU -> Linear -> K."""

    text_features = "mean"

    def forward(self, texts: Sequence[Tensor], table: Tensor | None, _tokens: Sequence[RecordTokens]) -> Tensor:
        if table is None:
            return self.output(texts[0])
        return super().forward(texts, table, _tokens)


class ConcatMLP(FusionHead):
    """concat -> ReLU -> Dropout -> Linear -> F -> ReLU -> Dropout -> Linear -> K; F = fusion_hidden_dim."""

    def __init__(self, hp: Hyperparameters, *, text_width: int, num_texts: int, table_width: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(hp.fusion_dropout)
        self.hidden = nn.Linear(num_texts * text_width + table_width, hp.fusion_width)
        self.output = nn.Linear(hp.fusion_width, hp.num_classes)

    def forward(self, texts: Sequence[Tensor], table: Tensor | None, _tokens: Sequence[RecordTokens]) -> Tensor:
        features = self.dropout(torch.relu(concat(texts, table)))
        return self.output(self.dropout(torch.relu(self.hidden(features))))


class Gate(FusionHead):
    """A gate between text t and table b, both Linear -> F: g t + (1 - g) b -> ReLU -> Linear F -> K.

    g = sigmoid(LayerNorm(Linear 2F -> F)), one number for each feature (gated multimodal units, Arevalo et al. 2017).
    """

    branches_out = True

    def __init__(self, hp: Hyperparameters, *, text_width: int, num_texts: int, table_width: int) -> None:
        super().__init__()
        assert num_texts == 1
        assert table_width > 0
        width = hp.fusion_width
        self.text = nn.Linear(text_width, width)
        self.table = nn.Linear(table_width, width)
        self.gate = nn.Sequential(nn.Linear(2 * width, width), nn.LayerNorm(width))
        self.output = nn.Linear(width, hp.num_classes)

    def forward(self, texts: Sequence[Tensor], table: Tensor | None, _tokens: Sequence[RecordTokens]) -> Tensor:
        text, fields = self.text(texts[0]), self.table(table)  # [B, F] each
        gate = torch.sigmoid(self.gate(torch.cat([text, fields], dim=1)))
        return self.output(torch.relu(gate * text + (1 - gate) * fields))


class NormalisedGates(FusionHead):
    """A gate for each of M modalities, each Linear -> F: weighted sum -> ReLU -> Dropout -> Linear F -> K.

    Gates are sigmoid(LayerNorm(Linear MF -> MF)), divided by their sum over the modalities for each feature.
    """

    branches_out = True

    def __init__(self, hp: Hyperparameters, *, text_width: int, num_texts: int, table_width: int) -> None:
        super().__init__()
        widths = [text_width] * num_texts + ([table_width] if table_width else [])
        self._shape = (len(widths), hp.fusion_width)
        total = len(widths) * hp.fusion_width
        self.modalities = nn.ModuleList(nn.Linear(width, hp.fusion_width) for width in widths)
        self.gates = nn.Sequential(nn.Linear(total, total), nn.LayerNorm(total))
        self.dropout = nn.Dropout(hp.fusion_dropout)
        self.output = nn.Linear(hp.fusion_width, hp.num_classes)

    def forward(self, texts: Sequence[Tensor], table: Tensor | None, _tokens: Sequence[RecordTokens]) -> Tensor:
        inputs = [*texts, *([] if table is None else [table])]
        features = torch.cat([linear(x) for linear, x in zip(self.modalities, inputs, strict=True)], dim=1)
        gates = torch.sigmoid(self.gates(features)).unflatten(1, self._shape)  # [B, M, F]
        weights = gates / gates.sum(1, keepdim=True)
        fused = (weights * features.unflatten(1, self._shape)).sum(1)  # [B, F]
        return self.output(self.dropout(torch.relu(fused)))


def concat(texts: Sequence[Tensor], table: Tensor | None) -> Tensor:
    """Concatenate all features of each record. [B, sum of widths]"""
    return torch.cat([*texts, *([] if table is None else [table])], dim=1)
