"""Read the part files of one table in CSV, TSV, JSON, JSON Lines or Parquet, gzipped or not, as a stream of slices."""

import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from container.tables.channel_files import (
    TableSlice,
    cell_kinds,
    check_names,
    check_one_format,
    is_gzip,
    iter_tables,
    number_slices,
    open_plain,
    text_batches,
    text_header,
)
from container.tables.csv_blocks import CsvText, first_cells
from container.tables.data_files import data_files, is_empty, known_files, listed
from container.tables.json_files import json_batches, json_cell_kinds
from contracts.errors import ContractError
from contracts.input_files import check_file, exists
from contracts.json_text import parse_json
from contracts.spelling import SIMILAR, did_you_mean

logger = logging.getLogger(__name__)

PartFormat = Literal["csv", "tsv", "json", "parquet"]
FORMATS: dict[str, PartFormat] = {
    ".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".parquet": "parquet",
}  # fmt: skip
ROWS_AT_ONCE = 8192
BYTES_AT_ONCE = 16 << 20  # uncompressed Parquet, as the metadata of the first files states it
_FILES_LOOKED_AT = 8


@dataclass(frozen=True)
class PartFiles:
    """The part files of a table, in the order of their paths.

    Attributes:
        columns: the table's columns: those of the first file, or for JSON the keys of every file's first rows.
        headless: CSV and TSV files that begin with a row, not with the column names.
        nested: the columns of lists or objects, also those that `single_valued` left out.
    """

    files: tuple[Path, ...]
    format: PartFormat
    columns: tuple[str, ...]
    headless: frozenset[Path] = field(default_factory=frozenset)
    nested: tuple[str, ...] = ()

    def single_valued(self, roles: Collection[str] = ()) -> Self:
        """Return the part files without nested columns, except those in `roles`; name them in a warning.

        Raises:
            ContractError: no other column.
        """
        left_out = [name for name in self.nested if name not in roles]
        columns = tuple(name for name in self.columns if name not in left_out)
        if not columns:
            raise ContractError(
                f"{self.files[0]}: every column contains lists or objects",
                "Write columns of one text or number per row.",
            )
        if left_out:
            logger.warning("Columns of lists or objects are left out: %s.", ", ".join(map(repr, left_out)))
        return replace(self, columns=columns)

    def iter_tables(
        self, columns: Sequence[str] | None = None, *, rows_per_batch: int | None = None
    ) -> Iterator[TableSlice]:
        """Stream the rows in order and in bounded memory.

        Columns of CSV, TSV and JSON are strings; those of Parquet keep their types, widened where files differ.

        Args:
            columns: the columns to read; default all.
            rows_per_batch: of Parquet and JSON; default ROWS_AT_ONCE, fewer where rows are large.

        Raises:
            ContractError: a file that is not of its name's format, nested cells, or types that cannot be combined.
        """
        wanted = self.columns if columns is None else tuple(columns)
        if self.format == "parquet":
            rows = rows_per_batch or _parquet_rows_at_once(self.files)
            return iter_tables(self.files, wanted, rows_per_batch=rows)
        rows = rows_per_batch or ROWS_AT_ONCE // 4

        def tables(path: Path) -> Iterator[pa.Table]:
            return (pa.Table.from_batches([batch]) for batch in self._batches(path, wanted, rows))

        return number_slices(self.files, tables, rows_per_batch=rows)

    def _batches(self, path: Path, wanted: Sequence[str], rows_per_batch: int) -> Iterator[pa.RecordBatch]:
        if self.format == "json":
            known = dict.fromkeys((*self.columns, *self.nested))
            return json_batches(path, wanted, list(known), rows_per_batch=rows_per_batch)
        return text_batches(path, wanted, header=self.columns if path in self.headless else None)


def find_part_files(folder: Path, *, signature: Sequence[str] | None = None, scratch: Path) -> PartFiles:
    """Return the part files in a folder, without hidden files, markers (_SUCCESS) and empty files.

    Args:
        signature: the column names, for CSV and TSV files without a header; other files must have the same columns.
        scratch: the folder for decompressed Parquet files.

    Raises:
        ContractError: no part file, only empty ones, several formats, or files whose columns differ.
    """
    return open_part_files(data_files(folder), folder=folder, signature=signature, scratch=scratch)


def open_tables(paths: Sequence[Path], *, option: str, scratch: Path) -> PartFiles:
    """Return the part files of one table that a user names: files, and folders of files.

    Args:
        option: of the command line, for messages.

    Raises:
        ContractError: also a path that does not exist.
    """
    files = named_files(paths, option=option)
    folder = Path(os.path.commonpath([path.parent for path in files])) if files else paths[0]
    return open_part_files(files, folder=folder, scratch=scratch)


def named_files(paths: Sequence[Path], *, option: str) -> list[Path]:
    """Return the absolute paths of the files, and of those in the folders, that a user names."""
    files: list[Path] = []
    for path in paths:
        if not exists(path):
            raise ContractError(f"{option}: {path} does not exist", "Correct the path.")
        if path.is_dir():
            files += data_files(path)
        else:
            check_file(path)
            files.append(path)
    return [path.absolute() for path in files]


def open_part_files(
    files: Sequence[Path], *, folder: Path, signature: Sequence[str] | None = None, scratch: Path
) -> PartFiles:
    """Return the part files among `files`, which are below `folder`; see `find_part_files`."""
    full = known_files(folder, files, FORMATS, _suffix)
    if not full:
        found = listed(folder, files) or "no file"
        raise ContractError(
            f"{folder}: has no part file; it has {found}",
            f"Put files there whose names end with one of {', '.join(FORMATS)} (.gz).",
        )
    check_one_format(folder, {path: FORMATS[_suffix(path)] for path in full})
    if is_empty(full[0]):
        raise ContractError(f"{full[0]}: the file is empty", "Write at least one row.")
    part_format = FORMATS[_suffix(full[0])]
    if part_format == "parquet":
        full = [_unpacked(path, folder, scratch) for path in full]
    if part_format == "json":
        return _json_parts(full, folder, signature)
    return _parts_with_columns(full, part_format, signature)


def read_signature(folder: Path) -> list[str]:
    """Return the column names in a signature's file: a JSON list, one line with commas or tabs, or a name per line.

    Raises:
        ContractError: no file, or several; no names, or one twice.
    """
    files = data_files(folder)
    if len(files) != 1:
        raise ContractError(
            f"{folder}: has {len(files)} files instead of one signature", "Keep only the file with the column names."
        )
    try:
        text = files[0].read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        cause = f"{files[0]}: byte 0x{error.object[error.start]:02X} at position {error.start} is not UTF-8"
        raise ContractError(cause, "Write the column names again, in UTF-8.") from None
    if text.startswith("["):
        try:
            names = parse_json(text)
        except ValueError as error:
            raise ContractError(f"{files[0]}: is not JSON: {error}", 'Write the names as ["a", "b"].') from None
    else:
        lines = text.splitlines()
        names = [line.strip().removesuffix(",") for line in lines]
        if len(lines) == 1:
            line = CsvText(str(files[0]), delimiter="\t" if "\t" in text else ",", has_header=True)
            names = first_cells(np.frombuffer(text.encode(), np.uint8), line)
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ContractError(f"{files[0]}: is not a list of column names", 'Write ["a", "b"], or a,b in one line.')
    check_names(names, files[0])
    return names


def _json_parts(files: Sequence[Path], folder: Path, signature: Sequence[str] | None) -> PartFiles:
    kinds: dict[str, set[bool]] = {name: set() for name in signature or ()}
    without_cells: list[Path] = []
    for path in files:
        found = json_cell_kinds(path)
        if not found:
            without_cells.append(path)
        if signature is not None:
            _check_same(path, list(found), signature, "the signature", missing_is_null=True)
        _add_kinds(kinds, found)
    if len(without_cells) == len(files):
        raise ContractError(f"{files[0]}: the file has no rows", "Write an array of objects, or one object per line.")
    if without_cells:
        logger.info("%s: these files have no cells: %s.", folder, listed(folder, without_cells))
    return PartFiles(tuple(files), "json", tuple(kinds), nested=_nested(kinds))


def _parts_with_columns(files: Sequence[Path], part_format: PartFormat, signature: Sequence[str] | None) -> PartFiles:
    expected, reference = signature, "the signature"
    headless = set()
    kinds: dict[str, set[bool]] = {}
    for path in files:
        if signature is not None and part_format != "parquet" and _is_headless(path, signature):
            headless.add(path)
            continue
        found = cell_kinds(path)
        if expected is None:
            expected, reference = list(found), files[0].name
        _check_same(path, list(found), expected, reference)
        _add_kinds(kinds, found)
    assert expected is not None, "files is not empty"
    return PartFiles(tuple(files), part_format, tuple(expected), frozenset(headless), _nested(kinds))


def _add_kinds(kinds: dict[str, set[bool]], found: Mapping[str, set[bool]]) -> None:
    for name, of_file in found.items():
        kinds.setdefault(name, set()).update(of_file)


def _nested(kinds: Mapping[str, set[bool]]) -> tuple[str, ...]:
    """Return the columns in which no file has a single value."""
    return tuple(name for name, of_column in kinds.items() if of_column == {True})


def _is_headless(path: Path, signature: Sequence[str]) -> bool:
    """Return whether the first line is a row: as many fields as in the signature, at most half of them its names.

    Case and outer blanks do not count, so that a header with other names than the signature's is no row.
    """
    fields = text_header(path)
    expected = {name.strip().casefold() for name in signature}
    alike = expected & {name.strip().casefold() for name in fields}
    if 2 * len(alike) > len(expected):
        return False  # a header; the caller compares it with the signature
    if len(fields) != len(signature):
        raise ContractError(
            f"{path}: has {len(fields)} columns, and the signature names {len(signature)}",
            "Provide the signature of this table.",
        )
    return True


def _check_same(
    path: Path,
    names: Sequence[str],
    expected: Sequence[str],
    reference: str,
    *,
    missing_is_null: bool = False,
) -> None:
    missing = [name for name in expected if name not in names]
    extra = [name for name in names if name not in expected]
    fix = "Give every part file the same columns."
    if missing and not missing_is_null:
        hint = did_you_mean(missing[0], names, hint=SIMILAR)
        raise ContractError(f"{path}: column {missing[0]!r} of {reference} is missing{hint}", fix)
    if extra:
        raise ContractError(f"{path}: has the column {extra[0]!r}, which {reference} lacks", fix)


def _parquet_rows_at_once(files: Sequence[Path]) -> int:
    try:
        files_metadata = [pq.read_metadata(path) for path in files[:_FILES_LOOKED_AT]]
    except (pa.ArrowException, OSError):
        return ROWS_AT_ONCE  # damaged; reading it raises the error
    size = sum(each.row_group(i).total_byte_size for each in files_metadata for i in range(each.num_row_groups))
    rows = max(sum(each.num_rows for each in files_metadata), 1)
    return max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE * rows // max(size, 1)))


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _unpacked(path: Path, folder: Path, scratch: Path) -> Path:
    """Return the path of a decompressed Parquet file: reading begins at its end."""
    if not is_gzip(path):
        return path
    target = scratch / path.relative_to(folder).with_suffix("")
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_plain(path) as stream, target.open("wb") as out:
        shutil.copyfileobj(stream, out, 1 << 20)
    return target
