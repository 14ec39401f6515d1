"""Transform raw columns to prepared columns, for files, batches and single records."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from container.preprocessing.fingerprint import tokenizer_digest
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.labels import UNLABELLED
from container.preprocessing.risk_tables import FoldedRisks, category_codes
from container.preprocessing.row_columns import group_numbers, read_weights
from container.tables.dates import date_columns
from container.tables.records import check_single_values
from container.tables.table_file import Origin, missing_column
from container.tables.values import contiguous, texts
from container.text.chunk_tokenizer import ChunkTokenizer
from container.text.encoder_config import check_positions, read_config
from container.text.tokenization import TextCounts, TextProcessor
from contracts.artifacts import MODEL_FIX, PREPROCESSING, tokenizer_folder
from contracts.errors import ContractError, RowErrors


@dataclass(frozen=True)
class TransformCounts:
    """Counts over the rows of a slice; `+` merges them.

    Attributes:
        rows: transformed rows. dropped: unlabelled rows removed by drop_unlabelled.
        imputed: missing numbers by column. unseen: rows with a category that the risk table lacks, by column.
        texts: by role.
    """

    rows: int = 0
    dropped: int = 0
    imputed: Counter[str] = field(default_factory=Counter)
    unseen: Counter[str] = field(default_factory=Counter)
    texts: dict[str, TextCounts] = field(default_factory=dict)

    def __add__(self, other: "TransformCounts") -> "TransformCounts":
        # The + of Counter would remove zero counts.
        imputed, unseen = Counter(self.imputed), Counter(self.unseen)
        imputed.update(other.imputed)
        unseen.update(other.unseen)
        roles = dict.fromkeys([*self.texts, *other.texts])
        merged = {role: self.texts.get(role, TextCounts()) + other.texts.get(role, TextCounts()) for role in roles}
        return TransformCounts(self.rows + other.rows, self.dropped + other.dropped, imputed, unseen, merged)


class Transformed(NamedTuple):
    """Prepared rows, and their counts."""

    batch: pa.RecordBatch
    counts: TransformCounts


class Preprocessor:
    """The fitted rules with their tokenizers.

    Attributes:
        fitted: the rules.
    """

    def __init__(self, fitted: FittedPreprocessing, processors: dict[str, TextProcessor]) -> None:
        self.fitted = fitted
        self._processors = processors

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load from model/ or a prepared folder.

        Raises:
            ContractError: a file is missing or damaged, a tokenizer is of another job, or max_sen_len is too large.
        """
        fitted = FittedPreprocessing.load(folder)
        rules, processors = folder / PREPROCESSING, {}
        for text in fitted.text_fields:
            encoder = folder / tokenizer_folder(text.role)
            processors[text.role] = TextProcessor(text, ChunkTokenizer.from_folder(encoder))
            if tokenizer_digest(encoder) != fitted.tokenizer_digests.get(text.role):
                raise ContractError(f"{encoder}: its files are not those whose hash {rules} contains", MODEL_FIX)
            try:
                check_positions(read_config(encoder), text.max_sen_len)
            except ContractError as error:
                raise ContractError(f"{rules}: {error.cause}", MODEL_FIX) from None
        return cls(fitted, processors)

    def transform(
        self,
        table: pa.Table | pa.RecordBatch,
        *,
        first_row: int = 0,
        origin: Origin | None = None,
        folds: FoldedRisks | None = None,
        drop_unlabelled: bool = False,
        max_tokens: int | None = None,
    ) -> Transformed:
        """Return the prepared columns of docs/architecture.md, "Prepared split", for R raw rows; ignore other columns.

        Args:
            table: raw columns. Without an id or a label column the id is null, the label UNLABELLED. The id is the
                number of the row if the model has no id column.
            first_row: position of the first row in the split; determines the folds.
            origin: source of the rows, for messages.
            folds: out-of-fold risk values, for rows of train.
            drop_unlabelled: remove unlabelled rows; the others keep their numbers.
            max_tokens: as for TextProcessor.process.

        Raises:
            ContractError: a missing column; an invalid number, category, label or text, with its row.
        """
        origin = origin or Origin()
        fitted = self.fitted
        self._check_cells(table, origin)
        rows = np.arange(first_row, first_row + table.num_rows, dtype=np.int64)
        has_label = fitted.label_name in table.column_names
        label = np.full(len(rows), UNLABELLED, np.int64)
        if has_label:
            label = fitted.labels.encode(table[fitted.label_name], origin=origin)
        kept = label != UNLABELLED if drop_unlabelled else np.ones(len(rows), bool)
        group = fitted.group_name
        units = group_numbers(table[group], rows) if group and group in table.column_names else rows
        tabular, imputed, unseen = self._tabular(table, units, kept=kept, origin=origin, folds=folds)  # [R, K]
        dropped = int(np.count_nonzero(~kept))
        if dropped:
            table, rows, label, tabular = table.filter(pa.array(kept)), rows[kept], label[kept], tabular[kept]
            units = units[kept] if group else rows
        columns = {"row": pa.array(rows), "id": _ids(table, fitted.id_name, rows)}
        if has_label:
            columns["raw_label"] = contiguous(table[fitted.label_name])
        columns["label"] = pa.array(label)
        if (name := fitted.weight_name) and name in table.column_names:
            weights = read_weights(table[name], name, origin=origin, written=fitted.number_format.get(name))
            columns["weight"] = pa.array(weights.astype(np.float32))
        if units is not rows:
            columns["group"] = pa.array(units)
        columns["tabular"] = _fixed_size_lists(tabular)
        counts: dict[str, TextCounts] = {}
        for text in fitted.text_fields:
            values = (texts(table[column]) for column in text.columns)
            encoded = self._processors[text.role].process(*values, max_tokens=max_tokens)
            columns[f"{text.role}_tokens"] = _lists(encoded.tokens, encoded.token_counts)
            columns[f"{text.role}_chunk_lengths"] = _lists(encoded.chunk_lengths, encoded.chunk_counts)
            counts[text.role] = encoded.counts
        return Transformed(
            pa.RecordBatch.from_pydict(columns), TransformCounts(len(rows), dropped, imputed, unseen, counts)
        )

    def unknown(self, role: str) -> int | None:
        """Return the id of the token for text that a field's tokenizer does not know; None without one."""
        return self._processors[role].tokenizer.unknown

    def blank(self, role: str) -> list[int]:
        """Return the ids of a record without text of a field."""
        tokenizer = self._processors[role].tokenizer
        return [*tokenizer.prefix, *tokenizer.blank, *tokenizer.suffix]

    def absent(self) -> pa.RecordBatch:
        """Return a prepared record without any column: what a missing value and a missing text become.

        This is the meaning of "without a column" in the reasons for a prediction and in the report's importance.
        """
        return self.transform(pa.table(dict.fromkeys(self.fitted.feature_inputs, pa.nulls(1)))).batch

    def _check_cells(self, table: pa.Table | pa.RecordBatch, origin: Origin) -> None:
        errors = RowErrors()
        for name in self.fitted.feature_inputs:
            if name not in table.column_names:
                raise missing_column(name, table.column_names, str(origin.file or "records"))
            with errors:
                check_single_values(table[name], name, origin=origin)
        errors.raise_first()

    def _tabular(
        self,
        table: pa.Table | pa.RecordBatch,
        units: np.ndarray,
        *,
        kept: np.ndarray,
        origin: Origin,
        folds: FoldedRisks | None,
    ) -> tuple[np.ndarray, Counter[str], Counter[str]]:
        """Return the tabular inputs of feature_columns.txt [R, K] float32, and counts over the `kept` rows.

        Args:
            units: the row's number or its group's, which determines its fold. [R]
        """
        fitted = self.fitted
        tabular = np.empty((len(units), len(fitted.feature_columns)), np.float32)
        imputed: Counter[str] = Counter()
        unseen: Counter[str] = Counter()
        missing: dict[str, np.ndarray] = {}
        raw = set(fitted.raw_numbers)
        dates = date_columns(table, fitted.dates, origin=origin, missing=fitted.null_values)
        errors = RowErrors()
        for position, name in enumerate(fitted.numeric_columns):
            with errors:
                column = dates[name] if name in dates else table[name]
                values = fitted.numbers_of(column, name, origin=origin)
                missing[name] = np.isnan(values)
                filled = np.where(missing[name], fitted.imputation[name], values)
                tabular[:, position] = filled - fitted.subtracted.get(name, 0.0)
                imputed[name] = int(np.count_nonzero(missing[name] & kept & (name in raw)))
        errors.raise_first()
        position = len(fitted.numeric_columns)
        for name in fitted.missing_indicators:
            tabular[:, position] = missing[name]
            position += 1
        row_folds = folds.folds(units) if folds is not None else None
        categories = {name: self._categories(table[name], name) for name in fitted.categorical_columns}
        for name in fitted.categorical_columns:
            risk = fitted.risk_tables[name]
            codes = risk.codes(categories[name])
            unseen[name] = int(np.count_nonzero((codes == len(risk.risk)) & kept))
            if folds is not None and name in folds.values:
                values = folds.values[name][row_folds, codes]  # [R, V]
            else:
                values = risk.values[codes]
            tabular[:, position : position + values.shape[1]] = values
            position += values.shape[1]
        for name, codes_of in fitted.category_codes.items():
            tabular[:, position] = category_codes(categories[name], codes_of, other=0)  # float32 is exact up to 2^24
            position += 1
        return tabular, imputed, unseen

    def _categories(self, column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array:
        if self.fitted.category_kinds is None and pa.types.is_duration(column.type):
            cause = (
                f"column {name!r} is of type {column.type}, but the model is of a version that read numbers of a unit"
            )
            raise ContractError.of_rows(dict.fromkeys(range(len(column)), cause), "Train the model again.")
        return self.fitted.categories(column, name)


def _ids(table: pa.Table | pa.RecordBatch, name: str | None, rows: np.ndarray) -> pa.Array:
    if name is None:
        return pa.array(rows)
    return contiguous(table[name]) if name in table.column_names else pa.nulls(len(rows))


def _lists(values: np.ndarray, counts: np.ndarray) -> pa.ListArray:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.int32()))


def _fixed_size_lists(values: np.ndarray) -> pa.FixedSizeListArray:
    """[R, K] -> R lists of K; K may be 0."""
    kind = pa.list_(pa.float32(), values.shape[1])
    return pa.FixedSizeListArray.from_buffers(kind, len(values), [None], children=[pa.array(values.ravel())])
