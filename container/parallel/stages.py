"""Pipeline stages: runs of a classifier's blocks, cut so that the slowest stage is as fast as it can be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor, nn

from container.data.batch import PackedBatch
from container.models.blocks import Block, BlockRun, Carry, carries, flatten
from container.models.classifier import Classifier
from container.models.encoder import TextBranch, TextEncoder
from container.models.families import encoder_family
from container.models.fusion import FusionHead
from container.parallel.execution import Autocast
from contracts.hyperparameters import Hyperparameters

# Embeddings are bound by memory: at the 200 FLOP per byte of current accelerators, an element that is looked up, added
# and normalised in float32 takes as long as this many FLOP.
_FLOP_PER_EMBEDDED_ELEMENT = 1000


@dataclass(frozen=True)
class StagePlan:
    """Which blocks a stage computes, and what it receives and sends.

    Attributes:
        cost: forward FLOP for a record.
    """

    index: int
    blocks: tuple[Block, ...]
    receives: Carry
    sends: Carry
    cost: float

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for block in self.blocks for m in block.modules for parameter in m.parameters())

    @property
    def reuses_weights(self) -> bool:
        """Whether a weight may be used several times in a forward pass, as in encoders that cannot be cut, or what
        it gives is, as in heads that weigh modalities by themselves."""
        heads = [module for block in self.blocks for module in block.modules if isinstance(module, FusionHead)]
        return any(block.begins and block.ends for block in self.blocks) or any(head.branches_out for head in heads)


@dataclass(frozen=True)
class Budget:
    """Rows that a travelling tensor has room for.

    Attributes:
        tokens: of hidden states, for each of Classifier.branches.
        records: of features of records.
    """

    tokens: tuple[int, ...]
    records: int

    def rows(self, carry: Carry) -> tuple[int, ...]:
        """Rows of each tensor of `carry`."""
        hidden = () if carry.hidden is None else (self.tokens[carry.hidden[0]],)
        finished = range(len(carry.features))
        return (*hidden, *(self.tokens[place] if carry.per_token else self.records for place in finished))


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
        """The next stage's input in float32 (float64 in a float64 model); from the last, logits padded alike. [B, K]"""
        own = real_rows(batch, self.text_indices)
        carry = [tensor[:count] for tensor, count in zip(received, own.rows(self.plan.receives), strict=True)]
        with self._autocast():
            result = self.run(carry, batch)
        budget = self.budget or own
        if isinstance(result, Tensor):
            return _padded(result.to(self._dtype), budget.records)
        room = budget.rows(self.plan.sends)
        return tuple(_padded(tensor.to(self._dtype), count) for tensor, count in zip(result, room, strict=True))


def plan_stages(
    model: Classifier,
    hp: Hyperparameters,
    *,
    rank_of: Sequence[int],
    tokens_per_record: Mapping[str, float] | None = None,
) -> list[StagePlan]:
    """Cut `model` into runs of blocks; the same on every rank.

    Cost is counted: the multiplications of linear layers and attention, and the memory traffic of embeddings.

    Args:
        rank_of: the rank, along pp, of each stage.
        tokens_per_record: mean of each text by role; max_sen_len where it is not known.
    """
    blocks = flatten(model)
    after = carries(model, blocks)
    longest = {field.role: field.max_sen_len for field in hp.text_fields}
    tokens = {role: (tokens_per_record or longest)[role] for role in model.branches}
    costs = [
        block_cost(
            block, branch, tokens=tokens[role], chunk=min(tokens[role], longest[role]), per_token=after[-2].per_token
        )
        for block, (role, branch) in ((block, _branch_of(block, model)) for block in blocks)
    ]
    cuts = even_out(balance(costs, len(rank_of)), costs, rank_of)
    plans = []
    for index, (start, stop) in enumerate(pairwise(cuts)):
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


def even_out(cuts: Sequence[int], costs: Sequence[float], rank_of: Sequence[int]) -> list[int]:
    """`cuts` moved, a run of neighbours by one block at a time, while that lowers the largest sum over a rank's stages.

    With one stage per rank `balance` has found the best cuts, which stay. With two, a rank's throughput is that of both
    together; this finds a local optimum.
    """

    def burden(cuts: Sequence[int]) -> tuple[float, float, float]:
        stages = [sum(costs[start:stop]) for start, stop in pairwise(cuts)]
        per_rank = [0.0] * (max(rank_of) + 1)
        for rank, cost in zip(rank_of, stages, strict=True):
            per_rank[rank] += cost
        return max(per_rank), sum(cost * cost for cost in per_rank), max(stages)

    best, lowest = list(cuts), burden(cuts)
    if len(set(rank_of)) == len(rank_of):
        return best
    inner = range(1, len(cuts) - 1)
    improved = True
    while improved:
        improved = False
        for first, last, by in product(inner, inner, (-1, 1)):
            moved = [cut + by if first <= i <= last else cut for i, cut in enumerate(best)]
            if all(start < stop for start, stop in pairwise(moved)) and burden(moved) < lowest:
                best, lowest, improved = moved, burden(moved), True
    return best


def block_cost(
    block: Block, branch: TextBranch | None, *, tokens: float, chunk: float, per_token: bool = False
) -> float:
    """Forward FLOP of `block` for one record.

    Args:
        branch: the text branch it belongs to; None for the head.
        per_token: the head reads tokens, not records.
        tokens: of the record's text.
        chunk: tokens that a token attends to.
    """
    if branch is None:
        return (tokens if per_token else 1) * _linear_flop(block.modules)
    assert isinstance(branch.encoder, TextEncoder), "checked with the degrees"
    config, inside = branch.encoder.backbone.config, set(branch.encoder.backbone.modules())
    attention = 4 * chunk * config.hidden_size  # of one layer, per token
    if block.begins and block.ends:
        rounds = config.num_hidden_layers if encoder_family(config.model_type).shared_layers else 1
        on_tokens, layers = [branch.encoder.backbone], config.num_hidden_layers
        once = [module for module in (branch.encoder.pooler, branch.projection) if module is not None]
    else:
        rounds, layers = 1, int(not (block.begins or block.ends))
        on_tokens = [module for module in block.modules if module in inside]
        once = [module for module in block.modules if module not in inside]
    flop = rounds * _linear_flop(on_tokens) + layers * attention + _embedding_flop(on_tokens)
    return tokens * flop + (tokens if per_token else tokens / chunk) * _linear_flop(once)


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


def _branch_of(block: Block, model: Classifier) -> tuple[str, TextBranch | None]:
    """Role and branch of a block; for the head any role, and no branch."""
    role, branch = list(model.branches.items())[block.branch or 0]
    return role, None if block.branch is None else branch


def _linear_flop(modules: Sequence[nn.Module]) -> float:
    return sum(2.0 * inner.weight.numel() for m in modules for inner in m.modules() if isinstance(inner, nn.Linear))


def _embedding_flop(modules: Sequence[nn.Module]) -> float:
    """Once, however many tables are added up: the first one's width counts."""
    tables = [inner for module in modules for inner in module.modules() if isinstance(inner, nn.Embedding)]
    return _FLOP_PER_EMBEDDED_ELEMENT * tables[0].embedding_dim if tables else 0.0
