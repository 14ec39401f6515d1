"""Declare the formats of table files: a new one is an entry here, and a module of container/tables that reads it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from contracts.serving import CSV, JSON, JSON_LINES, PARQUET

OutputFormat = Literal["CSV", "TSV", "PARQUET"]  # of the pipeline's steps


@dataclass(frozen=True)
class TableFormat:
    """A format.

    Attributes:
        reader: the module of container/tables with the class File.
        suffixes: of files' names; the media type of a request with such a body, if there is one.
        raw_suffixes: of files that users have, and that no channel has.
        delimiter: of text.
        has_types: whether a value has a type; otherwise, all are texts.
        is_stream: whether it is read from its beginning, so that a channel's file may be gzipped.
    """

    reader: str
    suffixes: Mapping[str, str | None] = field(default_factory=dict)
    raw_suffixes: tuple[str, ...] = ()
    delimiter: str = ""
    has_types: bool = False
    is_stream: bool = True

    @property
    def name(self) -> str:
        """The suffix of a file that is written, without its dot."""
        return (*self.suffixes, *self.raw_suffixes)[0][1:]


FORMATS = (
    TableFormat("csv_files", {".csv": CSV}, raw_suffixes=(".txt",), delimiter=","),
    TableFormat("csv_files", {".tsv": None}, delimiter="\t"),
    TableFormat("json_files", {".jsonl": JSON_LINES, ".json": JSON}, raw_suffixes=(".ndjson",), has_types=True),
    TableFormat("parquet_files", {".parquet": PARQUET}, has_types=True, is_stream=False),
    TableFormat("excel_files", raw_suffixes=(".xlsx", ".xls", ".ods", ".xlsm"), has_types=True, is_stream=False),
)
OF_SUFFIX = {suffix: each for each in FORMATS for suffix in (*each.suffixes, *each.raw_suffixes)}
MEDIA_TYPES = {suffix: media for each in FORMATS for suffix, media in each.suffixes.items() if media}
WRITTEN_SUFFIXES = tuple(suffix for each in FORMATS for suffix in each.suffixes)
CHANNEL_SUFFIXES = tuple(
    suffix + gz for suffix in WRITTEN_SUFFIXES for gz in ("", ".gz") if not gz or OF_SUFFIX[suffix].is_stream
)
CHANNEL_FILES = tuple(f"*{suffix}" for suffix in CHANNEL_SUFFIXES)
TABLE_FILES = tuple(f"*{suffix}{gz}" for suffix in OF_SUFFIX for gz in ("", ".gz"))
