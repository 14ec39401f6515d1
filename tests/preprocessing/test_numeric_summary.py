"""Statistics that do not depend on the division of the data into batches."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.preprocessing.numeric_summary import NumericSummary, exact_sum, weighted_quantiles
from container.tables.duplicate_ids import DuplicateIds, count_shared

NUMBERS = st.lists(st.one_of(st.just(math.nan), st.floats(-3e38, 3e38), st.integers(-5, 5).map(float)), max_size=60)


def summary(*parts: list[float], limit: int = 1 << 18) -> NumericSummary:
    """The summary of batches, of which each is grouped before the next one comes."""
    found = NumericSummary(limit=limit)
    for part in parts:
        found.add(np.array(part, np.float64))
        found.distribution.items()
    return found


def state(found: NumericSummary) -> tuple[object, ...]:
    values, counts = found.distribution.items()
    return (
        *(found.count, found.missing, found.minimum, found.maximum),
        *map(str, (found.mean, found.std, found.median, found.mode)),
        *(values.tolist(), counts.tolist(), found.distribution.dropped_bits),
    )


@pytest.mark.parametrize("limit", [1 << 18, 4])
@given(parts=st.lists(NUMBERS, min_size=1, max_size=4))
def test_batches_in_any_order_have_exactly_the_statistics_of_the_whole(limit: int, parts: list[list[float]]) -> None:
    whole = state(summary([value for part in parts for value in part], limit=limit))
    assert state(summary(*parts, limit=limit)) == whole
    assert state(summary(*reversed(parts), limit=limit)) == whole


@given(NUMBERS)
def test_a_sum_is_the_correctly_rounded_one(values: list[float]) -> None:
    present = [value for value in values if not math.isnan(value)]
    assert float(exact_sum(np.array(present, np.float64))) == math.fsum(present)


def test_mean_and_spread_survive_numbers_far_from_zero() -> None:
    found = summary([1e15 + 1, 1e15 + 2, 1e15 + 3])
    assert found.mean == 1e15 + 2
    assert found.std == pytest.approx(math.sqrt(2 / 3), rel=1e-15)


def test_the_described_values_are_numpys() -> None:
    values = np.random.default_rng(0).normal(3, 2, 1001).round(1)
    found = summary([*values, math.nan, math.nan])
    assert (found.count, found.missing) == (1001, 2)
    assert found.mean == pytest.approx(values.mean(), rel=1e-14)
    assert found.std == pytest.approx(values.std(), rel=1e-14)
    assert (found.median, found.minimum, found.maximum) == (np.median(values), values.min(), values.max())
    distinct, counts = np.unique(values, return_counts=True)
    assert found.mode == distinct[np.argmax(counts)]


@given(st.lists(st.integers(-9, 9).map(float), min_size=1), st.integers(1, 12))
def test_weighted_quantiles_are_those_of_the_repeated_values(values: list[float], num: int) -> None:
    distinct, counts = np.unique(values, return_counts=True)
    probabilities = np.linspace(0, 1, num)
    expected = np.quantile(values, probabilities)
    np.testing.assert_allclose(weighted_quantiles(distinct, counts, probabilities), expected, atol=1e-12)


def test_beyond_the_limit_values_are_grouped_within_a_known_error() -> None:
    values = np.random.default_rng(1).lognormal(0, 2, 50_000)
    found = summary(values, limit=2048)
    kept, counts = found.distribution.items()
    assert 1024 < len(kept) <= 2048
    assert counts.sum() == 50_000
    error = 2.0 ** (found.distribution.dropped_bits - 52)
    assert found.median == pytest.approx(np.median(values), rel=error)
    assert found.mean == pytest.approx(values.mean(), rel=1e-14)


def test_nothing_to_describe_is_null() -> None:
    found = summary([math.nan]).to_dict()
    assert found == {"count": 0, "missing": 1, "mean": None, "std": None, "median": None, "min": None, "max": None}


def test_duplicate_ids_are_counted_across_batches_and_an_example_is_kept() -> None:
    found = DuplicateIds()
    found.add(pa.array(["a", "b", None, None]))
    assert (found.count, found.example) == (0, None)
    found.add(pa.array(["c", "b", "b"]))
    assert (found.count, found.example) == (2, "b")
    found.add(pa.array(["d", "c"]))
    assert (found.count, found.example) == (3, "b")


def test_beyond_the_limit_duplicate_ids_are_estimated_in_bounded_memory() -> None:
    found = DuplicateIds(limit=2000)
    for start in range(0, 100_000, 10_000):
        found.add(pa.array(range(start, start + 10_000)))
    assert found.count == 0
    found.add(pa.array(range(30_000)))
    assert found.count == pytest.approx(30_000, rel=0.15)
    assert len(found._seen) <= 2000


def test_ids_that_several_splits_share_are_counted_once_each() -> None:
    first, second, third = DuplicateIds(), DuplicateIds(), DuplicateIds()
    for part, ids in ((first, "aabc"), (second, "bc"), (third, "cd")):
        part.add(pa.array(list(ids)))
    assert count_shared([first, second, third]) == 2


def test_shared_ids_are_estimated_where_one_of_the_splits_is_sampled() -> None:
    large, small = DuplicateIds(limit=1000), DuplicateIds(limit=1000)
    large.add(pa.array(range(20_000)))
    small.add(pa.array(range(19_100, 20_000)))
    assert count_shared([large, small]) == pytest.approx(900, rel=0.5)
    assert (large.skipped_bits, small.skipped_bits) == (5, 0)
