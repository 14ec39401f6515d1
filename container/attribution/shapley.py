"""Compute Shapley values: exactly from all coalitions of few parts, or by sampling permutations of many.

A coalition is the set of parts that a record keeps. The Shapley value of a part is the mean, over all orders of the
parts, of the change of the value when the part joins those before it (Shapley, 1953, A Value for n-Person Games).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import factorial
from typing import Self

import numpy as np

MOST_EXACT = 10  # parts: 1,024 coalitions
_SEED = 0
_PERMUTATIONS, _FEWEST = 200, 8
_COALITIONS = 4096  # of the sampled permutations, about
_PASSES = 96  # of the encoders, about: two coalitions with the same pieces of text share one
_FEWEST_ORDERS = 4  # two pairs, for a standard error


def attribution(num_parts: int, pieces: Sequence[int], *, permutations: int | None) -> "Exact | Sampled":
    """Return the exact values for up to 10 parts, otherwise estimates.

    Args:
        pieces: the parts that are pieces of texts, each set of which costs a pass of the encoders.
        permutations: None = by the number of parts.
    """
    if num_parts <= MOST_EXACT:
        return Exact.of(num_parts)
    count, orders = permutations, permutations
    if count is None:
        count = min(_PERMUTATIONS, max(_FEWEST, _COALITIONS // (num_parts + 1)))
        orders = min(count, max(_FEWEST_ORDERS, _PASSES // max(1, len(pieces))))
    return Sampled.of(num_parts, pieces, pairs=count // 2, orders=(orders or count) // 2)


@dataclass(frozen=True)
class Exact:
    """All coalitions: number i keeps the parts whose bits are 1 in i.

    Attributes:
        coalitions: the parts that each keeps; two of them have no part and every part. [M, n] bool
    """

    coalitions: np.ndarray

    @classmethod
    def of(cls, num_parts: int) -> Self:
        numbers = np.arange(1 << num_parts)
        return cls((numbers[:, None] >> np.arange(num_parts) & 1).astype(bool))

    def values(self, found: np.ndarray) -> tuple[np.ndarray, None]:
        """Return the Shapley values from the coalitions' values, without standard errors. [M] -> [n]"""
        num_parts = self.coalitions.shape[1]
        sizes, numbers = self.coalitions.sum(axis=1), np.arange(len(found))
        weights = np.array(
            [factorial(s) * factorial(num_parts - s - 1) / factorial(num_parts) for s in range(num_parts)]
        )
        values = np.empty(num_parts)
        for part in range(num_parts):
            without = numbers[~self.coalitions[:, part]]
            values[part] = weights[sizes[without]] @ (found[without | 1 << part] - found[without])
        return values, None


@dataclass(frozen=True)
class Sampled:
    """Pairs of a permutation and its reverse, which removes the error of the first order (antithetic sampling).

    Source: Mitchell, Cooper, Frank & Holmes, 2022, Sampling Permutations for Shapley Value Estimation, section 3.

    Attributes:
        coalitions: as in Exact.
        permutations: each with its reverse behind it. [P, n]
        chains: the coalitions of the first 0..n parts of each permutation. [P, n + 1]
        orders: number of different orders of the pieces; permutations with the same one are not independent.
    """

    coalitions: np.ndarray
    permutations: np.ndarray
    chains: np.ndarray
    orders: int

    @classmethod
    def of(cls, num_parts: int, pieces: Sequence[int], *, pairs: int, orders: int) -> Self:
        """Sample with a fixed seed, so that a record always gets the same reasons.

        Pieces keep one of the few `orders` among each other. So there are few different texts, each of which costs a
        pass of the encoders, and many places of the columns between them.
        """
        rng = np.random.default_rng(_SEED)
        shared = [rng.permutation(np.asarray(pieces, np.int64)) for _ in range(orders)]
        is_piece = np.isin(np.arange(num_parts), pieces)
        permutations = np.empty((2 * pairs, num_parts), np.int64)
        for pair in range(pairs):
            order = rng.permutation(num_parts)
            order[is_piece[order]] = shared[pair % orders]
            permutations[2 * pair], permutations[2 * pair + 1] = order, order[::-1]
        place = np.empty_like(permutations)
        np.put_along_axis(place, permutations, np.arange(num_parts)[None], axis=1)
        kept = place[:, None, :] < np.arange(num_parts + 1)[:, None]  # [P, n + 1, n]
        packed = np.packbits(kept.reshape(-1, num_parts), axis=1)
        _, first, chains = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        coalitions = kept.reshape(-1, num_parts)[first]
        groups = orders if len(pieces) > 1 else pairs
        return cls(coalitions, permutations, chains.reshape(2 * pairs, num_parts + 1), groups)

    def values(self, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return estimates of the Shapley values, and their standard errors. [M] -> [n], [n]"""
        num_parts = self.coalitions.shape[1]
        gains = np.empty((len(self.permutations), num_parts))  # of each part, in its place
        np.put_along_axis(gains, self.permutations, np.diff(found[self.chains], axis=1), axis=1)
        pairs = gains.reshape(-1, 2, num_parts).mean(axis=1)  # [P / 2, n]
        means = np.stack([pairs[order :: self.orders].mean(axis=0) for order in range(self.orders)])
        return pairs.mean(axis=0), means.std(axis=0, ddof=1) / np.sqrt(self.orders)
