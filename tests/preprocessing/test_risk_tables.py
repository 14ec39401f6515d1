"""Categories as smoothed class frequencies, out of fold on train."""

import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.preprocessing.risk_tables import (
    CategoryCounts,
    RiskTable,
    category_keys,
    fit_risk_table,
    fold_of,
    parse_risk_table,
    smoothed_risk,
)
from contracts.errors import ContractError
from testing.hostile_texts import processor_seconds
from testing.table_jobs import fit, settings, table

RULE = {"binary": True, "smooth_factor": 0.0, "smooth_rows": 0.0, "count_threshold": 0}
CATEGORIES = ["a", "a", "a", "b", None, "", "1", "1.0"]
LABELS = [1, 1, 0, 0, 1, 0, 1, 1]


def counted(categories: list[object], labels: list[int], folds: list[int] | None = None) -> tuple[object, ...]:
    """Arguments of fit_risk_table over these rows, two classes."""
    folds = folds or [0] * len(labels)
    counts = CategoryCounts(num_folds=max(folds) + 1, num_labels=2)
    counts.add(pa.array(categories, pa.string()), np.array(folds), np.array(labels))
    totals = np.zeros((max(folds) + 1, 2), np.int64)
    np.add.at(totals, (np.array(folds), np.array(labels)), 1)
    return (*counts.sorted([0, 1]), totals)


def test_a_risk_is_the_frequency_of_class_one() -> None:
    risk, folds = fit_risk_table(*counted(CATEGORIES, LABELS), **RULE)
    assert folds is None
    assert risk.default == (5 / 8,)
    assert risk.risk == {"": (0.5,), "1": (1.0,), "a": (2 / 3,), "b": (0.0,)}
    assert risk.counts == {"": 2, "1": 2, "a": 3, "b": 1}


def test_smoothing_by_a_number_of_rows_adds_to_that_by_a_fraction() -> None:
    rows = counted(CATEGORIES, LABELS, folds=[0, 1] * 4)
    risk, folds = fit_risk_table(*rows, **{**RULE, "smooth_factor": 0.25, "smooth_rows": 3})
    strength = 0.25 * 8 + 3
    assert risk.risk["a"][0] == pytest.approx((2 + strength * 5 / 8) / (3 + strength))
    strength = 0.25 * 4 + 3
    assert folds is not None
    assert folds[0, list(risk.risk).index("a"), 0] == pytest.approx((1 + strength * 5 / 8) / (1 + strength))


def test_a_category_below_the_threshold_gets_the_prior() -> None:
    risk, _ = fit_risk_table(*counted(CATEGORIES, LABELS), **{**RULE, "count_threshold": 3})
    assert risk.risk == {"": (5 / 8,), "1": (5 / 8,), "a": (2 / 3,), "b": (5 / 8,)}


def test_many_classes_have_a_value_each() -> None:
    risk, _ = fit_risk_table(*counted(CATEGORIES, LABELS), **{**RULE, "binary": False})
    assert risk.risk["a"] == (1 / 3, 2 / 3)
    assert risk.default == (3 / 8, 5 / 8)


def first_values(table: RiskTable, column: pa.Array) -> list[float]:
    """The first value of each cell."""
    return table.values[table.codes(category_keys(column, "text")), 0].tolist()


def test_missing_empty_and_unseen_categories_are_decided_once() -> None:
    risk, _ = fit_risk_table(*counted(CATEGORIES, LABELS), **RULE)
    for column in (pa.array(["a", None, "", "unseen", " a ", "1"]), pa.array(["a", "", None, "?", "a", "1.0"])):
        assert first_values(risk, column) == [2 / 3, 0.5, 0.5, 5 / 8, 2 / 3, 1.0]
    for column in (pa.array([1, None]), pa.array([1.0, float("nan")]), pa.array([True, None])):
        assert first_values(risk, column) == [1.0, 0.5]
    never_missing, _ = fit_risk_table(*counted(["a", "b"], [1, 0]), **RULE)
    assert first_values(never_missing, pa.array([None, ""], pa.string())) == [0.5, 0.5]


def test_a_training_row_gets_the_table_of_the_other_folds() -> None:
    folds = [0, 1, 1, 0, 1, 0, 1, 0]
    risk, values = fit_risk_table(*counted(CATEGORIES, LABELS, folds), **RULE)
    for fold in (0, 1):
        others = [i for i in range(8) if folds[i] != fold]
        expected, _ = fit_risk_table(*counted([CATEGORIES[i] for i in others], [LABELS[i] for i in others]), **RULE)
        for code, name in enumerate(risk.risk):
            assert values[fold, code, 0] == expected.risk.get(name, risk.default)[0]
        assert values[fold, -1, 0] == risk.default[0]


@pytest.mark.parametrize("labels", [[1] * 7 + [0] * 3, [0] * 7 + [1] * 3])
def test_the_threshold_counts_the_rows_of_all_folds_in_training_as_in_serving(labels) -> None:
    """10 rows of a category: 8 in the other folds. 9 rows of another one: rare everywhere."""
    categories, folds = ["ten"] * 10 + ["nine"] * 9 + ["many"] * 22, [i % 5 for i in range(41)]
    given_rows = counted(categories, labels + [1] * 9 + [0, *[0, 1, 1] * 7], folds)
    risk, values = fit_risk_table(*given_rows, **{**RULE, "count_threshold": 10})
    nine, ten = (list(risk.risk).index(name) for name in ("nine", "ten"))
    assert risk.risk["nine"] == risk.default
    assert (values[:, nine, 0] == risk.default[0]).all()
    for fold in range(5):
        others = [label for label, its_fold in zip(labels, folds) if its_fold != fold]
        assert values[fold, ten, 0] == np.mean(others) != risk.default[0]


def test_a_rows_own_label_does_not_reach_its_risk(tmp_path: Path) -> None:
    """Each row its own category: in-sample the risk is the label, out of fold every row has the same."""
    found = table(40, c=[f"only {i}" for i in range(40)])
    preprocessor, folds = fit(tmp_path, found)
    assert folds is not None
    in_sample = preprocessor.transform(found).batch
    label = in_sample.column("label").to_numpy()
    risks = [batch.column("tabular").flatten().to_numpy().reshape(40, 3)[:, 2] for batch in
             (in_sample, preprocessor.transform(found, folds=folds).batch)]  # fmt: skip
    np.testing.assert_array_equal(risks[0], label)
    np.testing.assert_array_equal(risks[1], np.float32(label.mean()))


def test_a_column_of_too_many_categories_for_its_classes_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("container.preprocessing.scan.MOST_RISKS", 60)
    with pytest.raises(ContractError, match="column 'c': 40 categories and 2 classes are more than 60 risk values"):
        fit(tmp_path, table(40, c=[f"only {i}" for i in range(40)]))


@pytest.mark.parametrize("folds", [0, 1])
def test_without_folds_train_gets_the_full_table(tmp_path: Path, folds: int) -> None:
    assert fit(tmp_path, table(), settings(risk_table_folds=folds))[1] is None


def test_a_fold_is_a_function_of_seed_and_row_and_folds_are_even() -> None:
    rows = np.arange(100_000)
    folds = fold_of(rows, seed=1, num_folds=5)
    np.testing.assert_array_equal(folds[777:999], fold_of(rows[777:999], seed=1, num_folds=5))
    assert np.abs(np.bincount(folds) / 20_000 - 1).max() < 0.03
    assert np.mean(folds == fold_of(rows, seed=2, num_folds=5)) == pytest.approx(0.2, abs=0.01)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "1", "1.0", None, ""]), st.integers(0, 2), st.integers(-1, 1))),
       st.integers(0, 20))  # fmt: skip
def test_counts_in_batches_are_those_of_the_whole(rows: list[tuple[str | None, int, int]], cut: int) -> None:
    def count(*parts: list[tuple[str | None, int, int]]) -> CategoryCounts:
        found = CategoryCounts(num_folds=3, num_labels=2)
        for part in parts:
            columns = list(zip(*part)) or [(), (), ()]
            found.add(pa.array(columns[0], pa.string()), np.array(columns[1], np.int64), np.array(columns[2], np.int64))
        return found

    whole, divided = count(rows), count(rows[:cut], rows[cut:])
    assert divided.sorted([0, 1])[0] == whole.sorted([0, 1])[0]
    np.testing.assert_array_equal(divided.sorted([0, 1])[1], whole.sorted([0, 1])[1])
    assert divided.missing == whole.missing == sum(category in (None, "") for category, _, _ in rows)


@given(st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=5),
       st.floats(0, 10), st.integers(0, 20))  # fmt: skip
def test_risks_of_a_category_sum_to_one(counts: list[list[int]], smooth: float, threshold: int) -> None:
    found = np.array(counts)
    if found.sum():
        rare = found.sum(1) < threshold
        risk = smoothed_risk(found, found.sum(0) / found.sum(), strength=smooth, rare=rare)
        np.testing.assert_allclose(risk.sum(1), 1)
        assert (risk >= 0).all()


@pytest.mark.parametrize("num_values", [1, 2])
def test_a_table_reads_back_as_it_was_written(num_values: int) -> None:
    values = tuple(0.25 * (i + 1) for i in range(num_values))
    written = RiskTable(values, {"a": values, "": values}, {"a": 3, "": 1})
    assert parse_risk_table("c", written.to_json(), num_values=num_values, source="x") == written


def test_the_older_form_with_bins_is_read() -> None:
    found = parse_risk_table(
        "c", {"bins": {"a": 0.5, "1.0": 1, None: 0.1}, "default_bin": 0.2}, num_values=1, source="x"
    )
    assert found.default == (0.2,)
    assert found.risk == {"a": (0.5,), "1": (1.0,), "": (0.1,)}


@pytest.mark.parametrize("missing", [None, math.nan, np.float32("nan"), ""])
def test_a_given_table_names_its_categories_as_the_cells_do(missing: object) -> None:
    risks, counts = {missing: 0.1, 1.0: 0.2, " a ": 0.3}, {missing: 7, "1.0": 8, "a": 1}
    found = parse_risk_table("c", {"risk": risks, "default_risk": 0.5, "counts": counts}, num_values=1, source="x")
    column = pa.array([None, "", "1", "a", "b", "nan"])
    assert first_values(found, column) == [0.1, 0.1, 0.2, 0.3, 0.5, 0.5]
    assert found.frequent(2) == ("", "1")


def test_the_time_of_a_batch_does_not_depend_on_the_number_of_categories() -> None:
    risk = RiskTable((0.5,), {f"user {i}": (0.25,) for i in range(200_000)}, {})
    column = category_keys(pa.array(["user 7", "nobody"]), "text")
    assert risk.values[risk.codes(column), 0].tolist() == [0.25, 0.5]
    assert processor_seconds(lambda: [risk.codes(column) for _ in range(20)]) < 0.2  # 1 s with a hash of all categories


@pytest.mark.parametrize(
    ("given_table", "message"),
    [
        (None, "is None, not an object"),
        ({"risk": {"a": 1}}, "has no default"),
        ({"default_risk": 1}, "has no 'risk' object"),
        ({"risk": {"a": "high"}, "default_risk": 1}, "category 'a' is 'high'"),
        ({"risk": {"a": math.nan}, "default_risk": 1}, "category 'a' is nan"),
        ({"risk": {"a": [0.1, 0.9]}, "default_risk": 1}, r"category 'a' is \[0.1, 0.9\]"),
        ({"risk": {"1": 0.1, "1.0": 0.2}, "default_risk": 1}, "category '1' occurs twice"),
        ({"risk": {"a": 1}, "default_risk": 1, "counts": [3]}, r"counts is \[3\]"),
        ({"risk": {"a": 1}, "default_risk": 1, "counts": {"a": "many"}}, "counts is {'a': 'many'}"),
    ],
)
def test_a_malformed_table_is_named(given_table: object, message: str) -> None:
    with pytest.raises(ContractError, match=f"map.json: risk table of column 'c': .*{message}"):
        parse_risk_table("c", given_table, num_values=1, source="map.json")


def test_a_table_given_by_hand_wins(tmp_path: Path) -> None:
    given_table = {"c": {"risk": {"a": 0.9}, "default_risk": 0.1}}
    preprocessor, folds = fit(tmp_path, table(), settings(risk_tables=given_table))
    assert folds is None
    tabular = preprocessor.transform(table(9)).batch.column("tabular").to_pylist()
    assert [row[2] for row in tabular] == [np.float32(0.9 if c == "a" else 0.1) for c in table(9)["c"].to_pylist()]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([0.9, 0.1, None, 0.9], "such as '0.1'; all of them would get the default. The column looks already mapped"),
        (
            ["x", "y", None, "x"],
            "none of the column's 2 categories in train, such as 'x'; all of them would get the default",
        ),
    ],
)
def test_a_given_table_without_a_category_of_train_is_refused(tmp_path, cells, message):
    given_table = {"c": {"risk": {"a": 0.9, "": 0.2}, "default_risk": 0.1}}
    with pytest.raises(ContractError) as caught:
        fit(tmp_path, table(4, c=pa.array(cells), label=[0, 1, 0, 1]), settings(risk_tables=given_table))
    assert re.search(message, caught.value.cause)
    assert "remove the column from risk_tables" in caught.value.fix
    assert ("tab_field_list" in caught.value.fix) == (cells[0] == 0.9)


def test_a_given_table_may_lack_some_categories_or_meet_a_column_without_any(tmp_path: Path) -> None:
    given_table = {"c": {"risk": {"a": 0.9}, "default_risk": 0.1}}
    for cells in (["a", "b", None, "b"], [None] * 4):
        columns = {"c": pa.array(cells, pa.string()), "label": [0, 1, 0, 1]}
        fit(tmp_path, table(4, **columns), settings(risk_tables=given_table))
