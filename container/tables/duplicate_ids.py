"""Count ids that occur more than once, in bounded memory and in one pass."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
        ids = contiguous(column).cast(pa.string()).drop_null()
        if len(ids):
            self.add_hashes(_hashes(ids), ids)

    def add_hashes(self, hashes: np.ndarray, ids: pa.Array | None = None) -> None:
        """Count a batch by hashes of its content; with the ids themselves, one of them can become the example. [R]"""
        if not len(hashes):
            return
        ids = pa.nulls(len(hashes), pa.string()) if ids is None else ids
        self._pending.append((hashes, ids))
        self._num_pending += len(hashes)
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
        watched = np.concatenate([self._seen, hashes])
        watched = np.sort(watched[self._is_watched(watched)])
        distinct = watched[np.append(watched[1:] != watched[:-1], True)]  # np.unique takes ten times as long
        repeats = len(watched) - len(distinct)
        if repeats and self.example is None:
            self._find_example(hashes)
        self._pending, self._num_pending = [], 0
        self._seen = distinct
        self._repeats += repeats
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


def content_hashes(table: pa.Table) -> np.ndarray:
    """Return a hash of the text of each row, equal for equal cells, independent of the order of columns. [R] uint64"""
    texts = [pc.cast(contiguous(table[name]), pa.string()) for name in sorted(table.column_names)]
    return _hashes(pc.binary_join_element_wise(*texts, "\x1f", null_handling="replace", null_replacement=""))


def occurrences(hashes: np.ndarray) -> np.ndarray:
    """Return how often the hash of each row occurred before it. [R] -> [R] int64"""
    order = np.argsort(hashes, kind="stable")
    _, starts, counts = np.unique(hashes[order], return_index=True, return_counts=True)
    before = np.empty(len(hashes), np.int64)
    before[order] = np.arange(len(hashes)) - np.repeat(starts, counts)
    return before


def _hashes(texts: pa.Array) -> np.ndarray:
    from pandas.util import hash_array  # the import takes 0.3 s, which workers of a training job would spend too

    cells = texts.to_numpy(zero_copy_only=False).astype(object)
    return hash_array(cells, categorize=False)  # pyright: ignore[reportCallIssue] - pandas.util loads it without a type


def count_shared(parts: Sequence[DuplicateIds]) -> int:
    """Return the number of ids that occur in several of `parts`; scaled up like the count of a part."""
    for part in parts:
        part._settle()
    bits = max(part.skipped_bits for part in parts)
    watched = np.concatenate([part._seen for part in parts])
    watched = watched[watched & np.uint64((1 << bits) - 1) == 0]
    _, occurrences = np.unique(watched, return_counts=True)
    return int(np.count_nonzero(occurrences > 1)) << bits
