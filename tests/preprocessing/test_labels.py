"""Class labels and their ids."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.data import batch
from container.preprocessing.fit import learn_label_map
from container.preprocessing.labels import (
    UNLABELLED,
    LabelCollector,
    LabelMap,
    check_two_classes,
    given_labels,
    learned_labels,
)
from container.preprocessing.scan import SplitStatistics, TableColumns, scan_held_out, scan_train
from container.tables.table_file import Origin
from contracts.errors import ContractError
from testing.table_jobs import settings, table, write_table

ORIGIN = Origin(Path("train.csv"), 100)


def test_unlabelled_is_the_number_that_batches_use() -> None:
    assert UNLABELLED == batch.UNLABELLED


def test_categories_give_the_order_of_ids() -> None:
    labels = given_labels("label", ["neutral", 7, "bad"])
    assert labels.encode(pa.array(["bad", "7", "neutral", "7.0"]), origin=ORIGIN).tolist() == [2, 1, 0, 1]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (["1", "0"], (0, 1)),
        (["10", "9"], (9, 10)),
        (["yes", "no"], ("no", "yes")),
        (["2.5", "-1"], (-1, "2.5")),
        (["a", "3"], (3, "a")),
        (["nan", "--1", "5"], (5, "--1", "nan")),
        (["9" * 5000, "9" * 18], (10**18 - 1, "9" * 5000)),
    ],
)
def test_learned_labels_are_sorted_numbers_by_value(found: list[str], expected: tuple[object, ...]) -> None:
    assert learned_labels("label", dict.fromkeys(found, 1)).labels == expected


def test_a_label_outside_the_categories_is_named_with_file_row_and_value() -> None:
    with pytest.raises(ContractError) as caught:
        LabelMap("grade", ("a", "b")).encode(pa.array(["a", None, "c"]), origin=ORIGIN)
    assert caught.value.cause == "train.csv: row 103, column 'grade': 'c' is not one of the labels ['a', 'b']"


def test_categories_that_are_the_same_label_are_refused() -> None:
    with pytest.raises(ContractError, match=r"\['1', 1\] are the same label|\[1, '1.0'\] are the same label"):
        given_labels("label", [1, "1.0", 2])


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=30), st.integers(0, 30))
def test_labels_counted_in_batches_are_those_of_the_whole(values: list[str | None], cut: int) -> None:
    def collect(*parts: list[str | None]) -> tuple[dict[str, int], dict[str, int], list[int]]:
        collector = LabelCollector("label", allowed=3)
        index = [collector.add(pa.array(part, pa.string()), origin=ORIGIN) for part in parts]
        return collector.counts, collector.index, np.concatenate(index).tolist()

    assert collect(values[:cut], values[cut:]) == collect(values)


def scan(folder: Path, labels: list[object], **given: object) -> object:
    hp = settings(**given)
    path = write_table(folder / "train.csv", table(len(labels), label=labels))
    statistics = scan_train([path], hp, TableColumns.of(hp))
    return learn_label_map(statistics, hp, where="train")


def test_the_error_of_an_unlabelled_row_names_each_file_once(tmp_path: Path) -> None:
    files = [write_table(tmp_path / name, table(4, label=[None, 1, None, 1])) for name in ("a.csv", "b.csv")]
    hp = settings()
    with pytest.raises(ContractError) as caught:
        scan_train(files, hp, TableColumns.of(hp))
    assert caught.value.cause == (
        f"{files[0]}: row 1, column 'label': the label is missing; also in row 3; "
        f"also in {files[1]}: row 1; also in row 3; 4 of 8 training rows have no label"
    )
    assert "drop_unlabelled" in caught.value.fix


def test_one_class_alone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="column 'label' has only the label '1'"):
        scan(tmp_path, ["1", "1", "1.0", "True"])
    with pytest.raises(ContractError, match="column 'label' has no label"):
        scan(tmp_path, [None, None], drop_unlabelled=True)


def test_a_third_label_of_a_binary_job_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ContractError,
        match=r"row 4, column 'label': '2' is an additional label; the data already has 2 classes: \['0', '1'\]",
    ):
        scan(tmp_path, [0, 1, 0, 2])


def test_a_category_that_train_lacks_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    labels = scan(tmp_path, ["a", "b"], is_binary=False, num_classes=3, multiclass_categories=["c", "b", "a"])
    assert labels.labels == ("c", "b", "a")
    assert "no row has the label 'c'" in caplog.text


def held_out(path: Path, found: pa.Table) -> SplitStatistics:
    """The statistics of val in a file, by the labels 0 and 1 of train."""
    hp = settings()
    labels = LabelMap("label", (0, 1))
    return scan_held_out([write_table(path, found)], hp, TableColumns.of(hp), labels=labels, channel="val")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_held_out_channel_without_the_label_column_is_refused(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(ContractError, match=rf"val\.{suffix}: column 'label' is missing"):
        held_out(tmp_path / f"val.{suffix}", table(3).drop_columns("label"))


def test_held_out_rows_may_lack_a_label_but_have_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    statistics = held_out(tmp_path / "val.csv", table(3, label=["1", None, "0"]))
    assert (statistics.rows, statistics.unlabelled) == (3, 1)
    assert "1 of 3 rows have no label" in caplog.text
    with pytest.raises(ContractError, match=r"val.csv: row 2, column 'label': '5' is not one of the labels"):
        held_out(tmp_path / "val.csv", table(3, label=["1", "5", "0"]))


def test_a_channel_without_rows_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"channel train: .*train.csv has no rows"):
        scan(tmp_path, [])


def test_an_error_shows_the_beginning_of_long_labels() -> None:
    text, other, third = (f"{word} {'long ' * 20_000}" for word in ("one", "two", "three"))
    refused = (
        lambda: LabelCollector("text", allowed=2).add(pa.array([text, other, third]), origin=Origin()),
        lambda: learned_labels("text", {text: 1, other: 1}).encode(pa.array(["z"]), origin=Origin()),
        lambda: check_two_classes(learned_labels("text", {text: 1}), {text: 1}, where="train"),
    )
    for check in refused:
        with pytest.raises(ContractError) as caught:
            check()
        assert len(caught.value.cause) < 600


def test_a_time_that_python_does_not_have_is_named():
    beyond = pa.array([2**60], pa.timestamp("us"))
    with pytest.raises(ContractError, match="record 1, column 'label': '<value out of range"):
        LabelMap("label", (0, 1)).encode(beyond, origin=Origin())


def test_a_number_of_val_takes_little_memory(tmp_path: Path) -> None:
    found = held_out(tmp_path / "val.parquet", table(30_000, x=[i + 0.123 for i in range(30_000)]))
    values, counts = found.numeric["x"].distribution.items()
    assert len(values) <= 1 << 14
    assert counts.sum() == 30_000
    assert found.numeric["x"].median == pytest.approx(15_000, rel=1e-3)
