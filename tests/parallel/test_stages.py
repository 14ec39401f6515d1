"""A classifier cut into blocks and stages: what each computes, what it holds, and how evenly the work is shared."""

import copy
import itertools
import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from container.models.blocks import Block, BlockRun, Carry, carries, flatten, restrict
from container.models.build import build_classifier
from container.models.classifier import Classifier
from container.parallel.pipeline import SCHEDULES
from container.parallel.stages import balance, even_out, plan_stages, stage_table
from contracts.hyperparameters import Hyperparameters
from testing.encoder_families import (
    PACKED_FAMILIES,
    PADDED_FAMILIES,
    hyperparameters,
    packed_batch,
    standard_transform,
    write_config,
)

CHUNKS = [[7, 30], [20], [2], [9, 3, 5]]
EVENTS = [[4], [11, 2], [6], [3]]
BASE = hyperparameters(model_class="trimodal_bert", max_sen_len=64)
ONE_BLOCK = {"albert", *PADDED_FAMILIES}


def classifier(folder: Path, hp: Hyperparameters, *families: str, **config: int) -> Classifier:
    files = [write_config(folder / field.role, name, **config) for field, name in zip(hp.text_fields, families)]
    dim = 3 if hp.architecture.uses_table else 0
    return build_classifier(hp, files, tabular_dim=dim, numeric_transform=standard_transform(dim))


def two_texts(folder: Path, *families: str, **config: int) -> Classifier:
    return classifier(folder, hyperparameters(model_class="trimodal_bert"), *families, **config)


def run_one_by_one(model: Classifier, blocks: list[Block]) -> torch.Tensor:
    """Return the logits, with every block as a separate run."""
    carry, receives = (), Carry()
    batch = packed_batch(CHUNKS, EVENTS, tabular_dim=3)
    for block, sends in zip(blocks, carries(model, blocks), strict=True):
        carry = BlockRun(model, [block], carry=receives)(carry, batch)
        if block is not blocks[-1]:
            assert tuple(tensor.shape[1] for tensor in carry) == sends.widths
        receives = sends
    return carry


@pytest.mark.parametrize("family", [*PACKED_FAMILIES, *PADDED_FAMILIES])
def test_the_blocks_of_every_family_one_after_the_other_compute_the_model(tmp_path: Path, family: str) -> None:
    model = two_texts(tmp_path, family, family)
    for branch in model.branches.values():
        branch.encoder.compute_every_token()  # as blocks do
    whole = model(packed_batch(CHUNKS, EVENTS, tabular_dim=3))
    whole.square().sum().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    logits = run_one_by_one(model, flatten(model))
    assert torch.equal(logits, whole)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], msg=lambda m, name=name: f"{name}: {m}")
        assert expected[name].abs().max() > 0 or "key.bias" in name or "k_lin.bias" in name


@pytest.mark.parametrize("family", [*PACKED_FAMILIES, *PADDED_FAMILIES])
def test_an_encoder_is_divided_into_its_layers_or_stays_one_block(tmp_path: Path, family: str) -> None:
    model = two_texts(tmp_path, "bert", family)
    layers = model.branches["secondary"].encoder.layers
    expected = 1 if family in ONE_BLOCK else 2 + len(layers)
    assert len(flatten(model)) == 2 + 2 + expected + 1


@pytest.mark.parametrize("family", [*PACKED_FAMILIES, *PADDED_FAMILIES])
def test_parts_of_the_model_have_its_names_and_together_all_of_them(tmp_path: Path, family: str) -> None:
    model = two_texts(tmp_path, family, "electra")
    count = len(flatten(model))
    names: list[str] = []
    for start in range(3):
        part = copy.deepcopy(model)
        blocks = flatten(part)
        restrict(part, [blocks[i] for i in range(start, count, 3)], within=blocks, in_place=True)
        names += part.state_dict()
    assert sorted(names) == sorted(model.state_dict())


def test_a_part_still_counts_the_tokens_of_all_texts(tmp_path: Path) -> None:
    model = two_texts(tmp_path, "bert", "mpnet")
    batch = packed_batch(CHUNKS, EVENTS, tabular_dim=3)
    expected = model.computed_tokens(batch)
    blocks = flatten(model)
    restrict(model, blocks[-1:], within=blocks, in_place=True)
    assert model.computed_tokens(batch) == expected == 76 + 5 * 11


def largest(cuts: list[int], costs: list[float]) -> float:
    return max(sum(costs[start:stop]) for start, stop in pairwise(cuts))


def all_cuts(count: int, stages: int) -> list[list[int]]:
    return [[0, *inner, count] for inner in itertools.combinations(range(1, count), stages - 1)]


@pytest.mark.parametrize("seed", range(30))
def test_no_other_division_has_a_faster_slowest_stage(seed: int) -> None:
    draw = random.Random(seed)
    costs = [draw.choice([0.1, 1.0, 1.0, draw.uniform(0, 3)]) for _ in range(draw.randint(1, 9))]
    for stages in range(1, len(costs) + 1):
        cuts = balance(costs, stages)
        assert len(cuts) == stages + 1
        assert all(start < stop for start, stop in pairwise(cuts))
        best = min(largest(other, costs) for other in all_cuts(len(costs), stages))
        assert largest(cuts, costs) == pytest.approx(best)


@pytest.mark.parametrize("name", ["Interleaved1F1B", "ZBVZeroBubble"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_two_stages_per_rank_divide_the_layers_as_evenly_as_possible(name: str, ranks: int) -> None:
    """An encoder has layers of equal cost between light ends; the result may differ from the best by those ends."""
    rank_of = [SCHEDULES[name].rank_of(stage, ranks) for stage in range(2 * ranks)]

    def per_rank(cuts: list[int]) -> float:
        stages = [sum(costs[start:stop]) for start, stop in pairwise(cuts)]
        return max(sum(cost for cost, owner in zip(stages, rank_of) if owner == rank) for rank in range(ranks))

    for layers in range(2 * ranks, 9):
        costs = [0.05, *[1.0] * layers, 0.01, 0.02]
        cuts = even_out(balance(costs, 2 * ranks), costs, rank_of)
        best = min(per_rank(other) for other in all_cuts(len(costs), 2 * ranks))
        assert per_rank(cuts) < best + 0.05 + 0.01 + 0.02


def test_a_schedule_folds_or_loops_its_stages_over_the_ranks() -> None:
    folded, looped = SCHEDULES["ZBVZeroBubble"], SCHEDULES["Interleaved1F1B"]
    assert [folded.rank_of(stage, 4) for stage in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert [looped.rank_of(stage, 4) for stage in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


def base(folder: Path) -> Classifier:
    """Two encoders of six layers, in the proportions of a BERT-base."""
    return classifier(
        folder, BASE, "bert", "bert", hidden_size=96, num_hidden_layers=6, intermediate_size=384, vocab_size=3000
    )


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_stages_of_two_equal_encoders_cost_about_the_same(tmp_path: Path, stages: int) -> None:
    plans = plan_stages(base(tmp_path), BASE, rank_of=range(stages))
    costs = [plan.cost for plan in plans]
    # 12 layers over 8 stages: no cut does better than two layers in one of them.
    assert max(costs) / (sum(costs) / stages) < {2: 1.05, 3: 1.1, 4: 1.1, 8: 1.4}[stages]
    in_order = [block.name for block in flatten(base(tmp_path))]
    assert [block.name for plan in plans for block in plan.blocks] == in_order


def test_every_number_of_stages_up_to_the_number_of_blocks_is_possible(tmp_path: Path) -> None:
    model = base(tmp_path)
    for stages in range(1, len(flatten(model)) + 1):
        assert len(plan_stages(model, BASE, rank_of=range(stages))) == stages


def test_the_longer_text_gets_more_of_the_stages(tmp_path: Path) -> None:
    model = base(tmp_path)
    plans = plan_stages(model, BASE, rank_of=range(4), tokens_per_record={"primary": 300, "secondary": 60})
    primary = [plan for plan in plans if plan.blocks[0].name.startswith("primary")]
    assert len(primary) == 4
    assert plans[-1].blocks[-1].name == "head"
    assert plans[-1].blocks[0].name == "primary.layer 5"


def test_the_table_says_where_the_work_is(tmp_path: Path) -> None:
    model = base(tmp_path)
    lines = stage_table(plan_stages(model, BASE, rank_of=range(4)), range(4)).splitlines()
    assert lines[0].split() == ["stage", "rank", "parameters", "cost", "blocks"]
    assert lines[1].split()[0:2] == ["0", "0"]
    assert "primary.embeddings to primary.layer 2 (4)" in lines[1]
    assert "to head" in lines[4]
    assert sum(int(line.split()[2].replace(",", "")) for line in lines[1:]) == sum(
        p.numel() for p in model.parameters()
    )
