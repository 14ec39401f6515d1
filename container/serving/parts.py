"""Define a part of a request: consecutive records that are read and prepared together."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import pyarrow as pa

from container.attribution.parts import Question
from container.serving.errors import bad_request
from container.tables.column_types import unpacked
from container.tables.table_file import Origin, missing_column

# A part takes up to 30 times its bytes in memory; fewer records would fill the model's batches less well.
PART_RECORDS, PART_BYTES = 1000, 1 << 18
MAX_COLUMNS = 10_000  # Arrow takes 10 kB of memory per column

Piece = TypeVar("Piece")


@dataclass(frozen=True)
class Part:
    """Consecutive records of a request.

    Attributes:
        rows: a table, or what `read` converts to one. [N]
        first: number of the request's records before them.
        read: returns the table of `rows`, which begin with record `first`; raises ContractError for invalid records.
        blank: a record without values, if `rows` is not a table.
        origin: source of the records for messages, if it is not a request.
        question: the reasons that the client asks for.
    """

    rows: pa.Table | Sequence[Any]
    first: int
    read: Callable[[Any, int], pa.Table] = lambda rows, _first: rows
    blank: Any = None
    origin: Origin | None = None
    question: Question | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def table(self) -> pa.Table:
        """Return the records as raw columns.

        Raises:
            ContractError: records are invalid; its `row_causes` are by their positions in the part.
        """
        return self.read(self.rows, self.first)

    def blanked(self, records: Container[int]) -> Self:
        """Return the part with records without values at some positions."""
        rows = self.rows
        if isinstance(rows, Sequence):
            return replace(self, rows=[self.blank if i in records else row for i, row in enumerate(rows)])
        kept = pa.array([None if i in records else i for i in range(len(rows))], pa.int64())
        columns = [unpacked(column).take(kept) for column in rows.columns]
        fields = [each.with_type(column.type) for each, column in zip(rows.schema, columns)]
        return replace(self, rows=pa.table(columns, schema=pa.schema(fields)))


def grouped(
    pieces: Iterable[tuple[Piece, int]], records: Callable[[Piece], int] = lambda _: 1
) -> Iterator[tuple[list[Piece], int]]:
    """Group consecutive pieces of at most PART_RECORDS records and PART_BYTES bytes together, at least one.

    Args:
        pieces: each with its bytes.
        records: returns the number of records of a piece.

    Yields:
        The pieces of a group, and the number of records before them.
    """
    group: list[Piece] = []
    first = count = size = 0
    for piece, num_bytes in pieces:
        if group and (count + records(piece) > PART_RECORDS or size + num_bytes > PART_BYTES):
            yield group, first
            group, first, count, size = [], first + count, 0, 0
        group.append(piece)
        count += records(piece)
        size += num_bytes
    if group:
        yield group, first


def check_columns(columns: Sequence[str], present: Sequence[str]) -> None:
    """Raise RequestError 400 if one of `columns` is not among those `present`."""
    for name in columns:
        if name not in present:
            error = missing_column(name, present, "the request")
            listed = ", ".join(map(repr, columns))
            raise bad_request(error.cause, f"Send the columns {listed}; in CSV, separate them by commas.")
