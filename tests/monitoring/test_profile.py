"""The profile of new records."""

from pathlib import Path

from container.monitoring.profile import RecordProfile
from container.preprocessing.distributions import Categories
from container.tables.table_file import Origin
from testing.table_jobs import fit, settings, table


def test_an_empty_cell_of_a_category_is_missing_also_if_no_row_of_train_has_one(tmp_path: Path) -> None:
    preprocessor, _ = fit(tmp_path, table(40, c=["a", "b"] * 20), settings())
    profile = RecordProfile(preprocessor.fitted, {"c": Categories.of({"a": 20, "b": 20})})
    profile.add(table(40, c=["a", None, "", "new"] * 10), Origin())
    assert profile.categories["c"] == {"a": 10, "": 20}
    assert profile.unseen == {"c": 10}
