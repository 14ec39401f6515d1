"""Impute missing numbers by a given value, or by the mean, median or mode of train."""

import logging
from collections.abc import Mapping
from typing import Literal

import numpy as np

from container.log_once import log_detail
from container.preprocessing.numeric_summary import NumericSummary
from contracts.errors import ContractError

logger = logging.getLogger(__name__)

Strategy = Literal["mean", "median", "mode"]


def fit_imputation(
    summaries: Mapping[str, NumericSummary], *, strategy: Strategy, given: Mapping[str, float], where: str
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


def impute(values: np.ndarray, fill: float) -> tuple[np.ndarray, np.ndarray]:
    """Return `values` with NaN replaced, and the mask of NaN. [R] -> [R], [R] bool"""
    missing = np.isnan(values)
    return np.where(missing, fill, values), missing
