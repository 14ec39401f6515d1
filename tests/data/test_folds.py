"""Folds keep groups together, and have about the same share of each class."""

import numpy as np
import pytest

from container.data.folds import even_folds


def counts(folds: np.ndarray, labels: np.ndarray, *, num_folds: int) -> np.ndarray:
    """Records of each fold and class. [F, K]"""
    return np.array([np.bincount(labels[folds == fold], minlength=labels.max() + 1) for fold in range(num_folds)])


@pytest.mark.parametrize("of_classes", [(300, 30, 7), (3,) * 40, (1, 1, 1), (101,)])
def test_the_folds_are_even_in_all_and_by_class(of_classes):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(of_classes)), of_classes))
    found = counts(even_folds(np.arange(len(labels)), labels, num_folds=5, seed=7), labels, num_folds=5)
    assert np.ptp(found, axis=0).max() <= 1
    assert np.ptp(found.sum(axis=1)) <= 1


@pytest.mark.parametrize("num_groups", [5, 12, 60])
def test_groups_stay_together_and_each_fold_has_some_and_about_its_share_of_each_class(num_groups):
    rng = np.random.default_rng(num_groups)
    groups = rng.integers(0, num_groups, 400)
    groups[:num_groups] = np.arange(num_groups)
    labels = (rng.random(400) < 0.2).astype(int)
    folds = even_folds(groups, labels, num_folds=5, seed=0)
    assert all(len(set(folds[groups == group])) == 1 for group in range(num_groups))
    found = counts(folds, labels, num_folds=5)
    assert (found.sum(axis=1) > 0).all()
    if num_groups == 60:
        assert np.ptp(found, axis=0).tolist() <= [30, 10]


def test_one_group_is_one_fold_and_fewer_groups_than_folds_leave_folds_empty():
    labels = np.arange(9) % 2
    assert np.ptp(even_folds(np.zeros(9, int), labels, num_folds=3, seed=0)) == 0
    assert len(set(even_folds(np.arange(9) // 5, labels, num_folds=3, seed=0))) == 2


def test_the_seed_and_the_numbers_of_the_rows_determine_the_folds():
    labels = np.random.default_rng(0).integers(0, 3, 90)
    for units in (np.arange(90), np.arange(90) // 2):
        first, same, other = (even_folds(units, labels, num_folds=3, seed=seed) for seed in (1, 1, 2))
        assert (first == same).all()
        assert (first != other).any()
