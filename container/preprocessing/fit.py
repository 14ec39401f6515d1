"""Fit the preprocessing on the statistics of train."""

import logging
from collections.abc import Mapping
from typing import Literal

import numpy as np

from container.job.log_once import log_detail
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.labels import LabelMap, check_two_classes, learned_labels
from container.preprocessing.numeric_summary import NumericSummary
from container.preprocessing.numeric_transform import InputDistribution, fit_numeric_transform, fit_subtracted
from container.preprocessing.precomputed import Precomputed
from container.preprocessing.risk_tables import (
    FoldedRisks,
    RiskTable,
    fit_risk_table,
    parse_risk_table,
    select_labels,
)
from container.preprocessing.scan import SplitStatistics, TableColumns
from contracts import artifacts
from contracts.conditions import FITS_IMPUTATION, FITS_RISKS
from contracts.errors import ContractError
from contracts.hyperparameters import Hyperparameters
from contracts.settings.data import ROW_COLUMNS
from contracts.tabular_inputs import DATE_PARTS, date_inputs
from contracts.unused_settings import unused_if_precomputed

logger = logging.getLogger(__name__)

FEWEST_OF_INDICATOR = 3  # rows that miss the number, and rows that have it
SMALLEST_OF_INDICATOR = 0.01  # share of both; the few ones of a nearly constant input would be far from its mean


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
    tables, folds = _risk_tables(statistics, hp, labels, precomputed)
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
        **{name: getattr(columns, name) for name in ROW_COLUMNS},
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
        category_part={name: hp.category_part[name] for name in columns.categorical if name in hp.category_part},
        number_format={name: hp.number_format[name] for name in columns.scanned if name in hp.number_format},
        number_units=statistics.units or None,
        null_values=statistics.missing,
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


def fit_imputation(
    summaries: Mapping[str, NumericSummary],
    *,
    strategy: Literal["mean", "median", "mode"],
    given: Mapping[str, float],
    where: str,
) -> dict[str, float]:
    """Return the imputation value of each column.

    Args:
        given: values that replace fitted ones.
        where: the channel, for messages.

    Raises:
        ContractError: a column without any number and without a given value.
    """
    values = {}
    for column, summary in summaries.items():
        if column in given:
            values[column] = float(given[column])
        elif not summary.count:
            raise ContractError(
                f"{where}: column {column!r} has no value in any of its {summary.missing} labelled rows",
                "Remove it from tab_field_list, or give its value in imputation_dict.",
            )
        else:
            values[column] = float(getattr(summary, strategy))
        if summary.missing:
            missing = f"{summary.missing} missing of {summary.missing + summary.count} values"
            value = f"{values[column]:.6g} ({'given' if column in given else strategy})"
            log_detail(logger, "%s: column %r has %s; they become %s.", where, column, missing, value)
    return values


def _indicators(statistics: SplitStatistics, hp: Hyperparameters, where: str) -> tuple[str, ...]:
    """Return the numeric columns with an input that tells where the number is missing."""
    indicators = []
    for name in statistics.columns.numeric if hp.missing_indicators else ():
        summary = statistics.numeric[name]
        rarer, rows = min(summary.missing, summary.count), summary.missing + summary.count
        if rarer >= max(FEWEST_OF_INDICATOR, SMALLEST_OF_INDICATOR * rows):
            indicators.append(name)
    if indicators:
        log_detail(
            logger, "%s: an additional input tells whether a number is missing in %s.", where, ", ".join(indicators)
        )
    return tuple(indicators)


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


def _label_indices(statistics: SplitStatistics, labels: LabelMap) -> list[int]:
    return [statistics.labels.index.get(key, -1) for key in labels.keys.to_pylist()]


def _risk_tables(
    statistics: SplitStatistics, hp: Hyperparameters, labels: LabelMap, precomputed: Precomputed
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
        elif name in (precomputed.risk_tables or {}):
            source, fix = precomputed.risk_file, f"set {artifacts.USE_PRECOMPUTED_RISK_TABLES} to false"
            table = (precomputed.risk_tables or {})[name]
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
