"""What a missing number becomes: given by hand, or the mean, median or mode of train."""

import logging
from collections.abc import Mapping
from typing import Literal

import numpy as np

from container.preprocessing.numeric_summary import NumericSummary
from contracts.errors import ContractError

logger = logging.getLogger(__name__)

Strategy = Literal["mean", "median", "mode"]


def fit_imputation(
    summaries: Mapping[str, NumericSummary], *, strategy: Strategy, given: Mapping[str, float], where: str
) -> dict[str, float]:
    """The value of each column.

    Args:
        given: values that win over the fitted ones.
        where: the channel, for messages.

    Raises:
        ContractError: a column without a single number and without a given value.
    """
    values = {}
    for column, summary in summaries.items():
        if column in given:
            values[column] = float(given[column])
        elif not summary.count:
            raise ContractError(
                f"{where}: column {column!r} has no value in any of its {summary.missing} labelled rows",
                "Take it out of tab_field_list, or give its value in imputation_dict.",
            )
        else:
            values[column] = float(getattr(summary, strategy))
        if summary.missing:
            logger.info(
                "%s: column %r has %d missing of %d values; they become %.6g (%s).",
                where,
                column,
                summary.missing,
                summary.missing + summary.count,
                values[column],
                "given" if column in given else strategy,
            )
    return values


def impute(values: np.ndarray, fill: float) -> tuple[np.ndarray, np.ndarray]:
    """`values` with NaN replaced, and where it was. [R], [R] bool"""
    missing = np.isnan(values)
    return np.where(missing, fill, values), missing
