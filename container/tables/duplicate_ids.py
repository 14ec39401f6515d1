"""Count ids that occur more than once, in bounded memory and in one pass."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from container.tables.values import contiguous

SAMPLE_LIMIT = 1 << 21
PENDING_LIMIT = 1 << 16


class DuplicateIds:
    """Count repeated ids of a split by their hash.

    The count is exact up to `limit` distinct ids. Beyond, only ids whose hash ends in `skipped_bits` zero bits count,
    and the result is scaled up.
    """

    def __init__(self, *, limit: int = SAMPLE_LIMIT) -> None:
        self.limit = limit
        self.skipped_bits = 0
        self.example: str | None = None
        self._repeats = 0
        self._seen = np.empty(0, np.uint64)
        self._pending: list[tuple[np.ndarray, pa.Array]] = []
        self._num_pending = 0

    def add(self, column: pa.Array | pa.ChunkedArray) -> None:
        """Count a batch of ids; null is not an id. [R]"""
        from pandas.util import hash_array  # the import takes 0.3 s, which workers of a training job would spend too

        ids = contiguous(column).cast(pa.string()).drop_null()
        if not len(ids):
            return
        cells = ids.to_numpy(zero_copy_only=False).astype(object)
        hashes = hash_array(cells, categorize=False)  # pyright: ignore[reportCallIssue] - pandas.util loads it without a type
        self._pending.append((hashes, ids))
        self._num_pending += len(ids)
        if self._num_pending > max(PENDING_LIMIT, len(self._seen) // 8):
            self._settle()

    @property
    def count(self) -> int:
        """Return the number of rows whose id an earlier row has."""
        self._settle()
        return self._repeats << self.skipped_bits

    def _settle(self) -> None:
        if not self._pending:
            return
        hashes = np.concatenate([part for part, _ in self._pending])
        if self.example is None:
            self._find_example(hashes)
        self._pending, self._num_pending = [], 0
        watched = np.concatenate([self._seen, hashes])
        watched = watched[self._is_watched(watched)]
        self._seen = np.unique(watched)
        self._repeats += len(watched) - len(self._seen)
        while len(self._seen) > self.limit:
            self.skipped_bits += 1
            self._repeats //= 2
            self._seen = self._seen[self._is_watched(self._seen)]

    def _is_watched(self, hashes: np.ndarray) -> np.ndarray:
        return hashes & np.uint64((1 << self.skipped_bits) - 1) == 0

    def _find_example(self, hashes: np.ndarray) -> None:
        watched = np.flatnonzero(self._is_watched(hashes))
        distinct, first, counts = np.unique(hashes[watched], return_index=True, return_counts=True)
        repeated = watched[first[(counts > 1) | np.isin(distinct, self._seen)]]
        if len(repeated):
            self.example = pa.chunked_array([ids for _, ids in self._pending])[int(repeated.min())].as_py()


def count_shared(parts: Sequence[DuplicateIds]) -> int:
    """Return the number of ids that occur in several of `parts`; scaled up like the count of a part."""
    for part in parts:
        part._settle()
    bits = max(part.skipped_bits for part in parts)
    watched = np.concatenate([part._seen for part in parts])
    watched = watched[watched & np.uint64((1 << bits) - 1) == 0]
    _, occurrences = np.unique(watched, return_counts=True)
    return int(np.count_nonzero(occurrences > 1)) << bits
