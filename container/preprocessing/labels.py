"""Map label cells to class ids, in the configured order or the order learned from train."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.table_file import Origin
from container.tables.values import contiguous, keys
from contracts.errors import ContractError, shown

UNLABELLED = -100  # as in container/data/batch.py, which needs torch

Label = int | str

MOST_NUMBERS, FEW_NUMBERS = 100, 20  # distinct numbers that may be classes: whole ones, and others


@dataclass(frozen=True)
class LabelMap:
    """The classes, in the order of their ids.

    Attributes:
        column: name of the label column.
        labels: as in the configuration or the data; 1, 1.0, "1" and true are the same label.
    """

    column: str
    labels: tuple[Label, ...]

    @cached_property
    def keys(self) -> pa.Array:
        return keys(pa.array([str(label) for label in self.labels], pa.string()))

    def encode(self, column: pa.Array | pa.ChunkedArray, *, origin: Origin) -> np.ndarray:
        """Return class ids, UNLABELLED where the cell is empty. [R] int64

        Raises:
            ContractError: a label that is not in the map.
        """
        cell_keys = keys(column)
        ids = pc.index_in(cell_keys, value_set=self.keys, skip_nulls=True)
        wrong = np.flatnonzero(pc.and_(pc.is_null(ids), pc.is_valid(cell_keys)).to_numpy(zero_copy_only=False))
        if len(wrong):
            index = int(wrong[0])
            cells = contiguous(column)  # Python has not every time of Arrow
            value = shown((cell_keys if pa.types.is_temporal(cells.type) else cells)[index].as_py())
            raise ContractError(
                f"{origin.row(index)}, column {self.column!r}: {value} is not one of the labels "
                f"{shown(list(self.labels))}",
                "Correct the row, or multiclass_categories (with is_binary false) so that it lists every label.",
            )
        return pc.fill_null(ids, UNLABELLED).to_numpy(zero_copy_only=False).astype(np.int64)


def given_labels(column: str, categories: Sequence[Label]) -> LabelMap:
    """Return the map of multiclass_categories.

    Raises:
        ContractError: an empty label, or two that are the same (1 and "1.0").
    """
    labels = LabelMap(column, tuple(categories))
    label_keys = labels.keys.to_pylist()
    if None in label_keys:
        raise ContractError("multiclass_categories: has an empty label", "Remove the label.")
    twice = [label for label, key in zip(categories, label_keys) if label_keys.count(key) > 1]
    if twice:
        raise ContractError(
            f"multiclass_categories: {twice} are the same label (1, 1.0, '1' and true are)", "List each label once."
        )
    return labels


def learned_labels(column: str, counts: Mapping[str, int]) -> LabelMap:
    """Return the map of the label keys of train: numbers by value, then texts alphabetically."""
    return LabelMap(
        column,
        # Larger numbers stay exact as text.
        tuple(int(key) if re.fullmatch("0|-?[1-9][0-9]{,17}", key) else key for key in sorted(counts, key=label_order)),
    )


def check_classification(column: str, counts: Mapping[str, int], *, where: str) -> None:
    """Raise ContractError where labels are many numbers, or numbers with decimal places: those of a regression."""
    values = [label_order(key) for key in counts]
    if len(values) <= 2 or not all(kind == 0 for kind, _, _ in values):
        return
    distinct = len(values)
    if distinct > MOST_NUMBERS or (distinct > FEW_NUMBERS and any(number % 1 for _, number, _ in values)):
        raise ContractError(
            f"{where}: column {column!r} has {distinct:,} distinct numbers, e.g. {', '.join(sorted(counts)[:3])}: that "
            "is a regression, and this project trains classifiers only",
            "Name a column of classes, or write classes instead of the numbers, e.g. low, medium and high. If each "
            "number is a class, list them in multiclass_categories.",
        )


def check_two_classes(labels: LabelMap, counts: Mapping[str, int], *, where: str) -> list[Label]:
    """Return the labels of the map that train lacks.

    Raises:
        ContractError: train has fewer than two classes.
    """
    present = [key for key in labels.keys.to_pylist() if counts.get(key)]
    if len(present) < 2:
        only = f"only the label {shown(present[0])}" if present else "no label"
        raise ContractError(
            f"{where}: column {labels.column!r} has {only}, but a classifier needs two classes",
            "Check label_name and the split of the data.",
        )
    return [label for label, key in zip(labels.labels, labels.keys.to_pylist()) if not counts.get(key)]


class LabelCollector:
    """Count label keys and give each an index: its class id in a known map, else its order of appearance.

    Args:
        allowed: the largest number of labels without a map.
    """

    def __init__(self, column: str, *, allowed: int, known: LabelMap | None = None) -> None:
        self.column = column
        self.allowed = allowed
        self.known = known
        self.index: dict[str, int] = {} if known is None else {key: i for i, key in enumerate(known.keys.to_pylist())}
        self.counts: Counter[str] = Counter()

    def add(self, column: pa.Array | pa.ChunkedArray, *, origin: Origin) -> np.ndarray:
        """Return the index of each row's label, -1 without a label. [R] int64

        Raises:
            ContractError: a label outside the map, or more labels than allowed.
        """
        distinct = keys(column).dictionary_encode()
        codes = pc.fill_null(distinct.indices, -1).to_numpy(zero_copy_only=False)
        position = np.full(len(distinct.dictionary) + 1, -1, np.int64)
        for code, key in enumerate(distinct.dictionary.to_pylist()):
            if key is None:
                continue
            if key not in self.index:
                if self.known is not None:
                    self.known.encode(column, origin=origin)
                self._admit(key, origin.row(int(np.flatnonzero(codes == code)[0])))
            position[code] = self.index[key]
            self.counts[key] += int(np.count_nonzero(codes == code))
        return position[codes]

    def _admit(self, key: str, where: str) -> None:
        if len(self.index) == self.allowed:
            raise ContractError(
                f"{where}, column {self.column!r}: {shown(key)} is an additional label; the data "
                f"already has {self.allowed} classes: {shown(list(self.index))}",
                "Check label_name. For more classes, set is_binary=false, num_classes and multiclass_categories.",
            )
        self.index[key] = len(self.index)


def label_order(key: str) -> tuple[int, float, str]:
    """Return the place of a label among others: numbers by value, then texts alphabetically."""
    try:
        number = float(key)
    except ValueError:
        number = math.nan
    return (1, 0.0, key) if math.isnan(number) else (0, number, key)  # NaN has no order
