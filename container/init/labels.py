"""Read the labels of a raw table: which rows have none, and which labels --map-label changes."""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from container.preprocessing.labels import LabelCollector, check_classification, label_order
from container.tables.number_notations import MISSING_NUMBERS
from container.tables.values import keys
from contracts.errors import ContractError
from contracts.spelling import SIMILAR, counted, did_you_mean

_CLASSES = ("none", "-", "--")  # of MISSING_NUMBERS, which are classes of many tables: + and -, or none and mild
_NO_LABEL = frozenset(MISSING_NUMBERS).difference(_CLASSES)
_SEPARATORS = "|;,/+&"
_MOST = 5  # named labels


@dataclass(frozen=True)
class LabelReading:
    """The labels of a raw table.

    Attributes:
        column: name of the label.
        blank: rows with an empty label.
        rows: rows of each text of the column, in the order of the table.
        new: the label of each text; None: no label.
    """

    column: str
    blank: int
    rows: Mapping[str, int]
    new: Mapping[str, str | None]

    @classmethod
    def of(cls, texts: LabelCollector, *, rows: int, changes: Sequence[str], where: str) -> "LabelReading":
        """Return the reading of a column.

        Args:
            rows: of the table.
            changes: OLD=NEW; nothing after the sign is no label.

        Raises:
            ContractError: an old label that the table lacks or that has two new ones, or labels of which no classifier
                can be trained.
        """
        column, counts = texts.column, {text: texts.counts[text] for text in texts.index}
        new: dict[str, str | None] = {text: None if text.lower() in _NO_LABEL else text for text in counts}
        changed: dict[str, str | None] = {}
        for change in changes:
            places = [i for i, sign in enumerate(change) if sign == "="]
            pairs = keys(pa.array([part for i in places for part in (change[:i], change[i + 1 :])], pa.string()))
            old, label = next((pair for pair in zip(*[iter(pairs.to_pylist())] * 2) if pair[0] in counts), (None, None))
            if old is None:
                hint = did_you_mean(change.partition("=")[0], counts, hint=SIMILAR.replace("column", "label"))
                raise ContractError(
                    f"--map-label: {change!r}: column {column!r} has no such label{hint}",
                    'Write "OLD=NEW" with a label of the table, or "OLD=" for rows without a label.',
                )
            if changed.setdefault(old, label) != label:
                raise ContractError(f"--map-label: label {old!r} has two new labels", "Give it one.")
        reading = cls(column, rows - sum(counts.values()), counts, {**new, **changed})
        reading._check(where=where)
        return reading

    @cached_property
    def counts(self) -> Counter[str]:
        """The rows of each label: numbers by value, then names."""
        counts: Counter[str] = Counter()
        for text, label in self.new.items():
            if label is not None:
                counts[label] += self.rows[text]
        return Counter({label: counts[label] for label in sorted(counts, key=label_order)})

    @property
    def changes_labels(self) -> bool:
        return any(label not in (None, text) for text, label in self.new.items())

    @property
    def unlabelled(self) -> dict[str, int]:
        """The rows without a label, by the text of the column."""
        found = {text: self.rows[text] for text, label in self.new.items() if label is None}
        return {**({"empty": self.blank} if self.blank else {}), **found}

    def codes(self) -> np.ndarray:
        """Return the index in `counts` of the label of each text, then -1. [T + 1] int16"""
        places = {label: code for code, label in enumerate(self.counts)}
        return np.array([*(-1 if label is None else places[label] for label in self.new.values()), -1], np.int16)

    def read(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Return the label of each cell. [R] string"""
        new = pa.array(list(self.new.values()), pa.string())
        return new.take(pc.index_in(keys(column), value_set=pa.array(list(self.new), pa.string()), skip_nulls=True))

    def _check(self, *, where: str) -> None:
        """Raise ContractError where no classifier can be trained on the labels."""
        if not self.blank and not self.rows:
            raise ContractError(f"{where}: has columns, but no rows", "Name a table with rows.")
        check_classification(self.column, self.counts, where=where)
        if self.counts.total() == 1:
            raise ContractError(f"{where}: has one row with a label", "Provide a table with more rows.")
        if len(self.counts) < 2:
            found = f"only the label {next(iter(self.counts))!r}" if self.counts else "no label"
            others = f" ({listed_rows(self.unlabelled)}: no label)" if self.unlabelled else ""
            raise ContractError(
                f"{where}: column {self.column!r} has {found}{others}, but a classifier needs two classes",
                "Name another column by --label, or provide rows of the other classes."
                + (' To keep a text as a label, write --map-label "N/A=N/A".' if others else ""),
            )

    def warnings(self) -> Iterator[str]:
        """Yield sentences on rows without a label, on labels that may be one, and on several labels in a row."""
        if without := self.unlabelled:
            count, rows = sum(without.values()), self.blank + sum(self.rows.values())
            words = [text for text in without if text in self.rows]
            keep = f' To keep {words[0]} as a label: --map-label "{words[0]}={words[0]}".' if words else ""
            yield f"{count:,} of {rows:,} rows have no label and are left out ({listed_rows(without)}).{keep}"
        for label in self.counts:
            if label.lower() in _CLASSES and len(self.counts) > 2:
                yield f'{self.column}: {label!r} is read as a label. If it means no label: --map-label "{label}=".'
        for first, *others in spelled_alike(self.counts):
            named = listed_rows({label: self.counts[label] for label in (first, *others)})
            options = " ".join(f'--map-label "{other}={first}"' for other in others[:_MOST])
            yield f"{self.column}: labels differ only by case, blanks or accents: {named}. To join: {options}."
        yield from self._several()

    def _several(self) -> Iterator[str]:
        for separator in _SEPARATORS:
            parts = {label: {part.strip() for part in label.split(separator)} for label in self.counts}
            joined = [label for label in parts if len(parts[label]) > 1 and not all(map(str.isdecimal, parts[label]))]
            labels = Counter(part for label in parts for part in parts[label])
            known = [label for label in joined if all(labels[part] > 1 for part in parts[label])]
            if len(joined) > 1 and len(known) > 0.9 * len(joined):
                rows, example = counted(sum(self.counts[label] for label in joined), "row"), joined[0]
                yield (
                    f"{self.column}: {rows} have several labels, e.g. {example!r}. A model predicts one label, so each "
                    f"of the {len(joined)} combinations is a class. Train a job for each label, with a column of yes "
                    f'and no, or keep one label: --map-label "{example}={example.split(separator)[0].strip()}".'
                )
                return


def spelled_alike(counts: Mapping[str, int]) -> list[list[str]]:
    """Return the values that differ only by case, blanks, accents or unseen signs, the most frequent first."""
    alike: dict[str, list[str]] = {}
    for value in sorted(counts, key=lambda value: -counts[value]):
        signs = unicodedata.normalize("NFKD", value.casefold())
        folded = "".join(sign for sign in signs if unicodedata.category(sign)[0] not in "MCZ")
        alike.setdefault(folded, []).append(value)
    return [values for values in alike.values() if len(values) > 1]


def listed_rows(rows: Mapping[str, int]) -> str:
    named = ", ".join(f"{label} {count:,}" for label, count in list(rows.items())[:_MOST])
    return f"{named} and {len(rows) - _MOST} more" if len(rows) > _MOST else named
