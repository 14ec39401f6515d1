"""A job that does not name its classes has those of train."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from container.preprocessing.infer_classes import with_classes_of_train
from contracts.errors import ContractError
from contracts.hyperparameter_files import GivenSettings
from contracts.paths import JobPaths
from testing.jobs import write_table


def inferred(folder: Path, labels: list[Any], **values: Any) -> dict[str, Any]:
    """Return the settings that are added to `values` for a table with these labels."""
    paths = JobPaths(folder)
    write_table(pd.DataFrame({"label": labels}), paths.channel("train"), "csv")
    given = GivenSettings({"label_name": "label", **values}, {})
    return {
        name: value for name, value in with_classes_of_train(given, paths).values.items() if name not in given.values
    }


def test_the_classes_are_the_labels_of_train_in_order(tmp_path):
    expected = {"num_classes": 3, "is_binary": False, "multiclass_categories": [2, 10, "b"]}
    assert inferred(tmp_path, ["b", "10", "2", "b"]) == expected


def test_two_labels_need_no_setting(tmp_path):
    assert inferred(tmp_path, ["yes", "no", "yes"]) == {}


def test_is_binary_false_infers_a_list_of_two(tmp_path):
    assert inferred(tmp_path, ["yes", "no"], is_binary=False) == {
        "num_classes": 2,
        "multiclass_categories": ["no", "yes"],
    }


def test_another_number_of_classes_than_the_given_one_is_an_error(tmp_path):
    with pytest.raises(ContractError, match="num_classes: is '4', but the column 'label' of train has 3 labels"):
        inferred(tmp_path, ["a", "b", "c"], num_classes="4")


@pytest.mark.parametrize("labels", [[str(i) for i in range(101)], [f"{i}.5" for i in range(21)]])
def test_many_numbers_or_fractions_are_a_regression(labels, tmp_path):
    with pytest.raises(ContractError, match="distinct numbers.*that is a regression"):
        inferred(tmp_path, labels)
