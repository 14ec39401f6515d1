"""Fuse text and table by a mixture of experts, of which each record uses a few."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from container.models.fusion import FusionHead, concat
from container.models.record_tokens import RecordTokens
from contracts.hyperparameters import Hyperparameters


class Experts(FusionHead):
    """concat -> the k of n experts with the highest scores, weighted -> ReLU -> Linear F -> K.

    An expert is Linear -> F -> ReLU -> Dropout -> Linear F -> F over the concat; a router, Linear -> n, scores them. A
    record uses the k experts with the highest score + balance, weighted by the softmax of those k scores.

    `balance` spreads the load over the experts. It is a trained weight whose loss is balance . (chosen - k / n) for
    each record. Its gradient is an expert's deviation from an even load, so the optimizer lowers the balance of
    overloaded experts ("Auxiliary-Loss-Free Load Balancing", Wang et al. 2024, which uses fixed steps instead). The
    usual loss multiplies two means over a batch; this one is a sum over records, whatever the split into microbatches.
    """

    branches_out = True

    def __init__(self, hp: Hyperparameters, *, text_width: int, num_texts: int, table_width: int) -> None:
        super().__init__()
        in_width, width = num_texts * text_width + table_width, hp.fusion_width
        self._chosen = hp.experts_per_record
        self._strength = hp.expert_balance
        self.router = nn.Linear(in_width, hp.num_experts)
        self.balance = nn.Parameter(torch.zeros(hp.num_experts), requires_grad=hp.expert_balance > 0)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(in_width, width), nn.ReLU(), nn.Dropout(hp.fusion_dropout), nn.Linear(width, width))
            for _ in range(hp.num_experts)
        )
        self.output = nn.Linear(width, hp.num_classes)

    def forward(self, texts: Sequence[Tensor], table: Tensor | None, _tokens: Sequence[RecordTokens]) -> Tensor:
        features = concat(texts, table)
        scores = self.router(features).float()  # [B, n]
        chosen = (scores + self.balance).detach().topk(self._chosen, dim=1).indices  # [B, k]
        is_chosen = torch.zeros_like(scores).scatter(1, chosen, 1.0)  # [B, n]
        weights = scores.masked_fill(is_chosen == 0, -torch.inf).softmax(1)
        # All n experts run: they are small, and the graph is then the same for every batch and in ONNX.
        outputs = torch.stack([expert(features) for expert in self.experts], dim=1)  # [B, n, F]
        fused = (weights[..., None].to(outputs.dtype) * outputs).sum(1)  # [B, F]
        if self.training and self._strength:
            uneven = is_chosen - self._chosen / scores.shape[1]
            # The scores, times 0, make the penalty depend on the head's input: a zero-bubble pipeline computes only
            # gradients on paths from there.
            self.penalty = self._strength * (uneven * self.balance).sum(1) + 0.0 * scores.sum(1)  # [B]
        else:
            self.penalty = None
        return self.output(torch.relu(fused))
