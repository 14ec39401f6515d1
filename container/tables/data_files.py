"""Find the data files of a channel or of a step's input; tell what a file that no reader takes looks like."""

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from container.tables.table_file import format_of, is_gzip, open_plain, suffix_of
from contracts.errors import ContractError
from contracts.input_files import check_file, escaped, exists, files_below
from contracts.paths import CHANNEL_ALIASES
from contracts.table_formats import CHANNEL_SUFFIXES

logger = logging.getLogger(__name__)

IGNORED_PREFIXES = ("_",)
MARKERS = (".crc", "_SUCCESS", "_metadata", "_common_metadata")  # of Spark and its relatives, beside each table
LISTED_FILES = 10
_EMPTY_GZIP = 64  # bytes; a gzip file up to this size may be empty
# First bytes of files that no reader takes: what they look like, and what to do with them.
_UNPACK, _WRITE = "Unpack it, and name the table in it.", "Write the table as Parquet or CSV."
_KINDS = {
    b"PK\x03\x04": ("a ZIP archive or an Office document", "Unpack it; name an Excel workbook .xlsx."),
    b"\xd0\xcf\x11\xe0": ("an old Office document, or one with a password", "Save it as .xlsx without a password."),
    b"PAR1": ("Parquet", "Name it .parquet."),
    b"\x1f\x8b": ("a gzip archive", "End its name with .csv.gz if it is one CSV file, else unpack it."),
    b"BZh": ("a bzip2 archive", _UNPACK),
    b"\xfd7zXZ": ("an xz archive", _UNPACK),
    b"7z\xbc\xaf": ("a 7z archive", _UNPACK),
    b"(\xb5/\xfd": ("a zstd archive", _UNPACK),
    b"Rar!": ("a RAR archive", _UNPACK),
    b"%PDF": ("a PDF", "Export the table from where it comes from."),
    b"Obj\x01": ("Avro", _WRITE),
    b"ORC": ("ORC", _WRITE),
    b"ARROW1": ("Arrow or Feather", _WRITE),
    b"FEA1": ("Feather", _WRITE),
    b"SQLite format 3": ("an SQLite database", "Export the table as CSV."),
    b"\x89HDF": ("HDF5", _WRITE),
    b"$FL": ("SPSS", _WRITE),
    b"<stata_dta": ("Stata", _WRITE),
    b"HEADER RECORD": ("SAS", _WRITE),
    b"\x80": ("a pickle, which can run code", _WRITE),
    b"RDX": ("R data", _WRITE),
}


def data_files(folder: Path) -> list[Path]:
    """Return the files below a folder, sorted by path; name in the log those that their names exclude.

    Raises:
        ContractError: a file or folder that cannot be read.
    """
    files, ignored = files_below(folder, ignored_prefixes=IGNORED_PREFIXES)
    if ignored := [path for path in ignored if not path.name.endswith(MARKERS)]:
        reason = "because the name begins with . or _, or is one of a system's files"
        logger.info("%s: ignored, %s: %s.", folder, reason, listed(folder, ignored))
    return files


def find_data_files(folder: Path, filename: str | None = None) -> list[Path]:
    """Return the data files of a channel, sorted by path, without empty ones unless all are empty.

    Args:
        filename: read only this file, relative to the folder.

    Raises:
        ContractError: the channel or the named file is missing, a file cannot be read, or the channel has no data file.
    """
    split = CHANNEL_ALIASES.get(folder.name, folder.name)
    if not exists(folder):
        others = sorted(escaped(path.name) for path in folder.parent.iterdir()) if folder.parent.is_dir() else []
        there = f"; there are {', '.join(others)}" if others else ""
        raise ContractError(
            f"channel {folder.name}: the folder {folder} does not exist{there}",
            f"Create the folder and put the files of {folder.name} into it. On SageMaker, add a channel named "
            f"{folder.name!r}.",
        )
    if filename is not None:
        path = folder / filename
        if not exists(path):
            raise ContractError(
                f"{split}_filename: {path} does not exist; {_content(folder)}",
                f"Correct {split}_filename, or leave it out to read every data file of the channel.",
            )
        check_file(path)
        format_of(path)
        return [path]
    files = known_files(folder, data_files(folder), CHANNEL_SUFFIXES, suffix_of)
    if not files:
        raise ContractError(
            f"channel {folder.name}: no data file in {folder}; {_content(folder)}",
            f"Put files there whose names end with one of {', '.join(CHANNEL_SUFFIXES)}.",
        )
    return files


def known_files(
    folder: Path, files: Sequence[Path], suffixes: Collection[str], suffix: Callable[[Path], str]
) -> list[Path]:
    """Return those of the files below a folder with one of the suffixes, without empty ones unless all are empty.

    Name the others in the log.
    """
    known = [path for path in dict.fromkeys(files) if suffix(path) in suffixes]
    if tables := [path for path in known if suffix(path) != ".txt"]:  # a text beside tables is about them
        known = tables
    empty = {path for path in known if is_empty(path)}
    if len(empty) == len(known):
        empty = set()
    for reason, ignored in (
        (f"the name does not end with one of {', '.join(suffixes)}", set(files).difference(known) if known else ()),
        ("the file is empty", empty),
    ):
        if ignored:
            logger.info("%s: ignored, because %s: %s.", folder, reason, listed(folder, sorted(ignored)))
    return [path for path in known if path not in empty]


def is_empty(path: Path) -> bool:
    """Return whether a file has no content, decompressed where its name ends with .gz."""
    size = path.stat().st_size
    if not is_gzip(path) or size > _EMPTY_GZIP:
        return size == 0
    with suppress(ContractError), open_plain(path) as stream:  # reading a damaged file raises the error
        return not stream.read(1)
    return False


def _content(folder: Path) -> str:
    listing = files_below(folder, ignored_prefixes=IGNORED_PREFIXES)
    found = sorted([*listing.files, *listing.ignored])
    return f"it contains {listed(folder, found)}" if found else "the folder is empty"


def listed(folder: Path | None, paths: Sequence[Path]) -> str:
    """Return the names of the first files, in a folder, for messages."""
    more = f" and {len(paths) - LISTED_FILES} more" if len(paths) > LISTED_FILES else ""
    return ", ".join(escaped(path.relative_to(folder) if folder else path.name) for path in paths[:LISTED_FILES]) + more


def not_a_table(path: Path) -> ContractError:
    """Return the error for a file that no reader takes."""
    with path.open("rb") as file:
        start = file.read(1 << 12)
    for magic, (kind, fix) in _KINDS.items():
        if start.startswith(magic):
            return ContractError(f"{path}: looks like {kind}, which is not read", fix)
    if start[257:262] == b"ustar":
        return ContractError(f"{path}: looks like a tar archive, which is not read", _UNPACK)
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith((b"{", b"[")):
        return ContractError(f"{path}: looks like JSON, but its name does not", "Name it .json or .jsonl.")
    if b"\0" in start:
        return ContractError(f"{path}: is binary data of an unknown kind", _WRITE)
    if text.startswith(b"<"):
        return ContractError(f"{path}: looks like HTML or XML, which is not read", _WRITE)
    return ContractError(f"{path}: looks like text, but its name does not show a table", "Name it .csv, if it is one.")
