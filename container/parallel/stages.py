"""Pipeline stages: runs of a classifier's blocks, cut so that the slowest stage is as fast as it can be."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from container.data.batch import PackedBatch
from container.models.blocks import Block, BlockRun, Carry, carries, flatten
from container.models.classifier import Classifier
from container.models.families import FAMILIES
from container.parallel.execution import Autocast
from contracts.hyperparameters import Hyperparameters

# Embeddings are bound by memory: at the 200 FLOP per byte of current accelerators, an element that is looked up, added
# and normalised in float32 takes as long as this many FLOP.
_FLOP_PER_EMBEDDED_ELEMENT = 1000


@dataclass(frozen=True)
class StagePlan:
    """Which blocks a stage computes, and what it receives and sends.

    Attributes:
        cost: forward FLOP for one chunk of each text.
    """

    index: int
    blocks: tuple[Block, ...]
    receives: Carry
    sends: Carry
    cost: float

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for block in self.blocks for m in block.modules for parameter in m.parameters())


@dataclass(frozen=True)
class Budget:
    """Rows that a travelling tensor has room for.

    Attributes:
        tokens: of hidden states, for each of Classifier.branches.
        records: of features.
    """

    tokens: tuple[int, ...]
    records: int

    def rows(self, carry: Carry) -> tuple[int, ...]:
        """Rows of each tensor of `carry`."""
        hidden = () if carry.hidden is None else (self.tokens[carry.hidden[0]],)
        return (*hidden, *(self.records for _ in carry.features))


class Stage(nn.Module):
    """The module of a stage: unpads what it receives, runs its blocks, pads what it sends.

    Nothing is padded in computation: only what travels has fixed shapes.

    Attributes:
        in_flight: the microbatches of a pass.
        budget: rows that what is sent is padded to; None = as many as there are.
        text_indices: which of a batch's texts each branch reads.
    """

    def __init__(self, model: Classifier, plan: StagePlan, *, autocast: Autocast, dtype: torch.dtype) -> None:
        super().__init__()
        self.run = BlockRun(model, plan.blocks, carry=plan.receives)
        self.plan = plan
        self.text_indices = model.text_indices
        self.in_flight: Sequence[PackedBatch] = ()
        self.budget: Budget | None = None
        self._autocast = autocast
        self._dtype = dtype

    def forward(self, *received: Tensor, batch: PackedBatch) -> Tensor | tuple[Tensor, ...]:
        """The next stage's input in float32 (float64 in a float64 model), or logits [B, K] from the last."""
        own = real_rows(batch, self.text_indices)
        carry = [tensor[:count] for tensor, count in zip(received, own.rows(self.plan.receives), strict=True)]
        with self._autocast():
            result = self.run(carry, batch)
        if isinstance(result, Tensor):
            return result
        room = (self.budget or own).rows(self.plan.sends)
        return tuple(_padded(tensor.to(self._dtype), count) for tensor, count in zip(result, room, strict=True))


def plan_stages(model: Classifier, hp: Hyperparameters, *, num_stages: int) -> list[StagePlan]:
    """Cut `model` into `num_stages` runs of blocks; the same on every rank.

    Cost is counted (docs/architecture.md, Pipeline): the multiplications of linear layers and attention on chunks of
    max_sen_len tokens, and the memory traffic of embeddings.
    """
    blocks = flatten(model)
    after = carries(model, blocks)
    lengths = {field.role: field.max_sen_len for field in hp.text_fields}
    tokens = [lengths[role] for role in model.branches]
    costs = [block_cost(block, model, tokens=tokens) for block in blocks]
    plans = []
    for index, (start, stop) in enumerate(pairwise(balance(costs, num_stages))):
        receives = after[start - 1] if start else Carry()
        plans.append(StagePlan(index, tuple(blocks[start:stop]), receives, after[stop - 1], sum(costs[start:stop])))
    return plans


def balance(costs: Sequence[float], num_stages: int) -> list[int]:
    """Cut `costs` into contiguous stages, none empty, whose largest sum is the smallest possible.

    Of the cuts with that largest sum, one whose other stages are even as well (by dynamic programming over the sum of
    squares). O(num_stages n^2).

    Returns:
        Where each stage starts, and len(costs): [num_stages + 1].
    """
    n = len(costs)
    assert 1 <= num_stages <= n, "checked with the degrees"
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    unreachable = (float("inf"), float("inf"))
    best = [(0.0, 0.0)] + [unreachable] * n  # (largest, sum of squares) for the first i costs
    came_from: list[list[int]] = []
    for stage in range(1, num_stages + 1):
        new, froms = [unreachable] * (n + 1), [0] * (n + 1)
        for stop in range(stage, n + 1):
            for start in range(stage - 1, stop):
                own = sums[stop] - sums[start]
                candidate = (max(best[start][0], own), best[start][1] + own * own)
                if candidate < new[stop]:
                    new[stop], froms[stop] = candidate, start
        best = new
        came_from.append(froms)
    cuts = [n]
    for froms in reversed(came_from):
        cuts.append(froms[cuts[-1]])
    return cuts[::-1]


def block_cost(block: Block, model: Classifier, *, tokens: Sequence[int]) -> float:
    """Forward FLOP of `block` for one record with one chunk of tokens[i] tokens in each branch i."""
    if block.branch is None:
        return _linear_flop(block.modules)
    branch = list(model.branches.values())[block.branch]
    encoder, length = branch.encoder, tokens[block.branch]
    inside = set(encoder.backbone.modules())
    per_token = [module for module in block.modules if module in inside]
    once = [module for module in block.modules if module not in inside]
    config = encoder.backbone.config
    attention = 4 * length * config.hidden_size
    if block.begins and block.ends:
        family = FAMILIES.get(config.model_type)
        times = config.num_hidden_layers if family is not None and family.shared_layers else 1
        linear = times * _linear_flop([encoder.backbone]) + config.num_hidden_layers * attention
        return length * (linear + _embedding_flop([encoder.backbone])) + _linear_flop(
            [encoder.pooler, branch.projection]
        )
    is_layer = not (block.begins or block.ends)
    flop = _linear_flop(per_token) + _embedding_flop(per_token) + is_layer * attention
    return length * flop + _linear_flop(once)


def stage_table(plans: Sequence[StagePlan], ranks: Sequence[int]) -> str:
    """The stages for people: stage, rank along pp, blocks, parameters, share of the cost."""
    total = sum(plan.cost for plan in plans)
    lines = [f"{'stage':>5} {'rank':>4}  {'parameters':>12} {'cost':>6}  blocks"]
    for plan, rank in zip(plans, ranks, strict=True):
        first, last = plan.blocks[0].name, plan.blocks[-1].name
        names = first if len(plan.blocks) == 1 else f"{first} to {last} ({len(plan.blocks)})"
        lines.append(f"{plan.index:>5} {rank:>4}  {plan.parameters:>12,} {plan.cost / total:>6.1%}  {names}")
    return "\n".join(lines)


def real_rows(batch: PackedBatch, text_indices: Sequence[int]) -> Budget:
    """As much room as `batch` needs."""
    return Budget(tuple(sum(batch.texts[i].lengths) for i in text_indices), len(batch.rows))


def _padded(tensor: Tensor, count: int) -> Tensor:
    """[n, d] -> [count, d]. A copy even where nothing is added: what a stage returns must not be a view."""
    return torch.cat([tensor, tensor.new_zeros(count - len(tensor), tensor.shape[1])])


def _linear_flop(modules: Sequence[nn.Module]) -> float:
    return sum(2.0 * inner.weight.numel() for m in modules for inner in m.modules() if isinstance(inner, nn.Linear))


def _embedding_flop(modules: Sequence[nn.Module]) -> float:
    """Once, however many tables are added up: the first one's width counts."""
    tables = [inner for module in modules for inner in module.modules() if isinstance(inner, nn.Embedding)]
    return _FLOP_PER_EMBEDDED_ELEMENT * tables[0].embedding_dim if tables else 0.0
