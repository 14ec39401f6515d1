"""Divide records into folds: groups stay together, and each fold has about the same share of each class."""

import numpy as np

from container.preprocessing.risk_tables import fold_of

_HASHES = 2**31


def even_folds(units: np.ndarray, labels: np.ndarray, *, num_folds: int, seed: int) -> np.ndarray:
    """Return the fold of each record: the records, by class and then by a hash, go to the folds in turn. [N]

    A group of several records goes to the fold that has the smallest share of its classes.

    Args:
        units: number of the record's row or group; with fewer distinct ones than folds, some folds are empty. [N]
        labels: any integers. [N]
    """
    groups, places = np.unique(units, return_inverse=True)
    if len(groups) == len(units):
        order = hash_order(units, seed=seed)
        folds = np.empty(len(labels), np.int64)
        folds[order[np.argsort(labels[order], kind="stable")]] = np.arange(len(labels)) % num_folds
        return folds
    kinds, codes = np.unique(labels, return_inverse=True)
    counts = np.zeros((len(groups), len(kinds)))
    np.add.at(counts, (places, codes), 1)
    shares = counts / counts.sum(axis=0)  # of the records of each class
    order = hash_order(groups, seed=seed)
    of_group, held = np.empty(len(groups), np.int64), np.zeros((num_folds, len(kinds)))
    magnitudes = np.log2(counts.sum(axis=1)).astype(np.int64)
    for group in order[np.argsort(-magnitudes[order], kind="stable")]:  # the largest first; each seed has other folds
        of_group[group] = fold = np.lexsort((held.sum(axis=1), held @ shares[group]))[0]
        held[fold] += shares[group]
    return of_group[places]


def hash_order(numbers: np.ndarray, *, seed: int) -> np.ndarray:
    """Return positions that order rows by a hash of their numbers. [N]"""
    return np.argsort(fold_of(numbers, seed=seed, num_folds=_HASHES), kind="stable")
