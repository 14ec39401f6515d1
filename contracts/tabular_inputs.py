"""Name the inputs that preprocessing makes from the columns of a table, and check that no two have the same name."""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from contracts.errors import ContractError, shortened
from contracts.hyperparameters import Hyperparameters


def indicator_input(column: str) -> str:
    """Return the name of the input that tells where a numeric column is missing."""
    return f"{column}_missing"


def risk_inputs(column: str, class_labels: Sequence[int | str], *, is_binary: bool) -> list[str]:
    """Return the names of a categorical column's risk values: the column's name, or one name per class."""
    return [column] if is_binary else [f"{column}_{label}" for label in class_labels]


def code_input(column: str) -> str:
    """Return the name of the input with the codes of an embedded categorical column."""
    return f"{column}_code"


DATE_PARTS = ("year", "month", "day", "weekday", "hour", "days", "missing")


def date_inputs(column: str) -> list[str]:
    """Return the names of the inputs of a date column; `days` are counted from the median of train."""
    return [f"{column}_{part}" for part in DATE_PARTS]


class _Input(NamedTuple):
    """An input of the model.

    Attributes:
        column: the column that it is made from.
        about: its content, for messages.
        setting: the hyperparameter that makes it.
        without: how to do without it; completes an advice.
    """

    name: str
    column: str
    about: str
    setting: str
    without: str = ""


def check_tabular_inputs(hp: Hyperparameters) -> None:
    """Raise ContractError where an input that a setting makes would have the name of another input.

    The data decide which columns get an indicator. The check assumes that all numeric columns do, and that all columns
    are selected.
    """
    taken: dict[str, _Input] = {}
    for made in _inputs(hp):
        other = taken.setdefault(made.name, made)
        if other is made:
            continue
        value = shortened(json.dumps(getattr(hp, made.setting), ensure_ascii=False))
        rename = f"rename the column {made.column!r} or {other.column!r}, or " if made.column != other.column else ""
        fix = rename + made.without
        raise ContractError(
            f"{made.setting}: is {value}, but the input with {made.about} would have the name {made.name!r}, which is "
            f"the name of {other.about}",
            f"{fix[0].upper()}{fix[1:]}.",
        )


def _inputs(hp: Hyperparameters) -> Iterator[_Input]:
    """Yield the inputs of the settings: first those with the name of a column."""
    if not hp.has_table:
        return
    for column in hp.tab_field_list:
        yield _Input(column, column, "a column of tab_field_list", "tab_field_list")
    for column in hp.date_field_list:
        for name, part in zip(date_inputs(column), DATE_PARTS):
            about = f"the {part} of column {column!r}"
            yield _Input(name, column, about, "date_field_list", f"remove {column!r} from date_field_list")
    for column in hp.encoded_categories:
        labels = hp.multiclass_categories or []
        names = risk_inputs(column, labels, is_binary=hp.is_binary)
        abouts = [f"the risk value of column {column!r} for the class {label!r}" for label in labels]
        for name, about in zip(names, ["a column of cat_field_list"] if hp.is_binary else abouts):
            yield _Input(name, column, about, "multiclass_categories", f"remove {column!r} from cat_field_list")
    for column in hp.tab_field_list if hp.missing_indicators else ():
        about = f"the indicator of column {column!r}"
        yield _Input(indicator_input(column), column, about, "missing_indicators", "set missing_indicators to false")
    for column in hp.encoded_categories if hp.category_embedding_dim else ():
        about = f"the codes of column {column!r}"
        yield _Input(code_input(column), column, about, "category_embedding_dim", "set category_embedding_dim to 0")
