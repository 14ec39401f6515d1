"""Collect statistics in one pass over each split, and fit the preprocessing on those of train."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from container.log_once import log_detail
from container.preprocessing.date_columns import DateColumn
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.groups import group_numbers
from container.preprocessing.imputation import fit_imputation
from container.preprocessing.labels import LabelCollector, LabelMap, check_two_classes, given_labels, learned_labels
from container.preprocessing.numeric_summary import DISTINCT_LIMIT, NumericSummary
from container.preprocessing.numeric_transform import InputDistribution, fit_numeric_transform, fit_subtracted
from container.preprocessing.precomputed import Precomputed
from container.preprocessing.risk_tables import (
    CategoryCounts,
    FoldedRisks,
    RiskTable,
    fit_risk_table,
    fold_of,
    parse_risk_table,
    select_labels,
)
from container.preprocessing.sample_weights import read_weights
from container.tables.channel_files import TableSlice, input_format, iter_tables
from container.tables.dates import DateReading, with_date_parts
from container.tables.duplicate_ids import DuplicateIds
from container.tables.values import Kind, kind_of_texts, kind_of_type, numbers
from contracts import artifacts
from contracts.conditions import FITS_IMPUTATION, FITS_RISKS
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from contracts.numbers import NumberFormat
from contracts.tabular_inputs import DATE_PARTS, date_inputs
from contracts.unused_settings import unused_if_precomputed

logger = logging.getLogger(__name__)

SCAN_ROWS = 16384
NAMED_ROWS = 5
FEWEST_OF_INDICATOR = 3  # rows that miss the number, and rows that have it
SMALLEST_OF_INDICATOR = 0.01  # share of both; the few ones of a nearly constant input would be far from its mean
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
        kinds: how the texts of each categorical column of train are read.
        dates: how the dates are written; those of train are known after all rows.
        labelled_only: whether numeric statistics exclude unlabelled rows, as in train.
    """

    def __init__(
        self,
        columns: TableColumns,
        *,
        num_classes: int,
        num_folds: int,
        seed: int,
        known: LabelMap | None,
        labelled_only: bool,
        number_format: Mapping[str, NumberFormat] | None = None,
        dates: Mapping[str, DateReading] | None = None,
    ) -> None:
        self.columns = columns
        self.num_folds = num_folds
        self.seed = seed
        self.labelled_only = labelled_only
        self.number_format = number_format or {}
        self.rows = 0
        self.unlabelled = 0
        self.unlabelled_rows: list[str] = []
        self.labels = LabelCollector(columns.label_name, allowed=num_classes, known=known)
        self.totals = np.zeros((num_folds, num_classes), np.int64)
        self.weights = np.zeros(num_classes)
        limit = DISTINCT_LIMIT if labelled_only else _HELD_OUT_LIMIT
        self._new_dates = [] if dates is not None else [DateColumn(name) for name in columns.dates]
        self.dates = dict(dates or {})
        summarized = columns.numeric if dates is None else columns.numbers
        self.numeric = {name: NumericSummary(limit=limit) for name in summarized}
        self.categories = {
            name: CategoryCounts(num_folds=num_folds, num_labels=num_classes) for name in columns.categorical
        }
        self._types: dict[str, pa.DataType] = {}
        self.kinds: dict[str, Kind] = {}
        self.ids = DuplicateIds()

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
            np.add.at(self.weights, label_index[labelled], read_weights(table[name], name, origin=origin)[labelled])
        counted = labelled if self.labelled_only else np.ones(len(labelled), bool)
        for dates in self._new_dates:
            dates.add(table[dates.name], counted, origin=origin)
        table = with_date_parts(table, self.dates, origin=origin)
        for name, summary in self.numeric.items():
            written = self.number_format.get(name)
            values = numbers(table[name], name, origin=origin, written=written, if_not_numeric=_IF_NOT_NUMERIC)
            summary.add(values[counted])
        for name, counts in self.categories.items():
            self._types[name] = table[name].type
            counts.add(table[name], folds, label_index)
            self._check_size(name, counts)
        if self.columns.id_name:
            self.ids.add(table[self.columns.id_name])

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
    num_folds = max(1, hp.risk_table_folds)
    statistics = SplitStatistics(
        columns,
        num_classes=hp.num_classes,
        num_folds=num_folds,
        seed=hp.seed,
        known=known,
        labelled_only=True,
        number_format=hp.number_format,
    )
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
    statistics.read_categories(has_types=input_format(files) == "parquet")
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
    statistics = SplitStatistics(
        columns,
        num_classes=hp.num_classes,
        num_folds=1,
        seed=hp.seed,
        known=labels,
        labelled_only=False,
        number_format=hp.number_format,
        dates=dates or {},
    )
    _scan(files, statistics, channel=channel)
    if statistics.unlabelled:
        unlabelled = f"{statistics.unlabelled} of {statistics.rows} rows"
        logger.warning("%s: %s have no label; they get predictions, and the metrics ignore them.", channel, unlabelled)
    return statistics


def learn_label_map(statistics: SplitStatistics, hp: Hyperparameters, *, where: str) -> LabelMap:
    """Return the classes: as configured, else the labels of train in order.

    Raises:
        ContractError: train has fewer than two of them.
    """
    counts = statistics.labels.counts
    labels = statistics.labels.known or learned_labels(hp.label_name, counts)
    for label in check_two_classes(labels, counts, where=where):
        logger.warning("%s: no row has the label %r of multiclass_categories.", where, label)
    return labels


def fit_preprocessing(
    statistics: SplitStatistics, hp: Hyperparameters, *, labels: LabelMap, precomputed: Precomputed, where: str
) -> tuple[FittedPreprocessing, FoldedRisks | None]:
    """Return the rules fitted on train, without tokenizer digests, and the out-of-fold risk values."""
    columns = statistics.columns
    imputation = fit_imputation(
        {name: statistics.numeric[name] for name in columns.numeric},
        strategy=hp.imputation_strategy,
        given={**(precomputed.imputation or {}), **(hp.imputation_dict or {})},
        where=where,
    )
    for name in columns.numbers[len(columns.numeric) :]:
        imputation[name] = float(getattr(statistics.numeric[name], hp.imputation_strategy))
    _name_unused(hp, columns, precomputed)
    tables, folds = _risk_tables(statistics, hp, labels, precomputed.risk_tables or {})
    subtracted = _subtracted(statistics, where)
    inputs = [
        InputDistribution.of_numbers(
            statistics.numeric[name], fill=imputation[name], subtracted=subtracted.get(name, 0.0)
        )
        for name in columns.numbers
    ]
    constant = [name for name, column in zip(columns.numeric, inputs) if not column.std]
    if constant and hp.numeric_transform != "none":
        logger.warning("%s: every number in %s is the same: the column has no effect.", where, ", ".join(constant))
    indicators = _indicators(statistics, hp, where)
    inputs += [InputDistribution.of_indicator(statistics.numeric[name]) for name in indicators]
    for name in columns.categorical:
        inputs += _risk_inputs(statistics, labels, tables[name], folds.get(name), name)
    fitted = FittedPreprocessing(
        text_fields=tuple(text.of_data for text in hp.text_fields),
        id_name=columns.id_name,
        label_name=columns.label_name,
        weight_name=columns.weight_name,
        group_name=columns.group_name,
        numeric_columns=columns.numbers,
        missing_indicators=indicators,
        imputation=imputation,
        categorical_columns=columns.categorical,
        category_kinds=statistics.kinds,
        risk_tables=tables,
        numeric_transform=fit_numeric_transform(
            hp.numeric_transform,
            inputs,
            num_bins=hp.numeric_embedding_bins if hp.numeric_embedding == "piecewise_linear" else 0,
        ),
        dates=statistics.dates,
        number_format={name: hp.number_format[name] for name in columns.numeric if name in hp.number_format},
        class_labels=labels.labels,
        is_binary=hp.is_binary,
        tokenizer_digests={},
        subtracted=subtracted,
        embedded_categories={
            name: tables[name].frequent(hp.category_embedding_min_count)
            for name in (columns.categorical if hp.category_embedding_dim else ())
        },
    )
    assert len(set(fitted.feature_columns)) == len(fitted.feature_columns), "check_tabular_inputs refuses such settings"
    return fitted, FoldedRisks(hp.seed, statistics.num_folds, folds) if folds else None


def _indicators(statistics: SplitStatistics, hp: Hyperparameters, where: str) -> tuple[str, ...]:
    """Return the numeric columns with an input that tells where the number is missing."""
    indicators = tuple(
        name for name in statistics.columns.numeric if hp.missing_indicators and _varies(statistics.numeric[name])
    )
    if indicators:
        log_detail(
            logger, "%s: an additional input tells whether a number is missing in %s.", where, ", ".join(indicators)
        )
    return indicators


def _subtracted(statistics: SplitStatistics, where: str) -> dict[str, float]:
    """Return the value that is subtracted from each numeric column of close numbers, and from each number of days."""
    columns = statistics.columns
    subtracted = {name: value for name in columns.numeric if (value := fit_subtracted(statistics.numeric[name]))}
    for name, value in subtracted.items():
        log_detail(
            logger, "%s: the numbers in %r are close together: %.17g is subtracted from them.", where, name, value
        )
    days = [date_inputs(column)[DATE_PARTS.index("days")] for column in columns.dates]
    return subtracted | {name: statistics.numeric[name].median for name in days}


def _varies(summary: NumericSummary) -> bool:
    """Return whether enough rows miss the number, and enough have it, for an indicator."""
    rarer, rows = min(summary.missing, summary.count), summary.missing + summary.count
    return rarer >= max(FEWEST_OF_INDICATOR, SMALLEST_OF_INDICATOR * rows)


def _scan(files: Sequence[Path], statistics: SplitStatistics, *, channel: str) -> None:
    columns = statistics.columns
    for part in iter_tables(files, columns.scanned, rows_per_batch=SCAN_ROWS, numeric=columns.numeric):
        statistics.add(part)
    if not statistics.rows:
        raise ContractError(
            f"channel {channel}: {', '.join(map(str, files[:3]))} {'has' if len(files) == 1 else 'have'} no rows",
            f"Give the channel {channel} at least one row.",
        )
    if columns.weight_name and statistics.totals.any() and not statistics.weights.any():
        raise ContractError(
            f"channel {channel}, column {columns.weight_name!r}: the weight of every labelled row is 0",
            "Give a record a weight above 0, or remove weight_name.",
        )
    if statistics.ids.count:
        rows = f"{'about ' if statistics.ids.skipped_bits else ''}{statistics.ids.count} rows"
        example = statistics.ids.example
        logger.warning("%s: %s repeat an id of an earlier row, e.g. %r; they are kept.", channel, rows, example)


def _label_indices(statistics: SplitStatistics, labels: LabelMap) -> list[int]:
    return [statistics.labels.index.get(key, -1) for key in labels.keys.to_pylist()]


def _risk_tables(
    statistics: SplitStatistics, hp: Hyperparameters, labels: LabelMap, precomputed: Mapping[str, RiskTable]
) -> tuple[dict[str, RiskTable], dict[str, np.ndarray]]:
    num_values = 1 if hp.is_binary else len(labels.labels)
    order = _label_indices(statistics, labels)
    totals = select_labels(statistics.totals, order)
    tables, folds = {}, {}
    given = hp.risk_tables or {}
    for name, counts in statistics.categories.items():
        if name in given:
            source, fix = "risk_tables", "remove the column from risk_tables"
            table = given[name]
        elif name in precomputed:
            source, fix = artifacts.RISK_TABLE_MAP, f"set {artifacts.USE_PRECOMPUTED_RISK_TABLES} to false"
            table = precomputed[name].to_json()
        else:
            tables[name], values = fit_risk_table(
                *counts.sorted(order),
                totals,
                binary=hp.is_binary,
                smooth_factor=hp.smooth_factor,
                smooth_rows=hp.smooth_rows,
                count_threshold=hp.count_threshold,
            )
            if values is not None:
                folds[name] = values
            continue
        tables[name] = parse_risk_table(name, table, num_values=num_values, source=source, kind=statistics.kinds[name])
        tables[name].check_matches(name, counts.index, source=source, fix=fix)
        size = len(tables[name].risk)
        logger.info("Risk table of column %r: given, %d categories; there are no out-of-fold values.", name, size)
    return tables, folds


def _risk_inputs(
    statistics: SplitStatistics, labels: LabelMap, table: RiskTable, folds: np.ndarray | None, name: str
) -> list[InputDistribution]:
    """Return the distribution of each risk value over the training rows, from the tables and counts."""
    categories, counts = statistics.categories[name].sorted(_label_indices(statistics, labels))
    rows = counts.sum(-1)  # [C, F]
    position = {category: i for i, category in enumerate(table.risk)}
    codes = [position.get(category, len(position)) for category in categories]
    values = table.values[None] if folds is None else folds  # [F or 1, C + 1, V]
    values = np.broadcast_to(values[:, codes], (rows.shape[1], len(codes), values.shape[-1]))  # [F, C, V]
    return [InputDistribution.of_risks(values[..., v].T.ravel(), rows.ravel()) for v in range(values.shape[-1])]


def _name_unused(hp: Hyperparameters, columns: TableColumns, precomputed: Precomputed) -> None:
    """Log given values of columns that the model does not read, and settings that precomputed values replace."""
    for setting, read in (("imputation_dict", columns.numeric), ("risk_tables", columns.categorical)):
        unread = sorted(set(getattr(hp, setting) or {}) - set(read))
        if unread:
            logger.warning("%s: %s is given and has no effect: the model does not read the column.", setting, unread)
    for fit, read, loaded in (
        (FITS_IMPUTATION, columns.numeric, precomputed.imputation),
        (FITS_RISKS, columns.categorical, precomputed.risk_tables),
    ):
        if read and loaded is not None:
            for sentence in unused_if_precomputed(hp, fit):
                logger.warning("%s", sentence)
