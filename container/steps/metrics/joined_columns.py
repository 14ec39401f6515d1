"""Look up columns that are not in the predictions, by id in the scored tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.channel_files import Origin
from container.tables.part_files import PartFiles
from container.tables.values import keys
from contracts.errors import ContractError, shown


@dataclass(frozen=True)
class Records(Origin):
    """Rows of one or several files in the order of the predictions; messages name them by their ids.

    Attributes:
        file: the file, or the folder of several.
        ids: [N]
    """

    ids: pa.ChunkedArray = field(kw_only=True)
    id_field: str = field(kw_only=True)

    @classmethod
    def of(cls, parts: PartFiles, ids: pa.ChunkedArray, id_field: str) -> Self:
        """Return the rows of `parts` with these ids."""
        first, *others = parts.files
        return cls(first.parent if others else first, ids=ids, id_field=id_field)

    def row(self, index: int) -> str:
        return f"{self.file}: the record with {self.id_field} {shown(self.ids[int(index)].as_py())}"


@dataclass(frozen=True)
class Column:
    """A column of a split's records.

    Attributes:
        cells: [N]
        records: of the files that have the column.
    """

    name: str
    cells: pa.ChunkedArray
    records: Records


def look_up(ids: pa.ChunkedArray, parts: PartFiles, *, id_field: str, columns: Sequence[str]) -> pa.Table:
    """Return the columns of each id's row; null where an id has no row. [N rows]

    Tables with the same ids in the same order are joined row by row; otherwise the first row of an id is used.

    Raises:
        ContractError: the tables have none of the ids.
    """
    wanted = keys(ids)
    distinct = wanted.unique()
    rows, kept_ids = [], []
    for part in parts.iter_tables(list(dict.fromkeys([id_field, *columns]))):
        part_ids = keys(part.table[id_field])
        known = pc.call_function("is_in", [part_ids], pc.SetLookupOptions(distinct))
        rows.append(part.table.select(list(columns)).filter(known))
        kept_ids.append(part_ids.filter(known))
    known_ids = pa.chunked_array(kept_ids, pa.string())
    if not len(known_ids):
        raise ContractError(
            f"{parts.files[0].parent}: has none of the {len(wanted)} ids of the predictions in {id_field!r}",
            "Provide the tables that were scored.",
        )
    return pa.concat_tables(rows).take(positions(wanted, known_ids))


def positions(ids: pa.Array | pa.ChunkedArray, among: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return each id's position in `among`, or null. The same ids in the same order keep their order. [N] -> [N]"""
    wanted, known = keys(ids), keys(among)
    if wanted.equals(known):
        return pa.array(np.arange(len(wanted)), pa.int32())
    return pc.call_function("index_in", [wanted], pc.SetLookupOptions(known))
