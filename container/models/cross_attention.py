"""Fuse by attention between tokens: of a text and the table's fields, or of two texts."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from container.models.fusion import ConcatMLP, FusionHead
from container.models.record_tokens import RecordTokens
from contracts.hyperparameters import Hyperparameters


class CrossAttention(nn.Module):
    """Attend to other tokens of the same record: LayerNorm(tokens + Dropout(attention)).

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

    def forward(self, tokens: Tensor, others: Tensor, *, layout: RecordTokens, others_layout: RecordTokens) -> Tensor:
        """Return the new tokens, in the shape of `tokens`. [.., H]"""
        query, key, value = self.query(tokens), self.key(others), self.value(others)
        context = layout.attend(query, key, value, keys=others_layout, heads=self._heads)
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
    """Attend from table fields to text tokens, then from tokens to fields; means of both -> Linear 2H -> K."""

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
        (text,), (text_layout,) = texts, tokens
        fields, field_layout = text_layout.of_fields(table.to(text.dtype))
        fields = self.fields_to_text(fields, text, layout=field_layout, others_layout=text_layout)
        text = self.text_to_fields(text, fields, layout=text_layout, others_layout=field_layout)
        return self.output(torch.cat([text_layout.mean(text), field_layout.mean(fields)], dim=1))


class CrossAttentionTexts(ConcatMLP):
    """Attend from each text's tokens to the other's, then FeedForward; ConcatMLP of the means and the table."""

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
        for i, other in ((0, 1), (1, 0)):
            attended = self.attention[i](texts[i], texts[other], layout=tokens[i], others_layout=tokens[other])
            pooled.append(tokens[i].mean(self.feed_forward[i](attended)))  # [B, H]
        return super().forward(pooled, table, tokens)
