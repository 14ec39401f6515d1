"""The classifier: text branches and a tabular branch, fused into logits. It knows no rank and no global state."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from container.data.batch import PackedBatch
from container.models.encoder import TextBranch
from container.models.fusion import FusionHead
from container.models.tabular import TabularBranch


class Classifier(nn.Module):
    """One composition for every model_class.

    Its blocks, in the order data passes them: `branches` (by role; in each: encoder.backbone, encoder.pooler,
    projection), `tabular`, `fusion`. Their names are the names of the weights in model.pth.

    Args:
        branches: text branches by role, in the order of Hyperparameters.text_fields.
        tabular: None where no number or category enters the model.
    """

    def __init__(
        self, branches: Mapping[str, TextBranch], *, tabular: TabularBranch | None, fusion: FusionHead
    ) -> None:
        super().__init__()
        self.branches = nn.ModuleDict(branches)
        self.tabular = tabular
        self.fusion = fusion

    def forward(self, batch: PackedBatch) -> Tensor:
        """Logits. [B, K]"""
        num_records = len(batch.rows)
        texts = [
            branch(text, num_records=num_records)
            for branch, text in zip(self.branches.values(), batch.texts, strict=True)
        ]
        return self.fusion(texts, None if self.tabular is None else self.tabular(batch.tabular))

    def forward_dense(self, texts: Sequence[tuple[Tensor, Tensor]], tabular: Tensor | None) -> Tensor:
        """Logits from padded chunks, for export.

        Args:
            texts: per text field input_ids and attention_mask, [B, C, T] int64; chunks padded on the right, records
                padded with chunks without a token.
            tabular: [B, n] float32; ignored where the model has no tabular branch.

        Returns:
            [B, K]
        """
        features = [
            branch.forward_dense(input_ids, mask)
            for branch, (input_ids, mask) in zip(self.branches.values(), texts, strict=True)
        ]
        return self.fusion(features, None if self.tabular is None else self.tabular(tabular))

    def computed_tokens(self, batch: PackedBatch) -> int:
        """Tokens the encoders compute on for `batch`: its own, and the padding of families that cannot be packed."""
        return sum(
            sum(text.lengths) if branch.encoder.packed else len(text.lengths) * max(text.lengths)
            for branch, text in zip(self.branches.values(), batch.texts, strict=True)
        )
