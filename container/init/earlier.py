"""Record the split of each row of a table, and repeat the splits of an earlier job."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from container.init.profile import RawTables
from container.steps.preprocess.row_split import TEST, TRAIN, key_hashes
from container.tables.values import keys
from contracts.errors import ContractError
from contracts.input_files import exists
from contracts.paths import JobPaths
from contracts.spelling import counted

_MOST_IDS = 0.5  # share of an earlier job's ids that the table has, so that they are ids of the same rows


@dataclass(frozen=True)
class Splits:
    """The split of each row.

    Attributes:
        codes: TRAIN, VAL or TEST, or LEFT_OUT: not written. [N] int8
        how: how the rows were split, for people.
        notes: sentences on rows that are left out or new.
    """

    codes: np.ndarray
    how: str
    notes: Sequence[str] = ()


def id_hashes(raw: RawTables, name: str) -> pa.Array:
    """Return the hash of each row's id, null where it is empty. [N] uint64"""
    hashes = [pa.nulls(0, pa.uint64())]
    for part in raw.tables([name]):
        empty = keys(part.table[name]).is_null().to_numpy(zero_copy_only=False)
        hashes.append(pa.array(key_hashes(part.table[name], seed=0), mask=empty))
    return pa.concat_arrays(hashes)


def write_record(raw: RawTables, codes: np.ndarray, file: Path) -> None:
    """Write the split of each row, null without a label, and the hash of its id, under the id's name. [N] int8"""
    columns, names = [pa.array(codes, pa.int8(), mask=raw.codes < 0)], ["split"]
    for name in raw.of_role("id"):
        columns, names = [*columns, id_hashes(raw, name)], [*names, name]
    pq.write_table(pa.table(columns, names), file)


def earlier_splits(raw: RawTables, job: Path) -> Splits:
    """Return the splits of an earlier job: by its id, or by the number of the row in a table of as many rows.

    Raises:
        ContractError: there is no such job, or neither key fits.
    """
    if "" not in raw.parts:
        raise ContractError(
            "--splits-of: the table has splits of its own", "Name its files differently, or leave it out."
        )
    file = JobPaths.resolve(job).split_record
    if not exists(file):
        raise ContractError(f"--splits-of: {job} has no {file.name}", "Name the folder of a job that init made.")
    record = pq.read_table(file)
    split = record.column(0).to_numpy(zero_copy_only=False).astype(float)  # NaN: without a label
    name = record.column_names[1] if record.num_columns > 1 else None
    cause = "the job has no id" if name is None else f"the table has no column {name!r}, the id of the job"
    if name is not None and name in raw.columns:
        ids, own = record.column(1).combine_chunks(), id_hashes(raw, name)
        known, first, rows = np.unique(ids.drop_null().to_numpy(), return_index=True, return_counts=True)
        of_id = split[ids.is_valid().to_numpy(zero_copy_only=False)][first]
        place = pc.index_in(own, value_set=pa.array(known)).fill_null(len(known)).to_numpy()
        found = np.zeros(len(known) + 1, bool)
        found[place] = True
        if (rows == 1).all() and np.count_nonzero(found[:-1]) > _MOST_IDS * len(known):
            lost = int(np.count_nonzero((of_id == TEST) & ~found[:-1]))
            return _earlier(raw, np.append(of_id, np.nan)[place], f"as in {job}, by {name}", job=job, lost=lost)
        cause = f"ids of {name!r} repeat in the job, or most of them are not in the table"
    if len(split) == raw.rows:
        return _earlier(raw, split, f"as in {job}, by the number of the row", job=job)
    raise ContractError(
        f"--splits-of: {cause}, and its table has {counted(len(split), 'row')} instead of {raw.rows:,}",
        "Keep the job's column of ids, or all of its rows in their order.",
    )


def _earlier(raw: RawTables, split: np.ndarray, how: str, *, job: Path, lost: int = 0) -> Splits:
    new = np.isnan(split)
    notes = []
    if count := int(np.count_nonzero(new & (raw.codes >= 0))):
        notes.append(f"{counted(count, 'labelled row')} that {job} does not have: in train.")
    if lost:
        notes.append(f"{counted(lost, 'test row')} of {job} are not in the table; compare needs the same ones.")
    return Splits(np.where(new, TRAIN, split).astype(np.int8), how, notes)
