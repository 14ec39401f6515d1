"""TabularPreprocessing: which row goes where, what is written, what is refused."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from container.steps.preprocess.data_profile import DataProfile, describe, profile_text
from container.steps.preprocess.row_split import (
    TEST,
    TRAIN,
    VAL,
    GroupSplit,
    HashSplit,
    Shares,
    StratifiedSplit,
    TimeSplit,
    key_hashes,
    row_hashes,
    unit_interval,
)
from container.steps.preprocess.times import TimeColumn
from container.tables.table_file import Origin
from container.tables.values import numbers
from contracts.errors import ContractError
from contracts.step_contract import processing_config, processing_resources
from contracts.steps import TABULAR_PREPROCESSING
from testing.step_runs import input_folder, message, orders, output_folder, run_step
from tests.tables.test_part_files import write

SETTINGS = {"LABEL_FIELD": "label", "ID_FIELD": "order_id"}
KNOWN_HASH = 9608873312684269977
HALVES = Shares.of(train_ratio=0.7, test_val_ratio=0.5)


def preprocess(root: Path, *arguments: str, expect: int = 0, **settings: Any) -> str:
    return run_step(root, "preprocess", *arguments, expect=expect, **{**SETTINGS, **settings})


def lay_out(root: Path, frame: pd.DataFrame, *, files: int = 3, suffix: str = ".csv") -> None:
    for i, rows in enumerate(np.array_split(np.arange(len(frame)), files)):
        write(frame.iloc[rows], input_folder(root, "preprocess", "DATA") / f"part-{i:05d}{suffix}")


def splits(root: Path, suffix: str = ".csv") -> dict[str, pd.DataFrame]:
    """The written tables by split."""
    found = {}
    for path in sorted(output_folder(root, "preprocess", "processed_data").glob(f"*/*_processed_data*{suffix}")):
        if suffix == ".parquet":
            frame = pd.read_parquet(path)
        else:
            frame = pd.read_csv(path, sep="\t" if suffix == ".tsv" else ",", dtype=str, keep_default_na=False)
        known = found.get(path.parent.name)
        found[path.parent.name] = frame if known is None else pd.concat([known, frame])
    return found


def split_of(root: Path, column: str = "order_id") -> dict[str, str]:
    """Split by id."""
    return {value: name for name, frame in splits(root).items() for value in frame[column]}


def profile(root: Path) -> dict[str, Any]:
    return json.loads((output_folder(root, "preprocess", "processed_data") / "data_profile.json").read_text())


def test_every_row_lands_in_one_split_in_order_and_to_the_letter(tmp_path: Path) -> None:
    frame = orders(300)
    lay_out(tmp_path, frame)
    preprocess(tmp_path)
    found = splits(tmp_path)
    assert set(found) == {"train", "val", "test"}
    for part in found.values():
        assert part["order_id"].is_monotonic_increasing
    whole = pd.concat(found.values()).sort_values("order_id")
    for name in ("order_id", "chat", "seller", "time"):
        assert whole[name].tolist() == frame[name].tolist()


@pytest.mark.parametrize(
    ("suffix", "output_format"), [(".tsv.gz", "CSV"), (".json", "TSV"), (".parquet.gz", "PARQUET")]
)
def test_the_split_is_the_same_whatever_the_format_the_files_and_their_order(
    tmp_path: Path, suffix: str, output_format: str
) -> None:
    frame = orders(200)
    lay_out(tmp_path / "csv", frame)
    preprocess(tmp_path / "csv")
    lay_out(tmp_path / "other", frame.sample(frac=1, random_state=0), files=7, suffix=suffix)
    preprocess(tmp_path / "other", OUTPUT_FORMAT=output_format)
    expected, found = splits(tmp_path / "csv"), splits(tmp_path / "other", f".{output_format.lower()}")
    for name, part in expected.items():
        assert sorted(found[name]["order_id"]) == part["order_id"].tolist()


def test_whole_rows_decide_where_there_are_no_ids(tmp_path: Path) -> None:
    frame = orders(200).drop(columns="order_id")
    assert not frame.duplicated().any()
    lay_out(tmp_path / "a", frame)
    lay_out(tmp_path / "b", frame[frame.columns[::-1]].sample(frac=1, random_state=0), suffix=".jsonl")
    for name in ("a", "b"):
        preprocess(tmp_path / name, ID_FIELD="")
    assert split_of(tmp_path / "a", "time") == split_of(tmp_path / "b", "time")


def test_the_hash_of_an_id_stays_what_it_is() -> None:
    """Fixed for good: another function would move rows of finished trainings between splits."""
    assert key_hashes(pa.array(["A-000001"]), seed=0).tolist() == [KNOWN_HASH]
    assert key_hashes(pa.array([1]), seed=3).tolist() == key_hashes(pa.array([" 1.0"]), seed=3).tolist()
    assert key_hashes(pa.array([1]), seed=3).tolist() != key_hashes(pa.array([1]), seed=4).tolist()


def test_the_hash_of_a_row_knows_which_cell_holds_what() -> None:
    first, second = (row_hashes(pa.table({"a": [a], "b": [b]}), seed=0)[0] for a, b in (("x", "y"), ("y", "x")))
    assert first != second


def test_a_large_table_is_split_in_the_given_ratios() -> None:
    hashes = key_hashes(pa.array(np.arange(100_000)), seed=0)
    counts = np.bincount(HashSplit(HALVES).assign(hashes, np.zeros(100_000, np.int64), None)) / 100_000
    assert counts == pytest.approx([0.7, 0.15, 0.15], abs=0.005)
    assert np.histogram(unit_interval(hashes), bins=10)[0] == pytest.approx(10_000, rel=0.05)


def test_a_larger_train_takes_rows_from_the_others_and_gives_none_away() -> None:
    hashes = key_hashes(pa.array(np.arange(10_000)), seed=0)
    smaller, larger = (
        HashSplit(Shares.of(train_ratio=ratio, test_val_ratio=0.5)).assign(hashes, hashes, None) for ratio in (0.6, 0.8)
    )
    assert (larger[smaller == TRAIN] == TRAIN).all()


def test_another_seed_is_another_split(tmp_path: Path) -> None:
    lay_out(tmp_path, orders(200))
    preprocess(tmp_path)
    first = split_of(tmp_path)
    preprocess(tmp_path, SPLIT_SEED=1)
    assert split_of(tmp_path) != first


def test_rows_of_a_group_stay_together(tmp_path: Path) -> None:
    frame = orders(300)
    frame.loc[::10, "seller"] = ""
    lay_out(tmp_path, frame)
    preprocess(tmp_path, GROUP_FIELD="seller")
    found = splits(tmp_path)
    sellers = [set(part["seller"]) - {""} for part in found.values()]
    assert sum(map(len, sellers)) == len(set.union(*sellers))
    assert all("" in set(part["seller"]) for part in found.values()), "rows without a group are spread by their id"


def test_a_stratified_split_keeps_the_shares_of_every_label(tmp_path: Path) -> None:
    frame = orders(1000)
    frame["label"] = np.where(np.arange(1000) < 40, "rare", "usual")
    lay_out(tmp_path, frame)
    preprocess(tmp_path, SPLIT_BY="stratified")
    labels = {name: part["label"].value_counts().to_dict() for name, part in splits(tmp_path).items()}
    assert labels == {
        "train": {"usual": 672, "rare": 28},
        "val": {"usual": 144, "rare": 6},
        "test": {"usual": 144, "rare": 6},
    }


def test_a_label_of_one_row_is_for_train() -> None:
    hashes = np.array([5, 7, 9], np.uint64)
    rule = StratifiedSplit.fit(HALVES, hashes, np.array([0, 1, 1]))
    assert rule.assign(hashes, np.array([0, 1, 1]), None).tolist()[0] == TRAIN


@pytest.mark.parametrize("of_label", [5, 6, 14])
def test_labels_of_few_rows_have_the_shares_of_all_rows(of_label: int) -> None:
    strata = np.arange(100 * of_label) % 100
    hashes = np.random.default_rng(0).permutation(len(strata)).astype(np.uint64)
    codes = StratifiedSplit.fit(Shares(0.8, 0.1), hashes, strata).assign(hashes, strata, None)
    assert np.bincount(codes).tolist() == [80 * of_label, 10 * of_label, 10 * of_label]


def test_by_time_the_oldest_rows_are_train_and_the_newest_test(tmp_path: Path) -> None:
    frame = orders(200)
    lay_out(tmp_path, frame.sample(frac=1, random_state=0))
    preprocess(tmp_path, SPLIT_BY="time", TIME_FIELD="time")
    found = splits(tmp_path)
    assert {name: len(part) for name, part in found.items()} == {"train": 140, "val": 30, "test": 30}
    assert found["train"]["time"].max() < found["val"]["time"].min()
    assert found["val"]["time"].max() < found["test"]["time"].min()


def test_by_time_groups_stay_whole_and_the_rows_left_out_are_counted(tmp_path: Path) -> None:
    frame = orders(200).sort_values("time").assign(shop=[f"s{i // 8}" if i % 9 else "s0" for i in range(200)])
    lay_out(tmp_path, frame.sample(frac=1, random_state=0))
    preprocess(tmp_path, SPLIT_BY="time", TIME_FIELD="time", GROUP_FIELD="shop")
    found, left_out = splits(tmp_path), profile(tmp_path)["left_out"]
    shops = [set(part["shop"]) for part in found.values()]
    assert sum(map(len, shops)) == len(set.union(*shops))
    assert found["train"]["time"].max() < found["val"]["time"].min()
    assert found["val"]["time"].max() < found["test"]["time"].min()
    assert 0 < left_out == 200 - sum(map(len, found.values()))


def test_rows_of_one_time_are_in_one_split() -> None:
    times = np.repeat([1.0, 2.0, 3.0, 4.0], 25)
    codes = TimeSplit.fit(HALVES, times).assign(np.zeros(100, np.uint64), np.zeros(100, np.int64), times)
    assert [set(codes[times == time].tolist()) for time in (1, 2, 3, 4)] == [{TRAIN}, {TRAIN}, {VAL}, {TEST}]


def test_three_times_are_three_splits_where_nearly_all_rows_have_the_first() -> None:
    times = np.repeat([1.0, 2.0, 3.0], [85, 10, 5])
    codes = TimeSplit.fit(Shares(0.8, 0.1), times).assign(np.zeros(100, np.uint64), np.zeros(100, np.int64), times)
    assert [set(codes[times == time].tolist()) for time in (1, 2, 3)] == [{TRAIN}, {VAL}, {TEST}]


@pytest.mark.parametrize("sizes", [[85, 10, 5], [5, 85, 10], [10, 5, 85], [1, 1, 1], [60, 20, 10, 5, 5]])
def test_few_groups_are_in_three_splits_and_the_largest_is_train(sizes: list[int]) -> None:
    hashes = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
    codes = GroupSplit.fit(Shares(0.8, 0.1), hashes).assign(hashes, hashes, None)
    rows = np.bincount(codes, minlength=3)
    assert (rows > 0).all()
    assert rows.argmax() == TRAIN
    assert [len(set(codes[hashes == group])) for group in range(len(sizes))] == [1] * len(sizes)


def test_the_newest_groups_are_test_and_no_row_is_older_than_those_of_an_older_split() -> None:
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 400, 4000)
    times = groups + rng.integers(0, 40, 4000) * 1.0
    hashes = groups.astype(np.uint64)
    codes = GroupSplit.fit(Shares(0.8, 0.1), hashes, times).assign(hashes, hashes, times)
    of_split = [set(groups[codes == code]) for code in (TRAIN, VAL, TEST)]
    assert not of_split[0] & of_split[1] | of_split[0] & of_split[2] | of_split[1] & of_split[2]
    assert times[codes == TRAIN].max() < times[codes == VAL].min()
    assert times[codes == VAL].max() < times[codes == TEST].min()
    assert 0 < (codes == -1).sum() < 400
    assert np.bincount(codes[codes >= 0])[0] == pytest.approx(3200, abs=20)


@pytest.mark.parametrize(
    "cells",
    [
        pa.array(["2025-01-01", "2025-01-02"]),
        pa.array(["2025-01-01T00:00:00", "2025-01-01 12:00:00.5"]),
        pa.array(["2025-01-01T00:00:00Z", "2025-01-01T00:00:00-03:00"]),
        pa.array(["2025-01-01T00:00:00.0000001", "2025-01-01T00:00:00.000001999"]),
        pa.array(["9", "10"]),
        pa.array([9, 10]),
        pa.array(np.array(["2025-01-01", "2025-01-02"], "datetime64[D]")),
    ],
)
def test_times_are_numbers_or_iso_8601_in_texts_or_types(cells: pa.Array) -> None:
    first, second = TimeColumn("t").parse(cells, origin=Origin())
    assert first < second


@pytest.mark.parametrize(
    ("cells", "row"),
    [(["2025-01-01", "soon"], 2), (["", "2025-01-01"], 1), (["1", "nan"], 2),
     (["1", "inf"], 2), (["1", "Infinity"], 2), (["1", "1e39"], 2), (["1", "", "2"], 2), (["1", None, "2"], 2)],
)  # fmt: skip
def test_a_cell_that_is_no_time_is_named_with_its_row(cells: list[str], row: int) -> None:
    with pytest.raises(ContractError, match=f"record {row}, column 't': "):
        TimeColumn("t").parse(pa.array(cells), origin=Origin())


def test_a_text_is_the_same_number_in_a_column_of_times_as_in_a_table() -> None:
    texts = pa.array(["12", " 1 ", "-.5", "+1e-3", "5.", "TRUE", "0012"])
    expected = numbers(texts, "t", origin=Origin())
    np.testing.assert_array_equal(TimeColumn("t").parse(texts, origin=Origin()), expected)


def test_a_typed_number_that_is_infinite_is_no_time() -> None:
    with pytest.raises(ContractError, match="record 2, column 't': inf is not a number"):
        TimeColumn("t").parse(pa.array([1.0, float("inf")]), origin=Origin())


def test_a_column_keeps_its_kind_of_time_from_slice_to_slice() -> None:
    times = TimeColumn("t")
    times.parse(pa.array(["5"]), origin=Origin())
    with pytest.raises(ContractError, match="record 1, column 't': '2025-01-01' is not a number"):
        times.parse(pa.array(["2025-01-01"]), origin=Origin())


@pytest.mark.parametrize("job_type", ["validation", "testing", "calibration"])
def test_other_job_types_write_all_rows_as_one_split_of_their_name(tmp_path: Path, job_type: str) -> None:
    frame = orders(40)
    frame["label"] = frame["label"].astype(str)
    frame.loc[3, "label"] = ""
    lay_out(tmp_path, frame)
    preprocess(tmp_path, "--job_type", job_type)
    (path,) = output_folder(tmp_path, "preprocess", "processed_data").glob("*/*")
    assert path.name == f"{job_type}_processed_data.csv"
    assert splits(tmp_path)[job_type]["order_id"].tolist() == frame["order_id"].tolist()


def test_a_table_without_the_label_column_is_fine_where_labels_are_not_needed(tmp_path: Path) -> None:
    lay_out(tmp_path, orders(40).drop(columns="label"))
    preprocess(tmp_path, "--job_type", "testing")
    assert len(splits(tmp_path)["testing"]) == 40
    preprocess(tmp_path, expect=1)
    assert "column 'label' is missing" in message(tmp_path)


def test_labels_are_rewritten_by_the_map(tmp_path: Path) -> None:
    frame = orders(100)
    lay_out(tmp_path, frame.assign(label=np.where(frame["label"] == 1, " yes", "no")), suffix=".parquet")
    preprocess(tmp_path, OUTPUT_FORMAT="PARQUET", LABEL_MAP={"yes": 1, "no": 0})
    found = splits(tmp_path, ".parquet")
    assert found["train"]["label"].dtype == np.int64
    whole = pd.concat(found.values()).sort_values("order_id")
    assert whole["label"].tolist() == frame["label"].tolist()
    assert set(profile(tmp_path)["splits"]["train"]["labels"]) == {"0", "1"}


@pytest.mark.parametrize(("given", "rows"), [("keep", 100), ("drop", 90)])
def test_rows_without_a_label_are_kept_or_left_out_on_request(tmp_path: Path, given: str, rows: int) -> None:
    frame = orders(100)
    frame["label"] = frame["label"].astype(object)
    frame.loc[::10, "label"] = None
    lay_out(tmp_path, frame)
    preprocess(tmp_path, UNLABELLED=given)
    assert sum(map(len, splits(tmp_path).values())) == rows
    assert profile(tmp_path)["dropped_unlabelled"] == 100 - rows


@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        ("label", None, "part-00002.csv: row 1, column 'label': the label is missing"),
        ("order_id", "", "part-00002.csv: row 1, column 'order_id': has no id"),
    ],
)
def test_a_training_row_without_a_label_or_an_id_is_named(tmp_path: Path, column: str, value: Any, named: str) -> None:
    frame = orders(100).astype({"label": object})
    frame.loc[50, column] = value
    lay_out(tmp_path, frame, files=4)
    preprocess(tmp_path, expect=1)
    assert message(tmp_path).endswith(named)


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"LABEL_FIELD": "lable"}, "column 'lable' is missing; the similar column 'label' exists"),
        ({"ID_FIELD": "id"}, "column 'id' is missing"),
        ({"SPLIT_BY": "time", "TIME_FIELD": "when"}, "column 'when' is missing"),
        ({"SPLIT_BY": "time", "TIME_FIELD": "chat"}, "column 'chat': "),
        ({"SPLIT_BY": "time"}, "SPLIT_BY=time and TIME_FIELD go together"),
        ({"SPLIT_BY": "stratified", "GROUP_FIELD": "seller"}, "SPLIT_BY=stratified and GROUP_FIELD exclude each other"),
        ({"LABEL_MAP": {"1": "a", "1.0": "b"}}, "LABEL_MAP: lists '1' twice"),
        ({"LABEL_MAP": {"1": 1, "0": "1"}}, "every label becomes the same one"),
        ({"TRAIN_RATIO": 0.999}, "split val has no rows: there are 60 rows, TRAIN_RATIO=0.999 and TEST_VAL_RATIO=0.5"),
        (
            {"SPLIT_BY": "time", "TIME_FIELD": "label"},
            "split val has no rows: there are 60 rows of 2 different times, TRAIN_RATIO=0.7",
        ),
    ],
)
def test_settings_that_do_not_fit_the_table_are_named(tmp_path: Path, settings: dict[str, Any], cause: str) -> None:
    lay_out(tmp_path, orders(60))
    preprocess(tmp_path, expect=1, **settings)
    assert cause in message(tmp_path)


def test_the_signature_of_the_loading_step_is_taken(tmp_path: Path) -> None:
    frame = orders(100)
    frame.to_csv(input_folder(tmp_path, "preprocess", "DATA") / "part-0.csv", index=False, header=False)
    signature = input_folder(tmp_path, "preprocess", "SIGNATURE") / "signature.json"
    signature.write_text(json.dumps(list(frame.columns)))
    preprocess(tmp_path)
    assert len(split_of(tmp_path)) == 100


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_column_of_lists_of_objects_is_left_out(tmp_path: Path, suffix: str) -> None:
    lay_out(tmp_path, orders(60).assign(tags=[[{"a": "b"}]] * 60), suffix=suffix)
    preprocess(tmp_path)
    assert {tuple(part.columns) for part in splits(tmp_path).values()} == {tuple(orders(1).columns)}


@pytest.mark.parametrize(
    ("frame", "settings", "cause"),
    [
        (orders(0), {}, "has no rows"),
        (orders(60).assign(tags=[[{"a": "b"}]] * 60), {"GROUP_FIELD": "tags"}, "column 'tags' is of type list<"),
        (
            orders(60).assign(label=pd.Timestamp("2024-01-01T03:00")),
            {"LABEL_MAP": {"2024-01-01": 1, "2024-01-02": 0}},  # as the map would name it
            "'2024-01-01 03:00:00' is not one of the labels",
        ),
    ],
    ids=["headers alone", "a group of lists", "a label outside of the map"],
)
def test_a_table_that_cannot_be_split_is_refused(tmp_path: Path, frame: Any, settings: Any, cause: str) -> None:
    lay_out(tmp_path, frame, suffix=".csv" if frame.empty else ".parquet")
    preprocess(tmp_path, expect=1, **settings)
    assert cause in message(tmp_path)


def hosts(root: Path, current: str, names: list[str], *, distribution: str) -> None:
    """What SageMaker tells a processing job of several instances."""
    processing_resources(root).parent.mkdir(parents=True, exist_ok=True)
    processing_resources(root).write_text(json.dumps({"current_host": current, "hosts": names}))
    entry = {"InputName": "DATA", "S3Input": {"S3DataDistributionType": distribution}}
    processing_config(root).write_text(json.dumps({"ProcessingInputs": [entry]}))


@pytest.mark.parametrize(
    ("distribution", "split_by"),
    [("ShardedByS3Key", "hash"), ("FullyReplicated", "hash"), ("FullyReplicated", "stratified")],
)
def test_several_instances_split_as_one_does(tmp_path: Path, distribution: str, split_by: str) -> None:
    frame = orders(200)
    frame["label"] = np.where(frame["label"] == 1, "b", "a")
    lay_out(tmp_path / "one", frame, files=5)
    preprocess(tmp_path / "one", SPLIT_BY=split_by)
    names, merged = ["algo-1", "algo-2", "algo-10"], {}
    for rank, name in enumerate(names):
        root = tmp_path / name
        lay_out(root, frame, files=5)
        hosts(root, name, sorted(names), distribution=distribution)
        if distribution == "ShardedByS3Key":
            for i, path in enumerate(sorted(input_folder(root, "preprocess", "DATA").iterdir())):
                if i % 3 != rank:
                    path.unlink()
        preprocess(root, SPLIT_BY=split_by)
        out = output_folder(root, "preprocess", "processed_data")
        for path in (path for path in out.rglob("*") if path.is_file()):
            assert str(path.relative_to(out)) not in merged, "two instances write one file"
            merged[str(path.relative_to(out))] = path
        for value, split in split_of(root).items():
            assert split_of(tmp_path / "one")[value] == split
    found = pd.concat([pd.read_csv(path, dtype=str) for name, path in merged.items() if "processed" in name])
    assert sorted(found["order_id"]) == frame["order_id"].tolist()


@pytest.mark.parametrize("split_by", ["hash", "stratified"])
def test_an_instance_without_one_of_the_parquet_files_is_done(tmp_path: Path, split_by: str) -> None:
    lay_out(tmp_path, orders(60), files=1, suffix=".parquet")
    hosts(tmp_path, "algo-2", ["algo-1", "algo-2"], distribution="FullyReplicated")
    preprocess(tmp_path, SPLIT_BY=split_by)
    assert not splits(tmp_path)


@pytest.mark.parametrize("name", [None, "_SUCCESS", "part-2.csv"])
def test_an_instance_without_a_file_of_data_is_done(tmp_path: Path, name: str | None) -> None:
    hosts(tmp_path, "algo-2", ["algo-1", "algo-2"], distribution="ShardedByS3Key")
    folder = TABULAR_PREPROCESSING.input("DATA").path(tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    if name is not None:
        (folder / name).touch()
    assert "no input file with data was assigned to this host" in preprocess(tmp_path)


def test_an_instance_with_a_share_of_the_files_cannot_split_by_all_rows(tmp_path: Path) -> None:
    lay_out(tmp_path, orders(50))
    hosts(tmp_path, "algo-1", ["algo-1", "algo-2"], distribution="ShardedByS3Key")
    preprocess(tmp_path, expect=1, SPLIT_BY="stratified")
    assert message(tmp_path).startswith("SPLIT_BY=stratified: needs all rows")


def test_the_profile_counts_and_describes(tmp_path: Path) -> None:
    frame = pd.concat([orders(400), orders(4)])
    lay_out(tmp_path, frame)
    preprocess(tmp_path)
    found = profile(tmp_path)
    assert found["rows"] == 404
    assert found["duplicate_ids"] == 4
    for name, part in splits(tmp_path).items():
        assert found["splits"][name]["rows"] == len(part)
        assert found["splits"][name]["labels"] == part["label"].value_counts().sort_index().to_dict()
    assert found["columns"]["price"]["missing"] == frame["price"].isna().sum()
    assert found["columns"]["price"]["mean"] == pytest.approx(frame["price"].mean())
    assert found["columns"]["chat"]["kind"] == "category"
    assert found["columns"]["time"] == {
        "missing": 0, "kind": "time", "distinct": 400, "first": "2025-01-01", "last": "2025-01-17T15:00:00",
    }  # fmt: skip
    text = (output_folder(tmp_path, "preprocess", "processed_data") / "data_profile.txt").read_text()
    assert "404 rows with 6 columns, from 3 file(s)." in text


@pytest.mark.parametrize(("name", "kind"), [("created_at", "time"), ("amount", "number")])
def test_seconds_since_1970_are_times_in_a_column_that_is_named_so(name: str, kind: str) -> None:
    assert describe(pa.chunked_array([[1735689600, 1735693200]]), name)["kind"] == kind


def profile_of(*parts: pa.Table, id_column: str | None) -> DataProfile:
    """The profile of a table in parts, of one split and one label; the ids decide which rows are sampled."""
    found = DataProfile(parts[0].column_names, splits=["all"], id_column=id_column)
    for part in parts:
        zeros = np.zeros(part.num_rows, np.int64)
        hashes = zeros.astype(np.uint64) if id_column is None else key_hashes(part[id_column], seed=0)
        found.add(part, hashes=hashes, splits=zeros, labels=zeros)
    return found


@pytest.mark.parametrize(("number", "missing"), [("1.5", 6), ("about one", 1)])
def test_a_name_for_a_missing_number_is_missing_in_a_column_of_numbers_only(number: str, missing: int) -> None:
    cells = pa.table({"x": ["NA", "n/a", " null", "None", "NaN", " ", number, "2"]})
    found = profile_of(cells, id_column=None)
    assert found.to_json(["0"], about={})["columns"]["x"]["missing"] == missing


@pytest.mark.parametrize(("rule", "shared"), [({}, 0), ({"SPLIT_BY": "time", "TIME_FIELD": "time"}, 40)])
def test_the_profile_counts_the_ids_of_several_splits(tmp_path: Path, rule: dict[str, str], shared: int) -> None:
    frame = orders(200)
    frame.loc[160:, "order_id"] = frame["order_id"][:40].tolist()  # the newest rows repeat the ids of the oldest
    lay_out(tmp_path, frame)
    log = preprocess(tmp_path, **rule)
    assert profile(tmp_path)["ids_in_several_splits"] == shared
    text = (output_folder(tmp_path, "preprocess", "processed_data") / "data_profile.txt").read_text()
    assert f"40 rows repeat an earlier id, e.g. 000000; {shared} ids occur in several splits." in text
    assert ("ID_FIELD: 40 ids occur in several splits" in log) == bool(shared)


def test_the_text_of_the_profile_has_one_line_per_fact_whatever_the_cells_contain() -> None:
    cells = pa.array(["a\nb", "c\x1b[2J", "d\r\u2028e"])
    found = profile_of(pa.table({"id": pa.array(["x\ny"] * 3), "c\nd": cells}), id_column="id")
    text = profile_text(found.to_json(["no\tyes"], about={"files": 1, "split_by": "hash"}))
    for escaped in (r"a\nb 33%", r"c\x1b[2J 33%", r"d\r\u2028e 33%", r"c\nd ", r"no\tyes: 3", r"e.g. x\ny;"):
        assert escaped in text
    assert len(text.splitlines()) == 9
    assert text.replace("\n", "").isprintable()


def test_the_sample_of_the_profile_does_not_depend_on_the_files(tmp_path: Path, monkeypatch: Any) -> None:
    from container.steps.preprocess import data_profile

    monkeypatch.setattr(data_profile, "SAMPLE_ROWS", 100)
    table = pa.Table.from_pandas(orders(3000), preserve_index=False)
    sampled = []
    for pieces in ([0, 3000], [0, 17, 1000, 2999, 3000]):
        parts = (table.slice(start, end - start) for start, end in pairwise(pieces))
        sampled.append(profile_of(*parts, id_column="order_id").to_json(["0"], about={}))
    assert sampled[0] == sampled[1]
    assert 20 < sampled[0]["sampled_rows"] <= 100


def test_what_is_written_is_what_a_training_job_reads(tmp_path: Path) -> None:
    from container.tables.channel_files import iter_tables
    from container.tables.data_files import find_data_files

    lay_out(tmp_path, orders(100), suffix=".jsonl.gz")
    preprocess(tmp_path, OUTPUT_FORMAT="PARQUET")
    folder = output_folder(tmp_path, "preprocess", "processed_data") / "train"
    (part,) = iter_tables(find_data_files(folder), ["order_id", "label"], rows_per_batch=1000)
    assert part.table.num_rows == pq.read_metadata(part.origin.file).num_rows


@pytest.mark.parametrize("split_by", ["hash", "stratified"])
def test_a_table_of_one_class_is_refused_before_the_training(tmp_path: Path, split_by: str) -> None:
    lay_out(tmp_path, orders(60).assign(label=1))
    preprocess(tmp_path, "--job_type", "training", expect=1, SPLIT_BY=split_by)
    assert "column 'label' has only one label, '1', so there is nothing to learn" in message(tmp_path)


def test_a_table_without_any_label_is_refused_where_rows_without_one_are_kept(tmp_path: Path) -> None:
    lay_out(tmp_path, orders(60).assign(label=""))
    preprocess(tmp_path, "--job_type", "training", expect=1, UNLABELLED="keep")
    assert "column 'label' has no label, so there is nothing to learn" in message(tmp_path)


def test_a_training_split_of_one_class_is_refused_and_another_job_type_may_have_one(tmp_path: Path) -> None:
    frame = orders(300)
    late = frame.assign(label=np.where(np.arange(300) < 200, 0, 1), time=pd.date_range("2024", periods=300).astype(str))
    lay_out(tmp_path, late)
    preprocess(tmp_path, "--job_type", "training", expect=1, SPLIT_BY="time", TIME_FIELD="time", TRAIN_RATIO="0.5")
    assert "has 2 labels, but the rows of split train have only 1 of them" in message(tmp_path)
    preprocess(tmp_path, "--job_type", "testing")
