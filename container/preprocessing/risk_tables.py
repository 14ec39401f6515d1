"""Replace each category by the smoothed frequency of each class among its training rows."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.tables.values import Kind, keys, kind_of_texts
from contracts.errors import ContractError, shown
from contracts.value_types import LARGEST_NUMBER

MISSING = ""  # null and "" are one category


@dataclass(frozen=True)
class RiskTable:
    """The V values of each category of one column; V is 1 (binary: class 1) or the number of classes.

    Attributes:
        default: values of a category that train lacks or that is too rare. [V]
        risk: values by category; "" is the missing one.
        counts: training rows by category; empty for a given table.
    """

    default: tuple[float, ...]
    risk: Mapping[str, tuple[float, ...]]
    counts: Mapping[str, int]

    @cached_property
    def values(self) -> np.ndarray:
        """Return a row per category, then the default. [C + 1, V] float64"""
        return np.array([*self.risk.values(), self.default], np.float64)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {category: row for row, category in enumerate(self.risk)}

    def codes(self, categories: pa.Array) -> np.ndarray:
        """Return the row of `values` for each of `category_keys`. [R] int64"""
        return category_codes(categories, self._rows, other=len(self.risk))

    def check_matches(self, column: str, categories: Collection[str], *, source: str, fix: str) -> None:
        """Raise ContractError where the table has no category of train, so that all would get the default.

        Args:
            categories: categories of the column in train.
            source: setting or artifact that contains the table.
            fix: how to train without the table.
        """
        named = sorted(set(categories) - {MISSING})
        if not named or not self.risk.keys().isdisjoint(named):
            return
        cause = (
            f"{source}: risk table of column {column!r}: has none of the column's {len(named)} categories in train, "
            f"such as {named[0]!r}; all of them would get the default"
        )
        try:
            is_mapped = np.isin(np.array(named, np.float64).round(4), self.values.round(4)).all()
        except ValueError:  # a category that is not a number
            is_mapped = False
        if is_mapped:
            cause += ". The column looks already mapped: its values are risk values of the table"
            fix = f"move the column to tab_field_list, or {fix}"
        raise ContractError(cause, f"Give raw values that are categories of the table, or {fix}.")

    def frequent(self, min_count: int) -> tuple[str, ...]:
        """Return the categories with at least `min_count` training rows; all of a table without counts."""
        return tuple(name for name in self.risk if not self.counts or self.counts.get(name, 0) >= min_count)

    def to_json(self) -> dict[str, Any]:
        single = len(self.default) == 1
        default = {"default_risk": self.default[0]} if single else {"default_risks": list(self.default)}
        risk = {key: value[0] if single else list(value) for key, value in self.risk.items()}
        return {**default, "risk": risk, "counts": dict(self.counts)}


@dataclass(frozen=True)
class FoldedRisks:
    """Out-of-fold risk values for training rows.

    Attributes:
        seed: determines, with the number of the row or its group, the fold of a row.
        num_folds: F.
        values: by column, in the order of RiskTable.values. [F, C + 1, V] float64
    """

    seed: int
    num_folds: int
    values: Mapping[str, np.ndarray]

    def folds(self, units: np.ndarray) -> np.ndarray:
        return fold_of(units, seed=self.seed, num_folds=self.num_folds)


class CategoryCounts:
    """Counts of training rows by category, fold and label index of one column.

    Attributes:
        index: row in the counts, by category. missing: rows without a category, labelled or not.
    """

    def __init__(self, *, num_folds: int, num_labels: int) -> None:
        self.index: dict[str, int] = {}
        self.missing = 0
        self._counts = np.zeros((64, num_folds, num_labels), np.int32)

    def add(self, column: pa.Array | pa.ChunkedArray, folds: np.ndarray, label_index: np.ndarray) -> None:
        """Count the rows of a batch whose label index is not negative. [R] each"""
        categories = category_keys(column, "text")
        self.missing += pc.sum(pc.equal(categories, MISSING)).as_py() or 0
        distinct = categories.dictionary_encode()
        rows = self._rows(distinct.dictionary.to_pylist())
        codes = rows[distinct.indices.to_numpy(zero_copy_only=False)]
        labelled = label_index >= 0
        np.add.at(self._counts, (codes[labelled], folds[labelled], label_index[labelled]), 1)

    def sorted(self, labels: Sequence[int]) -> tuple[list[str], np.ndarray]:
        """Return the C categories of labelled rows in alphabetical order, and their counts.

        Args:
            labels: label index of each class; -1 without rows.

        Returns:
            Categories, and rows by category, fold and class. [C], [C, F, K] int64
        """
        names = sorted(self.index)
        counts = select_labels(self._counts[[self.index[name] for name in names]], labels)
        seen = counts.sum((1, 2)) > 0
        return [name for name, keep in zip(names, seen) if keep], counts[seen]

    def read_as(self, kind: Kind) -> None:
        """Give the rows of several spellings of a value to one category, and change the others' names."""
        names = list(self.index)
        counts, self.index = self._counts[: len(names)], {}
        self._counts = np.zeros_like(counts)
        rows = self._rows(category_keys(pa.array(names, pa.string()), kind).to_pylist())
        np.add.at(self._counts, rows, counts)

    def _rows(self, names: list[str]) -> np.ndarray:
        for name in names:
            self.index.setdefault(name, len(self.index))
        if len(self.index) > len(self._counts):
            more = np.zeros((2 * len(self.index) - len(self._counts), *self._counts.shape[1:]), np.int32)
            self._counts = np.concatenate([self._counts, more])
        return np.array([self.index[name] for name in names], np.int64)


def select_labels(counts: np.ndarray, labels: Sequence[int]) -> np.ndarray:
    """Return the counts of the label indices `labels`; index -1 has none. [..., L] -> [..., len(labels)]"""
    return np.concatenate([counts, np.zeros_like(counts[..., :1])], axis=-1)[..., labels]


def category_keys(column: pa.Array | pa.ChunkedArray, kind: Kind) -> pa.Array:
    """Return the category of each cell; MISSING where it is empty. [R] string"""
    return pc.fill_null(keys(column, kind), MISSING)


def category_codes(categories: pa.Array, codes: Mapping[str, int], *, other: int) -> np.ndarray:
    """Return the code of each category, `other` for one without a code. [R] -> [R] int64

    The time depends on the cells only. Arrow's index_in would hash all categories in each call.
    """
    distinct = categories.dictionary_encode()
    found = np.array([codes.get(category, other) for category in distinct.dictionary.to_pylist()], np.int64)
    return found[distinct.indices.to_numpy(zero_copy_only=False)]


def fold_of(rows: np.ndarray, *, seed: int, num_folds: int) -> np.ndarray:
    """Return the fold of each row number: a hash of seed and number (splitmix64). [R] -> [R] int64"""
    start = (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    mixed = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(start)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return (mixed % np.uint64(num_folds)).astype(np.int64)


def smoothed_risk(counts: np.ndarray, prior: np.ndarray, *, strength: float, rare: np.ndarray) -> np.ndarray:
    """Return class frequencies, smoothed towards the prior.

    With n rows of a category, n_k of them of class k, and prior p_k:
    (n_k + s p_k) / (n + s); p_k if the category is rare or n + s = 0.

    Args:
        counts: rows by category and class. [C, K]
        prior: share of each class. [K]
        strength: s, the number of rows that the prior counts as.
        rare: whether a category gets the prior. [C]

    Returns:
        [C + 1, K] float64, the last row the prior.
    """
    rows = counts.sum(1, keepdims=True)  # [C, 1]
    weight = rows + strength
    risk = np.divide(
        counts + strength * prior, weight, out=np.broadcast_to(prior, counts.shape).copy(), where=weight > 0
    )
    risk[rare] = prior
    return np.concatenate([risk, prior[None]])


def fit_risk_table(
    categories: list[str],
    counts: np.ndarray,
    totals: np.ndarray,
    *,
    binary: bool,
    smooth_factor: float,
    smooth_rows: float,
    count_threshold: int,
) -> tuple[RiskTable, np.ndarray | None]:
    """Fit the table on all training rows, and the values of each fold on the rows of the others.

    The prior is that of all rows in every fold. That of the other folds would be lower where a class is frequent in the
    fold, so the value of rare categories would tell something about the label. Categories with fewer than
    `count_threshold` rows in all folds are rare in every fold: otherwise, a category with just enough rows would have
    the prior in training and its own frequencies in serving.

    Args:
        counts: [C, F, K]. totals: rows of all categories by fold and class. [F, K]

    Returns:
        The table, and [F, C + 1, V] float64 (None with one fold).
    """
    kept = slice(1, 2) if binary else slice(None)
    in_all = counts.sum((1, 2))  # [C]
    rare = in_all < count_threshold
    num_rows = totals.sum()
    prior = totals.sum(0) / num_rows

    def values(found: np.ndarray, num_rows: int) -> np.ndarray:
        return smoothed_risk(found, prior, strength=smooth_factor * num_rows + smooth_rows, rare=rare)[:, kept]

    whole = values(counts.sum(1), num_rows)
    table = RiskTable(
        default=tuple(whole[-1].tolist()),
        risk={name: tuple(row) for name, row in zip(categories, whole.tolist())},
        counts={name: int(number) for name, number in zip(categories, in_all)},
    )
    if counts.shape[1] == 1:
        return table, None
    of_folds = enumerate(totals.sum(1))
    return table, np.stack([values(counts.sum(1) - counts[:, fold], num_rows - rows) for fold, rows in of_folds])


def parse_risk_table(column: str, given: Any, *, num_values: int, source: str, kind: Kind | None = None) -> RiskTable:
    """Parse a table in the form of risk_table_map.json, or the older {"bins": {category: risk}, "default_bin": risk}.

    Args:
        kind: how the names of categories are read; default kind_of_texts.

    Raises:
        ContractError: another form, or values that are not `num_values` finite numbers.
    """
    form = "one number" if num_values == 1 else f"{num_values} numbers, one per class,"

    def refuse(reason: str) -> ContractError:
        return ContractError(
            f"{source}: risk table of column {column!r}: {reason}",
            f'Give {{"risk": {{category: value}}, "default_risk{"" if num_values == 1 else "s"}": value}}, '
            f"each value {form} as in risk_table_map.json.",
        )

    def values(name: str, risks: Any) -> tuple[float, ...]:
        listed = list(risks) if isinstance(risks, (list, tuple, np.ndarray)) else [risks]
        numeric = all(isinstance(x, (int, float, np.number)) and not isinstance(x, bool) for x in listed)
        if not numeric or len(listed) != num_values or not all(abs(x) <= LARGEST_NUMBER for x in listed):
            raise refuse(f"{name} is {risks!r}, not {form.rstrip(',')}")
        return tuple(float(x) for x in listed)

    if not isinstance(given, Mapping):
        raise refuse(f"is {given!r}, not an object")
    risks = given.get("risk", given.get("bins"))
    default = next((given[name] for name in ("default_risk", "default_risks", "default_bin") if name in given), None)
    if not isinstance(risks, Mapping):
        raise refuse("has no 'risk' object")
    if default is None:
        raise refuse("has no default, the value of unseen categories")
    kind = kind or kind_of_texts(category_names(risks, "text"))
    names = category_names(risks, kind)
    table = {name: values(f"category {name!r}", risk) for name, risk in zip(names, risks.values())}
    if len(table) != len(risks):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise refuse(f"the category {twice!r} occurs twice (1, 1.0 and '1' are the same)")
    counts = given.get("counts") or {}
    if not isinstance(counts, Mapping) or not all(isinstance(count, (int, np.integer)) for count in counts.values()):
        raise refuse(f"counts is {shown(counts)}, not {{category: training rows}}")
    return RiskTable(
        values("the default", default), table, dict(zip(category_names(counts, kind), map(int, counts.values())))
    )


def category_names(given: Iterable[Any], kind: Kind) -> list[str]:
    """Return the category of each key of a mapping; None and NaN, as pandas has it, are missing."""

    def is_missing(key: Any) -> bool:
        return key is None or (isinstance(key, (float, np.floating)) and bool(np.isnan(key)))

    texts = [None if is_missing(key) else str(key) for key in given]
    return category_keys(pa.array(texts, pa.string()), kind).to_pylist()
