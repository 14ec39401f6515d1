"""TabularPreprocessing: split a table into train, val and test, or one split by job type, and write its profile."""

import json
import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.job.hosts.topology import Topology
from container.preprocessing.labels import UNLABELLED, LabelCollector, LabelMap
from container.steps.preprocess.data_profile import DataProfile, profile_text
from container.steps.preprocess.row_split import (
    LEFT_OUT,
    OLDER_ROWS,
    GroupSplit,
    HashSplit,
    RowSplit,
    Shares,
    StratifiedSplit,
    TimeSplit,
    key_hashes,
    row_hashes,
)
from container.steps.preprocess.times import TimeColumn
from container.steps.program import StepRun, is_sharded
from container.tables.channel_files import TableSlice
from container.tables.part_files import PartFiles, find_part_files, read_signature
from container.tables.table_file import Origin, check_present
from container.tables.values import contiguous, keys
from container.tables.writer import TableWriter
from contracts.atomic_files import replace_together
from contracts.errors import ContractError
from contracts.paths import SPLITS, JobPaths
from contracts.spelling import counted
from contracts.step_contract import processing_resources
from contracts.steps import TABULAR_PREPROCESSING, TabularPreprocessingSettings, processed_file, splits_of

logger = logging.getLogger(__name__)

MOST_LABELS = 1000
NO_LABEL = -1


class LabelReader:
    """Assign codes to labels in the order in which they appear.

    Args:
        mapping: new label by old label; empty: labels stay unchanged. 1, 1.0 and "1" are one old label.
        unlabelled: the treatment of rows without a label.

    Raises:
        ContractError: the mapping has a label twice.
    """

    def __init__(
        self, column: str, *, mapping: Mapping[str, Any], unlabelled: Literal["error", "drop", "keep"]
    ) -> None:
        self.column = column
        self.unlabelled = unlabelled
        self._seen = LabelCollector(column, allowed=MOST_LABELS)
        self._old = LabelMap(column, tuple(mapping)) if mapping else None
        if self._old is not None:
            self._new = _new_labels(self._old, list(mapping.values()))

    @property
    def labels(self) -> list[str]:
        """The labels so far; codes are indices into it."""
        return list(self._seen.index)

    def read(self, column: pa.Array | pa.ChunkedArray, *, origin: Origin) -> tuple[np.ndarray, pa.Array]:
        """Return codes, NO_LABEL for rows without a label [R] int64, and the column to write [R].

        Raises:
            ContractError: a label that is not in the mapping, a missing label if that is an error, or too many labels.
        """
        written = contiguous(column)
        missing = keys(column).is_null()
        if self.unlabelled == "error" and pc.any(missing).as_py():
            raise ContractError(
                f"{origin.row(pc.index(missing, True).as_py())}, column {self.column!r}: the label is missing",
                "Label every row, or set UNLABELLED=drop or keep.",
            )
        if self._old is not None:
            try:
                ids = self._old.encode(column, origin=origin)
            except ContractError as error:
                raise ContractError(f"{error.cause} of LABEL_MAP", "Add it to LABEL_MAP, or correct the row.") from None
            written = self._new.take(pa.array(ids, mask=ids == UNLABELLED))
        try:
            return self._seen.add(written, origin=origin), written
        except ContractError as error:
            raise ContractError(error.cause, "Set LABEL_FIELD to a column of classes.") from None


def _new_labels(old: LabelMap, values: list[Any]) -> pa.Array:
    known = old.keys.to_pylist()
    twice = [key for key in known if known.count(key) > 1]
    if twice:
        raise ContractError(
            f"LABEL_MAP: lists {twice[0]!r} twice", "List each label once; 1, 1.0 and true are the same."
        )
    whole = all(isinstance(value, int) for value in values)
    return pa.array(values, pa.int64()) if whole else pa.array([str(value) for value in values], pa.string())


ROWS_PER_LOG_LINE = 1_000_000


@dataclass(frozen=True)
class Rows:
    """Parsed rows of the raw table.

    Attributes:
        table: the rows to write.
        hashes: of the group, the id or the whole row. [R] uint64
        labels: codes, NO_LABEL without a label. [R] int64
        times: [R] float64, or None.
        dropped: number of rows without a label that were removed.
    """

    table: pa.Table
    hashes: np.ndarray
    labels: np.ndarray
    times: np.ndarray | None
    dropped: int

    @property
    def strata(self) -> np.ndarray:
        """Index of each row's label from 1, 0 without a label. [R] int64"""
        return self.labels + 1


class RowReader:
    """Parse labels, hashes and times of raw rows."""

    def __init__(self, settings: TabularPreprocessingSettings, columns: Sequence[str], *, unlabelled: Any) -> None:
        self.settings = settings
        self.has_label = settings.label_field in columns
        self.labels = LabelReader(settings.label_field, mapping=settings.label_map, unlabelled=unlabelled)
        self.times = None if settings.time_field is None else TimeColumn(settings.time_field)

    def read(self, part: TableSlice) -> Rows:
        """Return the rows of a slice, without dropped rows."""
        table, origin = part.table, part.origin
        codes = np.full(table.num_rows, NO_LABEL, np.int64)
        hashes = self._hashes(table, origin)
        if self.has_label:
            codes, written = self.labels.read(table[self.settings.label_field], origin=origin)
            index = table.column_names.index(self.settings.label_field)
            table = table.set_column(index, self.settings.label_field, written)
        kept = (codes != NO_LABEL) | (self.labels.unlabelled != "drop")
        times = None if self.times is None else self.times.parse(table[self.times.name], kept, origin=origin)
        if kept.all():
            return Rows(table, hashes, codes, times, 0)
        return Rows(table.filter(pa.array(kept)), hashes[kept], codes[kept], times, int((~kept).sum()))

    def deciding_columns(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that determine a row's split."""
        if self.settings.id_field is None:
            return list(columns)
        roles = _role_columns(self.settings)
        return [name for name in columns if name in roles]

    def _hashes(self, table: pa.Table, origin: Origin) -> np.ndarray:
        """Return the hash of the group if the row has one, else of the id, else of the whole row. [R] uint64"""
        settings, seed = self.settings, self.settings.split_seed
        if settings.id_field is None:
            hashes = row_hashes(table, seed=seed)
        else:
            missing = np.flatnonzero(keys(table[settings.id_field]).is_null().to_numpy(zero_copy_only=False))
            if len(missing):
                raise ContractError(
                    f"{origin.row(missing[0])}, column {settings.id_field!r}: has no id",
                    "Give every row an id, or remove ID_FIELD: then the whole row determines its split.",
                )
            hashes = key_hashes(table[settings.id_field], seed=seed)
        if settings.group_field is None:
            return hashes
        grouped = keys(table[settings.group_field]).is_valid().to_numpy(zero_copy_only=False)
        return np.where(grouped, key_hashes(table[settings.group_field], seed=seed), hashes)


def run(step: StepRun) -> None:
    """Split the table, in one pass by hash, in two passes by label or time.

    Memory does not grow with the table by hash, and by 24 bytes a row by label or time.

    Raises:
        ContractError: a missing column, a damaged file, an invalid cell, a split without rows.
    """
    began = time.monotonic()
    settings: TabularPreprocessingSettings = step.settings
    job_type = step.arguments["job_type"]
    hosts = Topology.read(processing_resources(step.root))
    parts, assigned = _parts(step, hosts)
    unlabelled = settings.unlabelled or ("error" if job_type == "training" else "keep")
    required = [name for name in _role_columns(settings) if unlabelled != "keep" or name != settings.label_field]
    check_present(required, parts.columns, str(parts.files[0].parent))
    if settings.label_field not in parts.columns:
        logger.warning("There is no column %r, so no row has a label.", settings.label_field)
    reader = RowReader(settings, parts.columns, unlabelled=unlabelled)
    split = _rule(settings, parts, reader) if job_type == "training" else None
    names = splits_of(job_type)
    profile = DataProfile(parts.columns, splits=names, id_column=settings.id_field)
    paths = [
        step.output("processed_data")
        / processed_file(name, settings.output_format, hosts.current if hosts.size > 1 else None)
        for name in names
    ]
    written = _write(assigned, reader, split, profile, paths)
    if profile.left_out:
        logger.warning(OLDER_ROWS, f"{profile.left_out:,}", settings.time_field, settings.group_field)
    if hosts.size == 1:
        _check_rows(step, profile, dict(zip(names, written)), together=getattr(split, "together", ""))
        if job_type == "training" and reader.has_label:
            _check_classes(step, profile.classes(names[0]), reader.labels.labels)
    about = {
        "files": len(assigned.files),
        "format": assigned.format,
        "job_type": job_type,
        "split_by": settings.split_by if job_type == "training" else "one split",
        "label": settings.label_field if reader.has_label else None,
        "host": hosts.current if hosts.size > 1 else None,
    }
    content = profile.to_json(reader.labels.labels, about=about)
    if content["ids_in_several_splits"]:
        logger.warning(
            f"ID_FIELD: {'about ' if content['ids_are_sampled'] else ''}{content['ids_in_several_splits']} ids occur "
            "in several splits. SPLIT_BY=hash without GROUP_FIELD keeps the rows of an id in one split."
        )
    text = profile_text(content)
    name = f"data_profile-{hosts.current}" if hosts.rank else "data_profile"
    folder = step.output("processed_data")
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1, allow_nan=False), encoding="utf-8")
    (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    logger.info("Profile of the data:\n%s", text)
    seconds = time.monotonic() - began
    rows = profile.rows + profile.dropped
    logger.info("%d rows in %.1f s: %.0f rows/s.", rows, seconds, rows / max(seconds, 1e-9))


def _parts(step: StepRun, hosts: Topology) -> tuple[PartFiles, PartFiles]:
    """Return all files on this host, and the files that this host processes."""
    signature_folder = step.input("SIGNATURE")
    signature = None if signature_folder is None else read_signature(signature_folder)
    parts = find_part_files(step.required_input("DATA"), signature=signature, scratch=step.scratch)
    parts = parts.single_valued(_role_columns(step.settings))
    logger.info("%d %s file(s) with the columns %s.", len(parts.files), parts.format, ", ".join(parts.columns))
    if hosts.size == 1:
        return parts, parts
    if is_sharded(step.root, "DATA"):
        if step.arguments["job_type"] == "training" and step.settings.whole_inputs:
            raise ContractError(
                f"SPLIT_BY={step.settings.split_by}: needs all rows, but this host has only a part of the files",
                "Use one instance, or set DATA to FullyReplicated, or split by hash.",
            )
        return parts, parts
    return parts, replace(parts, sources=parts.sources[hosts.rank :: hosts.size])


def _role_columns(settings: TabularPreprocessingSettings) -> list[str]:
    """Return the columns that the settings name."""
    named = (settings.label_field, settings.id_field, settings.group_field, settings.time_field)
    return [name for name in named if name is not None]


def _rule(settings: TabularPreprocessingSettings, parts: PartFiles, reader: RowReader) -> RowSplit:
    """Return the split's rule; by label and by time this takes a pass over the rows."""
    shares = Shares.of(train_ratio=settings.train_ratio, test_val_ratio=settings.test_val_ratio)
    if settings.split_by == "hash":
        return HashSplit(shares)
    hashes, strata, times = [np.empty(0, np.uint64)], [np.empty(0, np.int16)], [np.empty(0)]
    for part in parts.iter_tables(reader.deciding_columns(parts.columns)):
        rows = reader.read(part)
        if rows.times is not None:
            times.append(rows.times)
        if rows.times is None or settings.group_field is not None:
            hashes.append(rows.hashes)
            strata.append(rows.strata.astype(np.int16))
    if reader.times is not None:
        times = [reader.times.finish()]
    if settings.group_field is not None:
        return GroupSplit.fit(shares, np.concatenate(hashes), np.concatenate(times))
    if settings.split_by == "time":
        return TimeSplit.fit(shares, np.concatenate(times))
    return StratifiedSplit.fit(shares, np.concatenate(hashes), np.concatenate(strata))


def _write(
    parts: PartFiles, reader: RowReader, split: RowSplit | None, profile: DataProfile, paths: Sequence[Path]
) -> list[int]:
    """Write the rows to the files of their splits, remove files without rows, and return the rows of each split."""
    writers: list[TableWriter] = []
    with ExitStack() as files:
        for rows in _logged(parts, reader):
            if not writers:
                writers = [files.enter_context(TableWriter(path, rows.table.schema)) for path in paths]
            codes = np.zeros(rows.table.num_rows, np.int8)
            if split is not None:
                codes = split.assign(rows.hashes, rows.strata, rows.times)
            for code, writer in enumerate(writers):
                writer.write(rows.table.filter(pa.array(codes == code)) if split is not None else rows.table)
            kept = codes != LEFT_OUT
            profile.dropped += rows.dropped
            profile.left_out += int((~kept).sum())
            table = rows.table if kept.all() else rows.table.filter(pa.array(kept))
            profile.add(table, hashes=rows.hashes[kept], splits=codes[kept], labels=rows.labels[kept])
    for writer in writers:
        if not writer.rows:
            writer.path.unlink()
    return [writer.rows for writer in writers] or [0] * len(paths)


def _logged(parts: PartFiles, reader: RowReader) -> Iterator[Rows]:
    began, seen = time.monotonic(), 0
    for part in parts.iter_tables():
        yield reader.read(part)
        before, seen = seen, seen + part.table.num_rows
        if seen // ROWS_PER_LOG_LINE > before // ROWS_PER_LOG_LINE:
            logger.info("%d rows, %.0f rows/s.", seen, seen / (time.monotonic() - began))


def _check_rows(step: StepRun, profile: DataProfile, written: dict[str, int], *, together: str) -> None:
    """Raise ContractError unless every split has rows."""
    settings: TabularPreprocessingSettings = step.settings
    if not profile.rows:
        dropped = f": all {profile.dropped} have no label" if profile.dropped else ""
        raise ContractError(f"{step.required_input('DATA')}: has no rows{dropped}", "Provide a table with rows.")
    empty = [name for name, rows in written.items() if not rows]
    distinct = profile.distinct_ids
    if empty and distinct is not None and distinct < profile.rows and settings.group_field is None:
        raise ContractError(
            f"ID_FIELD: column {settings.id_field!r} has {counted(distinct, 'distinct id')} in {profile.rows} rows. "
            f"Rows of one id stay in one split, so split {empty[0]} has no rows",
            "Name a column of different ids, or leave ID_FIELD out to split by a hash of the whole row.",
        )
    if empty:
        units = f" of {together}" if together else ""
        advice = "; rows of one group or time stay together" if settings.group_field or settings.time_field else ""
        raise ContractError(
            f"split {empty[0]} has no rows: there are {profile.rows} rows{units}, TRAIN_RATIO={settings.train_ratio:g} "
            f"and TEST_VAL_RATIO={settings.test_val_ratio:g}",
            f"Provide more rows, or change the ratios{advice}.",
        )


def _check_classes(step: StepRun, trained: Sequence[int], labels: Sequence[str]) -> None:
    """Raise ContractError for a training split of one class: from it, the training would learn nothing.

    Args:
        trained: codes of the labels in the training split.
        labels: all labels, by code.
    """
    if len(trained) > 1:
        return
    place = f"{step.required_input('DATA')}: column {step.settings.label_field!r}"
    if len(labels) > 1:
        other = next(label for code, label in enumerate(labels) if code not in trained)
        raise ContractError(
            f"{place} has {len(labels)} labels, but the rows of split train have only {len(trained)} of them",
            f"Provide more rows of other labels, such as {other!r}, or split by them: SPLIT_BY=stratified.",
        )
    label = f"only one label, {labels[0]!r}" if labels else "no label"
    raise ContractError(
        f"{place} has {label}, so there is nothing to learn",
        "Provide rows of at least two classes, or set LABEL_FIELD to another column.",
    )


def copy_into_job(root: Path, job: Path) -> int:
    """Copy each written split to the channel of its name; files of an earlier copy are replaced. Return 0."""
    written, paths = TABULAR_PREPROCESSING.output("processed_data").path(root), JobPaths.resolve(job)
    old = [path for split in SPLITS for path in paths.channel(split).glob(f"{split}_processed_data*")]
    with replace_together(paths.root, old) as new:
        for split in SPLITS:
            for path in sorted((written / split).glob(f"{split}_processed_data*")):
                channel = JobPaths(new).channel(split)
                channel.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, channel / path.name)
    logger.info("the splits are in %s; train with: python -m container train --root %s", paths.channel(""), job)
    return 0
