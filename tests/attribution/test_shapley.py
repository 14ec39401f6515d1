"""Shapley values: exact ones are those of the definition, estimates come close and say how close."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import spearmanr

from container.attribution.shapley import MOST_EXACT, Exact, Sampled, attribution


def game(num_parts: int, seed: int = 0):
    """A value with interactions of two and three parts, for coalitions [M, n]."""
    rng = np.random.default_rng(seed)
    single, double = rng.normal(size=num_parts), rng.normal(size=(num_parts, num_parts)) / num_parts

    def value(coalitions: np.ndarray) -> np.ndarray:
        kept = coalitions.astype(float)
        return np.tanh(kept @ single) + kept @ single + np.einsum("mi,ij,mj->m", kept, double, kept)

    return value


def by_definition(value, num_parts: int) -> np.ndarray:
    found = np.zeros(num_parts)
    orders = list(permutations(range(num_parts)))
    for order in orders:
        kept = np.zeros((num_parts + 1, num_parts), bool)
        for i, part in enumerate(order):
            kept[i + 1 :, part] = True
        found[list(order)] += np.diff(value(kept))
    return found / len(orders)


def test_exact_values_are_the_mean_over_all_orders():
    value, exact = game(6), Exact.of(6)
    found, errors = exact.values(value(exact.coalitions))
    np.testing.assert_allclose(found, by_definition(value, 6), atol=1e-12)
    assert errors is None


def test_a_record_without_an_active_part_has_no_values():
    exact = Exact.of(0)
    assert exact.coalitions.shape == (1, 0)
    assert exact.values(np.zeros(1))[0].shape == (0,)


@pytest.mark.parametrize(("num_parts", "kind"), [(MOST_EXACT, Exact), (MOST_EXACT + 1, Sampled)])
def test_up_to_ten_parts_are_exact(num_parts, kind):
    assert isinstance(attribution(num_parts, [], permutations=None), kind)


def test_estimates_at_200_permutations_are_close_to_exact_values():
    correlations = []
    for seed in range(50):
        value, exact = game(10, seed), Exact.of(10)
        sampled = Sampled.of(10, [], pairs=100, orders=100)
        estimate, _ = sampled.values(value(sampled.coalitions))
        correlations.append(spearmanr(estimate, exact.values(value(exact.coalitions))[0]).statistic)
    assert min(correlations) >= 0.95


def test_an_estimate_adds_up_whatever_its_error():
    sampled, value = Sampled.of(14, [2, 3, 4], pairs=8, orders=2), game(14)
    found, _ = sampled.values(value(sampled.coalitions))
    none, every = value(np.array([[False] * 14, [True] * 14]))
    assert found.sum() == pytest.approx(every - none)


def test_the_standard_error_covers_the_error():
    value, exact = game(8), Exact.of(8)
    expected, _ = exact.values(value(exact.coalitions))
    sampled = Sampled.of(8, [], pairs=40, orders=40)
    found, errors = sampled.values(value(sampled.coalitions))
    assert (np.abs(found - expected) <= 3.5 * errors + 1e-12).all()
    assert errors.max() < 0.1


def test_the_same_record_gets_the_same_estimate():
    first, second = (attribution(12, [1, 2, 3], permutations=20) for _ in range(2))
    np.testing.assert_array_equal(first.coalitions, second.coalitions)


def test_pieces_of_texts_occur_in_few_sets():
    sampled = attribution(20, range(8), permutations=None)
    sets = np.unique(sampled.coalitions[:, :8], axis=0)
    assert len(sets) <= 100
    assert len(np.unique(sampled.coalitions[:, 8:], axis=0)) > 500
