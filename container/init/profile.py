"""Read raw tables once: the labels and hashes of all rows, and a sample that decides the roles of the columns."""

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from container.init.facts import facts_of
from container.init.labels import LabelReading
from container.init.notations import WrittenAs
from container.init.roles import Column, Role, decide_roles
from container.preprocessing.labels import LabelCollector, check_classification
from container.steps.preprocess.column_sample import ColumnNotations
from container.steps.preprocess.data_profile import DataProfile
from container.steps.preprocess.row_split import key_hashes
from container.steps.preprocess.times import TimeColumn
from container.tables.channel_files import TableSlice
from container.tables.duplicate_ids import content_hashes, occurrences
from container.tables.part_files import PartFiles, check_alike, named_files, open_part_files
from container.tables.reading import Reading
from container.tables.table_file import check_present
from container.tables.values import keys
from contracts.errors import ContractError
from contracts.paths import CHANNEL_ALIASES, SPLITS
from contracts.table_formats import OF_SUFFIX

logger = logging.getLogger(__name__)

ROWS_PER_LINE = 500_000
LABEL_NAMES = ("label", "target", "class", "y", "outcome")
MOST_LABELS = 1000
_FEW_REPEATS = 0.2  # share of the rows
_AS_READ = WrittenAs()
_SPLIT_NAMES = {**{name: name for name in SPLITS}, **CHANNEL_ALIASES, "valid": "val", "dev": "val"}


@dataclass(frozen=True)
class RawTables:
    """A raw table, or its splits.

    Attributes:
        parts: the files of each split; of "" if the table is not split.
        columns: in the order of the table.
        source: index of each row's part. [N] int8
        codes: of each row's label in `labels`, -1 without one. [N] int16
        hashes: of each row, or of its group. [N] uint64
        times: of --time. [N] float64, or None.
        sample: of at most 50,000 rows.
        written: what the user said about notations.
    """

    parts: Mapping[str, PartFiles]
    columns: Mapping[str, Column]
    reading: LabelReading
    source: np.ndarray
    codes: np.ndarray
    hashes: np.ndarray
    times: np.ndarray | None
    sample: pa.Table
    written: WrittenAs

    @property
    def rows(self) -> int:
        return len(self.codes)

    @property
    def label(self) -> str:
        return self.reading.column

    @property
    def labels(self) -> Mapping[str, int]:
        """The rows of each label: numbers by value, then names."""
        return self.reading.counts

    @property
    def nested(self) -> Sequence[str]:
        """Columns of lists or objects, which are left out."""
        return next(iter(self.parts.values())).nested

    @property
    def notes(self) -> list[str]:
        """What the user should know about how the files were read."""
        return list(dict.fromkeys(note for parts in self.parts.values() for note in parts.notes))

    def of_role(self, role: Role) -> list[str]:
        return [column.name for column in self.columns.values() if column.role == role]

    def without(self, names: Sequence[str], why: str) -> "RawTables":
        """Return the tables of which some columns are ignored."""
        ignored = {name: replace(self.columns[name], role="ignored", why=why) for name in names}
        return replace(self, columns={**self.columns, **ignored})

    def tables(self, columns: Sequence[str]) -> Iterator[TableSlice]:
        """Yield the rows in the order of the arrays."""
        first = 0
        for parts in self.parts.values():
            for part in parts.iter_tables(columns):
                yield TableSlice(part.table, first, part.origin)
                first += part.table.num_rows


def _splitting(group: str | None, time: str | None) -> dict[str, tuple[Role, str]]:
    """Return the roles of the columns that split the rows."""
    named = (("group", group), ("time", time))
    return {name: ("ignored", f"splits the rows (--{option})") for option, name in named if name}


def read_tables(
    inputs: Sequence[Path],
    *,
    label: str | None,
    given: Mapping[str, tuple[Role, str]],
    read_as: Reading = Reading(),  # noqa: B008 - frozen
    scratch: Path,
    group: str | None = None,
    time: str | None = None,
    label_changes: Sequence[str] = (),
    written: WrittenAs = _AS_READ,
) -> RawTables:
    """Return the tables with the roles of their columns.

    Args:
        label, given: see `decide_roles`; without a label, the column with one of LABEL_NAMES.
        group: the column whose rows stay together. time: the column by which rows are split.
        read_as: how the files are read. label_changes: --map-label. written: what the user said about notations.

    Raises:
        ContractError: damaged files, columns that are missing, labels of which no classifier can be trained.
    """
    parts = _parts(inputs, read_as, scratch)
    names, where = next(iter(parts.values())).columns, str(inputs[0])
    label = _label_name(names, where) if label is None else label
    check_present((label, *filter(None, (group, time))), names, where)
    _check_label(label, parts)
    collector, profile = LabelCollector(label, allowed=1 << 31), DataProfile(names, splits=("rows",), id_column=None)
    source, codes, hashes = [], [], []
    reader = TimeColumn(time, written.date_format.get(time)) if time else None
    notations = {name: written.of(name, is_date=given.get(name, ("",))[0] == "date") for name in names}
    for index, part_files in enumerate(parts.values()):
        for part in part_files.iter_tables(names):
            codes_read = collector.add(part.table[label], origin=part.origin)
            _check_number_of_labels(label, collector, where=where)
            own = content_hashes(part.table)
            _log_rows(profile.rows, profile.rows + part.table.num_rows)
            profile.add(part.table, hashes=own, splits=np.zeros(len(codes_read), np.int8), labels=codes_read)
            _add_cells(notations, part.table)
            source.append(np.full(len(codes_read), index, np.int8))
            codes.append(codes_read.astype(np.int16))
            hashes.append(_group_hashes(part, group, own))
            if reader is not None:
                reader.parse(part.table[reader.name], origin=part.origin)
    reading = LabelReading.of(collector, rows=profile.rows, changes=label_changes, where=where)
    assert profile.sample is not None, "two labels are two rows"
    sample = _once(profile.sample)
    facts = facts_of(sample, rows=profile.rows, missing=profile.missing, notations=notations)
    return RawTables(
        parts=parts,
        columns=decide_roles(facts, label=label, given={**_splitting(group, time), **given}),
        reading=reading,
        source=np.concatenate(source),
        codes=reading.codes()[np.concatenate(codes)],
        hashes=np.concatenate(hashes),
        times=None if reader is None else reader.finish(),
        sample=sample,
        written=written,
    )


def _once(sample: pa.Table) -> pa.Table:
    """Return the rows without exact repeats, if few rows are repeated: the ids of an export that has rows twice."""
    is_first = occurrences(content_hashes(sample)) == 0
    return sample.filter(pa.array(is_first)) if is_first.mean() > 1 - _FEW_REPEATS else sample


def _log_rows(before: int, now: int) -> None:
    if now // ROWS_PER_LINE > before // ROWS_PER_LINE:
        logger.info("%s rows read", f"{now:,}")


def _add_cells(notations: Mapping[str, ColumnNotations], table: pa.Table) -> None:
    for name, each in notations.items():
        each.add(table[name])


def _check_label(label: str, parts: Mapping[str, PartFiles]) -> None:
    for split, of_split in parts.items():
        if label not in of_split.columns:
            raise ContractError(
                f"{of_split.files[0]}: split {split} has no column {label!r}, the label",
                "Leave the file out: the missing split is taken from train. `predict` reads it after training.",
            )


def _check_number_of_labels(label: str, collector: LabelCollector, *, where: str) -> None:
    if len(collector.index) > MOST_LABELS:
        check_classification(label, collector.counts, where=where)
        raise ContractError(
            f"{where}: column {label!r} has more than {MOST_LABELS:,} labels", "Name another column by --label."
        )


def _parts(inputs: Sequence[Path], reading: Reading, scratch: Path) -> dict[str, PartFiles]:
    """Return the files of each split, by the names of files or folders; of "" if none has the name of a split."""
    files = named_files(inputs, option="TABLE")
    if not files:
        raise ContractError(f"{inputs[0]}: has no file", f"Name a table: {', '.join(OF_SUFFIX)}.")
    roots = [path.absolute() if path.is_dir() else path.absolute().parent for path in inputs]
    of_split: dict[str, list[Path]] = {}
    for path in files:
        root = next(root for root in roots if path.is_relative_to(root))
        of_split.setdefault(_split_of(path.relative_to(root)), []).append(path)
    if "train" in of_split and "" in of_split:
        raise ContractError(
            f"TABLE: {of_split['train'][0].name} is train by its name, but {of_split[''][0].name} is of no split",
            "Name the files of the splits alone, or files without train, val or test in their names.",
        )
    if "train" not in of_split:
        of_split = {"": files}
    of_splits = {}
    for split in ("", *SPLITS):
        if split in of_split:
            common = Path(os.path.commonpath([path.parent for path in of_split[split]]))
            parts = open_part_files(of_split[split], folder=common, reading=reading, scratch=scratch)
            of_splits[split] = parts.single_valued()
    sources = tuple(source for parts in of_splits.values() for source in parts.sources)
    if len(of_splits) > 1:
        common = Path(os.path.commonpath([source.path.parent for source in sources]))
        check_alike(common, {parts.files[0]: parts.columns for parts in of_splits.values()})
    return {split: replace(parts, alike=sources) for split, parts in of_splits.items()}


def _split_of(path: Path) -> str:
    """Return the split that a folder, or a part of a file's name, names; "" for none."""
    words = [*path.parts[:-1], *re.split(r"[^a-zA-Z]+", path.name)]
    found = {_SPLIT_NAMES[word.lower()] for word in words if word.lower() in _SPLIT_NAMES}
    return found.pop() if len(found) == 1 else ""


def _label_name(names: Sequence[str], where: str) -> str:
    found = [name for name in names if name.lower() in LABEL_NAMES]
    if len(found) == 1:
        return found[0]
    columns = ", ".join(names)
    raise ContractError(f"{where}: which column is the label? The columns are {columns}", "Name it by --label.")


def _group_hashes(part: TableSlice, group: str | None, own: np.ndarray) -> np.ndarray:
    if group is None:
        return own
    has_group = keys(part.table[group]).is_valid().to_numpy(zero_copy_only=False)
    return np.where(has_group, key_hashes(part.table[group], seed=0), own)
