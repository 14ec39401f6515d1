"""Pipeline stages: contiguous runs of a classifier's blocks, split so that the slowest stage is as fast as possible."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from operator import itemgetter

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

# Embeddings are memory-bound. At 200 FLOP per byte, as on current accelerators, to look up, add and normalise one
# float32 element takes as long as this many FLOP.
_FLOP_PER_EMBEDDED_ELEMENT = 1000


@dataclass(frozen=True)
class StagePlan:
    """The blocks that a stage computes, and the tensors that it receives and sends.

    Attributes:
        cost: forward FLOP per record.
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
        """Return whether a forward pass may use a weight, or its result, several times.

        Indivisible encoders use weights several times; heads that weigh modalities use results several times.
        """
        heads = [module for block in self.blocks for module in block.modules if isinstance(module, FusionHead)]
        return any(block.begins and block.ends for block in self.blocks) or any(head.branches_out for head in heads)


@dataclass(frozen=True)
class Budget:
    """The number of rows to which sent tensors are padded.

    Attributes:
        tokens: rows of hidden states, for each of Classifier.branches.
        records: rows of record features.
    """

    tokens: tuple[int, ...]
    records: int

    def rows(self, carry: Carry) -> tuple[int, ...]:
        """Return the number of rows of each tensor of `carry`."""
        hidden = () if carry.hidden is None else (self.tokens[carry.hidden[0]],)
        return (*hidden, *(self.tokens[i] if carry.per_token else self.records for i in range(len(carry.features))))


class Stage(nn.Module):
    """The module of a stage: removes the padding of its input, runs its blocks, and pads its output.

    Attributes:
        in_flight: the microbatches of the current pass.
        budget: rows of the padded output; None = no padding.
        text_indices: for each branch, the index of its text in a batch.
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
        """Return the next stage's input, or the logits [B, K], in float32 (float64 in a float64 model), padded."""
        unpadded = real_rows(batch, self.text_indices)
        carry = [tensor[:count] for tensor, count in zip(received, unpadded.rows(self.plan.receives), strict=True)]
        with self._autocast():
            result = self.run(carry, batch)
        budget = self.budget or unpadded
        if isinstance(result, Tensor):
            return _padded(result.to(self._dtype), budget.records)
        rows = budget.rows(self.plan.sends)
        return tuple(_padded(tensor.to(self._dtype), count) for tensor, count in zip(result, rows, strict=True))


def plan_stages(
    model: Classifier,
    hp: Hyperparameters,
    *,
    rank_of: Sequence[int],
    tokens_per_record: Mapping[str, float] | None = None,
) -> list[StagePlan]:
    """Split `model` into runs of blocks; the same on every rank.

    The cost consists of the multiplications in linear layers and attention, and the memory traffic of embeddings.

    Args:
        rank_of: the rank along pp of each stage.
        tokens_per_record: mean of each text by role; max_sen_len by default.
    """
    blocks = flatten(model)
    after = carries(model, blocks)
    longest = {field.role: field.max_sen_len for field in hp.text_fields}
    roles, costs = list(model.branches), []
    for block in blocks:
        role = roles[block.branch or 0]  # the head counts the tokens of the first text
        branch = None if block.branch is None else model.branches[role]
        tokens = (tokens_per_record or longest)[role]
        chunk = min(tokens, longest[role])
        costs.append(block_cost(block, branch, tokens=tokens, chunk=chunk, per_token=after[-2].per_token))
    cuts = even_out(balance(costs, len(rank_of)), costs, rank_of)
    plans = []
    for index, (start, stop) in enumerate(pairwise(cuts)):
        receives = after[start - 1] if start else Carry()
        plans.append(StagePlan(index, tuple(blocks[start:stop]), receives, after[stop - 1], sum(costs[start:stop])))
    return plans


def balance(costs: Sequence[float], num_stages: int) -> list[int]:
    """Split `costs` into contiguous, non-empty stages whose largest sum is minimal.

    Dynamic programming, O(num_stages n^2). Among such splits it minimizes the sum of squares, so that the other stages
    are even too.

    Returns:
        The start of each stage, and len(costs): [num_stages + 1].
    """
    n = len(costs)
    assert 1 <= num_stages <= n, "checked with the degrees"
    sums = list(accumulate(costs, initial=0.0))
    best = {0: (0.0, 0.0, [0])}  # for the first i costs: largest sum, sum of squares, cuts
    for stage in range(1, num_stages + 1):
        previous, best = best, {}
        for stop in range(stage, n + 1):
            candidates = []
            for start, (largest, squares, cuts) in previous.items():
                if start < stop:
                    cost = sums[stop] - sums[start]
                    candidates.append((max(largest, cost), squares + cost * cost, [*cuts, stop]))
            best[stop] = min(candidates, key=itemgetter(0, 1))
    return best[n][2]


def even_out(cuts: Sequence[int], costs: Sequence[float], rank_of: Sequence[int]) -> list[int]:
    """Return `cuts` after moves of neighbouring cuts by one block, each of which lowers the largest cost of a rank.

    With one stage per rank, the cuts of `balance` are optimal and stay. With two, this finds a local optimum.
    """

    def objective(cuts: Sequence[int]) -> tuple[float, float, float]:
        stages = [sum(costs[start:stop]) for start, stop in pairwise(cuts)]
        per_rank = [0.0] * (max(rank_of) + 1)
        for rank, cost in zip(rank_of, stages, strict=True):
            per_rank[rank] += cost
        return max(per_rank), sum(cost * cost for cost in per_rank), max(stages)

    best, lowest = list(cuts), objective(cuts)
    if len(set(rank_of)) == len(rank_of):
        return best
    inner = range(1, len(cuts) - 1)
    improved = True
    while improved:
        improved = False
        for first, last, by in product(inner, inner, (-1, 1)):
            moved = [cut + by if first <= i <= last else cut for i, cut in enumerate(best)]
            if all(start < stop for start, stop in pairwise(moved)) and objective(moved) < lowest:
                best, lowest, improved = moved, objective(moved), True
    return best


def block_cost(
    block: Block, branch: TextBranch | None, *, tokens: float, chunk: float, per_token: bool = False
) -> float:
    """Return the forward FLOP of `block` for one record.

    Args:
        branch: its text branch; None for the head.
        tokens: number of tokens of the record's text.
        chunk: number of tokens that a token attends to.
        per_token: the head reads tokens, not records.
    """
    if branch is None:
        return (tokens if per_token else 1) * _linear_flop(block.modules)
    assert isinstance(branch.encoder, TextEncoder), "checked with the degrees"
    config, in_backbone = branch.encoder.backbone.config, set(branch.encoder.backbone.modules())
    attention = 4 * chunk * config.hidden_size  # of one layer, per token
    if block.begins and block.ends:
        rounds = config.num_hidden_layers if encoder_family(config.model_type).shared_layers else 1
        on_tokens, layers = [branch.encoder.backbone], config.num_hidden_layers
        once = [module for module in (branch.encoder.pooler, branch.projection) if module is not None]
    else:
        rounds, layers = 1, int(not (block.begins or block.ends))
        on_tokens = [module for module in block.modules if module in in_backbone]
        once = [module for module in block.modules if module not in in_backbone]
    flop = rounds * _linear_flop(on_tokens) + layers * attention + _embedding_flop(on_tokens)
    return tokens * flop + (tokens if per_token else tokens / chunk) * _linear_flop(once)


def stage_table(plans: Sequence[StagePlan], ranks: Sequence[int]) -> str:
    """Return a table for the log: stage, rank along pp, parameters, fraction of the cost, blocks."""
    total = sum(plan.cost for plan in plans)
    lines = [f"{'stage':>5} {'rank':>4}  {'parameters':>12} {'cost':>6}  blocks"]
    for plan, rank in zip(plans, ranks, strict=True):
        first, last = plan.blocks[0].name, plan.blocks[-1].name
        names = first if len(plan.blocks) == 1 else f"{first} to {last} ({len(plan.blocks)})"
        lines.append(f"{plan.index:>5} {rank:>4}  {plan.parameters:>12,} {plan.cost / total:>6.1%}  {names}")
    return "\n".join(lines)


def real_rows(batch: PackedBatch, text_indices: Sequence[int]) -> Budget:
    """Return the number of rows of `batch`, without padding."""
    return Budget(tuple(sum(batch.texts[i].lengths) for i in text_indices), len(batch.rows))


def _padded(tensor: Tensor, count: int) -> Tensor:
    """Pad [n, d] to [count, d]. Always copy: the output of a stage must not be a view."""
    return torch.cat([tensor, tensor.new_zeros(count - len(tensor), tensor.shape[1])])


def _linear_flop(modules: Sequence[nn.Module]) -> float:
    return sum(2.0 * inner.weight.numel() for m in modules for inner in m.modules() if isinstance(inner, nn.Linear))


def _embedding_flop(modules: Sequence[nn.Module]) -> float:
    """Return the cost of the first embedding table; added tables cost no extra memory traffic."""
    tables = [inner for module in modules for inner in module.modules() if isinstance(inner, nn.Embedding)]
    return _FLOP_PER_EMBEDDED_ELEMENT * tables[0].embedding_dim if tables else 0.0
