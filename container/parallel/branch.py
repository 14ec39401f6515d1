"""Branch parallelism: each rank runs one text's encoder; features are exchanged once, then every rank fuses."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from container.data.batch import PackedBatch
from container.models.classifier import Classifier


def split_branches(model: Classifier, group: dist.ProcessGroup) -> None:
    """Keep only this rank's text branch in `model`, in place; the other features come from the other ranks.

    The table and the fusion head run on every rank of the group on the same numbers, so their gradients agree without
    being exchanged.

    Args:
        group: as many ranks as there are texts.
    """
    own = dist.get_rank(group)
    roles = list(model.branches)
    assert len(roles) == dist.get_world_size(group), "checked with the degrees"
    for role in roles:
        if role != roles[own]:
            del model.branches[role]
    model.text_indices = (own,)
    model.exchange = FeatureExchange(group, per_token=model.branches[roles[own]].per_token)


class FeatureExchange:
    """[features of this rank's text] -> features of all texts, [B, H] or [N, H] each, on every rank."""

    def __init__(self, group: dist.ProcessGroup, *, per_token: bool) -> None:
        self._group = group
        self._per_token = per_token

    def __call__(self, features: list[Tensor], batch: PackedBatch) -> list[Tensor]:
        (own,) = features
        rows = [len(text.tokens) if self._per_token else len(batch.rows) for text in batch.texts]
        if torch.is_grad_enabled():
            # The ranks' encoders drew different amounts of dropout; what follows must draw the same on all of them.
            torch.manual_seed(hash((torch.initial_seed(), 1)) & 0x7FFF_FFFF_FFFF_FFFF)
        room = F.pad(own, (0, 0, 0, max(rows) - len(own)))  # what travels has one shape on all ranks
        return [tensor[:count] for tensor, count in zip(_Exchange.apply(room, self._group), rows, strict=True)]


class _Exchange(torch.autograd.Function):
    """All-gather whose backward keeps the own slice: every rank computes the whole gradient of the features."""

    @staticmethod
    def forward(ctx, own: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, ...]:
        ctx.place = dist.get_rank(group)
        gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(gathered, own.contiguous(), group=group)
        return tuple(gathered)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[ctx.place], None
