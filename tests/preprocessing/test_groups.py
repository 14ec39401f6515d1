"""group_name: the rows of a group are in one fold of risk tables and the companion."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from container.companion.fit import _even_folds
from container.companion.linear import FOLDS
from container.data.split import PreparedSplit
from container.errors import NotMade
from container.preprocessing.prepare import prepare_data
from container.preprocessing.prepared import PreparedData
from container.preprocessing.row_columns import group_numbers
from contracts.hyperparameter_files import load_hyperparameters
from testing.jobs import table, write_job


def prepared(root: Path, **overrides: Any) -> PreparedData:
    """Train of 60 rows of which each three consecutive ones have a customer, and every customer a color of its own."""
    customers = [f"c{i // 3}" for i in range(60)]
    frames = {
        split: table(60, seed=seed).assign(customer=customers, color=customers)
        for seed, split in enumerate(("train", "val", "test"))
    }
    paths = write_job(root, overrides={"group_name": "customer", **overrides}, frames=frames)
    return prepare_data(paths, load_hyperparameters(paths))


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> PreparedSplit:
    data = prepared(tmp_path_factory.mktemp("groups"))
    assert "customer" not in data.fitted.feature_inputs
    return PreparedSplit(data.split("train"), roles=["text"])


def test_the_risk_of_a_category_does_not_know_the_labels_of_its_own_group(train: PreparedSplit) -> None:
    risk = np.stack(train.column("tabular").to_numpy())[:, 2]
    assert len(np.unique(risk.round(6))) <= 5, "each is the prior of its fold, as no other group has the category"


def test_the_folds_of_the_companion_keep_groups_together_with_even_classes() -> None:
    units = np.repeat(np.arange(100), 4)
    codes = np.random.default_rng(0).integers(0, 2, 400)
    folds = _even_folds(units, codes, seed=3)
    assert all(len(np.unique(folds[units == unit])) == 1 for unit in range(100))
    assert np.ptp(np.bincount(folds, codes) / np.bincount(folds)) < 0.1
    with pytest.raises(NotMade, match=f"3 groups, and there are {FOLDS} folds"):
        _even_folds(np.repeat(np.arange(3), 20), np.tile([0, 1], 30), seed=3)


def test_a_group_has_one_number_in_every_file_and_a_row_without_one_is_its_own() -> None:
    whole = group_numbers(pa.array(["a", None, "b", "a", ""]), np.arange(5))
    part = group_numbers(pa.array(["b", "a"]), np.array([7, 8]))
    assert whole[0] == whole[3] == part[1] != whole[2] == part[0]
    assert whole[[1, 4]].tolist() == [1, 4]
