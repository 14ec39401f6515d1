"""Stream records once: count all, and keep a sample of which the model computes texts and scores."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from container.data.records import RecordArrays
from container.monitoring.baseline import Baseline, Scores, sampled_texts, token_lengths
from container.monitoring.captured import RecordFiles
from container.monitoring.checks import Current
from container.monitoring.drift import tell_apart
from container.monitoring.profile import RecordProfile
from container.preprocessing.distributions import labelled
from container.preprocessing.labels import UNLABELLED, LabelMap
from container.preprocessing.risk_tables import fold_of
from container.serving.predictor import Predictor
from container.tables.part_files import find_part_files
from container.tables.row_sample import RowSample
from container.tables.table_file import Origin, check_present
from container.tables.values import keys
from contracts.errors import ContractError, shown

SAMPLE_BYTES = 32 << 20
_LABEL = "\0label"  # a column of class ids beside those of the model


@dataclass
class Labels:
    """Labels that arrived after the records.

    Attributes:
        codes: class id of each record id.
        others: the label of each record id that has one of no class of the model.
        unknown: records with such a label, by label.
        matched: labels that records have used.
    """

    map: LabelMap
    id_name: str | None = None
    codes: dict[str, int] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    matched: int = 0

    @classmethod
    def read(cls, folder: Path, names: LabelMap, *, id_name: str, label_name: str, scratch: Path) -> Self:
        """Read a table with a row per record; the last row of an id counts."""
        labels, parts = cls(names, id_name), find_part_files(folder, scratch=scratch)
        check_present((id_name, label_name), parts.columns, str(folder))
        for part in parts.iter_tables((id_name, label_name)):
            cells = keys(part.table[label_name])
            rows = zip(keys(part.table[id_name]).to_pylist(), labels._codes(cells).tolist(), cells.to_pylist())
            for name, code, cell in rows:
                if name is not None and cell is not None:
                    labels.codes[name] = code
                    labels.others.pop(name, None)
                    if code == UNLABELLED:
                        labels.others[name] = cell
        if len(labels.others) == len(labels.codes):
            found = f", but {shown(next(iter(labels.others.values())))}" if labels.others else ""
            raise ContractError(
                f"{folder}: {label_name} has no label of the model's classes{found}",
                f"They are {shown(list(names.labels))}.",
            )
        return labels

    def _codes(self, cells: pa.Array) -> np.ndarray:
        """Return class ids; UNLABELLED where the cell is empty or has no class of the model. [R]"""
        cells = cells.dictionary_encode()
        index = {key: code for code, key in enumerate(self.map.keys.to_pylist())}
        names = cells.dictionary.to_pylist()
        codes = np.array([*(index.get(name, UNLABELLED) for name in names), UNLABELLED])
        return codes[cells.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)]

    def of(self, table: pa.Table) -> np.ndarray | None:
        """Return the class ids of records: their own, or those that arrived later; None without any. [R]"""
        if not self.codes and self.map.column in table.column_names:
            cells = keys(table[self.map.column])
            codes = self._codes(cells)
            self.unknown.update(name for name in cells.filter(pa.array(codes == UNLABELLED)).drop_null().to_pylist())
            return codes
        if self.id_name is None or self.id_name not in table.column_names:
            return None
        names = keys(table[self.id_name]).to_pylist()
        codes = np.array([UNLABELLED if name is None else self.codes.get(name, UNLABELLED) for name in names], np.int64)
        self.matched += sum(name in self.codes for name in names)
        self.unknown.update(self.others[name] for name in names if name in self.others)
        return codes


@dataclass(frozen=True)
class Collected:
    """Streamed records: a sample of all, one of those with a label, and the number of records of each class."""

    every: RowSample
    known: RowSample
    counts: np.ndarray | None


def collect(
    tables: Iterable[tuple[pa.Table, Origin]], profile: RecordProfile, labels: Labels, *, sample_rows: int
) -> Collected:
    """Stream records, count their columns, and sample them by a hash of their numbers."""
    every, known = (RowSample(rows=2 * sample_rows, num_bytes=SAMPLE_BYTES) for _ in range(2))
    counts = np.zeros(len(labels.map.labels), np.int64)
    for table, origin in tables:
        codes = labels.of(table)
        codes = np.full(table.num_rows, UNLABELLED) if codes is None else codes
        hashes = fold_of(np.arange(profile.rows, profile.rows + table.num_rows), seed=0, num_folds=1 << 62)
        row_keys = hashes.astype(np.uint64) << np.uint64(2)
        rows = profile.add(table, origin).append_column(_LABEL, pa.array(codes))
        every.add(rows, row_keys)
        has_label = codes >= 0
        if has_label.any():
            known.add(rows.filter(pa.array(has_label)), row_keys[has_label])
            counts += np.bincount(codes[has_label], minlength=len(counts))
    return Collected(every, known, counts if counts.any() else None)


def observe(
    predictor: Predictor,
    baseline: Baseline,
    records: RecordFiles,
    labels: Labels,
    *,
    sample_rows: int,
    compare_words: bool = True,
    scratch: Path,
) -> Current:
    """Return what the records show.

    Raises:
        ContractError: no records, or labels of which no record has the id.
    """
    fitted = predictor.preprocessor.fitted
    profile = RecordProfile(fitted, baseline.table.categories)
    collected = collect(records.tables(scratch), profile, labels, sample_rows=sample_rows)
    _check_found(profile, records, labels)
    sampled, codes = prepared(predictor, collected.every, sample_rows)
    texts, then = sampled_texts(sampled, predictor.preprocessor), baseline.scores
    scores = labelled_scores = score(predictor, sampled, codes, then)
    if collected.counts is not None and not (codes >= 0).all():
        labelled_scores = score(predictor, *prepared(predictor, collected.known, sample_rows), then)
    return Current(
        profile=profile,
        texts=texts,
        lengths=token_lengths(sampled, texts),
        told={role: tell_apart(baseline.texts[role], texts[role]) for role in texts if compare_words},
        scores=scores,
        labels=None if collected.counts is None else labelled(predictor.class_labels, collected.counts.tolist()),
        labelled=None if collected.counts is None else labelled_scores,
        unknown_labels=labels.unknown,
    )


def _check_found(profile: RecordProfile, records: RecordFiles, labels: Labels) -> None:
    if not profile.rows:
        left_out = f"; left out: {records.causes}" if records.causes else ""
        left_out += f"; {records.earlier:,} are older than WINDOW_HOURS" if records.earlier else ""
        raise ContractError(
            f"{records.folder}: has no records to compare{left_out}",
            "Provide captured requests, or tables with columns of the model. `python -m container convert` makes one "
            "of a file with another delimiter or encoding.",
        )
    if labels.codes and not labels.matched:
        raise ContractError(
            f"labels: none of the {len(labels.codes):,} ids, such as {shown(next(iter(labels.codes)))}, is the "
            f"{labels.id_name!r} of one of the {profile.rows:,} records",
            "Provide the labels of these records, or name the column of ids with ID_FIELD.",
        )


def prepared(predictor: Predictor, sample: RowSample, most: int) -> tuple[RecordArrays, np.ndarray]:
    """Return the `most` sampled rows with the smallest keys, prepared, and their class ids."""
    every = np.sort(np.concatenate([row_keys for _, row_keys in sample.pieces]))
    last = every[min(most, len(every)) - 1]
    pieces = [table.filter(pa.array(row_keys <= last)) for table, row_keys in sample.pieces]
    pieces = [table for table in pieces if table.num_rows]
    records = RecordArrays.joined([predictor.prepare(table.drop_columns([_LABEL])) for table in pieces])
    codes = np.concatenate([table[_LABEL].to_numpy() for table in pieces])
    return records, codes


def score(predictor: Predictor, records: RecordArrays, codes: np.ndarray, then: Scores | None = None) -> Scores:
    """Return what the model predicts for prepared records with class ids. [N]"""
    rows = range(len(records.row))
    probabilities = predictor.compute([records] * len(rows), rows)
    return Scores.of(probabilities, codes, predictor.class_labels, then=then)
