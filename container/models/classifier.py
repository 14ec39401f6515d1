"""Define the classifier: text branches and a tabular branch, fused into logits; no ranks, no global state."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import cast

from torch import Tensor, nn

from container.data.batch import PackedBatch
from container.models.encoder import TextBranch, encode_texts
from container.models.fusion import FusionHead
from container.models.record_tokens import DenseTokens, PackedTokens
from container.models.tabular import TabularBranch, TabularFields


class Classifier(nn.Module):
    """Compose text branches, a tabular branch and a fusion head; the same for every model_class.

    The forward pass runs `branches` (each: encoder.backbone, encoder.pooler, projection), `tabular`, `fusion`. These
    names are part of the names of the weights in model.pth.

    Args:
        branches: text branches by role, in the order of Hyperparameters.text_fields.
        tabular: None if the model reads no number or category.

    Attributes:
        text_indices: indices of the batch's texts that `branches` read; a subset only with branch parallelism.
        exchange: returns the features of all texts from those of `branches`; the identity without branch parallelism.

    Example:
        Four records with one, two, one and one chunks of text, and three numbers; `build_classifier` makes a classifier
        from hyperparameters, and `load_classifier` from a model folder.

        >>> batch = packed_batch([[5], [3, 2], [4], [6]], tabular_dim=3)
        >>> classifier(batch).shape  # logits [B, K]
        torch.Size([4, 2])
        >>> [features.shape for features in classifier.encode(batch)]  # [B, H] of each text
        [torch.Size([4, 12])]
    """

    def __init__(
        self,
        branches: Mapping[str, TextBranch],
        *,
        tabular: TabularBranch | TabularFields | None,
        fusion: FusionHead,
    ) -> None:
        super().__init__()
        # ModuleDict is not generic: the cast tells type checkers its values' type.
        self.branches = cast("MutableMapping[str, TextBranch]", nn.ModuleDict(branches))
        self.tabular = tabular
        self.fusion = fusion
        self.text_indices: tuple[int, ...] = tuple(range(len(branches)))
        self.exchange: Callable[[list[Tensor], PackedBatch], list[Tensor]] = _identity
        self._fuses_tokens = fusion.text_features == "tokens"
        self._packed = tuple(branch.encoder.packed for branch in branches.values())

    def forward(self, batch: PackedBatch) -> Tensor:
        """Return logits. [B, K]"""
        return self.head(self.encode(batch), batch)

    def encode(self, batch: PackedBatch) -> list[Tensor]:
        """Return the features of the texts that `branches` read, [B, H] or [N, H] each."""
        branches, texts = list(self.branches.values()), [batch.texts[i] for i in self.text_indices]
        return [
            branch(encoded, text, num_records=len(batch.rows))
            for branch, encoded, text in zip(branches, encode_texts(branches, texts), texts, strict=True)
        ]

    def head(self, features: list[Tensor], batch: PackedBatch) -> Tensor:
        """Return logits [B, K] from the features of `branches`, [B, H] or [N, H] each, and the table of `batch`."""
        texts = self.exchange(features, batch)
        table = None if self.tabular is None else self.tabular(batch.tabular)
        tokens = [PackedTokens.of(text) for text in batch.texts] if self._fuses_tokens else []
        return self.fusion(texts, table, tokens)

    def encode_dense(self, texts: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Return the features of padded chunks, for export. [B, H] or [B, C * T, H] each

        Args:
            texts: per text field input_ids and attention_mask, [B, C, T] int64; chunks are padded on the right, records
                with empty chunks.
        """
        pairs = zip(self.branches.values(), texts, strict=True)
        return [branch.forward_dense(input_ids, mask) for branch, (input_ids, mask) in pairs]

    def head_dense(self, features: list[Tensor], masks: Sequence[Tensor], tabular: Tensor | None) -> Tensor:
        """Return logits from the features that `encode_dense` returns, for export. [B, K]

        Args:
            masks: the attention_mask of each text. [B, C, T]
            tabular: [B, n] float32; ignored if the model has no tabular branch.
        """
        tokens = [DenseTokens(mask.flatten(1)) for mask in masks] if self._fuses_tokens else []
        return self.fusion(features, None if self.tabular is None else self.tabular(tabular), tokens)

    def computed_tokens(self, batch: PackedBatch) -> int:
        """Return how many tokens the encoders process: those of `batch`, and padding in families without packing."""
        return sum(
            sum(text.lengths) if packed else len(text.lengths) * max(text.lengths)
            for packed, text in zip(self._packed, batch.texts, strict=True)
        )


def _identity(features: list[Tensor], _: PackedBatch) -> list[Tensor]:
    return features
