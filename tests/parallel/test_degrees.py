"""The product of every strategy's sizes is the number of processes, or one message lists sizes that work."""

from itertools import product

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore

from container.parallel.degrees import AXES, ParallelDegrees
from contracts.consistency import microbatches_fit, microbatches_of
from contracts.errors import ContractError
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.settings.processes import TWO_STAGE_SCHEDULES
from contracts.unused_settings import unused_settings
from testing.jobs import CONFIGURATION, TWO_TEXTS

SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
STRATEGIES = ("auto", "ddp", "fsdp", "hsdp", "tp", "pp", "branch")


def hyperparameters(*, texts: int = 2, **overrides: object) -> Hyperparameters:
    base = {**CONFIGURATION, **(TWO_TEXTS if texts == 2 else {}), **overrides}
    return parse_hyperparameters({name: value for name, value in base.items() if value is not None})


def resolve(world_size: int, *, per_host: int | None = None, **overrides: object) -> dict[str, int]:
    return ParallelDegrees.resolve(hyperparameters(**overrides), world_size, per_host=per_host).axes


def refusal(world_size: int, **overrides: object) -> str:
    with pytest.raises(ContractError) as caught:
        resolve(world_size, **overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("world_size", "requested", "axes"),
    [
        (8, {}, {"dp_replicate": 8}),
        (8, {"strategy": "ddp"}, {"dp_replicate": 8}),
        (8, {"strategy": "fsdp"}, {"dp_shard": 8}),
        (8, {"strategy": "fsdp", "sharding_strategy": "NO_SHARD"}, {"dp_replicate": 8}),
        (8, {"strategy": "fsdp", "dp_shard_size": 4}, {"dp_replicate": 2, "dp_shard": 4}),
        (8, {"strategy": "fsdp", "dp_replicate_size": 2}, {"dp_replicate": 2, "dp_shard": 4}),
        (8, {"strategy": "hsdp", "dp_shard_size": 4}, {"dp_replicate": 2, "dp_shard": 4}),
        (8, {"strategy": "hsdp", "dp_replicate_size": 4}, {"dp_replicate": 4, "dp_shard": 2}),
        (8, {"strategy": "hsdp", "dp_shard_size": 2, "tp_size": 2}, {"dp_replicate": 2, "dp_shard": 2, "tp": 2}),
        (8, {"strategy": "tp"}, {"tp": 8}),
        (8, {"strategy": "tp", "tp_size": 2}, {"dp_replicate": 4, "tp": 2}),
        (8, {"strategy": "pp", "num_microbatches": 8}, {"pp": 8}),
        (8, {"strategy": "pp", "pp_size": 2, "dp_shard_size": -1}, {"pp": 2, "dp_shard": 4}),
        (8, {"strategy": "branch"}, {"dp_replicate": 4, "branch": 2}),
        (8, {"strategy": "branch", "dp_shard_size": -1}, {"dp_shard": 4, "branch": 2}),
        (8, {"pp_size": 2, "tp_size": 2}, {"pp": 2, "dp_replicate": 2, "tp": 2}),
        (8, {"pp_size": -1, "tp_size": 2}, {"pp": 4, "tp": 2}),
        (16, {"pp_size": 2, "dp_replicate_size": 2, "dp_shard_size": 2, "branch_size": 2},
         {"pp": 2, "dp_replicate": 2, "dp_shard": 2, "branch": 2}),
        (1, {"strategy": "tp"}, {}),
    ],
)  # fmt: skip
def test_given_sizes_have_priority_and_the_strategy_takes_the_remaining_processes(world_size, requested, axes):
    assert resolve(world_size, **requested) == axes


def test_hsdp_shards_within_a_host_if_there_are_several():
    assert resolve(16, per_host=8, strategy="hsdp") == {"dp_replicate": 2, "dp_shard": 8}
    assert resolve(16, per_host=8, strategy="hsdp", tp_size=2) == {"dp_replicate": 2, "dp_shard": 4, "tp": 2}
    assert resolve(16, per_host=8, strategy="hsdp", pp_size=2) == {"pp": 2, "dp_shard": 8}


def test_hsdp_on_one_host_requires_the_size_of_a_shard_group():
    assert "the number of ranks that hold one copy of the model, to one of [2, 4, 8]" in refusal(16, strategy="hsdp")


def test_a_wrong_product_is_refused_with_all_degrees_the_world_size_and_sizes_that_work():
    message = refusal(8, pp_size=2, dp_replicate_size=3)
    assert "pp=2, dp_replicate=3, dp_shard=1, branch=1, tp=1 multiply to 6, but there are 8 processes" in message
    assert "WORLD_SIZE=8" in message
    assert "Make nproc_per_node x hosts 6; or set sizes whose product is 8" in message


def test_a_world_size_that_the_sizes_do_not_divide_is_refused_with_the_nearest_above_and_below():
    message = refusal(16, pp_size=4, tp_size=3)
    assert "need a multiple of 12, but there are 16" in message
    assert "x hosts 12 or 24;" in message


@pytest.mark.parametrize("first", AXES)
@pytest.mark.parametrize("second", AXES)
def test_two_axes_that_both_take_the_remaining_processes_are_refused(first, second):
    # -1 is dp_replicate's default, so it is not given.
    if first < second and not {"branch", "dp_replicate"} & {first, second}:
        message = refusal(8, **{f"{first}_size": -1, f"{second}_size": -1})
        assert f"{first}_size" in message
        assert f"{second}_size" in message


def test_ddp_with_a_pipeline_is_refused_and_the_message_names_auto():
    message = refusal(8, strategy="ddp", pp_size=2, pp_schedule="ZBVZeroBubble")
    assert "pp_size is 2" in message
    assert "Set strategy to auto" in message
    assert resolve(8, pp_size=2, pp_schedule="ZBVZeroBubble") == {"pp": 2, "dp_replicate": 4}


@pytest.mark.parametrize("name", [f"{axis}_size" for axis in AXES])
def test_a_size_of_zero_is_refused(name):
    assert name in refusal(4, **{name: 0})


@pytest.mark.parametrize(("strategy", "axis"), [("ddp", "dp_replicate"), ("hsdp", "dp_replicate")])
def test_a_strategy_whose_own_axis_is_set_to_one_is_refused(strategy, axis):
    assert f"{axis}_size: is 1, with strategy '{strategy}'" in refusal(4, strategy=strategy, **{f"{axis}_size": 1})


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "tp", "pp", "branch"])
def test_sizes_set_to_their_default_do_not_count_as_given(strategy):
    written = {f"{axis}_size": Hyperparameters.model_fields[f"{axis}_size"].default for axis in AXES}
    requested = {"strategy": strategy, "pp_schedule": "GPipe"}
    assert resolve(2, **requested, **written) == resolve(2, **requested)


def test_branches_need_two_texts_and_exactly_two_ranks():
    assert "has 1 text encoder" in refusal(2, texts=1, strategy="branch")
    assert "has 1 text encoder" in refusal(2, texts=1, branch_size=-1)
    assert "branch_size: is 4" in refusal(4, branch_size=4)
    assert resolve(4, branch_size=-1) == {"dp_replicate": 2, "branch": 2}


def test_no_shard_contradicts_a_size_of_shards():
    assert "NO_SHARD" in refusal(4, sharding_strategy="NO_SHARD", dp_shard_size=4)
    assert "NO_SHARD" in refusal(4, sharding_strategy="NO_SHARD", strategy="hsdp")


@pytest.mark.parametrize(
    ("requested", "named"),
    [
        ({"gradient_compression": "bf16", "strategy": "fsdp"}, "gradient_compression"),
        ({"gradient_compression": "fp16", "pp_size": 2}, "gradient_compression"),
        ({"cpu_offload": True}, "cpu_offload"),
        ({"cpu_offload": True, "strategy": "pp"}, "cpu_offload"),
        ({"sequence_parallel": True, "strategy": "fsdp"}, "sequence_parallel"),
        ({"pp_size": 2, "compile": True, "pp_schedule": "ZBVZeroBubble"}, "compile"),
        ({"pp_size": 2, "activation_checkpointing": 1, "pp_schedule": "ZBVZeroBubble"}, "activation_checkpointing"),
    ],
)
def test_a_setting_that_contradicts_the_degrees_is_refused(requested, named):
    assert refusal(4, **requested).startswith(f"{named}: is ")


def test_microbatches_must_share_a_pass_evenly_under_a_pipeline_and_the_message_lists_those_that_do():
    message = refusal(2, strategy="pp", batch_size=12, num_microbatches=5)
    assert "cannot divide batch_size 12 evenly" in message
    assert "one of [2, 3, 4, 6, 12]" in message
    assert resolve(2, strategy="ddp", batch_size=12, num_microbatches=5) == {"dp_replicate": 2}


def test_microbatches_must_suit_the_schedule_and_the_message_lists_those_that_do():
    message = refusal(4, strategy="pp", batch_size=16, num_microbatches=2)
    assert "too few for 4 ranks under 1F1B" in message
    assert "one of [4, 8, 16]" in message
    message = refusal(2, strategy="pp", batch_size=30, num_microbatches=15, pp_schedule="Interleaved1F1B")
    assert "cannot form 7 equal rounds over 2 ranks" in message
    assert "one of [1, 2, 3, 6, 10, 30]" in message
    assert "Set batch_size to 16 or more" in refusal(16, strategy="pp", num_microbatches=8)


@pytest.mark.parametrize(
    ("ranks", "settings", "count"),
    [
        (4, {"batch_size": 64}, 16),
        (4, {"batch_size": 12}, 12),
        (2, {"batch_size": 37}, 37),
        (8, {"batch_size": 4, "pp_schedule": "GPipe"}, 4),
        (2, {"batch_size": 7, "pp_schedule": "Interleaved1F1B"}, 1),
        (4, {"batch_size": 64, "num_microbatches": 8}, 8),
        (1, {"num_microbatches": 8}, 1),
    ],
)
def test_a_pass_has_up_to_four_microbatches_for_each_rank_of_a_pipeline_unless_set(ranks, settings, count):
    assert microbatches_of(hyperparameters(**settings), ranks) == count


def test_a_batch_that_cannot_fill_a_pipeline_is_refused():
    assert "batch_size: 3 records cannot fill a pipeline of 4 ranks" in refusal(4, strategy="pp", batch_size=3)


@pytest.mark.parametrize(
    ("world_size", "requested", "features"),
    [
        (4, {}, {"dp_replicate", "ddp"}),
        (4, {"strategy": "fsdp"}, {"dp_shard", "fsdp"}),
        (4, {"strategy": "fsdp", "sharding_strategy": "NO_SHARD"}, {"dp_replicate", "fsdp"}),
        (4, {"pp_size": 2}, {"pp", "dp_replicate", "fsdp"}),
        (4, {"strategy": "tp"}, {"tp"}),
        (1, {}, set()),
    ],
)
def test_ddp_makes_replicas_only_if_there_is_no_other_axis(world_size, requested, features):
    hp = hyperparameters(**requested)
    assert ParallelDegrees.resolve(hp, world_size).features(hp) == features


@pytest.mark.parametrize(
    ("world_size", "requested", "unused"),
    [
        (4, {"pp_schedule": "GPipe", "num_microbatches": 2}, ["pp_schedule", "num_microbatches"]),
        (4, {"pp_size": 2, "pp_schedule": "GPipe", "num_microbatches": 2}, []),
        (4, {"gradient_compression": "bf16"}, []),
        (1, {"gradient_compression": "bf16", "strategy": "ddp"}, ["gradient_compression", "strategy"]),
        (4, {"fsdp_accumulation": "whole", "accumulate_grad_batches": 2, "sharding_strategy": "SHARD_GRAD_OP"},
         ["sharding_strategy", "fsdp_accumulation"]),
        (4, {"strategy": "fsdp", "sharding_strategy": "NO_SHARD"}, []),
        (4, {"pp_size": 2, "sharding_strategy": "SHARD_GRAD_OP"}, ["sharding_strategy"]),
        (4, {"strategy": "fsdp", "fsdp_reduce_dtype": "bfloat16", "bf16": False}, ["fsdp_reduce_dtype"]),
        (4, {"strategy": "fsdp", "fsdp_reduce_dtype": "bfloat16"}, []),  # bf16 is auto
        (4, {"strategy": "fsdp", "fsdp_reduce_dtype": "bfloat16", "bf16": True}, []),
        (4, {"strategy": "tp", "sequence_parallel": False}, []),
        (4, {"strategy": "pp", "sequence_parallel": False}, []),  # an explicit default does not count as set
    ],
)  # fmt: skip
def test_settings_of_inactive_features_are_named(world_size, requested, unused):
    hp = hyperparameters(**requested)
    message = unused_settings(hp, ParallelDegrees.resolve(hp, world_size).features(hp))
    assert sorted(sentence.split()[0] for sentence in message) == sorted(unused)


SIZES = st.sampled_from([None, -1, 1, 2, 3, 4, 6, 8])
SETTINGS = {"strategy": st.sampled_from(STRATEGIES), **{f"{axis}_size": SIZES for axis in AXES}}
REQUESTED = st.fixed_dictionaries({**SETTINGS, "pp_schedule": st.just("GPipe")})  # for any number of microbatches
WORLDS = st.integers(1, 48)


@settings(max_examples=400)
@given(requested=REQUESTED, world_size=WORLDS, texts=st.sampled_from([1, 2]))
def test_degrees_multiply_to_the_world_size_with_given_sizes_kept_or_the_message_names_it(requested, world_size, texts):
    hp = hyperparameters(texts=texts, **requested)
    degrees = refused = None
    try:
        degrees = ParallelDegrees.resolve(hp, world_size)
    except ContractError as error:
        refused = error
    if degrees is None:
        assert f"WORLD_SIZE={world_size}" in refused.cause
        assert refused.fix
    else:
        assert degrees.product == world_size
        given = {axis: getattr(hp, f"{axis}_size") for axis in AXES if f"{axis}_size" in hp.model_fields_set}
        assert all(size in (-1, getattr(degrees, axis)) for axis, size in given.items())


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_microbatches_that_are_accepted_are_those_that_torch_can_schedule(ranks):
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        for name, count in product(SCHEDULES, range(1, 21)):
            assert microbatches_fit(name, count, ranks) == torch_can_schedule(name, count, ranks), (name, count)
    finally:
        dist.destroy_process_group()


def torch_can_schedule(name: str, count: int, ranks: int) -> bool:
    own = [0]
    if name in TWO_STAGE_SCHEDULES:
        own.append(2 * ranks - 1 if name == "ZBVZeroBubble" else ranks)
    example = (torch.empty(1, 2, device="meta"),)
    stages = [
        PipelineStage(
            nn.Linear(2, 2), index, ranks * len(own), torch.device("cpu"), input_args=example, output_args=example
        )
        for index in own
    ]
    build = getattr(pipelining, f"Schedule{name}")
    try:
        build(stages if len(own) > 1 else stages[0], count, loss_fn=nn.MSELoss())
    except ValueError:
        return False
    return True


def test_every_axis_is_reachable_by_its_own_strategy():
    for strategy, texts in product(STRATEGIES, (1, 2)):
        if strategy not in ("hsdp", "branch"):
            assert sum(size == 2 for size in resolve(2, strategy=strategy, texts=texts).values()) == 1
