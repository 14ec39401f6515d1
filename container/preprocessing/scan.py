"""Collect statistics in one pass over each split."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from container.job.log_once import log_detail
from container.preprocessing.category_parts import category_part
from container.preprocessing.date_columns import DateColumn
from container.preprocessing.labels import LabelCollector, LabelMap, given_labels
from container.preprocessing.numeric_summary import DISTINCT_LIMIT, NumericSummary
from container.preprocessing.risk_tables import CategoryCounts, fold_of
from container.preprocessing.row_columns import group_numbers, read_weights
from container.tables.channel_files import TableSlice, iter_tables
from container.tables.column_types import is_number, is_text
from container.tables.dates import DateReading, date_columns
from container.tables.duplicate_ids import DuplicateIds
from container.tables.number_notations import units_of
from container.tables.table_file import Origin, format_of
from container.tables.values import Kind, contiguous, keys, kind_of_texts, kind_of_type, numbers
from contracts.errors import ContractError, shown
from contracts.hyperparameters import Hyperparameters
from contracts.tabular_inputs import date_inputs

logger = logging.getLogger(__name__)

SCAN_ROWS = 16384
NAMED_ROWS = 5
_IF_NOT_NUMERIC = "If the column is a category, move it from tab_field_list to cat_field_list."
_HELD_OUT_LIMIT = 1 << 14  # distinct numbers of a column of val or test, whose quantiles are only shown
MOST_RISKS = 20_000_000  # of a column, which take about 4 GB


@dataclass(frozen=True)
class TableColumns:
    """The columns that a job reads, by role."""

    id_name: str | None
    label_name: str
    weight_name: str | None
    group_name: str | None
    texts: tuple[str, ...]
    numeric: tuple[str, ...]
    dates: tuple[str, ...]
    categorical: tuple[str, ...]

    @classmethod
    def of(cls, hp: Hyperparameters, selected: Sequence[str] | None = None) -> "TableColumns":
        """Return the columns of the configuration; `selected` restricts those of the table, if the model reads any."""
        groups = (hp.tab_field_list, hp.date_field_list, hp.encoded_categories)
        numeric, dates, categorical = (
            tuple(name for name in group if hp.architecture.uses_table and (selected is None or name in selected))
            for group in groups
        )
        return cls(
            id_name=hp.id_name,
            label_name=hp.label_name,
            weight_name=hp.weight_name,
            group_name=hp.group_name,
            texts=tuple(column for field in hp.text_fields for column in field.columns),
            numeric=numeric,
            dates=dates,
            categorical=categorical,
        )

    @property
    def table(self) -> list[str]:
        return [*self.numeric, *self.dates, *self.categorical]

    @property
    def numbers(self) -> tuple[str, ...]:
        """Return the numeric columns and the parts of the dates, in the order of the inputs."""
        return (*self.numeric, *(part for column in self.dates for part in date_inputs(column)))

    @property
    def scanned(self) -> list[str]:
        """Return the columns of the fit pass: all but the texts."""
        return [*filter(None, (self.id_name, self.label_name, self.weight_name, self.group_name)), *self.table]

    @property
    def transformed(self) -> list[str]:
        return list(dict.fromkeys([*self.scanned, *self.texts]))


class SplitStatistics:
    """Statistics of one pass over a split.

    Attributes:
        rows: all rows. unlabelled: rows without a label. unlabelled_rows: names of the first of them, for messages.
        totals: labelled rows by fold and label index. [F, L] int64
        weights: total weight of the labelled rows by label index. [L]
        without_weight: labelled rows of weight 0.
        kinds: how the texts of each categorical column of train are read.
        dates: how the dates are written; those of train are known after all rows.
        units: the currency or percent sign of each numeric column with a number_format.

    Args:
        known: the classes, if they are known.
        dates: as in train; None for train, of which numeric statistics exclude unlabelled rows.
    """

    def __init__(
        self,
        columns: TableColumns,
        hp: Hyperparameters,
        *,
        known: LabelMap | None,
        dates: Mapping[str, DateReading] | None = None,
    ) -> None:
        self.columns = columns
        self.is_train = dates is None
        self.num_folds = max(1, hp.risk_table_folds) if self.is_train else 1
        self.seed = hp.seed
        self.number_format = hp.number_format
        self.missing = tuple(word.strip().lower() for word in hp.null_values)
        self.units: dict[str, str] = {}
        self.category_part = hp.category_part
        self.rows = 0
        self.unlabelled = 0
        self.unlabelled_rows: list[str] = []
        self.labels = LabelCollector(columns.label_name, allowed=hp.num_classes, known=known)
        self.totals = np.zeros((self.num_folds, hp.num_classes), np.int64)
        self.weights = np.zeros(hp.num_classes)
        self.without_weight = 0
        limit = DISTINCT_LIMIT if self.is_train else _HELD_OUT_LIMIT
        self._new_dates = [
            DateColumn(name, hp.date_format.get(name), missing=self.missing) for name in columns.dates if self.is_train
        ]
        self.dates = dict(dates or {})
        summarized = columns.numeric if self.is_train else columns.numbers
        self.numeric = {name: NumericSummary(limit=limit) for name in summarized}
        self.categories = {
            name: CategoryCounts(num_folds=self.num_folds, num_labels=hp.num_classes) for name in columns.categorical
        }
        self._types: dict[str, pa.DataType] = {}
        self.kinds: dict[str, Kind] = {}
        self.ids = DuplicateIds()
        self.groups = DuplicateIds()

    def add(self, part: TableSlice) -> None:
        """Count a slice.

        Raises:
            ContractError: a value that is not a number, or a label that is not among the classes.
        """
        table, origin = part.table, part.origin
        label_index = self.labels.add(table[self.columns.label_name], origin=origin)  # [R]
        labelled = label_index >= 0
        rows = np.arange(part.first_row, part.first_row + table.num_rows)
        units = group_numbers(table[group], rows) if (group := self.columns.group_name) else rows
        folds = fold_of(units, seed=self.seed, num_folds=self.num_folds)  # [R]
        self.rows += table.num_rows
        self.unlabelled += int(np.count_nonzero(~labelled))
        for index in np.flatnonzero(~labelled)[: NAMED_ROWS - len(self.unlabelled_rows)]:
            self.unlabelled_rows.append(origin.row(index))
        np.add.at(self.totals, (folds[labelled], label_index[labelled]), 1)
        if name := self.columns.weight_name:
            weights = read_weights(table[name], name, origin=origin, written=self.number_format.get(name))[labelled]
            np.add.at(self.weights, label_index[labelled], weights)
            self.without_weight += int(np.count_nonzero(weights == 0))
        counted = labelled if self.is_train else np.ones(len(labelled), bool)
        for dates in self._new_dates:
            dates.add(table[dates.name], counted, origin=origin)
        read = date_columns(table, self.dates, origin=origin, missing=self.missing)
        for name, summary in self.numeric.items():
            written = self.number_format.get(name)
            column = read[name] if name in read else table[name]
            if written is not None and self.is_train and is_number(column.type):
                raise ContractError(
                    f"number_format: {name!r} has the notation {written}, but the column is of type {column.type} "
                    f"in {origin.file}",
                    "Remove the column from number_format, which is for texts.",
                )
            values = numbers(
                column, name, origin=origin, written=written, missing=self.missing, if_not_numeric=_IF_NOT_NUMERIC
            )
            if written is not None and is_text(column.type):
                self._add_units(column, values, name, origin=origin)
            summary.add(values[counted])
        for name, counts in self.categories.items():
            column = category_part(table[name], self.category_part.get(name))
            self._types[name] = column.type
            counts.add(column, folds, label_index)
            self._check_size(name, counts)
        if self.columns.id_name:
            self.ids.add(table[self.columns.id_name])
        if group:
            self.groups.add(keys(table[group]))

    def _add_units(self, column: pa.ChunkedArray, values: np.ndarray, name: str, *, origin: Origin) -> None:
        """Raise ContractError if the numbers of a column have several currencies, or one and a percent sign."""
        units = sorted({self.units.get(name, ""), *units_of(contiguous(column), values)} - {""})
        if len(units) > 1:
            raise ContractError(
                f"{origin.row(0)} and after, column {name!r}: numbers are in {' and in '.join(units)}",
                "Write all numbers of the column in one currency, or remove the column from tab_field_list.",
            )
        self.units[name] = "".join(units)

    def read_dates(self, *, where: str) -> None:
        """Decide how the dates of train are read, after all rows."""
        for column in self._new_dates:
            self.dates[column.name], parts = column.finish(where=where)
            self.numeric |= parts

    def read_categories(self, *, has_types: bool) -> None:
        """Decide how the texts of categorical columns are read, after all rows: by their types, or by the texts."""
        for name, counts in self.categories.items():
            kind = self.kinds[name] = kind_of_type(self._types[name]) if has_types else kind_of_texts(counts.index)
            if not has_types and kind == "number":
                log_detail(logger, "train: the categories of column %r are numbers: 7.50 is 7.5.", name)
                counts.read_as(kind)

    def _check_size(self, name: str, counts: CategoryCounts) -> None:
        categories, classes = len(counts.index), self.totals.shape[1]
        if categories * classes > MOST_RISKS:
            raise ContractError(
                f"column {name!r}: {categories:,} categories and {classes} classes are more than {MOST_RISKS:,} risk "
                "values",
                "Leave the column out of cat_field_list, or write fewer categories, e.g. the first letters of a code.",
            )


def scan_train(files: Sequence[Path], hp: Hyperparameters, columns: TableColumns) -> SplitStatistics:
    """Return the statistics of train.

    Raises:
        ContractError: no rows, unlabelled rows (unless drop_unlabelled), an invalid value.
    """
    known = given_labels(hp.label_name, hp.multiclass_categories) if hp.multiclass_categories else None
    statistics = SplitStatistics(columns, hp, known=known)
    _scan(files, statistics, channel="train")
    if statistics.unlabelled and not hp.drop_unlabelled:
        rows = statistics.unlabelled_rows
        places = [row.rpartition("row ")[0] for row in rows]
        others = [row.removeprefix(place) for place, row in zip(places, rows[1:])]  # each file once
        more = ["more rows"] if statistics.unlabelled > len(rows) else []
        raise ContractError(
            f"{rows[0]}, column {hp.label_name!r}: the label is missing; "
            + "".join(f"also in {place}; " for place in [*others, *more])
            + f"{statistics.unlabelled} of {statistics.rows} training rows have no label",
            "Label the rows or remove them, or set drop_unlabelled to true.",
        )
    if statistics.unlabelled:
        unlabelled = f"{statistics.unlabelled} of {statistics.rows} rows"
        logger.warning("train: %s have no label and are left out (drop_unlabelled).", unlabelled)
    statistics.read_dates(where="train")
    statistics.read_categories(has_types=format_of(files[0]).has_types)
    return statistics


def scan_held_out(
    files: Sequence[Path],
    hp: Hyperparameters,
    columns: TableColumns,
    *,
    labels: LabelMap,
    dates: Mapping[str, DateReading] | None = None,
    channel: str,
) -> SplitStatistics:
    """Return the statistics of val or test, which keep unlabelled rows.

    Args:
        dates: as in train.

    Raises:
        ContractError: no rows, or an invalid value.
    """
    statistics = SplitStatistics(columns, hp, known=labels, dates=dates or {})
    _scan(files, statistics, channel=channel)
    if statistics.unlabelled:
        unlabelled = f"{statistics.unlabelled} of {statistics.rows} rows"
        logger.warning("%s: %s have no label; they get predictions, and the metrics ignore them.", channel, unlabelled)
    return statistics


def _scan(files: Sequence[Path], statistics: SplitStatistics, *, channel: str) -> None:
    columns = statistics.columns
    for part in iter_tables(files, columns.scanned, rows_per_batch=SCAN_ROWS, numeric=columns.numeric):
        statistics.add(part)
    if not statistics.rows:
        raise ContractError(
            f"channel {channel}: {', '.join(map(str, files[:3]))} {'has' if len(files) == 1 else 'have'} no rows",
            f"Give the channel {channel} at least one row.",
        )
    if columns.weight_name:
        _check_weights(statistics, columns.weight_name, channel=channel)
    if statistics.ids.count:
        rows = f"{'about ' if statistics.ids.skipped_bits else ''}{statistics.ids.count} rows"
        example = statistics.ids.example
        logger.warning("%s: %s repeat an id of an earlier row, e.g. %r; they are kept.", channel, rows, example)


def _check_weights(statistics: SplitStatistics, name: str, *, channel: str) -> None:
    """Raise ContractError where no labelled row has a weight above 0 or, in train, no row of a class has one."""
    rows = statistics.totals.sum(axis=0)  # [L]
    unweighted = [label for label, i in statistics.labels.index.items() if rows[i] and not statistics.weights[i]]
    if not unweighted:
        return
    if not statistics.weights.any():
        which = "every labelled row"
    elif statistics.is_train:
        label = unweighted[0]
        which = f"each of the {rows[statistics.labels.index[label]]} rows with the label {shown(label)}"
    else:
        return
    raise ContractError(
        f"channel {channel}, column {name!r}: the weight of {which} is 0",
        "Give one of these rows a weight above 0, or remove weight_name.",
    )
