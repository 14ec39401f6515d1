"""Columns that predictions lack, looked up by id in the tables that the predictions are of."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.preprocessing.part_files import PartFiles
from container.preprocessing.values import keys
from contracts.errors import ContractError


def look_up(ids: pa.ChunkedArray, parts: PartFiles, *, id_field: str, columns: Sequence[str]) -> pa.Table:
    """The columns of each id's row; null where it has none. [N rows]

    Tables with the same ids in the same order are taken row by row; otherwise the first row of an id counts.

    Raises:
        ContractError: none of the ids is there.
    """
    wanted = keys(ids)
    distinct = wanted.unique()
    rows, found = [], []
    for part in parts.iter_tables(list(dict.fromkeys([id_field, *columns]))):
        own = keys(part.table[id_field])
        known = pc.is_in(own, value_set=distinct)
        rows.append(part.table.select(list(columns)).filter(known))
        found.append(own.filter(known))
    known_ids = pa.chunked_array(found, pa.string())
    if not len(known_ids):
        raise ContractError(
            f"{parts.files[0].parent}: has none of the {len(wanted)} ids of the predictions in {id_field!r}",
            "Hand over the tables that the predictions are of.",
        )
    return pa.concat_tables(rows).take(positions(wanted, known_ids))


def positions(ids: pa.Array | pa.ChunkedArray, among: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Where each id lies; null where it does not. Of the same ids in the same order, its own place. [N] -> [N]"""
    wanted, known = keys(ids), keys(among)
    if wanted.equals(known):
        return pa.array(np.arange(len(wanted)), pa.int32())
    return pc.index_in(wanted, value_set=known)
