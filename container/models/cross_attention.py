"""Fusion by attention between tokens: a text's and the table's fields, or those of two texts."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from container.models.fusion import ConcatMLP, FusionHead
from container.models.record_tokens import RecordTokens
from contracts.hyperparameters import Hyperparameters


class CrossAttention(nn.Module):
    """Tokens attend to other tokens of their record: LayerNorm(tokens + Dropout(attention)).

    Args:
        width: H.
        heads: divides H.
    """

    def __init__(self, width: int, *, heads: int, dropout: float) -> None:
        super().__init__()
        self._heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, others: Tensor, *, lie: RecordTokens, others_lie: RecordTokens) -> Tensor:
        """[.., H], laid out like `tokens`."""
        context = lie.attend(
            self.query(tokens), self.key(others), self.value(others), keys=others_lie, heads=self._heads
        )
        return self.norm(tokens + self.dropout(self.output(context)))


class FeedForward(nn.Module):
    """LayerNorm(tokens + Dropout(Linear H -> 4H -> ReLU -> Linear 4H -> H))."""

    def __init__(self, width: int, *, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.norm(tokens + self.dropout(self.outer(torch.relu(self.inner(tokens)))))


class CrossAttentionTable(FusionHead):
    """The table's fields attend to the text's tokens, then these to the fields; means of both -> Linear 2H -> K."""

    text_features = "tokens"
    branches_out = True
    table_features = "fields"

    def __init__(self, hp: Hyperparameters, *, text_width: int, num_texts: int, table_width: int) -> None:
        super().__init__()
        assert (num_texts, table_width) == (1, text_width)
        options = {"heads": hp.fusion_attention_heads, "dropout": hp.fusion_dropout}
        self.fields_to_text = CrossAttention(text_width, **options)
        self.text_to_fields = CrossAttention(text_width, **options)
        self.output = nn.Linear(2 * text_width, hp.num_classes)

    def forward(self, texts: Sequence[Tensor], table: Tensor | None, tokens: Sequence[RecordTokens]) -> Tensor:
        assert table is not None
        (text,), (text_lies,) = texts, tokens
        fields, fields_lie = text_lies.of_fields(table.to(text.dtype))
        fields = self.fields_to_text(fields, text, lie=fields_lie, others_lie=text_lies)
        text = self.text_to_fields(text, fields, lie=text_lies, others_lie=fields_lie)
        return self.output(torch.cat([text_lies.mean(text), fields_lie.mean(fields)], dim=1))


class CrossAttentionTexts(ConcatMLP):
    """Each text's tokens attend to the other's, then a feed-forward; means and the table go on as in ConcatMLP."""

    text_features = "tokens"
    branches_out = True

    def __init__(self, hp: Hyperparameters, *, text_width: int, num_texts: int, table_width: int) -> None:
        super().__init__(hp, text_width=text_width, num_texts=num_texts, table_width=table_width)
        assert num_texts == 2
        self.attention = nn.ModuleList(
            CrossAttention(text_width, heads=hp.fusion_attention_heads, dropout=hp.fusion_dropout) for _ in range(2)
        )
        self.feed_forward = nn.ModuleList(FeedForward(text_width, dropout=hp.fusion_dropout) for _ in range(2))

    def forward(self, texts: Sequence[Tensor], table: Tensor | None, tokens: Sequence[RecordTokens]) -> Tensor:
        pooled = []
        for own, other in ((0, 1), (1, 0)):
            attended = self.attention[own](texts[own], texts[other], lie=tokens[own], others_lie=tokens[other])
            pooled.append(tokens[own].mean(self.feed_forward[own](attended)))  # [B, H]
        return super().forward(pooled, table, tokens)
