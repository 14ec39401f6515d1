"""Fusion heads: features of the texts and of the table -> logits. One entry of FUSION_HEADS per ModelClass.fusion."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from contracts.hyperparameters import Hyperparameters


class FusionHead(nn.Module):
    """What every head is: built from the configuration and the widths of what enters it.

    Class attributes:
        projects_text: text branches end in Dropout and Linear d -> H; otherwise the head takes their raw means [B, d].

    Args:
        text_width: width of each text branch's features.
        num_texts: text branches.
        table_width: width of the tabular branch's features; 0 without one.
    """

    projects_text = True

    def forward(self, texts: Sequence[Tensor], table: Tensor | None) -> Tensor:
        """Logits [B, K] from one [B, text_width] per text, and [B, table_width] or None."""
        raise NotImplementedError


class TextOnly(FusionHead):
    """Dropout -> Linear d -> K."""

    projects_text = False

    def __init__(self, hp: Hyperparameters, *, text_width: int, num_texts: int, table_width: int) -> None:
        super().__init__()
        assert (num_texts, table_width) == (1, 0)
        self.dropout = nn.Dropout(hp.dropout)
        self.output = nn.Linear(text_width, hp.num_classes)

    def forward(self, texts: Sequence[Tensor], table: Tensor | None) -> Tensor:
        assert table is None
        return self.output(self.dropout(texts[0]))


class Concat(FusionHead):
    """concat -> ReLU -> Linear -> K."""

    def __init__(self, hp: Hyperparameters, *, text_width: int, num_texts: int, table_width: int) -> None:
        super().__init__()
        self.output = nn.Linear(num_texts * text_width + table_width, hp.num_classes)

    def forward(self, texts: Sequence[Tensor], table: Tensor | None) -> Tensor:
        return self.output(torch.relu(concat(texts, table)))


class ConcatMLP(FusionHead):
    """concat -> ReLU -> Dropout -> Linear -> F -> ReLU -> Dropout -> Linear -> K; F = fusion_hidden_dim."""

    def __init__(self, hp: Hyperparameters, *, text_width: int, num_texts: int, table_width: int) -> None:
        super().__init__()
        hidden = hp.fusion_hidden_dim or max(128, 3 * hp.hidden_common_dim // 2)
        self.dropout = nn.Dropout(hp.fusion_dropout)
        self.hidden = nn.Linear(num_texts * text_width + table_width, hidden)
        self.output = nn.Linear(hidden, hp.num_classes)

    def forward(self, texts: Sequence[Tensor], table: Tensor | None) -> Tensor:
        features = self.dropout(torch.relu(concat(texts, table)))
        return self.output(self.dropout(torch.relu(self.hidden(features))))


def concat(texts: Sequence[Tensor], table: Tensor | None) -> Tensor:
    """All features of a record side by side. [B, sum of widths]"""
    return torch.cat([*texts, *([] if table is None else [table])], dim=1)


FUSION_HEADS: dict[str, type[FusionHead]] = {"text_only": TextOnly, "concat": Concat, "concat_mlp": ConcatMLP}
