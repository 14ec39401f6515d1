"""Keep a sample of the rows of a stream, which does not depend on how the stream is divided."""

import numpy as np
import pyarrow as pa


class RowSample:
    """The rows whose keys are the smallest: at most `rows` rows and `num_bytes` bytes, at least about half as many.

    Attributes:
        pieces: tables with their rows' keys.
    """

    def __init__(self, *, rows: int, num_bytes: int) -> None:
        self.pieces: list[tuple[pa.Table, np.ndarray]] = []
        self._rows, self._bytes = rows, num_bytes
        self._sampled_rows = self._sampled_bytes = 0
        self._limit = np.iinfo(np.uint64).max

    def add(self, table: pa.Table, keys: np.ndarray) -> None:
        """Add rows with their keys, which are spread evenly over all uint64. [R]"""
        self._add(table, keys)
        while self._sampled_rows > self._rows or self._sampled_bytes > self._bytes:
            self._limit = self._limit // 2
            pieces, self.pieces = self.pieces, []
            self._sampled_rows = self._sampled_bytes = 0
            for piece in pieces:
                self._add(*piece)

    def _add(self, table: pa.Table, keys: np.ndarray) -> None:
        chosen = keys <= self._limit
        if chosen.any():
            rows = table.filter(pa.array(chosen)).combine_chunks()
            self.pieces.append((rows, keys[chosen]))
            self._sampled_rows += rows.num_rows
            self._sampled_bytes += rows.nbytes
