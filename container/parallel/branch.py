"""Branch parallelism: each rank runs one text's encoder; ranks exchange features, and all run the fusion head."""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from container.data.batch import PackedBatch
from container.models.classifier import Classifier


def split_branches(model: Classifier, group: dist.ProcessGroup) -> None:
    """Keep only this rank's text branch in `model`, in place; the other ranks send the other features.

    Every rank of the group runs the table and the fusion head on the same values, so their gradients are equal.

    Args:
        group: one rank per text.
    """
    rank = dist.get_rank(group)
    roles = list(model.branches)
    assert len(roles) == dist.get_world_size(group), "checked with the degrees"
    for role in roles:
        if role != roles[rank]:
            del model.branches[role]
    model.text_indices = (rank,)
    model.exchange = partial(_exchange, group=group, per_token=model.branches[roles[rank]].per_token)


def _exchange(features: list[Tensor], batch: PackedBatch, *, group: dist.ProcessGroup, per_token: bool) -> list[Tensor]:
    """[features of this rank's text] -> features of all texts, [B, H] or [N, H] each, on every rank."""
    (local,) = features
    rows = [len(text.tokens) if per_token else len(batch.rows) for text in batch.texts]
    if torch.is_grad_enabled():
        # The ranks' encoders drew different amounts of dropout; the fusion head must draw the same masks on all.
        torch.manual_seed(hash((torch.initial_seed(), 1)) & 0x7FFF_FFFF_FFFF_FFFF)
    padded = F.pad(local, (0, 0, 0, max(rows) - len(local)))  # all_gather needs one shape on all ranks
    return [tensor[:count] for tensor, count in zip(_Exchange.apply(padded, group), rows, strict=True)]


class _Exchange(torch.autograd.Function):
    """All-gather whose backward keeps this rank's slice: every rank computes the whole gradient of the features."""

    @staticmethod
    def forward(ctx, local: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, ...]:
        ctx.rank = dist.get_rank(group)
        gathered = [torch.empty_like(local) for _ in range(dist.get_world_size(group))]
        dist.all_gather(gathered, local.contiguous(), group=group)
        return tuple(gathered)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[ctx.rank], None
