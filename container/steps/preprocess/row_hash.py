"""A row's 64-bit hash: a function of its content alone, so that a row is treated the same wherever it lies.

pandas.util.hash_array of the value's key (container/tables/values.py): SipHash-2-4 (Aumasson & Bernstein, 2012)
of its UTF-8 under a key made of the seed's 16 decimal digits, then the finaliser of SplitMix64 (Steele et al., 2014).
"""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array, hash_pandas_object

from container.tables.values import keys


def key_hashes(column: pa.Array | pa.ChunkedArray, *, seed: int) -> np.ndarray:
    """The hash of each cell: 1, 1.0 and "1" have the same; a missing cell has that of the empty text. [R] uint64"""
    settings = {"hash_key": _hash_key(seed), "categorize": False}
    return hash_array(_texts(column), **settings)  # pyright: ignore[reportCallIssue] - pandas.util loads it without a type


def row_hashes(table: pa.Table, *, seed: int) -> np.ndarray:
    """The hash of each whole row, whatever the order of the columns. [R] uint64"""
    assert table.num_columns, "a row has cells"
    cells = {name: _texts(table[name]) for name in sorted(table.column_names)}
    frame = pd.DataFrame(cells, dtype=object)
    settings = {"hash_key": _hash_key(seed), "categorize": False}
    return hash_pandas_object(frame, index=False, **settings).to_numpy()  # pyright: ignore[reportCallIssue] - pandas.util loads it without a type


def unit_interval(hashes: np.ndarray) -> np.ndarray:
    """Hashes as numbers in [0, 1), evenly spread. [R] float64"""
    return (hashes >> np.uint64(11)) * 2.0**-53


def _texts(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return pc.fill_null(keys(column), "").to_numpy(zero_copy_only=False)


def _hash_key(seed: int) -> str:
    return f"{seed:016d}"
