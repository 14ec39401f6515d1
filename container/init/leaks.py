"""Find inputs that know the label: alone, by the cells that are filled, in pairs, or as a name in a text."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.init.profile import RawTables
from container.init.roles import Column
from container.tables.values import keys

LEAKS = 0.9  # share of the errors of always guessing the most frequent label that an input removes
_FEWEST = 10  # rows of each half
_ENOUGH = 20  # rows of other labels that are expected, so that their absence is no chance
_BINS = 20
_PAIRED_ROWS, _PAIRED_COLUMNS, _SHOWN_PAIRS, _MOST_CELLS = 10_000, 50, 3, 100_000


@dataclass(frozen=True)
class Doubt:
    """A sentence on the data.

    Attributes:
        inputs: columns that it is about. Without one of them in the model, it has no object.
    """

    text: str
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Sample:
    """The labels of sampled rows in random order: the even ones are fitted, the odd ones held out.

    Attributes:
        names: of the labels. [L]
        codes: of each row. [S] int64
    """

    names: list[str]
    codes: np.ndarray

    @cached_property
    def guess(self) -> int:
        return int(np.bincount(self.codes[::2]).argmax())

    @cached_property
    def base(self) -> float:
        return float((self.codes[1::2] == self.guess).mean())

    def accuracy(self, values: np.ndarray) -> float:
        """Return the share of the held-out labels that are the most frequent one of their value. [S] int64"""
        labels = len(self.names)
        flat = np.bincount(values[::2] * labels + self.codes[::2], minlength=(int(values.max()) + 1) * labels)
        table = flat.reshape(-1, labels)
        best = np.where(table.any(1), table.argmax(1), self.guess)
        return float((best[values[1::2]] == self.codes[1::2]).mean())

    def leaks(self, accuracy: float) -> bool:
        return accuracy - self.base > LEAKS * (1 - self.base)


def leaks_of(raw: RawTables) -> Iterator[Doubt]:
    """Yield a sentence for each input, or pair of inputs, that predicts the label on rows that it is not fitted on."""
    labels = raw.reading.read(raw.sample[raw.label])
    rows = np.flatnonzero(labels.is_valid().to_numpy(zero_copy_only=False))
    rows = np.random.default_rng(0).permutation(rows)
    distinct = labels.take(pa.array(rows)).dictionary_encode()
    sample = _Sample(distinct.dictionary.to_pylist(), distinct.indices.to_numpy().astype(np.int64))
    if len(sample.codes) < 2 * _FEWEST or sample.base == 1:
        return
    paired: dict[str, np.ndarray] = {}
    for column in raw.columns.values():
        if column.role not in ("number", "category", "date", "text"):
            continue
        values, present = _values(column), _present(column)[rows]
        accuracy = sample.accuracy(_codes(values, column)[rows])
        if sample.leaks(accuracy):
            alone = (
                f"predicts {accuracy:.1%} of the labels alone (always {sample.names[sample.guess]}: {sample.base:.1%})"
            )
            yield Doubt(f"{column.name}: {alone}. {_advice(column.name)}", (column.name,))
        elif told := _told_by_presence(sample, present):
            yield Doubt(f"{column.name}: {told}. {_advice(column.name)}", (column.name,))
        elif column.role != "text" and len(paired) < _PAIRED_COLUMNS:
            paired[column.name] = values[rows[:_PAIRED_ROWS]]
    yield from _pairs(raw, _Sample(sample.names, sample.codes[:_PAIRED_ROWS]), paired)


def _pairs(raw: RawTables, sample: _Sample, paired: dict[str, np.ndarray]) -> Iterator[Doubt]:
    """Yield sentences on the pairs that predict most, by their values and by their difference."""
    if np.count_nonzero(sample.codes[1::2] != sample.guess) < _ENOUGH:
        return
    codes = {name: _codes(values, raw.columns[name]) for name, values in paired.items()}
    leaking: list[tuple[float, str, str]] = []
    for first, second in combinations(paired, 2):
        both = codes[first] * (codes[second].max() + 1) + codes[second]
        accuracy = sample.accuracy(both) if both.max() * len(sample.names) < _MOST_CELLS else 0.0
        roles = {raw.columns[name].role for name in (first, second)}
        if len(roles) == 1 and roles <= {"number", "date"} and not sample.leaks(accuracy):
            accuracy = sample.accuracy(_binned(paired[first] - paired[second]))
        if sample.leaks(accuracy):
            leaking.append((accuracy, first, second))
    for accuracy, *names in sorted(leaking, reverse=True)[:_SHOWN_PAIRS]:
        pair = " and ".join(names)
        told = f"together predict {accuracy:.1%} of the labels (always {sample.names[sample.guess]}: {sample.base:.1%})"
        yield Doubt(f"{pair}: {told}. {_advice(names[-1])}", tuple(names))


def _advice(name: str) -> str:
    return f"If this is not known when the model is asked, leave it out: --ignore {shlex.quote(name)}."


def _told_by_presence(sample: _Sample, present: np.ndarray) -> str:
    """Say of which label nearly all filled, or all empty, rows are; "" if chance or other rows explain it. [S] bool"""
    for state, rows in (("filled", present), ("empty", ~present)):
        counts = np.bincount(sample.codes[rows], minlength=len(sample.names))
        label, total = int(counts.argmax()), int(counts.sum())
        share = float((sample.codes == label).mean())
        if total * (1 - share) >= _ENOUGH and total - counts[label] <= (1 - LEAKS) * total * (1 - share):
            only = "only" if counts[label] == total else f"in {counts[label] / total:.1%} of its rows"
            return (
                f"is {state} {only} where the label is {sample.names[label]} ({total:,} rows; {share:.1%} of all rows)"
            )
    return ""


def _present(column: Column) -> np.ndarray:
    """Return which cells of the sample have a value. [S] bool"""
    if column.role in ("number", "date"):
        return ~np.isnan(_values(column))
    return keys(column.facts.sample).is_valid().to_numpy(zero_copy_only=False)


def _values(column: Column) -> np.ndarray:
    """Return numbers and dates as float64, NaN where one is missing, of others the index of each cell's value. [S]"""
    facts = column.facts
    if column.role == "number" and facts.is_number:
        return facts.numbers
    if column.role == "date":
        return facts.seconds
    return pc.fill_null(keys(facts.sample), "").dictionary_encode().indices.to_numpy().astype(np.int64)


def _codes(values: np.ndarray, column: Column) -> np.ndarray:
    return _binned(values) if column.role in ("number", "date") else values.astype(np.int64)


def _binned(values: np.ndarray) -> np.ndarray:
    """Return the index of each number's bin; few different numbers, and 0, have their own. [S] -> [S] int64"""
    distinct = np.unique(values[~np.isnan(values)])
    if len(distinct) > _BINS:
        edges = np.quantile(values[~np.isnan(values)], np.linspace(0, 1, _BINS + 1)[1:-1])
        distinct = np.unique([*edges, 0.0, np.nextafter(0.0, 1)])
    return np.where(np.isnan(values), len(distinct) + 1, np.searchsorted(distinct, values, side="right"))


def labels_in_texts(raw: RawTables) -> Iterator[Doubt]:
    """Yield a sentence for each text that contains the row's own label much more often than the other labels."""
    names = [name for name in raw.labels if len(name) >= 3 and re.search("[a-zA-Z]", name)]
    if len(names) < 2:
        return
    labels = raw.reading.read(raw.sample[raw.label])
    for text in raw.of_role("text"):
        own = others = 0
        cells = keys(raw.sample[text])
        for name in names[:50]:
            literal = "".join(sign if sign.isalnum() else rf"\x{{{ord(sign):x}}}" for sign in name)
            found = pc.fill_null(pc.match_substring_regex(cells, pattern=rf"(?i)\b{literal}\b"), False)
            same = pc.fill_null(pc.equal(labels, name), False)
            own += pc.sum(pc.and_(found, same)).as_py() or 0
            others += pc.sum(pc.and_(found, pc.invert(same))).as_py() or 0
        rows = len(cells) - cells.null_count
        if own > 0.5 * rows and own > 2 * others:
            yield Doubt(f"{text}: {own / rows:.0%} of the texts contain the name of their own label.", (text,))
