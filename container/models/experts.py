"""A mixture of experts over text and table, a few of which decide about each record."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from container.models.fusion import FusionHead, concat
from container.models.record_tokens import RecordTokens
from contracts.hyperparameters import Hyperparameters


class Experts(FusionHead):
    """concat -> the k of n experts with the highest scores, weighted -> ReLU -> Linear F -> K.

    An expert is Linear -> F -> ReLU -> Dropout -> Linear F -> F over the concat; a router, Linear -> n, scores them. A
    record's experts are the k with the highest score + balance, their weights the softmax of those k scores.

    `balance` keeps experts in use. It is a weight like others, whose loss is balance . (chosen - k / n) for each
    record: so its gradient is how far an expert's load is from even, and the optimizer lowers the balance of experts
    that get too many records ("Auxiliary-Loss-Free Load Balancing", Wang et al. 2024, with the optimizer in the place
    of their fixed step). Unlike the usual loss, a product of two means over a batch, it is a sum over records: the same
    however a batch is shared out.
    """

    branches_out = True

    def __init__(self, hp: Hyperparameters, *, text_width: int, num_texts: int, table_width: int) -> None:
        super().__init__()
        enters, width = num_texts * text_width + table_width, hp.fusion_width
        self._chosen = hp.experts_per_record
        self._strength = hp.expert_balance
        self.router = nn.Linear(enters, hp.num_experts)
        self.balance = nn.Parameter(torch.zeros(hp.num_experts), requires_grad=hp.expert_balance > 0)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(enters, width), nn.ReLU(), nn.Dropout(hp.fusion_dropout), nn.Linear(width, width))
            for _ in range(hp.num_experts)
        )
        self.output = nn.Linear(width, hp.num_classes)

    def forward(self, texts: Sequence[Tensor], table: Tensor | None, _tokens: Sequence[RecordTokens]) -> Tensor:
        features = concat(texts, table)
        scores = self.router(features).float()  # [B, n]
        chosen = (scores + self.balance).detach().topk(self._chosen, dim=1).indices  # [B, k]
        is_chosen = torch.zeros_like(scores).scatter(1, chosen, 1.0)  # [B, n]
        weights = scores.masked_fill(is_chosen == 0, -torch.inf).softmax(1)
        # All of them, though only k count: they are small, and one way for every batch and an exported graph.
        opinions = torch.stack([expert(features) for expert in self.experts], dim=1)  # [B, n, F]
        fused = (weights[..., None].to(opinions.dtype) * opinions).sum(1)  # [B, F]
        if self.training and self._strength:
            uneven = is_chosen - self._chosen / scores.shape[1]
            # Of no weight, the scores tie the penalty to the head's input: a zero-bubble pipeline looks for gradients
            # on the paths from there only.
            self.penalty = self._strength * (uneven * self.balance).sum(1) + 0.0 * scores.sum(1)  # [B]
        else:
            self.penalty = None
        return self.output(torch.relu(fused))
