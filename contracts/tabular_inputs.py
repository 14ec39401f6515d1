"""Name the inputs that preprocessing makes from the columns of a table, and check that no two have the same name."""

import json
from collections.abc import Iterator, Sequence

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


def check_tabular_inputs(hp: Hyperparameters) -> None:
    """Raise ContractError where an input that a setting makes would have the name of another input.

    The data decide which columns get an indicator. The check assumes that all numeric columns do, and that all columns
    are selected.
    """
    taken: dict[str, str] = {}
    for name, about, setting in _inputs(hp):
        if name in taken:
            value = shortened(json.dumps(getattr(hp, setting), ensure_ascii=False))
            raise ContractError(
                f"{setting}: is {value}, but the input with {about} would have the name {name!r}, which is the name of "
                f"{taken[name]}",
                f"Rename one of the columns or classes, or change {setting}.",
            )
        taken[name] = about


def _inputs(hp: Hyperparameters) -> Iterator[tuple[str, str, str]]:
    """Yield name, content and hyperparameter of each input: first those with the name of a column."""
    if not hp.has_table:
        return
    for column in hp.tab_field_list:
        yield column, "a column of tab_field_list", "tab_field_list"
    for column in hp.date_field_list:
        for name, part in zip(date_inputs(column), DATE_PARTS):
            yield name, f"the {part} of column {column!r}", "date_field_list"
    for column in hp.encoded_categories:
        labels = hp.multiclass_categories or []
        abouts = [f"the risk value of column {column!r} for the class {label!r}" for label in labels]
        names = risk_inputs(column, labels, is_binary=hp.is_binary)
        for name, about in zip(names, ["a column of cat_field_list"] if hp.is_binary else abouts):
            yield name, about, "cat_field_list" if hp.is_binary else "multiclass_categories"
    for column in hp.tab_field_list if hp.missing_indicators else ():
        yield indicator_input(column), f"the indicator of column {column!r}", "missing_indicators"
    for column in hp.encoded_categories if hp.category_embedding_dim else ():
        yield code_input(column), f"the codes of column {column!r}", "category_embedding_dim"
