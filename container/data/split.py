"""Read a prepared split by memory map: the time to open it does not depend on its size."""

import copy
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from container.data.batch import PackedBatch, PackedText
from container.data.records import RecordArrays, TextArrays
from container.preprocessing.split_file import batch_starts_path


class PreparedSplit:
    """Records of prepared Arrow files, addressed by position 0..len-1.

    Args:
        paths: .arrow files, one after the other. The numbers of the rows of each follow those of the one before.
        roles: text fields to read, in the model's order.
    """

    def __init__(self, *paths: Path, roles: Sequence[str]) -> None:
        self._readers = [pa.ipc.open_file(pa.memory_map(str(path))) for path in paths]
        self._roles = tuple(roles)
        self._starts: list[int] = [0]
        self._batches: list[tuple[pa.ipc.RecordBatchFileReader, int, int]] = []  # reader, number, added to its rows
        first_row = 0
        for path, reader in zip(paths, self._readers, strict=True):
            before, batches = self._starts[-1], reader.num_record_batches
            self._starts += [before + start for start in np.load(batch_starts_path(path)).tolist()[1:]]
            self._batches += [(reader, batch, first_row) for batch in range(batches)]
            if len(paths) > 1 and batches:
                first_row += reader.get_batch(batches - 1).column("row")[-1].as_py() + 1
        self._arrays: dict[int, RecordArrays] = {}
        self._chosen: np.ndarray | None = None  # positions in the file of the records of a part
        self._targets: np.ndarray | None = None

    def part(self, positions: np.ndarray) -> "PreparedSplit":
        """Return the records at `positions` of a whole split as a split."""
        part = copy.copy(self)
        part._chosen = positions
        return part

    def with_targets(self, targets: np.ndarray) -> "PreparedSplit":
        """Return the records of a whole split with targets for the loss; see PackedBatch.targets. [len(self), K]"""
        changed = copy.copy(self)
        changed._targets = targets.astype(np.float32)
        return changed

    def _in_file(self, positions: np.ndarray) -> np.ndarray:
        return positions if self._chosen is None else self._chosen[positions]

    def __len__(self) -> int:
        return self._starts[-1] if self._chosen is None else len(self._chosen)

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a whole column, e.g. id; as texts if its files have several types."""
        kinds = {reader.schema.field(name).type for reader in self._readers}
        kind = kinds.pop() if len(kinds) == 1 else pa.string()
        chunks = [reader.get_batch(batch).column(name).cast(kind) for reader, batch, _ in self._batches]
        if name == "row":
            earlier = (before for *_, before in self._batches)
            chunks = [pc.add(chunk, before) for chunk, before in zip(chunks, earlier, strict=True)]
        column = pa.chunked_array(chunks, type=kind)
        return column if self._chosen is None else column.take(pa.array(self._chosen))

    def weights(self) -> np.ndarray:
        """Return the weight of each record; 1 without weight_name. [len(self)]"""
        weighted = "weight" in self._schema.names
        return self.column("weight").to_numpy() if weighted else np.ones(len(self), np.float32)

    def units(self) -> np.ndarray:
        """Return the unit of each record; see RecordArrays. [len(self)]"""
        return self.column("group" if "group" in self._schema.names else "row").to_numpy()

    @property
    def _schema(self) -> pa.Schema:
        return self._readers[0].schema

    def arrays(self) -> list[RecordArrays]:
        """Return all records of the file, in order, as views."""
        return [self._arrays_of(batch) for batch in range(len(self._starts) - 1)]

    def token_counts(self, positions: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each record at `positions`, over all texts. [len(positions)]"""
        return self._token_counts[self._in_file(positions)]

    @cached_property
    def _token_counts(self) -> np.ndarray:
        """Of all records of the file."""
        counts = [part.token_counts.sum(axis=1) for part in self.arrays()]
        return np.concatenate(counts) if counts else np.zeros(0, np.int64)

    def pack(self, positions: np.ndarray, *, filler: bool = False) -> PackedBatch:
        """Return the records at `positions`; see pack_records."""
        packed = pack_records(self.take(positions), filler=filler)
        if self._targets is None:
            return packed
        return replace(packed, targets=torch.from_numpy(self._targets[self._in_file(positions)]))

    def take(self, positions: np.ndarray) -> RecordArrays:
        """Return a copy of the records at `positions`, without groups."""
        parts, indices = zip(*map(self._locate, self._in_file(positions)))
        return RecordArrays.gathered(parts, indices)

    def _locate(self, position: int) -> tuple[RecordArrays, int]:
        batch = bisect_right(self._starts, position) - 1
        return self._arrays_of(batch), int(position) - self._starts[batch]

    def _arrays_of(self, batch: int) -> RecordArrays:
        if batch not in self._arrays:
            reader, number, before = self._batches[batch]
            arrays = RecordArrays.from_batch(reader.get_batch(number), self._roles)
            self._arrays[batch] = replace(arrays, row=arrays.row + before) if before else arrays
        return self._arrays[batch]


def pack_records(records: RecordArrays, *, filler: bool = False) -> PackedBatch:
    """Return a copy of records as a PackedBatch; `filler` gives them weight 0 and row -1."""
    return PackedBatch(
        texts=tuple(map(_packed, records.texts)),
        tabular=torch.from_numpy(records.tabular),
        labels=torch.from_numpy(records.label),
        rows=torch.from_numpy(np.full_like(records.row, -1) if filler else records.row),
        weights=torch.from_numpy(np.zeros_like(records.weight) if filler else records.weight),
    )


def _packed(text: TextArrays) -> PackedText:
    chunk_record, positions = map(torch.from_numpy, text.places())
    return PackedText.of_chunks(
        torch.from_numpy(text.tokens.astype(np.int64)),
        positions=positions,
        lengths=torch.from_numpy(text.chunk_lengths.astype(np.int64)),
        chunk_record=chunk_record,
    )
