"""Reads the label column of a raw table: checks it, maps it on request, and numbers the labels it meets."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.channel_files import Origin
from container.tables.values import keys, plain_array
from contracts.errors import ContractError

MOST_LABELS = 1000
NO_LABEL = -1


class LabelReader:
    """Labels in the order in which they appear.

    Attributes:
        labels: the labels met so far; codes are indices into it.
    """

    def __init__(
        self, column: str, *, mapping: Mapping[str, Any], unlabelled: Literal["error", "drop", "keep"]
    ) -> None:
        """Prepare.

        Args:
            mapping: new label by old label; empty: labels stay as they are. 1, 1.0 and "1" are one old label.
            unlabelled: what a row without a label is.

        Raises:
            ContractError: the mapping has an empty label, or names one twice.
        """
        self.column = column
        self.unlabelled = unlabelled
        self.labels: list[str] = []
        self._codes: dict[str, int] = {}
        self._old: pa.Array | None = None
        if mapping:
            self._old, self._new = _mapping(mapping)

    def read(self, column: pa.Array | pa.ChunkedArray, *, origin: Origin) -> tuple[np.ndarray, pa.Array]:
        """Codes, NO_LABEL where there is none [R] int64, and the column as it is to be written [R].

        Raises:
            ContractError: a label that the mapping lacks, a missing one where that is an error, or too many labels.
        """
        written, found = plain_array(column), keys(column)
        if self.unlabelled == "error" and found.null_count:
            raise ContractError(
                f"{origin.row(pc.index(pc.is_null(found), True).as_py())}, column {self.column!r}: has no label",
                "Label every row, or set UNLABELLED=drop or keep.",
            )
        if self._old is not None:
            index = pc.index_in(found, value_set=self._old)
            unknown = pc.and_(pc.is_null(index), pc.is_valid(found))
            if pc.any(unknown).as_py():
                row = pc.index(unknown, True).as_py()
                raise ContractError(
                    f"{origin.row(row)}, column {self.column!r}: {written[row].as_py()!r} is not in LABEL_MAP",
                    f"It lists {', '.join(map(repr, self._old.to_pylist()))}; add it, or correct the row.",
                )
            written = self._new.take(index)
            found = keys(written)
        return self._number(found, origin), written

    def _number(self, found: pa.Array, origin: Origin) -> np.ndarray:
        distinct = found.dictionary_encode()
        local = pc.fill_null(distinct.indices, -1).to_numpy(zero_copy_only=False)
        position = np.full(len(distinct.dictionary) + 1, NO_LABEL, np.int64)  # the last is that of -1
        for code, key in enumerate(distinct.dictionary.to_pylist()):
            if key is None:
                continue
            if key not in self._codes:
                if len(self.labels) == MOST_LABELS:
                    raise ContractError(
                        f"{origin.row(int(np.flatnonzero(local == code)[0]))}, column {self.column!r}: {key!r} is a "
                        f"label beyond the first {MOST_LABELS}",
                        "Check LABEL_FIELD: this does not look like a column of classes.",
                    )
                self._codes[key] = len(self.labels)
                self.labels.append(key)
            position[code] = self._codes[key]
        return position[local]


def _mapping(mapping: Mapping[str, Any]) -> tuple[pa.Array, pa.Array]:
    old = keys(pa.array(list(mapping), pa.string()))
    known = old.to_pylist()
    twice = [key for key in known if known.count(key) > 1 or key is None]
    if twice:
        raise ContractError(
            f"LABEL_MAP: {twice[0]!r} is there twice, or is empty" if twice[0] is not None else "LABEL_MAP: has an "
            "empty label",
            "List each label once; 1, 1.0 and true are the same.",
        )  # fmt: skip
    values = list(mapping.values())
    for value in values:
        if not isinstance(value, (int, str)) or isinstance(value, bool) or str(value).strip() == "":
            raise ContractError(f"LABEL_MAP: {value!r} is no label", "Map to whole numbers or texts.")
    whole = all(isinstance(value, int) for value in values)
    return old, pa.array(values, pa.int64()) if whole else pa.array([str(value) for value in values], pa.string())
