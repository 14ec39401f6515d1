"""Risk tables: a category becomes the smoothed frequency of each class among the training rows that have it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.values import keys
from contracts.errors import ContractError

MISSING = ""  # null and "" are one category


@dataclass(frozen=True)
class RiskTable:
    """What each category of one column becomes: V values, V = 1 (binary: class 1) or the number of classes.

    Attributes:
        default: of a category that train did not have, or had too rarely. [V]
        risk: by category; "" is the missing one.
        counts: training rows by category; empty where the table was given.
    """

    default: tuple[float, ...]
    risk: Mapping[str, tuple[float, ...]]
    counts: Mapping[str, int]

    @cached_property
    def categories(self) -> pa.Array:
        return pa.array(list(self.risk), pa.string())

    @cached_property
    def values(self) -> np.ndarray:
        """A row per category, then the default. [C + 1, V] float64"""
        return np.array([*self.risk.values(), self.default], np.float64)

    def codes(self, column: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Row of `values` for each cell. [R] int64"""
        found = pc.index_in(category_keys(column), value_set=self.categories)
        return pc.fill_null(found, len(self.risk)).to_numpy(zero_copy_only=False).astype(np.int64)

    def check_matches(self, column: str, categories: Collection[str], *, source: str, fix: str) -> None:
        """Raise ContractError where the table has no category of train, so that every row would get the default.

        Args:
            categories: of the column in train; a missing one does not count.
            source: setting or artifact that holds the table.
            fix: how to train without it.
        """
        named = sorted(set(categories) - {MISSING})
        if not named or not self.risk.keys().isdisjoint(named):
            return
        cause = (
            f"{source}: risk table of column {column!r}: has none of the column's {len(named)} categories in train, "
            f"such as {named[0]!r}; every row would get the default"
        )
        try:
            is_mapped = np.isin(np.array(named, np.float64).round(4), self.values.round(4)).all()
        except ValueError:  # a category that is no number
            is_mapped = False
        if is_mapped:
            cause += ". The column looks already mapped: its values are risk values of the table"
            fix = f"move the column to tab_field_list, or {fix}"
        raise ContractError(cause, f"Give raw values that are categories of the table, or {fix}.")

    def frequent(self, min_count: int) -> tuple[str, ...]:
        """Categories with at least `min_count` training rows; all of a table that was given without counts."""
        return tuple(name for name in self.risk if not self.counts or self.counts.get(name, 0) >= min_count)

    def to_json(self) -> dict[str, Any]:
        single = len(self.default) == 1
        default = {"default_risk": self.default[0]} if single else {"default_risks": list(self.default)}
        risk = {key: value[0] if single else list(value) for key, value in self.risk.items()}
        return {**default, "risk": risk, "counts": dict(self.counts)}


@dataclass(frozen=True)
class FoldedRisks:
    """Risk values for training rows: each fold's fitted on the other folds.

    Attributes:
        seed: with the row's number, decides its fold.
        num_folds: F.
        values: by column, in the order of RiskTable.values. [F, C + 1, V] float64
    """

    seed: int
    num_folds: int
    values: Mapping[str, np.ndarray]

    def folds(self, rows: np.ndarray) -> np.ndarray:
        return fold_of(rows, seed=self.seed, num_folds=self.num_folds)


class CategoryCounts:
    """Training rows by category, fold and label index of one column; parts merge into the whole.

    Attributes:
        index: every category that occurs. missing: rows without one, labelled or not.
    """

    def __init__(self, *, num_folds: int, num_labels: int) -> None:
        self.index: dict[str, int] = {}
        self.missing = 0
        self._counts = np.zeros((64, num_folds, num_labels), np.int64)

    def add(self, column: pa.Array | pa.ChunkedArray, folds: np.ndarray, label_index: np.ndarray) -> None:
        """Count a batch; rows whose label index is negative do not count. [R] each"""
        found = category_keys(column)
        self.missing += pc.sum(pc.equal(found, MISSING)).as_py() or 0
        distinct = found.dictionary_encode()
        rows = self._rows(distinct.dictionary.to_pylist())
        codes = rows[distinct.indices.to_numpy(zero_copy_only=False)]
        labelled = label_index >= 0
        np.add.at(self._counts, (codes[labelled], folds[labelled], label_index[labelled]), 1)

    def merge(self, other: "CategoryCounts", label_index: np.ndarray) -> None:
        """Take in `other`, whose label index i is `label_index[i]` here."""
        self.missing += other.missing
        rows = self._rows(list(other.index))
        theirs = other._counts[: len(other.index), :, : len(label_index)]
        for there, here in enumerate(label_index):
            self._counts[rows, :, here] += theirs[:, :, there]

    def sorted(self, labels: Sequence[int]) -> tuple[list[str], np.ndarray]:
        """Categories in alphabetical order, and their counts with label i from index `labels[i]` (-1: never seen).

        Returns:
            C categories that some labelled row has, [C, F, K] int64.
        """
        names = sorted(self.index)
        counts = self._counts[[self.index[name] for name in names]]
        picked = np.stack([counts[:, :, i] if i >= 0 else np.zeros_like(counts[:, :, 0]) for i in labels], axis=-1)
        seen = picked.sum((1, 2)) > 0
        return [name for name, keep in zip(names, seen) if keep], picked[seen]

    def _rows(self, names: list[str]) -> np.ndarray:
        for name in names:
            self.index.setdefault(name, len(self.index))
        if len(self.index) > len(self._counts):
            grown = np.zeros((2 * len(self.index), *self._counts.shape[1:]), np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        return np.array([self.index[name] for name in names], np.int64)


def category_keys(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The category of each cell; MISSING where it is empty. [R] string"""
    return pc.fill_null(keys(column), MISSING)


def category_codes(column: pa.Array | pa.ChunkedArray, categories: Sequence[str]) -> np.ndarray:
    """1 + place in `categories` of each cell, 0 where it is not among them. [R] int64"""
    found = pc.index_in(category_keys(column), value_set=pa.array(categories, pa.string()))
    return 1 + pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)


def fold_of(rows: np.ndarray, *, seed: int, num_folds: int) -> np.ndarray:
    """Fold of each row number: a hash of seed and number (splitmix64), so that it needs no other row. [R] int64"""
    start = (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    mixed = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(start)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return (mixed % np.uint64(num_folds)).astype(np.int64)


def smoothed_risk(counts: np.ndarray, totals: np.ndarray, *, smooth_factor: float, count_threshold: int) -> np.ndarray:
    """Class frequencies, drawn towards the prior.

    With n rows of a category, n_k of them of class k, N rows in all and prior p_k = N_k / N:
    (n_k + s p_k) / (n + s), s = smooth_factor * N; p_k where n < count_threshold or n + s = 0.

    Args:
        counts: rows by category and class. [C, K]
        totals: all rows by class. [K]

    Returns:
        [C + 1, K] float64, the last row the prior.
    """
    prior = totals / totals.sum()
    strength = smooth_factor * totals.sum()
    rows = counts.sum(1, keepdims=True)  # [C, 1]
    weight = rows + strength
    risk = np.divide(
        counts + strength * prior, weight, out=np.broadcast_to(prior, counts.shape).copy(), where=weight > 0
    )
    risk = np.where(rows < count_threshold, prior, risk)
    return np.concatenate([risk, prior[None]])


def fit_risk_table(
    categories: list[str],
    counts: np.ndarray,
    totals: np.ndarray,
    *,
    binary: bool,
    smooth_factor: float,
    count_threshold: int,
) -> tuple[RiskTable, np.ndarray | None]:
    """The table of all training rows, and the values of each fold from the rows of the others.

    Args:
        counts: [C, F, K]. totals: rows by fold and class, whatever their category. [F, K]

    Returns:
        The table, and [F, C + 1, V] float64 (None with one fold).
    """
    kept = slice(1, 2) if binary else slice(None)
    settings = {"smooth_factor": smooth_factor, "count_threshold": count_threshold}
    whole = smoothed_risk(counts.sum(1), totals.sum(0), **settings)[:, kept]
    table = RiskTable(
        default=tuple(whole[-1].tolist()),
        risk={name: tuple(row) for name, row in zip(categories, whole.tolist())},
        counts={name: int(number) for name, number in zip(categories, counts.sum((1, 2)))},
    )
    if counts.shape[1] == 1:
        return table, None
    folds = []
    for fold in range(counts.shape[1]):
        others = totals.sum(0) - totals[fold]
        # Only a handful of rows can all fall into one fold; then there is nothing but the whole to ask.
        usable = others.sum() > 0
        folds.append(smoothed_risk(counts.sum(1) - counts[:, fold], others, **settings)[:, kept] if usable else whole)
    return table, np.stack(folds)


def parse_risk_table(column: str, given: Any, *, num_values: int, source: str) -> RiskTable:
    """A table as risk_table_map.json has it, or in the older form {"bins": {category: risk}, "default_bin": risk}.

    Raises:
        ContractError: another form, or values that are not `num_values` finite numbers.
    """
    form = "one number" if num_values == 1 else f"{num_values} numbers, one per class,"

    def refuse(what: str) -> ContractError:
        return ContractError(
            f"{source}: risk table of column {column!r}: {what}",
            f'Give {{"risk": {{category: value}}, "default_risk{"" if num_values == 1 else "s"}": value}}, '
            f"each value {form} "
            "as in risk_table_map.json.",
        )

    def values(name: str, found: Any) -> tuple[float, ...]:
        listed = list(found) if isinstance(found, (list, tuple, np.ndarray)) else [found]
        numeric = all(isinstance(x, (int, float, np.number)) and not isinstance(x, bool) for x in listed)
        if not numeric or len(listed) != num_values or not np.isfinite(np.array(listed, np.float64)).all():
            raise refuse(f"{name} is {found!r}, not {form.rstrip(',')}")
        return tuple(float(x) for x in listed)

    if not isinstance(given, Mapping):
        raise refuse(f"is {given!r}, not an object")
    risks = given.get("risk", given.get("bins"))
    default = next((given[name] for name in ("default_risk", "default_risks", "default_bin") if name in given), None)
    if not isinstance(risks, Mapping):
        raise refuse("has no 'risk' object")
    if default is None:
        raise refuse("has no default, the value of unseen categories")
    names = category_keys(pa.array([None if name is None else str(name) for name in risks], pa.string())).to_pylist()
    table = {name: values(f"category {name!r}", found) for name, found in zip(names, risks.values())}
    if len(table) != len(risks):
        twice = next(name for name in names if names.count(name) > 1)
        raise refuse(f"the category {twice!r} is there twice (1, 1.0 and '1' are one)")
    counts = given.get("counts") or {}
    return RiskTable(values("the default", default), table, {str(name): int(count) for name, count in counts.items()})
