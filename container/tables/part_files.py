"""Read the part files of one table in one format, gzipped or not, as a stream of slices."""

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from container.tables.channel_files import TableSlice, check_one_format, stream
from container.tables.csv_blocks import CsvText, first_cells
from container.tables.csv_files import File as CsvFile
from container.tables.data_files import data_files, is_empty, known_files, listed, not_a_table
from container.tables.partitions import PartitionFile, partition_values
from container.tables.reading import Reading
from container.tables.table_file import TableFile, check_names, nested_columns, open_file, plain_suffix
from contracts.errors import ContractError
from contracts.input_files import check_file, exists
from contracts.json_text import parse_json
from contracts.spelling import SIMILAR, did_you_mean
from contracts.table_formats import OF_SUFFIX

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 8192
_FILES_LOOKED_AT = 8
_SAME_COLUMNS = "Give every part file the same columns."


@dataclass(frozen=True)
class PartFiles:
    """The part files of a table, in the order of their paths.

    Attributes:
        columns: the table's columns, in the order in which the files have them.
        nested: the columns of lists or objects, also those that `single_valued` left out.
        alike: the files of all splits of the table, if there are several.
    """

    sources: tuple[TableFile, ...]
    format: str
    columns: tuple[str, ...]
    nested: tuple[str, ...] = ()
    alike: tuple[TableFile, ...] = ()

    @property
    def files(self) -> list[Path]:
        return [source.path for source in self.sources]

    @property
    def notes(self) -> list[str]:
        """What the user should know about how the files were read."""
        of_note: dict[str, list[Path]] = {}
        for source in self.sources:
            for note in source.notes:
                of_note.setdefault(note, []).append(source.path)
        return [f"{listed(None, paths)}: {note}" for note, paths in of_note.items()]

    @property
    def found(self) -> Reading:
        """How the files were read."""
        facts = [asdict(source.found) for source in self.sources]
        return Reading(**{name: next(filter(None, (fact[name] for fact in facts)), None) for name in facts[0]})

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
        """Stream the rows in order and in bounded memory; see `stream`.

        Args:
            columns: the columns to read; default all.
            rows_per_batch: default ROWS_AT_ONCE, fewer where rows are large.

        Raises:
            ContractError: a file that is not of its name's format, nested cells, or types that cannot be combined.
        """
        wanted = self.columns if columns is None else tuple(columns)
        at_once = (source.rows_at_once(ROWS_AT_ONCE) for source in self.sources[:_FILES_LOOKED_AT])
        rows = rows_per_batch or min(at_once, default=ROWS_AT_ONCE)
        return stream(self.sources, wanted, rows_per_batch=rows, missing_is_null=True, alike=self.alike)


def find_part_files(
    folder: Path, *, signature: Sequence[str] | None = None, reading: Reading | None = None, scratch: Path
) -> PartFiles:
    """Return the part files in a folder, without hidden files, markers (_SUCCESS) and empty files.

    Args:
        signature: the column names, for CSV and TSV files without a header; other files must have the same columns.
        reading: see TableFile.
        scratch: the folder for decompressed Parquet files.

    Raises:
        ContractError: no part file, only empty ones, several formats, or files whose columns differ.
    """
    return open_part_files(data_files(folder), folder=folder, signature=signature, reading=reading, scratch=scratch)


def open_tables(paths: Sequence[Path], *, option: str, reading: Reading, scratch: Path) -> PartFiles:
    """Return the part files of one table that a user names: files, and folders of files.

    Args:
        option: of the command line, for messages.

    Raises:
        ContractError: also a path that does not exist.
    """
    files = named_files(paths, option=option)
    folder = Path(os.path.commonpath([path.parent for path in files])) if files else paths[0]
    return open_part_files(files, folder=folder, reading=reading, scratch=scratch)


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
    files: Sequence[Path],
    *,
    folder: Path,
    signature: Sequence[str] | None = None,
    reading: Reading | None = None,
    scratch: Path,
) -> PartFiles:
    """Return the part files among `files`, which are below `folder`; see `find_part_files`."""
    full = known_files(folder, files, OF_SUFFIX, plain_suffix)
    if not full and len(files) == 1:
        raise not_a_table(files[0])
    if not full:
        found = listed(folder, files) or "no file"
        raise ContractError(
            f"{folder}: has no part file; it has {found}",
            f"Put files there whose names end with one of {', '.join(OF_SUFFIX)} (.gz).",
        )
    check_one_format(folder, {path: OF_SUFFIX[plain_suffix(path)].name for path in full})
    if is_empty(full[0]):
        raise ContractError(f"{full[0]}: the file is empty", "Write at least one row.")
    sources = list(_opened(full, signature, reading, scratch))
    schemas = {source.path: source.fields() for source in sources}
    if reading is not None and len({source.found.escapes for source in sources}) > 1:  # some files have no null
        sources = list(_opened(full, signature, replace(reading, escapes="backslash"), scratch))
        schemas = {source.path: source.fields() for source in sources}
    filled = {path: schema.names for path, schema in schemas.items() if schema.names}
    if not filled:
        raise ContractError(f"{full[0]}: the file has no rows", "Write an array of objects, or one object per line.")
    if without_cells := [path for path in full if path not in filled]:
        logger.info("%s: these files have no cells: %s.", folder, listed(folder, without_cells))
    if signature is None:
        check_alike(folder, filled)
    kinds: dict[str, set[bool]] = {name: set() for name in signature or ()}
    for path, schema in schemas.items():
        if signature is not None:
            _check_signature(path, schema.names, signature, missing_is_null=sources[0].converts)
        for name, of_file in nested_columns(schema).items():
            kinds.setdefault(name, set()).update(of_file)
    nested = tuple(name for name, of_column in kinds.items() if of_column == {True})
    return PartFiles(tuple(sources), OF_SUFFIX[plain_suffix(full[0])].name, tuple(kinds), nested)


def _opened(
    files: Sequence[Path], signature: Sequence[str] | None, reading: Reading | None, scratch: Path
) -> Iterator[TableFile]:
    partitions = partition_values(files) if reading is not None else {}
    for path in files:
        source = open_file(path, reading=reading, scratch=scratch)
        if signature is not None and isinstance(source, CsvFile) and _is_headless(source, signature):
            source = CsvFile(path, reading=reading, header=signature)
        yield PartitionFile(source, partitions[path]) if partitions.get(path) else source


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


def _is_headless(file: CsvFile, signature: Sequence[str]) -> bool:
    """Return whether the first line is a row: as many fields as in the signature, at most half of them its names.

    Case and outer blanks do not count, so that a header with other names than the signature's is no row.
    """
    fields = file.first_record
    expected = {name.strip().casefold() for name in signature}
    alike = expected & {name.strip().casefold() for name in fields}
    if 2 * len(alike) > len(expected):
        return False  # a header; the caller compares it with the signature
    if len(fields) != len(signature):
        raise ContractError(
            f"{file.path}: has {len(fields)} columns, and the signature names {len(signature)}",
            "Provide the signature of this table.",
        )
    return True


def _check_signature(path: Path, names: Sequence[str], signature: Sequence[str], *, missing_is_null: bool) -> None:
    """Raise ContractError where a file has other columns than the signature."""
    missing = [name for name in signature if name not in names]
    extra = [name for name in names if name not in signature]
    if missing and not missing_is_null:
        hint = did_you_mean(missing[0], names, hint=SIMILAR)
        raise ContractError(f"{path}: column {missing[0]!r} of the signature is missing{hint}", _SAME_COLUMNS)
    if extra:
        raise ContractError(f"{path}: has the column {extra[0]!r}, which the signature lacks", _SAME_COLUMNS)


def check_alike(folder: Path, columns: Mapping[Path, Sequence[str]]) -> None:
    """Say which columns some files lack; raise ContractError where a file is of another table, or has another name."""
    first, expected = next(iter(columns.items()))
    lacking: dict[str, list[Path]] = {}
    everywhere = dict.fromkeys(name for names in columns.values() for name in names)
    for path, names in columns.items():
        known = set(names)
        missing = [name for name in expected if name not in known]
        extra = [name for name in names if name not in set(expected)]
        for name in missing:
            if hint := did_you_mean(name, extra, hint=SIMILAR):
                cause = f"{path}: column {name!r} of {first.name} is missing{hint}"
                raise ContractError(cause, _SAME_COLUMNS)
        if 2 * len(missing) > len(expected):
            cause = f"{path}: has {', '.join(map(repr, names))}, but {first.name} {', '.join(map(repr, expected))}"
            raise ContractError(cause, "Name the files of one table.")
        for name in everywhere:
            if name not in known:
                lacking.setdefault(name, []).append(path)
    for name, paths in lacking.items():
        logger.warning("Column %r is empty where a file lacks it: %s.", name, listed(folder, paths))
