"""Read the label column of a raw table: check labels, apply LABEL_MAP, and assign codes."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.channel_files import Origin
from container.tables.values import contiguous, keys
from contracts.errors import ContractError

MOST_LABELS = 1000
NO_LABEL = -1


class LabelReader:
    """Assign codes to labels in the order in which they appear.

    Attributes:
        labels: the labels so far; codes are indices into it.
    """

    def __init__(
        self, column: str, *, mapping: Mapping[str, Any], unlabelled: Literal["error", "drop", "keep"]
    ) -> None:
        """Check the mapping.

        Args:
            mapping: new label by old label; empty: labels stay unchanged. 1, 1.0 and "1" are one old label.
            unlabelled: the treatment of rows without a label.

        Raises:
            ContractError: the mapping has an empty or a duplicate label.
        """
        self.column = column
        self.unlabelled = unlabelled
        self.labels: list[str] = []
        self._codes: dict[str, int] = {}
        self._old: pa.Array | None = None
        if mapping:
            self._old, self._new = _mapping(mapping)

    def read(self, column: pa.Array | pa.ChunkedArray, *, origin: Origin) -> tuple[np.ndarray, pa.Array]:
        """Return codes, NO_LABEL for rows without a label [R] int64, and the column to write [R].

        Raises:
            ContractError: a label that is not in the mapping, a missing label if that is an error, or too many labels.
        """
        written, labels = contiguous(column), keys(column)
        if self.unlabelled == "error" and labels.null_count:
            row = origin.row(pc.index(pc.is_null(labels), True).as_py())
            raise ContractError(
                f"{row}, column {self.column!r}: the label is missing",
                "Label every row, or set UNLABELLED=drop or keep.",
            )
        if self._old is not None:
            index = pc.index_in(labels, value_set=self._old)
            unknown = pc.and_(pc.is_null(index), pc.is_valid(labels))
            if pc.any(unknown).as_py():
                row = pc.index(unknown, True).as_py()
                raise ContractError(
                    f"{origin.row(row)}, column {self.column!r}: {labels[row].as_py()!r} is not in LABEL_MAP",
                    f"Add it to LABEL_MAP, or correct the row. Known: {', '.join(map(repr, self._old.to_pylist()))}.",
                )
            written = self._new.take(index)
            labels = keys(written)
        return self._encode(labels, origin), written

    def _encode(self, labels: pa.Array, origin: Origin) -> np.ndarray:
        distinct = labels.dictionary_encode()
        local = pc.fill_null(distinct.indices, -1).to_numpy(zero_copy_only=False)
        codes = np.full(len(distinct.dictionary) + 1, NO_LABEL, np.int64)  # index -1: rows without a label
        for code, key in enumerate(distinct.dictionary.to_pylist()):
            if key not in self._codes:
                if len(self.labels) == MOST_LABELS:
                    row = origin.row(int(np.flatnonzero(local == code)[0]))
                    raise ContractError(
                        f"{row}, column {self.column!r}: {key!r} is an additional label; "
                        f"at most {MOST_LABELS} are allowed",
                        "Set LABEL_FIELD to a column of classes.",
                    )
                self._codes[key] = len(self.labels)
                self.labels.append(key)
            codes[code] = self._codes[key]
        return codes[local]


def _mapping(mapping: Mapping[str, Any]) -> tuple[pa.Array, pa.Array]:
    old = keys(pa.array(list(mapping), pa.string()))
    known = old.to_pylist()
    invalid = [key for key in known if known.count(key) > 1 or key is None]
    if invalid:
        problem = "has an empty label" if invalid[0] is None else f"lists {invalid[0]!r} twice"
        raise ContractError(f"LABEL_MAP: {problem}", "List each label once; 1, 1.0 and true are the same.")
    values = list(mapping.values())
    for value in values:
        if not isinstance(value, (int, str)) or isinstance(value, bool) or str(value).strip() == "":
            raise ContractError(f"LABEL_MAP: {value!r} is not a label", "Map to whole numbers or texts.")
    whole = all(isinstance(value, int) for value in values)
    return old, pa.array(values, pa.int64()) if whole else pa.array([str(value) for value in values], pa.string())
