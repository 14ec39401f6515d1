"""Read the columns that belong to a row, not to the model's inputs: the group and the weight."""

import hashlib

import numpy as np
import pyarrow as pa

from container.tables.table_file import Origin
from container.tables.values import contiguous, keys, numbers, refuse_values
from contracts.errors import ContractError
from contracts.value_types import NumberFormat

_LEAST, _MOST = 1e-20, 1e20  # so that sums and products of weights are float32 numbers
_FIX_OF_WEIGHT = (
    f"Write 0 or a positive number such as 1.5 in every row, from {_LEAST:g} to {_MOST:g}; 0 leaves the record out of "
    "the loss and of the weighted metrics. number_format reads notations such as 1,5."
)


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


def read_weights(
    column: pa.Array | pa.ChunkedArray, name: str, *, origin: Origin, written: NumberFormat | None
) -> np.ndarray:
    """Return the weights of R records. [R] float64

    Raises:
        ContractError: a weight is missing, negative, no number, or outside the range of the message.
    """
    try:
        weights = numbers(column, name, origin=origin, written=written)
    except ContractError as error:
        raise ContractError.of_rows(error.row_causes, _FIX_OF_WEIGHT) from None
    read = (weights == 0) | ((weights >= _LEAST) & (weights <= _MOST))
    refuse_values(contiguous(column), ~read, name, "a weight", _FIX_OF_WEIGHT, origin=origin)
    return weights
