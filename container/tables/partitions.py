"""Read the columns that Spark, Hive and Athena write into the names of folders: year=2024/month=1/part-0.parquet."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from container.tables.table_file import TableFile
from container.tables.values import keys
from contracts.errors import ContractError, shown

_FOLDER = re.compile(r"([^=]+)=(.*)")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def partition_values(files: Sequence[Path]) -> dict[Path, dict[str, int | str | None]]:
    """Return the values in the names of the folders directly above each file; whole numbers if all values are."""
    texts: dict[Path, dict[str, str | None]] = {}
    for path in files:
        parts: list[tuple[str, str | None]] = []
        for folder in path.absolute().parents:
            if not (name := _FOLDER.fullmatch(folder.name)):
                break
            parts.append((unquote(name[1]), None if name[2] == _NULL else unquote(name[2])))
        texts[path] = dict(reversed(parts))
    others = {name for values in texts.values() for name, text in values.items() if text and not _WHOLE.fullmatch(text)}
    return {
        path: {name: int(text) if text and name not in others else text or None for name, text in values.items()}
        for path, values in texts.items()
    }


class PartitionFile(TableFile):
    """A file with the columns that the names of its folders have."""

    def __init__(self, file: TableFile, values: Mapping[str, int | str | None]) -> None:
        super().__init__(file.path, reading=file.reading, scratch=file.scratch)
        self._file, self._values = file, values
        self.converts, self.notes = file.converts, file.notes

    def schema(self) -> pa.Schema:
        schema = self._file.schema()
        self.found = self._file.found
        added = {name: pa.array([value]).type for name, value in self._values.items() if name not in schema.names}
        return pa.schema([*schema, *added.items()])

    def batches(self, schema: pa.Schema, *, rows: int) -> Iterator[pa.RecordBatch]:
        in_file = self._file.schema().names
        read = pa.schema(
            [self._file.schema().field(name) for name in in_file if name in schema.names or name in self._values]
        )
        first = 1
        for batch in self._file.batches(read, rows=rows):
            for name in read.names:
                if name in self._values:
                    self._check(batch[name], name, first)
            columns = [
                batch[name] if name in in_file else pa.repeat(pa.scalar(self._values[name]), len(batch))
                for name in schema.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema.names)
            first += len(batch)

    def rows_at_once(self, most: int) -> int:
        return self._file.rows_at_once(most)

    def count_rows(self) -> int | None:
        return self._file.count_rows()

    def _check(self, column: pa.Array, name: str, first: int) -> None:
        """Raise ContractError where a column of the file has another value than the folder."""
        value = keys(pa.array([self._values[name]]))[0]
        differs = pc.fill_null(pc.not_equal(keys(column), value), value.is_valid)
        if pc.any(differs).as_py():
            row = pc.index(differs, True).as_py()
            raise ContractError(
                f"{self.path}: row {first + row}, column {name!r}: {shown(column[row].as_py())} is not "
                f"{shown(self._values[name])}, the value in the folder's name",
                f"Remove the column {name!r} from the files, or rename it.",
            )
