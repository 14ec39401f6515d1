"""Part files of one table in CSV, TSV, JSON, JSON Lines or Parquet, gzipped or not, as a stream of slices."""

import csv
import gzip
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from container.tables.channel_files import TableSlice, column_names, iter_tables, text_batches, text_header
from container.tables.json_files import json_batches, json_column_names
from contracts.errors import ContractError
from contracts.spelling import did_you_mean

logger = logging.getLogger(__name__)

PartFormat = Literal["csv", "tsv", "json", "parquet"]
FORMATS: dict[str, PartFormat] = {
    ".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".parquet": "parquet",
}  # fmt: skip
ROWS_AT_ONCE = 8192
BYTES_AT_ONCE = 16 << 20  # of Parquet, by its own account of the first files
_FILES_LOOKED_AT = 8
_EMPTY_GZIP = 64  # bytes; a gzip file of this size may hold nothing, and is looked into


@dataclass(frozen=True)
class PartFiles:
    """The part files of a table, in the order of their paths.

    Attributes:
        columns: of the table: those of the first file; of JSON, the keys of every file's first rows.
        headless: CSV and TSV files that begin with a row, not with the column names.
    """

    files: tuple[Path, ...]
    format: PartFormat
    columns: tuple[str, ...]
    headless: frozenset[Path] = field(default_factory=frozenset)

    def iter_tables(
        self, columns: Sequence[str] | None = None, *, rows_per_batch: int | None = None
    ) -> Iterator[TableSlice]:
        """Stream the rows in order and in bounded memory.

        Columns of CSV, TSV and JSON are strings whatever they hold; those of Parquet keep their types, widened where
        files differ. None of them is nested.

        Args:
            columns: those wanted; default all.
            rows_per_batch: at most; default ROWS_AT_ONCE, fewer where rows are large.

        Raises:
            ContractError: a file that is not what its name says, or types that do not go together.
        """
        wanted = self.columns if columns is None else tuple(columns)
        if self.format == "parquet":
            rows = rows_per_batch or _parquet_rows_at_once(self.files)
            for part in iter_tables(self.files, wanted, rows_per_batch=rows):
                _refuse_nested(part)
                yield replace(part, table=_without_views(part.table))
            return
        first_row = 0
        for path in self.files:
            in_file = 0
            for batch in self._batches(path, wanted, rows_per_batch or ROWS_AT_ONCE // 4):
                table = pa.Table.from_batches([batch]).select(list(wanted))
                yield TableSlice(table, first_row, path, in_file)
                first_row += table.num_rows
                in_file += table.num_rows

    def _batches(self, path: Path, wanted: Sequence[str], rows_per_batch: int) -> Iterator[pa.RecordBatch]:
        if self.format == "json":
            return json_batches(path, wanted, self.columns, rows_per_batch=rows_per_batch)
        return text_batches(path, wanted, header=self.columns if path in self.headless else None)


def find_part_files(folder: Path, *, signature: Sequence[str] | None = None, scratch: Path) -> PartFiles:
    """The part files in a folder; hidden ones, markers (_SUCCESS) and parts without a byte do not count.

    Args:
        signature: the column names, for CSV and TSV files that do not begin with them; other files must have them too.
        scratch: where gzipped Parquet files are unpacked.

    Raises:
        ContractError: no part file, only empty ones, several formats, or files whose columns differ.
    """
    return open_part_files(data_files(folder), folder=folder, signature=signature, scratch=scratch)


def data_files(folder: Path) -> list[Path]:
    """The files below a folder, sorted; names that start with . or _ are not data."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not _hidden(path.relative_to(folder))]


def open_part_files(
    found: Sequence[Path], *, folder: Path, signature: Sequence[str] | None = None, scratch: Path
) -> PartFiles:
    """Those of `found`, files below `folder`, that are part files; as `find_part_files` otherwise."""
    known: dict[Path, PartFormat] = {path: FORMATS[suffix] for path in found if (suffix := _suffix(path)) in FORMATS}
    for path in found:
        if path not in known:
            logger.info("%s is not read: its name ends with none of %s, or .gz after it.", path, ", ".join(FORMATS))
    if not known:
        raise ContractError(
            f"{folder}: holds no part file", f"Put files there whose names end with one of {', '.join(FORMATS)} (.gz)."
        )
    if len(set(known.values())) > 1:
        examples = {name: path.name for path, name in known.items()}
        raise ContractError(
            f"{folder}: holds files of several formats: "
            + ", ".join(f"{file} ({name})" for name, file in sorted(examples.items())),
            "Keep one format per table.",
        )
    full = [path for path in known if not _is_empty(path)]
    if not full:
        raise ContractError(f"{next(iter(known))}: the file is empty", "A part file holds at least one row.")
    if len(full) < len(known):
        logger.info("%d of %d part files are empty.", len(known) - len(full), len(known))
    part_format = known[full[0]]
    if part_format == "parquet":
        full = [_unpacked(path, folder, scratch) for path in full]
    if part_format == "json":
        return _json_parts(full, signature)
    return _parts_with_columns(full, part_format, signature)


def read_signature(folder: Path) -> list[str]:
    """The column names that a signature's file holds: a JSON list, or one line of names with commas, tabs or breaks.

    Raises:
        ContractError: no file, or several; no names, or one twice.
    """
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith((".", "_"))]
    if len(files) != 1:
        raise ContractError(
            f"{folder}: a signature is one file, and there are {len(files)}", "Keep the file with the column names."
        )
    text = files[0].read_text(encoding="utf-8-sig", errors="replace").strip()
    if text.startswith("["):
        try:
            names = json.loads(text)
        except json.JSONDecodeError as error:
            raise ContractError(f"{files[0]}: is not JSON: {error}", 'Write the names as ["a", "b"].') from None
    else:
        lines = text.splitlines()
        if len(lines) == 1:
            names = next(csv.reader(lines, delimiter="\t" if "\t" in text else ","))
        else:
            names = [line.strip().removesuffix(",") for line in lines]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ContractError(f"{files[0]}: is no list of column names", 'Write them as ["a", "b"], or a,b in one line.')
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ContractError(f"{files[0]}: names {twice[0]!r} twice", "Give each column a name of its own.")
    return names


def _json_parts(files: Sequence[Path], signature: Sequence[str] | None) -> PartFiles:
    names: dict[str, None] = {}
    for path in files:
        names.update(dict.fromkeys(json_column_names(path)))
    if signature is not None:
        _check_same(files[0], names, signature, "the signature", missing_is_null=True)
        names = dict.fromkeys(signature)
    return PartFiles(tuple(files), "json", tuple(names))


def _parts_with_columns(files: Sequence[Path], part_format: PartFormat, signature: Sequence[str] | None) -> PartFiles:
    expected, of = signature, "the signature"
    headless = set()
    for path in files:
        if signature is not None and part_format != "parquet" and _is_headless(path, signature):
            headless.add(path)
            continue
        names = column_names(path)
        if expected is None:
            expected, of = names, files[0].name
        _check_same(path, names, expected, of)
    assert expected is not None, "there is a file"
    return PartFiles(tuple(files), part_format, tuple(expected), frozenset(headless))


def _is_headless(path: Path, signature: Sequence[str]) -> bool:
    """Whether the first line is a row: as many fields as the signature has names, hardly one of them such a name."""
    fields = text_header(path)
    named = len(set(fields) & set(signature))
    if named * 2 > len(signature):
        return False  # a header, to be held to the signature
    if len(fields) != len(signature):
        raise ContractError(
            f"{path}: has {len(fields)} columns, and the signature names {len(signature)}",
            "Hand over the signature of this table.",
        )
    return True


def _check_same(
    path: Path,
    names: Sequence[str] | dict[str, None],
    expected: Sequence[str],
    of: str,
    *,
    missing_is_null: bool = False,
) -> None:
    missing = [name for name in expected if name not in names]
    extra = [name for name in names if name not in expected]
    if missing and not missing_is_null:
        hint = did_you_mean(missing[0], names)
        raise ContractError(
            f"{path}: column {missing[0]!r} of {of} is missing{hint}", "Give every part file the same columns."
        )
    if extra:
        raise ContractError(
            f"{path}: has the column {extra[0]!r}, which {of} lacks", "Give every part file the same columns."
        )


def _refuse_nested(part: TableSlice) -> None:
    for column in part.table.schema:
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            raise ContractError(
                f"{part.file}: column {column.name!r} is of type {column.type}, not of single values",
                "Write one text, number or time per cell.",
            )


def _parquet_rows_at_once(files: Sequence[Path]) -> int:
    try:
        found = [pq.read_metadata(path) for path in files[:_FILES_LOOKED_AT]]
    except (pa.ArrowException, OSError):
        return ROWS_AT_ONCE  # damaged: who reads it says so
    size = sum(each.row_group(i).total_byte_size for each in found for i in range(each.num_row_groups))
    rows = max(sum(each.num_rows for each in found), 1)
    return max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE * rows // max(size, 1)))


def _without_views(table: pa.Table) -> pa.Table:
    """string_view as string: Arrow filters and writes no views."""
    fields = [field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field for field in table.schema]
    return table.cast(pa.schema(fields))


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def _is_empty(path: Path) -> bool:
    size = path.stat().st_size
    if size == 0:
        return True
    if not path.name.lower().endswith(".gz") or size > _EMPTY_GZIP:
        return False
    try:
        with gzip.open(path) as stream:
            return not stream.read(1)
    except (OSError, EOFError):
        return False  # damaged: who reads it says so


def _unpacked(path: Path, folder: Path, scratch: Path) -> Path:
    """A Parquet file as it can be read: from its end."""
    if not path.name.lower().endswith(".gz"):
        return path
    target = scratch / path.relative_to(folder).with_suffix("")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with gzip.open(path) as stream, target.open("wb") as out:
            shutil.copyfileobj(stream, out, 1 << 20)
    except (OSError, EOFError) as error:
        raise ContractError(f"{path}: cannot be unpacked: {error}", "Write the file again.") from error
    return target
