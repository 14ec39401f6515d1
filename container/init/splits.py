"""Assign the rows of a raw table to train, val and test, and write them."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.init.earlier import Splits, id_hashes
from container.init.profile import RawTables
from container.preprocessing.data_summary import IF_SHARED
from container.steps.preprocess.row_split import (
    LEFT_OUT,
    OLDER_ROWS,
    TEST,
    TRAIN,
    VAL,
    GroupSplit,
    HashSplit,
    Shares,
    StratifiedSplit,
    TimeSplit,
)
from container.tables.duplicate_ids import DuplicateIds, content_hashes, count_shared, occurrences
from container.tables.values import keys
from container.tables.writer import TableWriter
from contracts.errors import ContractError
from contracts.paths import SPLITS
from contracts.spelling import counted

EXACT_ROWS = 200_000
HELD_OUT = 0.1  # share of val, and of test
_CODES = {"train": TRAIN, "val": VAL, "test": TEST}
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: its multiples lie far apart
_LONG = 40  # characters of texts that two rows hardly ever share by chance
_DUPLICATES = 1 << 16  # distinct rows and texts up to which duplicates are counted exactly


def split_rows(raw: RawTables, *, group: str | None, time: str | None, earlier: Splits | None = None) -> Splits:
    """Return the split of each row: by its id if there is one, else by its content, not by the order of the rows.

    Splits that the user made, or those of an earlier job, stay; those that are missing are taken from train.

    Raises:
        ContractError: a split has no rows.
    """
    made = [split for split in raw.parts if split]
    codes = np.array([_CODES[split or "train"] for split in raw.parts], np.int8)[raw.source]
    missing = [split for split in SPLITS[1:] if split not in made]
    how, together, notes = "as given", "", []
    if earlier is not None:
        codes, how, notes = earlier.codes.copy(), earlier.how, [*earlier.notes]
    elif missing:
        shares = Shares(train=1 - HELD_OUT * len(missing), test=HELD_OUT if "test" in missing else 0.0)
        rows = np.flatnonzero((codes == TRAIN) & (raw.codes >= 0))
        codes[rows], how, together = _divided(raw, rows, shares, group=group, time=time)
        if older := np.count_nonzero(codes[rows] == LEFT_OUT):
            notes.append(OLDER_ROWS % (f"{older:,}", time, group))
        if made:
            how = f"{', '.join(made)} as given; {' and '.join(missing)} from train, {how}"
    codes[raw.codes < 0] = LEFT_OUT
    splits = Splits(codes, how, notes)
    for split in SPLITS[1:] if group is not None else ():
        if shared := len(np.intersect1d(raw.hashes[codes == TRAIN], raw.hashes[codes == _CODES[split]])):
            notes.append(
                f"{split}: {counted(shared, 'group')} of {group} that train has as well. {IF_SHARED['groups']}"
            )
    for split in SPLITS:
        if not (codes == _CODES[split]).any():
            labelled = f"{int((raw.codes >= 0).sum()):,} rows with a label"
            raise ContractError(
                f"split {split} would have no row: the table has {labelled}"
                + (f", of {together}; rows of one stay together" if together else f", split {how}"),
                "Provide more rows, split by another column, or name files of your own splits train, val and test.",
            )
    return splits


def _divided(
    raw: RawTables, rows: np.ndarray, shares: Shares, *, group: str | None, time: str | None
) -> tuple[np.ndarray, str, str]:
    """Return the split of some rows [R], how they were split, and the units that are not divided."""
    hashes, strata = raw.hashes, raw.codes[rows].astype(np.int64)
    times = None if raw.times is None else raw.times[rows]
    if group is None and times is None and (ids := raw.of_role("id")):
        own = id_hashes(raw, ids[0])
        hashes = np.where(own.is_valid(), own.fill_null(0), hashes)
    hashes = hashes[rows]
    if group is not None:
        rule, how = GroupSplit.fit(shares, hashes, times), f"rows of one {group} together"
        how += f", the newest groups by {time} in test" if time else ""
    elif times is not None:
        rule, how = TimeSplit.fit(shares, times), f"by the time in {time}"
    elif len(rows) <= EXACT_ROWS:
        rule, how = StratifiedSplit.fit(shares, hashes, strata), "with equal shares of each label"
        if _misses(rule.assign(hashes, strata, None), shares):
            number = occurrences(hashes).astype(np.uint64)
            if number.any():
                different = counted(int((number == 0).sum()), "different row")
                hashes, how = hashes + number * _SPREAD, f"{how}, and equal rows apart ({different})"
                rule = StratifiedSplit.fit(shares, hashes, strata)
    else:
        rule, how = HashSplit(shares), "by a hash of the id or the row"
    return rule.assign(hashes, strata, times), how, getattr(rule, "together", "")


def _misses(codes: np.ndarray, shares: Shares) -> bool:
    """Return whether a split misses its share by more than half, and by more than a row."""
    wanted = shares.counts(len(codes))
    off = np.abs(np.bincount(codes, minlength=3) - wanted)
    return bool(((2 * off > wanted) & (off > 1)).any())


@dataclass(frozen=True)
class Repeated:
    """Contents that several splits share.

    Attributes:
        shared: number of contents in more than one split, by what they are; short texts do not count.
        absent: columns of numbers or dates without a value in train.
    """

    shared: Mapping[str, int]
    ids: int
    id_example: str | None
    absent: Sequence[str] = ()


def write_splits(raw: RawTables, splits: Splits, folders: Mapping[str, Path]) -> Repeated:
    """Write the rows of each split to its folder, as Parquet; only labels change."""
    names = next(iter(raw.parts.values())).columns
    inputs = [name for name in names if raw.columns[name].role not in ("id", "ignored")]
    texts = [column for column in raw.of_role("text") if not raw.columns[column].facts.repeats > 0.5]
    ids = raw.of_role("id")
    seen = {what: [DuplicateIds(limit=_DUPLICATES) for _ in SPLITS] for what in ("rows", *texts)}
    repeated_ids = DuplicateIds()
    absent = [*raw.of_role("number"), *raw.of_role("date")]
    writers: list[TableWriter] = []
    with ExitStack() as files:
        for part in raw.tables(names):
            table = part.table
            if raw.reading.changes_labels:
                labels = raw.reading.read(table[raw.label])
                table = table.set_column(names.index(raw.label), raw.label, labels)
            if not writers:
                writers = [
                    files.enter_context(TableWriter(folders[split] / f"{split}.parquet", table.schema))
                    for split in SPLITS
                ]
            codes = splits.codes[part.first_row : part.first_row + table.num_rows]
            content = {"rows": content_hashes(table.select(inputs))}
            content |= {text: content_hashes(table.select([text])) for text in texts}
            long = {text: pc.greater_equal(pc.utf8_length(keys(table[text])), _LONG) for text in texts}
            long = {text: found.fill_null(False).to_numpy(zero_copy_only=False) for text, found in long.items()}
            long["rows"] = np.any([*long.values()], axis=0) if texts else np.ones(table.num_rows, bool)
            for split, writer in zip(SPLITS, writers):
                chosen = codes == _CODES[split]
                writer.write(table.filter(pa.array(chosen)))
                for what, hashes in content.items():
                    seen[what][SPLITS.index(split)].add_hashes(hashes[chosen & long[what]])
            for name in ids:
                repeated_ids.add(table[name])
            in_train = table.select(absent).filter(pa.array(codes == TRAIN))
            absent = [name for name in absent if not raw.columns[name].facts.has_value(in_train[name])]
    shared = {what: count_shared(of) for what, of in seen.items()}
    return Repeated(shared, repeated_ids.count, repeated_ids.example, absent)


def label_counts(raw: RawTables, splits: Splits) -> dict[str, list[int]]:
    """Return the rows of each label in train, val and test."""
    labels: Sequence[str] = list(raw.labels)
    counted = [np.bincount(raw.codes[splits.codes == code], minlength=len(labels)) for code in _CODES.values()]
    return {label: [int(counts[k]) for counts in counted] for k, label in enumerate(labels)}
