import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.data.sampler import BatchPlan, epoch_order, split_batch


def test_the_order_depends_on_seed_and_epoch_alone():
    assert (epoch_order(50, seed=1, epoch=2) == epoch_order(50, seed=1, epoch=2)).all()
    assert not (epoch_order(50, seed=1, epoch=2) == epoch_order(50, seed=1, epoch=3)).all()
    assert not (epoch_order(50, seed=1, epoch=2) == epoch_order(50, seed=2, epoch=2)).all()


@given(
    counts=st.lists(st.integers(1, 500), min_size=1, max_size=24),
    data_size=st.sampled_from([1, 2, 4]),
    microbatches=st.sampled_from([1, 3]),
)
def test_every_record_is_in_one_microbatch_and_none_is_too_large(counts, data_size, microbatches):
    batch_plan = BatchPlan(
        microbatch_size=-(-24 // (data_size * microbatches)),
        data_parallel_size=data_size,
        num_microbatches=microbatches,
    )
    split = split_batch(np.array(counts), batch_plan)
    assert len(split) == data_size * -(-len(counts) // (data_size * batch_plan.microbatch_size))
    assert sorted(np.concatenate(split).tolist()) == list(range(len(counts)))
    assert max(map(len, split)) <= batch_plan.microbatch_size


@given(records=st.integers(4, 24), seed=st.integers(0, 9))
def test_a_global_batch_that_does_not_fill_its_microbatches_leaves_none_empty(records, seed):
    batch_plan = BatchPlan(microbatch_size=-(-records // 4), data_parallel_size=2, num_microbatches=2, records=records)
    counts = np.random.default_rng(seed).integers(1, 500, records)
    split = split_batch(counts, batch_plan)
    assert sorted(np.concatenate(split).tolist()) == list(range(records))
    assert 1 <= min(map(len, split)) <= max(map(len, split)) <= batch_plan.microbatch_size
    assert batch_plan.steps(3 * records) == 3


@pytest.mark.parametrize(("records", "per_pass", "microbatches"), [(5, 1, 2), (9, 1, 4), (1, 1, 2), (3, 4, 8)])
def test_a_step_with_few_records_has_no_microbatches_beyond_the_passes_that_hold_them(records, per_pass, microbatches):
    batch_plan = BatchPlan(microbatch_size=4, data_parallel_size=2, num_microbatches=1000 * per_pass, per_pass=per_pass)
    split = split_batch(np.full(records, 7), batch_plan)
    assert len(split) == microbatches
    assert sum(len(indices) > 0 for indices in split) == min(records, microbatches)


def test_token_counts_balance_over_ranks():
    counts = np.random.default_rng(0).lognormal(4, 1, 64).astype(int) + 1
    loads = [
        counts[indices].sum() for indices in split_batch(counts, BatchPlan(microbatch_size=16, data_parallel_size=4))
    ]
    in_order = counts.reshape(4, 16).sum(axis=1)
    assert max(loads) / np.mean(loads) < 1.05 < max(in_order) / np.mean(in_order)


@pytest.mark.parametrize(("records", "steps"), [(24, 1), (25, 2), (48, 2)])
def test_the_last_step_may_be_smaller(records, steps):
    assert BatchPlan(microbatch_size=4, data_parallel_size=2, num_microbatches=3).steps(records) == steps


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=24), data_size=st.sampled_from([1, 3, 8]))
def test_each_record_the_longest_first_joins_the_lightest_microbatch_that_is_not_full(counts, data_size):
    batch_plan = BatchPlan(microbatch_size=24 // data_size, data_parallel_size=data_size)
    expected: list[list[int]] = [[] for _ in range(data_size)]
    for i in sorted(range(len(counts)), key=lambda i: -counts[i]):
        not_full = [part for part in expected if len(part) < batch_plan.microbatch_size]
        min(not_full, key=lambda part: sum(counts[k] for k in part)).append(i)
    found = split_batch(np.array(counts), batch_plan)
    assert [part.tolist() for part in found] == [sorted(part) for part in expected]


@given(
    counts=st.lists(st.integers(1, 500), min_size=1, max_size=48),
    data_size=st.sampled_from([1, 2, 3]),
    per_pass=st.sampled_from([1, 4]),
    max_tokens=st.integers(1, 3000),
)
def test_with_a_limit_a_microbatch_of_several_records_has_no_more_tokens(counts, data_size, per_pass, max_tokens):
    batch_plan = BatchPlan(48, data_size, per_pass, max_tokens=max_tokens, per_pass=per_pass)
    split = split_batch(np.array(counts), batch_plan)
    assert sorted(np.concatenate(split).tolist()) == list(range(len(counts)))
    assert len(split) % (data_size * per_pass) == 0
    assert all(len(part) <= 1 or sum(counts[i] for i in part) <= max_tokens for part in split)


@pytest.mark.parametrize(("max_tokens", "microbatches"), [(100_000, 1), (10_000, 4), (5_000, 7), (0, 2)])
def test_with_a_limit_the_passes_of_a_step_are_as_few_as_its_tokens_allow(max_tokens, microbatches):
    counts = np.random.default_rng(0).integers(1, 256, 512)  # 32,670 on each of two ranks
    batch_plan = BatchPlan(128, data_parallel_size=2, num_microbatches=2, max_tokens=max_tokens)
    assert len(split_batch(counts, batch_plan)) == 2 * microbatches
