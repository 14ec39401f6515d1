"""Parse a column of times, or of increasing numbers, as numbers in the same order."""

from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.channel_files import Origin
from container.tables.values import contiguous, numbers
from contracts.errors import ContractError

_Kind = Literal["number", "time", "time with zone"]
_KINDS: tuple[_Kind, ...] = get_args(_Kind)
_BELOW_MICROSECONDS = r"(\.[0-9]{6})[0-9]+"
_TYPES = {"time": pa.timestamp("us"), "time with zone": pa.timestamp("us", "UTC")}


class TimeColumn:
    """Parse cells of one kind: the kind of the first cells. Texts are numbers or ISO 8601."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind: _Kind | None = None

    def parse(self, column: pa.Array | pa.ChunkedArray, *, origin: Origin) -> np.ndarray:
        """Return numbers unchanged, and times as microseconds. [R] float64

        Raises:
            ContractError: a cell that is empty, infinite or of another kind.
        """
        cells = contiguous(column)
        if pa.types.is_date(cells.type) or pa.types.is_timestamp(cells.type):
            cells = cells.cast(pa.timestamp("us"), safe=False)
            self._check_kind("time", origin)
        elif pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type) or pa.types.is_decimal(cells.type):
            cells = cells.cast(pa.float64(), safe=False)
            cells = pc.if_else(pc.is_finite(cells), cells, pa.scalar(None, pa.float64()))
            self._check_kind("number", origin)
        else:
            cells = self._from_text(pc.utf8_trim_whitespace(cells.cast(pa.string())), origin)
        if cells.null_count:
            raise self._refused(column, pc.index(pc.is_null(cells), True).as_py(), origin)
        cells = cells if cells.type == pa.float64() else cells.cast(pa.int64())
        return cells.to_numpy(zero_copy_only=False).astype(np.float64)

    def _from_text(self, texts: pa.Array, origin: Origin) -> pa.Array:
        kinds = _KINDS if self.kind is None else (self.kind,)
        for kind in kinds:
            times = _cast(texts, kind)
            if times is not None:
                self.kind = kind if len(texts) else self.kind
                return times
        for index in range(len(texts)):  # find the first invalid cell
            if all(_cast(texts[index : index + 1], kind) is None for kind in kinds):
                raise self._refused(texts, index, origin)
        raise ContractError(
            f"{origin.row(0)} and after, column {self.name!r}: mixes numbers, times and times with a zone",
            "Write all cells of the column in the same form.",
        )

    def _check_kind(self, kind: _Kind, origin: Origin) -> None:
        if self.kind not in (None, kind):
            raise ContractError(
                f"{origin.row(0)}, column {self.name!r}: contains a {kind}, but earlier rows contain a {self.kind}",
                "Write all cells of the column in the same form.",
            )
        self.kind = kind

    def _refused(self, column: pa.Array | pa.ChunkedArray, index: int, origin: Origin) -> ContractError:
        value = column[index].as_py()
        return ContractError(
            f"{origin.row(index)}, column {self.name!r}: {value!r} is not a {self.kind or 'number or ISO 8601 time'}",
            "Write every row as 2026-01-31 or 2026-01-31T23:59:59, all with a zone or all without, or as a number. "
            "Other notations, which date_field_list reads, do not split rows.",
        )


def _cast(texts: pa.Array, kind: _Kind) -> pa.Array | None:
    """Return the cells as numbers or times, null where they are null; None if a cell is of another kind."""
    try:
        if kind != "number":
            return pc.replace_substring_regex(texts, pattern=_BELOW_MICROSECONDS, replacement=r"\1").cast(_TYPES[kind])
        parsed = pa.array(numbers(texts, "", origin=Origin()), from_pandas=True)
    except (pa.ArrowInvalid, ContractError):
        return None
    return parsed if parsed.null_count == texts.null_count else None  # "" is no number
