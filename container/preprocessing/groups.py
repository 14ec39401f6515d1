"""Number the groups of rows that stay in one fold, e.g. those of a customer."""

import hashlib

import numpy as np
import pyarrow as pa

from container.tables.values import keys


def group_numbers(column: pa.Array | pa.ChunkedArray, rows: np.ndarray) -> np.ndarray:
    """Return the number of each row's group, which depends on the value alone. [R], [R] -> [R] int64

    A row without a group is a group of its own.

    Args:
        rows: row numbers in the split.
    """
    distinct = keys(column).dictionary_encode()
    names = distinct.dictionary.to_pylist()
    hashes = [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1 for name in names]
    places = distinct.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
    return np.where(places < len(names), np.array([*hashes, 0], np.int64)[places], rows)
