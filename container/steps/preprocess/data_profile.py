"""Profile a raw table in one streaming pass, for a person who checks the data before training.

Rows, labels and missing cells are counted over all rows. Kinds, quantiles and frequent values come from a sample of at
most SAMPLE_ROWS rows. The rows' hashes determine the sample, so it does not depend on the files.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.preprocessing.labels import label_order
from container.steps.preprocess.column_sample import ColumnSample
from container.tables.dates import read_dates
from container.tables.duplicate_ids import DuplicateIds, count_shared
from container.tables.number_notations import MISSING_NUMBERS, NULL
from container.tables.row_sample import RowSample
from container.tables.values import contiguous, keys
from contracts.errors import one_line

SAMPLE_ROWS = 50_000
SAMPLE_BYTES = 16 << 20
EXACT_IDS = 1 << 16  # up to this many distinct ids, duplicates are counted exactly; beyond, in a sample of the ids
FREQUENT_VALUES = 10
FEW_VALUES = 50  # a column with at most this many distinct values can be a category
SHOWN_CHARACTERS = 60
SHORT_BYTES = 32  # a longer cell counts as present, because it takes time to remove the blanks of every text
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
_MIX = np.uint64(0x9E3779B97F4A7C15)  # the split uses the order of the hashes, so the sample uses another order


class DataProfile:
    """Counts and a sample of the rows so far."""

    def __init__(self, columns: Sequence[str], *, splits: Sequence[str], id_column: str | None) -> None:
        self.rows = 0
        self.dropped = 0  # without a label
        self.left_out = 0  # by the split, to keep groups whole
        self._splits = tuple(splits)
        self._missing = {name: np.zeros(2, np.int64) for name in columns}  # as a text, as a number
        self._counts = np.zeros((len(splits), 1), np.int64)  # [split, label + 1]; column 0: without a label
        self._id_column = id_column
        self._ids = DuplicateIds(limit=EXACT_IDS)
        self._ids_of_splits = [DuplicateIds(limit=EXACT_IDS) for _ in splits]
        self._sample = RowSample(rows=SAMPLE_ROWS, num_bytes=SAMPLE_BYTES)

    @property
    def distinct_ids(self) -> int | None:
        """Return the number of different ids; None without a column of ids, or if they are only sampled."""
        if self._id_column is None or self._ids.skipped_bits:
            return None
        return self.rows - self._ids.count

    def add(self, table: pa.Table, *, hashes: np.ndarray, splits: np.ndarray, labels: np.ndarray) -> None:
        """Add written rows.

        Args:
            table: raw cells. [R rows]
            hashes: [R] uint64
            splits: index of each row's split. [R]
            labels: code of each row's label, -1 without a label. [R]
        """
        self.rows += table.num_rows
        width = max(int(labels.max(initial=-1)) + 2, self._counts.shape[1])
        self._counts = np.pad(self._counts, ((0, 0), (0, width - self._counts.shape[1])))
        flat = np.bincount(splits.astype(np.int64) * width + labels + 1, minlength=len(self._splits) * width)
        self._counts += flat.reshape(-1, width)
        for name in self._missing:
            self._missing[name] += _missing_cells(table[name])
        if self._id_column is not None:
            ids = table[self._id_column]
            self._ids.add(ids)
            for code, of_split in enumerate(self._ids_of_splits):
                of_split.add(ids.filter(pa.array(splits == code)))
        self._sample.add(table, hashes * _MIX)

    @property
    def sample(self) -> pa.Table | None:
        """The sampled rows; None without rows."""
        pieces = [table for table, _ in self._sample.pieces]
        return pa.concat_tables(pieces) if pieces else None

    @property
    def missing(self) -> dict[str, list[int]]:
        """The number of cells without a text, and without a number, by column."""
        return {name: counts.tolist() for name, counts in self._missing.items()}

    def classes(self, split: str) -> list[int]:
        """Return the codes of the labels that the rows of a split have."""
        return np.flatnonzero(self._counts[self._splits.index(split), 1:]).tolist()

    def to_json(self, labels: Sequence[str], *, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the profile as JSON values; None where there is no value.

        Args:
            labels: by code.
            about: further facts, which come first.
        """
        sample = self.sample
        order = sorted(range(len(labels)), key=lambda code: label_order(labels[code]))
        splits = {
            name: {
                "rows": int(counts.sum()),
                "share": round(int(counts.sum()) / self.rows, 6) if self.rows else None,
                "labels": {labels[code]: int(counts[code + 1]) for code in order if code + 1 < len(counts)},
                "unlabelled": int(counts[0]),
            }
            for name, counts in zip(self._splits, self._counts)
        }
        facts = {name: {} if sample is None else describe(sample[name], name) for name in self._missing}
        return {
            **about,
            "rows": self.rows,
            "dropped_unlabelled": self.dropped,
            "left_out": self.left_out,
            "splits": splits,
            "duplicate_ids": self._ids.count if self._id_column is not None else None,
            "duplicate_id_example": self._ids.example,
            "ids_in_several_splits": count_shared(self._ids_of_splits) if self._id_column is not None else None,
            "ids_are_sampled": self._ids.skipped_bits > 0,
            "sampled_rows": 0 if sample is None else sample.num_rows,
            "columns": {
                name: {"missing": int(missing[int(facts[name].get("kind") == "number")]), **facts[name]}
                for name, missing in self._missing.items()
            },
        }


def describe(column: pa.ChunkedArray, name: str) -> dict[str, Any]:
    """Return the kind of a column's sample, and the facts for this kind."""
    sample = ColumnSample(name, contiguous(column))
    count = {"distinct": sample.distinct}
    if not sample.distinct:
        return {"kind": "empty", **count}
    if sample.date_format is not None:
        return {"kind": "time", **count, **_period(sample)}
    if sample.is_number:
        return {"kind": "number", **count, **_distribution(sample.numbers[np.isfinite(sample.numbers)])}
    cells = len(sample.keys)
    if sample.distinct == cells > FEW_VALUES and " " not in "".join(sample.values[:100]):
        return {"kind": "identifier", **count, "example": _shown(sample.values[0])}
    characters = sample.characters
    if sample.distinct > FEW_VALUES and (characters.mean() > 20 or sample.distinct > cells / 2):
        lengths = {"mean": round(float(characters.mean()), 1), "max": int(characters.max())}
        return {"kind": "text", **count, "characters": lengths, "example": _shown(sample.values[0])}
    shares = {_shown(value): round(sample.counts[value] / cells, 4) for value in sample.values[:FREQUENT_VALUES]}
    return {"kind": "category", **count, "frequent": shares}


def profile_text(profile: Mapping[str, Any]) -> str:
    """Return the profile as a page of text."""
    lines = [f"{profile['rows']:,} rows with {len(profile['columns'])} columns, from {profile['files']} file(s)."]
    if profile["dropped_unlabelled"]:
        lines.append(f"{profile['dropped_unlabelled']:,} rows without a label were dropped.")
    if profile["duplicate_ids"]:
        about = "about " if profile["ids_are_sampled"] else ""
        lines.append(
            f"{about}{profile['duplicate_ids']:,} rows repeat an earlier id, e.g. {profile['duplicate_id_example']}; "
            f"{about}{profile['ids_in_several_splits']:,} ids occur in several splits."
        )
    lines += ["", f"Splits ({profile['split_by']}):"]
    for name, split in profile["splits"].items():
        total = max(split["rows"], 1)
        shares = ", ".join(f"{label}: {count:,} ({count / total:.1%})" for label, count in split["labels"].items())
        without = f"; {split['unlabelled']:,} without a label" if split["unlabelled"] else ""
        lines.append(f"  {name:12s}{split['rows']:>12,} rows   {shares}{without}")
    sampled = "" if profile["sampled_rows"] == profile["rows"] else f" of a sample of {profile['sampled_rows']:,} rows"
    lines += ["", f"Columns (missing cells of all rows; other facts{sampled}):"]
    for name, column in profile["columns"].items():
        missing = f"{column['missing'] / max(profile['rows'], 1):.1%} missing" if column["missing"] else "complete"
        lines.append(f"  {name:24s}{column.get('kind', 'empty'):12s}{missing:>15s}   {_facts(column)}".rstrip())
    return "".join(f"{one_line(line)}\n" for line in lines)


def _facts(column: Mapping[str, Any]) -> str:
    match column.get("kind"):
        case "number":
            return (
                f"{column['min']:.6g} to {column['max']:.6g}, mean {column['mean']:.6g}, median "
                f"{column['quantiles']['0.5']:.6g}, {column['distinct']:,} distinct"
            )
        case "category":
            listed = ", ".join(f"{value} {share:.0%}" for value, share in list(column["frequent"].items())[:5])
            return f"{column['distinct']:,} distinct: {listed}"
        case "time":
            return f"{column['first']} to {column['last']}"
        case "text":
            return f"{column['characters']['mean']:.0f} characters on average, at most {column['characters']['max']:,}"
        case "identifier":
            return f"all distinct, e.g. {column['example']}"
    return ""


def _distribution(values: np.ndarray) -> dict[str, Any]:
    quantiles = np.quantile(values, QUANTILES)
    return {
        "min": float(values.min()),
        "max": float(values.max()),
        "mean": float(values.mean()),
        "std": float(values.std()),
        "quantiles": {str(q): float(value) for q, value in zip(QUANTILES, quantiles)},
    }


def _period(sample: ColumnSample) -> dict[str, str]:
    """Return the first and the last time."""
    assert sample.date_format is not None, "the caller checks it"
    dates = read_dates(sample.sample, sample.date_format)
    kind = pa.timestamp("us", "UTC" if dates.zoned.any() else None)
    ends = np.array([np.nanmin(dates.seconds), np.nanmax(dates.seconds)]) * 1e6
    first, last = pc.replace_substring(keys(pa.array(ends.astype(np.int64)).cast(kind)), " ", "T").to_pylist()
    return {"first": first, "last": last}


def _missing_cells(column: pa.ChunkedArray) -> tuple[int, int]:
    """Return the number of cells without a value, if the column is one of texts and if it is one of numbers."""
    cells = contiguous(column)
    if pa.types.is_floating(cells.type):
        missing = pc.sum(pc.is_null(cells, nan_is_null=True)).as_py() or 0
        return missing, missing
    if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
        words = _may_be_missing(cells)
        if len(words):
            trimmed = pc.utf8_lower(pc.utf8_trim_whitespace(words))
            counts = (
                pc.sum(pc.is_in(trimmed, pa.array(names))).as_py() or 0
                for names in (("", NULL.lower()), MISSING_NUMBERS)
            )
            as_text, as_number = (cells.null_count + count for count in counts)
            return as_text, as_number
    return cells.null_count, cells.null_count


def _may_be_missing(cells: pa.Array) -> pa.Array:
    """Return the short cells that begin with no digit, because it takes time to trim every cell."""
    kind = np.int32 if pa.types.is_string(cells.type) else np.int64
    _, offsets, data = cells.buffers()
    ends = np.frombuffer(offsets, kind)[cells.offset : cells.offset + len(cells) + 1]
    lengths, starts = np.diff(ends), ends[:-1]
    signs = np.frombuffer(data or b"\0", np.uint8)
    first = signs[np.minimum(starts, len(signs) - 1)]
    return cells.filter(pa.array((lengths <= SHORT_BYTES) & ((first < ord("0")) | (first > ord("9")) | (lengths == 0))))


def _shown(value: str) -> str:
    return value if len(value) <= SHOWN_CHARACTERS else f"{value[: SHOWN_CHARACTERS - 1]}…"
