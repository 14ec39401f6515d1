"""One code path: a file, a batch and a single record become the same prepared rows."""

import functools
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from container.preprocessing.fit import fit_preprocessing, learn_label_map
from container.preprocessing.fitted import FittedPreprocessing
from container.preprocessing.labels import LabelMap
from container.preprocessing.precomputed import Precomputed
from container.preprocessing.risk_tables import FoldedRisks
from container.preprocessing.scan import SplitStatistics, TableColumns, scan_train
from container.preprocessing.transform import Preprocessor
from container.tables.channel_files import TableSlice, iter_tables
from container.tables.records import records_to_table
from container.tables.table_file import Origin
from contracts.errors import ContractError
from testing.table_jobs import fit, settings, table, write_table, write_tokenizer

FEATURES = ("tabular", "text_tokens", "text_chunk_lengths")
CELLS = {
    "text": st.one_of(
        st.none(), st.text(max_size=40), st.sampled_from(["[bom]hi[eom][bom]good shirt[eom]", "<b>late</b>"])
    ),
    "x": st.one_of(st.none(), st.floats(-1e6, 1e6)),
    "y": st.one_of(st.none(), st.integers(-5, 5)),
    "c": st.one_of(st.none(), st.sampled_from(["a", "b", "c", "", "new", "1"])),
}
RECORDS = st.lists(st.fixed_dictionaries(CELLS), min_size=1, max_size=8)
QUICK = hypothesis_settings(max_examples=60)


@functools.cache
def fitted_preprocessor() -> Preprocessor:
    with tempfile.TemporaryDirectory() as folder:
        return fit(Path(folder), table(60))[0]


def features(found: Any, **kwargs: Any) -> list[dict[str, Any]]:
    return fitted_preprocessor().transform(records_to_table(found), **kwargs).batch.select(FEATURES).to_pylist()


@given(RECORDS)
@QUICK
def test_a_record_is_prepared_the_same_alone_and_in_a_batch(records: list[dict[str, Any]]) -> None:
    assert [features([record])[0] for record in records] == features(records)


@given(RECORDS)
@QUICK
def test_a_file_is_prepared_as_its_records_are(records: list[dict[str, Any]]) -> None:
    typed = pa.table(
        {
            "text": pa.array([record["text"] and record["text"].replace("\0", "") for record in records], pa.string()),
            "x": pa.array([record["x"] for record in records], pa.float64()),
            "y": pa.array([record["y"] for record in records], pa.int64()),
            "c": pa.array([record["c"] for record in records], pa.string()),
        }
    )
    expected = features(typed.to_pylist())
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a.csv", "a.parquet", "a.tsv"):
            path = write_table(Path(folder) / name, typed)
            parts = iter_tables([path], typed.column_names, rows_per_batch=3)
            assert [row for part in parts for row in features(part.table)] == expected, name


@given(RECORDS)
@QUICK
def test_nothing_is_lost_and_nothing_is_null(records: list[dict[str, Any]]) -> None:
    batch = fitted_preprocessor().transform(records_to_table(records), first_row=100).batch
    assert batch.column("row").to_pylist() == list(range(100, 100 + len(records)))
    assert not any(batch.column(name).null_count for name in ("row", "label", *FEATURES))
    assert np.isfinite(batch.column("tabular").flatten().to_numpy()).all()
    for tokens, lengths in zip(batch.column("text_tokens").to_pylist(), batch.column("text_chunk_lengths").to_pylist()):
        assert sum(lengths) == len(tokens)
        assert min(lengths) >= 2
        assert max(lengths) <= 12


def test_the_columns_are_those_of_the_documents() -> None:
    schema = fitted_preprocessor().transform(table(3)).batch.schema
    assert {field.name: str(field.type) for field in schema} == {
        "row": "int64",
        "id": "string",
        "raw_label": "int64",
        "label": "int64",
        "tabular": "fixed_size_list<item: float>[3]",
        "text_tokens": "list<item: int32>",
        "text_chunk_lengths": "list<item: int32>",
    }


def test_label_and_id_may_be_absent_or_null_at_prediction_time() -> None:
    bare = fitted_preprocessor().transform(table(3).drop(["label", "id"])).batch
    assert bare.column("label").to_pylist() == [-100] * 3
    assert "raw_label" not in bare.schema.names
    assert bare.column("id").null_count == 3
    assert features(table(3)) == features(table(3).drop(["label", "id"]))
    null = fitted_preprocessor().transform(table(3, label=[1, None, 0])).batch
    assert null.column("label").to_pylist() == [1, -100, 0]


def test_columns_are_known_by_name_and_others_are_ignored() -> None:
    found = table(5)
    shuffled = found.select(["c", "y", "label", "x", "text", "id"]).append_column("extra", [list("abcde")])
    assert features(shuffled) == features(found)


def test_unlabelled_rows_are_dropped_on_request_and_the_rest_keep_their_numbers() -> None:
    found = table(4, label=[None, 1, None, 0], x=[None, None, 1.0, 2.0])
    batch, counts = fitted_preprocessor().transform(found, first_row=10, drop_unlabelled=True)
    assert batch.column("row").to_pylist() == [11, 13]
    assert batch.select(FEATURES).to_pylist() == [features(found)[1], features(found)[3]]
    assert (counts.rows, counts.dropped, counts.imputed["x"]) == (2, 2, 1)
    nothing, counts = fitted_preprocessor().transform(table(2, label=[None, None]), drop_unlabelled=True)
    assert (nothing.num_rows, counts.dropped) == (0, 2)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": ["1", "two", "3"]}, r"/d/a.csv: row 9, column 'x': 'two' is not a number"),
        ({"label": [0, 1, 9]}, r"/d/a.csv: row 10, column 'label': 9 is not one of the labels \[0, 1\]"),
        ({"y": [[{"a": 1}]] * 3}, r"/d/a.csv: row 8: column 'y' contains a list"),
    ],
)
def test_a_wrong_value_is_named_with_file_row_and_column(columns: dict[str, Any], message: str) -> None:
    found = records_to_table(table(3, **columns))
    with pytest.raises(ContractError, match=message):
        fitted_preprocessor().transform(found, origin=Origin(Path("/d/a.csv"), 7))


def test_a_missing_feature_is_named_with_the_nearest() -> None:
    found = table(2)
    renamed = found.rename_columns(
        ["ids" if name == "id" else "txt" if name == "text" else name for name in found.column_names]
    )
    with pytest.raises(ContractError, match="records: column 'text' is missing; the similar column 'txt' exists"):
        fitted_preprocessor().transform(renamed)


def test_what_was_imputed_and_unseen_is_counted() -> None:
    found = table(4, x=["", "NA", "1", "2"], c=["a", "new", "newer", None])
    _, counts = fitted_preprocessor().transform(found)
    assert (counts.imputed["x"], counts.unseen["c"]) == (2, 2)
    twice = counts + counts
    assert (twice.rows, twice.imputed["x"], twice.unseen["c"]) == (8, 4, 4)
    assert twice.texts["text"].records == 8


def test_saved_rules_load_and_prepare_the_same(tmp_path: Path) -> None:
    preprocessor, _ = fit(tmp_path, table(60), settings(numeric_transform="quantile", missing_indicators=True))
    preprocessor.fitted.save(tmp_path / "model")
    write_tokenizer(tmp_path / "model" / "tokenizer")
    loaded = Preprocessor.load(tmp_path / "model")
    assert loaded.fitted == preprocessor.fitted
    assert loaded.fitted.fingerprint == preprocessor.fitted.fingerprint
    assert loaded.transform(table(20)).batch.equals(preprocessor.transform(table(20)).batch)
    assert (tmp_path / "model" / "feature_columns.txt").read_text() == "x\ny\nx_missing\ny_missing\nc\n"


def test_the_file_of_feature_columns_has_one_line_per_input(tmp_path: Path) -> None:
    found = table(60).rename_columns(["id", "text", "x\nx", "y\u2028y", "c", "label"])
    preprocessor, _ = fit(tmp_path, found, settings(tab_field_list=["x\nx", "y\u2028y"]))
    preprocessor.fitted.save(tmp_path / "model")
    assert (tmp_path / "model" / "feature_columns.txt").read_text() == "x\\nx\ny\\u2028y\nc\n"


def test_the_pickles_are_for_people_and_never_read(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    expected = FittedPreprocessing.load(folder)
    for name in ("impute_dict.pkl", "risk_table_map.pkl"):
        (folder / name).write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
    assert FittedPreprocessing.load(folder) == expected


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"preprocessing\.json: cannot be read"):
        Preprocessor.load(tmp_path)


def saved(folder: Path) -> Path:
    """A model folder's preprocessing."""
    fit(folder, table(20))[0].fitted.save(folder / "model")
    write_tokenizer(folder / "model" / "tokenizer")
    return folder / "model"


def replace_text(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_a_max_sen_len_beyond_the_encoder_s_positions_is_an_error_when_the_folder_is_loaded(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    replace_text(folder / "preprocessing.json", '"max_sen_len": 12', '"max_sen_len": 513')
    with pytest.raises(ContractError, match=r"preprocessing\.json: max_sen_len: is 513, .* positions for 512 tokens"):
        Preprocessor.load(folder)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("tokenizer.json", '"good"', '"well"'), ("config.json", '"max_position_embeddings": 512', '"max_position": 5')],
)
def test_a_tokenizer_of_another_job_is_an_error_when_the_folder_is_loaded(tmp_path, name, old, new):
    folder = saved(tmp_path)
    Preprocessor.load(folder)
    replace_text(folder / "tokenizer" / name, old, new)
    with pytest.raises(ContractError, match=r"tokenizer: its files are not those whose hash .*preprocessing\.json"):
        Preprocessor.load(folder)


def test_many_classes_have_a_risk_column_each(tmp_path: Path) -> None:
    found = table(60, label=["low", "mid", "high"] * 20)
    hp = settings(is_binary=False, num_classes=3, multiclass_categories=["low", "mid", "high"])
    preprocessor, _ = fit(tmp_path, found, hp)
    assert preprocessor.fitted.feature_columns == ["x", "y", "c_low", "c_mid", "c_high"]
    batch = preprocessor.transform(found).batch
    assert batch.column("label").to_pylist() == [0, 1, 2] * 20
    risks = batch.column("tabular").flatten().to_numpy().reshape(60, 5)[:, 2:]
    np.testing.assert_allclose(risks.sum(1), 1, rtol=1e-6)


def test_a_class_without_a_table_reads_no_table_columns(tmp_path: Path) -> None:
    hp = settings(model_class="bert")
    preprocessor, folds = fit(tmp_path, table(30).drop(["x", "y", "c"]), hp)
    batch = preprocessor.transform(table(3).drop(["x", "y", "c"])).batch
    assert folds is None
    assert batch.column("tabular").type.list_size == 0
    assert batch.column("tabular").to_pylist() == [[], [], []]


@pytest.mark.parametrize("categories", [None, [1, 0]])
@given(cut=st.integers(0, 60), seed=st.integers(0, 5))
@QUICK
def test_what_is_fitted_does_not_depend_on_the_batches(categories: list[int] | None, cut: int, seed: int) -> None:
    hp = settings(seed=seed, is_binary=not categories, multiclass_categories=categories)
    found = table(60)

    def fitted(*cuts: int) -> tuple[FittedPreprocessing, FoldedRisks]:
        known = categories and LabelMap("label", tuple(categories))
        statistics = SplitStatistics(TableColumns.of(hp), hp, known=known)
        for start, stop in itertools.pairwise([0, *cuts, 60]):
            statistics.add(TableSlice(found.slice(start, stop - start), start, Origin(Path("a.csv"), start)))
        statistics.read_categories(has_types=True)
        labels = learn_label_map(statistics, hp, where="train")
        none = Precomputed(None, None)
        return fit_preprocessing(statistics, hp, labels=labels, precomputed=none, where="train")

    (rules, folds), (expected_rules, expected_folds) = fitted(cut), fitted()
    assert rules == expected_rules
    np.testing.assert_array_equal(folds.values["c"], expected_folds.values["c"])


def test_labels_are_scanned_before_texts_are_read(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.csv", table(5).drop(["text"]))
    assert scan_train([path], settings(), TableColumns.of(settings())).rows == 5
