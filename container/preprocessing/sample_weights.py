"""Read the weight of each record from a column of the table."""

import numpy as np
import pyarrow as pa

from container.tables.channel_files import Origin
from container.tables.values import contiguous, numbers, refuse_values
from contracts.errors import ContractError

_FIX = (
    "Write 0 or a positive number such as 1.5 in every row, from 1e-45 to 3e38; 0 leaves the record out of the loss "
    "and of the weighted metrics."
)


def read_weights(column: pa.Array | pa.ChunkedArray, name: str, *, origin: Origin) -> np.ndarray:
    """Return the weights of R records. [R] float64

    Raises:
        ContractError: a weight is missing, negative, no number, or outside the range of float32.
    """
    try:
        weights = numbers(column, name, origin=origin)
    except ContractError as error:
        raise ContractError.of_rows(error.row_causes, _FIX) from None
    underflows = (weights > 0) & (weights.astype(np.float32) == 0)
    refuse_values(contiguous(column), ~(weights >= 0) | underflows, name, "a weight", _FIX, origin=origin)
    return weights
