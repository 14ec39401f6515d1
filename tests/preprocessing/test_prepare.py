"""A whole job's data: prepared once, reused, in processes, never half-written."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from container.preprocessing import split_file
from container.preprocessing.prepare import discard_prepared, prepare_data
from container.preprocessing.prepared import PreparedData, open_prepared
from container.preprocessing.scan import TableColumns
from container.preprocessing.slice_workers import SliceSettings, SliceWorkers
from container.preprocessing.split_file import write_split
from container.preprocessing.transform import Preprocessor
from container.tables.channel_files import TableSlice, iter_tables
from contracts.errors import ContractError
from contracts.model_classes import MODEL_CLASSES
from contracts.paths import SPLITS, JobPaths
from testing.foreign_files import add_foreign_files
from testing.jobs import REPOSITORY, run_python
from testing.table_jobs import fit, settings, table, write_job, write_table, write_tokenizer

TRAIN = SliceSettings(is_train=True, drop_unlabelled=False)
FEATURES = ["row", "label", "tabular", "text_tokens", "text_chunk_lengths"]


def prepare(paths: JobPaths, **given: Any) -> PreparedData:
    return prepare_data(paths, settings(tokenizer="tiny", **given))


def read(prepared: PreparedData, split: str = "train") -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(prepared.split(split)))).read_all()


def write_artifact(paths: JobPaths, name: str, content: str) -> Path:
    paths.precomputed_artifacts.mkdir(exist_ok=True)
    (paths.precomputed_artifacts / name).write_text(content)
    return paths.precomputed_artifacts / name


@pytest.fixture
def paths(tmp_path: Path) -> JobPaths:
    return write_job(tmp_path)


def test_every_row_is_prepared_in_order_with_its_id(paths: JobPaths) -> None:
    prepared = prepare(paths)
    assert prepared.rows == {"train": 60, "val": 20, "test": 20}
    assert (prepared.tabular_dim, prepared.input_format, prepared.reused) == (3, "csv", False)
    for number, split in enumerate(("train", "val", "test")):
        found, raw = read(prepared, split), table(prepared.rows[split], start=100 * number)
        assert found["row"].to_pylist() == list(range(prepared.rows[split]))
        assert found["id"].to_pylist() == raw["id"].to_pylist()
        assert found["label"].to_pylist() == raw["label"].to_pylist()
        assert found["raw_label"].to_pylist() == [str(label) for label in raw["label"].to_pylist()]


def test_a_warm_pool_keeps_data_that_the_next_job_finds_although_its_files_are_new(tmp_path: Path) -> None:
    paths = write_job(tmp_path)
    pool = tmp_path / "sagemaker" / "warmpoolcache"
    pool.mkdir(parents=True)
    prepared = prepare(paths)
    assert prepared.folder.is_relative_to(pool)
    for file in (path for split in SPLITS for path in paths.channel(split).iterdir()):
        file.write_bytes(file.read_bytes())
    assert prepare(paths).reused


def test_foreign_files_in_every_folder_of_the_job_change_nothing(paths: JobPaths) -> None:
    write_artifact(paths, "notes.txt", "")
    prepared = prepare(paths)
    assert add_foreign_files(paths.root)
    assert prepare(paths).reused
    Preprocessor.load(prepared.folder)


def test_every_format_is_prepared_the_same(tmp_path: Path) -> None:
    prepared = [prepare(write_job(tmp_path / suffix, suffix=suffix)) for suffix in (".csv", ".tsv", ".parquet")]
    assert [found.input_format for found in prepared] == ["csv", "tsv", "parquet"]
    assert prepared[0].fitted == prepared[1].fitted == prepared[2].fitted
    for split in ("train", "test"):
        first, *others = (read(found, split).select(FEATURES) for found in prepared)
        assert all(first.equals(other) for other in others)


def test_a_row_of_the_file_and_the_same_record_served_are_the_same(paths: JobPaths) -> None:
    prepared = prepare(paths)
    preprocessor = Preprocessor.load(prepared.folder)
    found = read(prepared, "test").select(FEATURES[2:]).to_pylist()
    records = table(20, start=200).drop(["label"]).to_pylist()
    served = [preprocessor.transform(pa.Table.from_pylist([record])).batch for record in records]
    assert [batch.select(FEATURES[2:]).to_pylist()[0] for batch in served] == found


def test_training_rows_have_out_of_fold_risks_and_others_the_full_table(paths: JobPaths) -> None:
    in_sample = prepare(paths, risk_table_folds=0)
    leaking = np.array(read(in_sample)["tabular"].to_pylist())
    folded = prepare(paths)
    tabular = np.array(read(folded)["tabular"].to_pylist())
    np.testing.assert_array_equal(tabular[:, :2], leaking[:, :2])
    assert (tabular[:, 2] != leaking[:, 2]).mean() > 0.9
    assert in_sample.fitted.risk_tables == folded.fitted.risk_tables
    preprocessor = Preprocessor.load(folded.folder)
    assert (
        read(folded, "val")["tabular"].to_pylist()
        == preprocessor.transform(table(20, start=100)).batch["tabular"].to_pylist()
    )


def test_a_second_run_reuses_what_the_first_prepared_and_reads_no_input(
    paths: JobPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(paths)
    written = first.split("train").stat().st_mtime_ns
    monkeypatch.setattr("hashlib.file_digest", None)
    second = prepare(paths, lr=0.5, batch_size=7, max_epochs=1)
    assert second.reused
    assert second.folder == first.folder
    assert second.split("train").stat().st_mtime_ns == written
    assert (second.fitted, second.summary, second.rows) == (first.fitted, first.summary, first.rows)


@pytest.mark.parametrize(
    "given",
    [
        {"text_input_ids_key": "tok"},
        {"text_attention_mask_key": "seen"},
        {"reinit_layers": 0},
        {"reinit_pooler": False},
        {"is_embeddings_trainable": False},
    ],
)
def test_what_is_fitted_does_not_depend_on_a_setting_of_the_model(paths: JobPaths, given: dict[str, Any]) -> None:
    first = prepare(paths)
    saved = (first.folder / "preprocessing.json").read_text()
    shutil.rmtree(paths.prepared)
    second = prepare(paths, **given)
    assert (second.folder / "preprocessing.json").read_text() == saved
    assert second.fitted.fingerprint == first.fitted.fingerprint


@pytest.mark.parametrize(
    "given",
    [
        {"max_sen_len": 11},
        {"chunk_trancate": True},
        {"tab_field_list": ["x"]},
        {"imputation_strategy": "median"},
        {"numeric_transform": "none"},
        {"smooth_factor": 0.1},
        {"seed": 7},
        {"model_class": "bert", "tab_field_list": [], "cat_field_list": []},
        {"text_processing_steps": ["tokenizer"]},
    ],
)
def test_a_setting_that_matters_is_prepared_anew_and_the_old_is_removed(paths: JobPaths, given: dict[str, Any]) -> None:
    first = prepare(paths)
    second = prepare(paths, **given)
    assert not second.reused
    assert not first.folder.exists()
    assert second.split("train").is_file()


def test_of_the_data_of_other_settings_those_used_last_and_those_in_use_are_kept(paths: JobPaths) -> None:
    again, running, _, last = (
        prepare_data(paths, settings(tokenizer="tiny", max_sen_len=length), keep_others=9).folder
        for length in (11, 12, 13, 14)
    )
    prepare_data(paths, settings(tokenizer="tiny", max_sen_len=11), keep_others=9)
    new = prepare_data(paths, settings(tokenizer="tiny", max_sen_len=15), keep_others=2, in_use=[running]).folder
    assert {path for path in paths.prepared.iterdir() if path.is_dir()} == {running, again, last, new}


def test_data_whose_removal_was_interrupted_is_prepared_anew(paths: JobPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(folder: Path, **_: bool) -> None:
        if (folder / "train.arrow").is_file():
            (folder / "train.arrow").unlink()
            raise KeyboardInterrupt

    prepare(paths)
    with monkeypatch.context() as patch:
        patch.setattr("container.preprocessing.prepare.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(paths, max_sen_len=11)
    again = prepare(paths)
    assert not again.reused
    assert {path.name for path in paths.prepared.iterdir()} == {".digests.json", ".lock", again.folder.name}


def test_only_prepared_data_is_removed_from_its_folder(paths: JobPaths, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    kept = [paths.prepared / name for name in ("mine", "tmp-mine", "0123456789abcdef0123")]
    for folder in kept:
        folder.mkdir(parents=True)
        (folder / "notes.txt").touch()
    (paths.prepared / "link").symlink_to(tmp_path / "linked")
    first = prepare(paths)
    (paths.prepared / f"tmp-{first.folder.name}").mkdir()
    second = prepare(paths, max_sen_len=11)
    expected = {".digests.json", ".lock", "link", *(folder.name for folder in kept), second.folder.name}
    assert {path.name for path in paths.prepared.iterdir()} == expected
    assert all((folder / "notes.txt").exists() for folder in kept)


def test_changed_files_tokenizers_and_artifacts_are_prepared_anew(paths, monkeypatch):
    prepare(paths)
    write_table(paths.channel("val") / "data.csv", table(20, start=101))
    assert not prepare(paths).reused
    config = paths.pretrained / "tiny" / "config.json"
    config.write_text(config.read_text().replace("512", "256"))
    assert not prepare(paths).reused
    write_artifact(paths, "impute_dict.json", '{"x": -5, "y": 0}')
    assert not prepare(paths).reused
    monkeypatch.setenv("USE_PRECOMPUTED_IMPUTATION", "true")
    prepared = prepare(paths)
    assert not prepared.reused
    assert prepared.fitted.imputation == {"x": -5.0, "y": 0.0}
    assert prepare(paths).reused


@pytest.mark.parametrize("name", ["train/data.csv", "val/data.csv", "model_artifacts_input/notes.txt"])
def test_content_that_changes_in_the_middle_under_an_old_size_and_time_is_prepared_anew(tmp_path, name):
    texts = ["late parcel, thank you " * 300] * 60
    paths = write_job(tmp_path, train=table(60, text=texts), val=table(60, start=100, text=texts))
    write_artifact(paths, "notes.txt", texts[0] * 60)
    prepare(paths)
    path = paths.channel("train").parent / name
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"late", status.st_size // 2))
        file.write(b"good")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not prepare(paths).reused
    assert prepare(paths).reused


def test_a_job_that_starts_over_prepares_its_data_again_and_leaves_other_folders(paths):
    folder = prepare(paths).folder
    (paths.prepared / "mine").mkdir()
    discard_prepared(paths)
    assert {path.name for path in paths.prepared.iterdir()} == {".lock", "mine"}
    assert not prepare(paths).reused
    assert folder.is_dir()


def test_selected_features_leave_the_others_out(paths: JobPaths) -> None:
    write_artifact(paths, "selected_features.json", '["c", "y"]')
    assert prepare(paths).fitted.feature_columns == ["y", "c"]
    write_artifact(paths, "selected_features.json", "[]")
    assert prepare(paths).tabular_dim == 0


def test_selected_features_have_no_effect_on_a_class_without_a_table(paths, caplog):
    write_artifact(paths, "selected_features.json", '["c", "y"]')
    assert prepare(paths, model_class="bert").tabular_dim == 0
    assert "selected_features.json has no effect: model_class 'bert' reads no table columns." in caplog.text


@pytest.mark.parametrize("model_class", [name for name, each in MODEL_CLASSES.items() if each.table == "needed"])
def test_a_selection_that_leaves_no_column_to_a_class_that_needs_a_table_is_refused(paths, model_class):
    write_artifact(paths, "selected_features.json", "[]")
    prepare(paths)  # for a class that needs none, with the same prepared data
    text = {} if MODEL_CLASSES[model_class].num_texts else {"text_name": None}
    with pytest.raises(ContractError, match=f"selected_features.json: selects no table column, .*'{model_class}'"):
        prepare(paths, model_class=model_class, **text)


def test_precomputed_tables_of_a_column_that_was_mapped_already_are_refused(paths, monkeypatch):
    monkeypatch.setenv("USE_PRECOMPUTED_RISK_TABLES", "true")
    write_artifact(paths, "risk_table_map.json", '{"c": {"bins": {"red": 0.75, "blue": 0.25}, "default_bin": 0.5}}')
    mapped = table(60, c=[0.75 if i % 2 else 0.25 for i in range(60)])
    write_table(paths.channel("train") / "data.csv", mapped)
    with pytest.raises(
        ContractError, match="risk_table_map.json: risk table of column 'c': .* looks already mapped"
    ) as caught:
        prepare(paths)
    assert "set USE_PRECOMPUTED_RISK_TABLES to false" in caught.value.fix


def test_settings_of_fits_that_are_precomputed_are_logged_as_without_effect(paths, monkeypatch, caplog):
    write_artifact(paths, "impute_dict.json", '{"x": 0, "y": 0}')
    write_artifact(paths, "risk_table_map.json", '{"c": {"risk": {"a": 0.5}, "default_risk": 0.5}}')
    caplog.set_level("INFO")
    given = {
        "imputation_strategy": "median",
        "smooth_factor": 0.2,
        "smooth_rows": 2,
        "count_threshold": 3,
        "risk_table_folds": 4,
    }
    prepare(paths, **given)
    assert "no effect" not in caplog.text
    monkeypatch.setenv("USE_PRECOMPUTED_IMPUTATION", "true")
    monkeypatch.setenv("USE_PRECOMPUTED_RISK_TABLES", "true")
    prepare(paths, **given)
    for name in given:
        assert f"{name} is set and has no effect here: the values of every column are precomputed." in caplog.text
    assert "rows (66.7%) have a category that the risk table lacks and get its default." in caplog.text
    caplog.clear()
    prepare(paths)
    assert "no effect" not in caplog.text


def test_an_unfinished_folder_is_not_used_and_a_failure_leaves_none(paths: JobPaths) -> None:
    (paths.prepared / f"tmp-{'0' * 20}").mkdir(parents=True)
    write_table(paths.channel("test") / "data.csv", table(3, x=["1", "many", "2"]))
    with pytest.raises(ContractError, match=r"data.csv: row 2, column 'x': 'many' is not a number") as refused:
        prepare(paths)
    assert refused.value.fix.endswith("If the column is a category, move it from tab_field_list to cat_field_list.")
    assert {path.name for path in paths.prepared.iterdir()} == {".digests.json", ".lock"}
    with pytest.raises(ContractError, match=r"prepared.json is missing"):
        open_prepared(paths.prepared)


def test_a_killed_run_is_never_taken_for_complete(paths: JobPaths) -> None:
    large = table(30_000, text=[f"good shirt number {i} " * 8 for i in range(30_000)])
    write_table(paths.channel("train") / "data.csv", large)
    code = (
        "import sys; from testing.table_jobs import settings; from contracts.paths import JobPaths;"
        "from container.preprocessing.prepare import prepare_data;"
        f"prepare_data(JobPaths.resolve({str(paths.root)!r}), settings(tokenizer='tiny'))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY)
    try:
        while not list(paths.prepared.glob("tmp-*/train.arrow")):
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert list(paths.prepared.glob("tmp-*"))
    write_table(paths.channel("train") / "data.csv", table(60))
    assert not prepare(paths).reused
    assert not list(paths.prepared.glob("tmp-*"))


@pytest.mark.parametrize(
    ("split", "content", "given", "message"),
    [
        ("val", None, {}, "channel val: the folder .* does not exist"),
        ("val", table(4).drop(["text"]), {}, r"val/data.csv: column 'text' is missing"),
        ("train", table(9), {"full_field_list": ["id", "text", "x", "y", "c", "label", "z"]}, "column 'z' is missing"),
        ("train", table(9), {"train_filename": "other.csv"}, r"other.csv does not exist; it contains data.csv"),
    ],
)
def test_bad_input_is_named(paths, split, content, given, message):
    path = paths.channel(split) / "data.csv"
    path.unlink()
    if content is None:
        path.parent.rmdir()
    else:
        write_table(path, content)
    with pytest.raises(ContractError, match=message):
        prepare(paths, **given)


def test_files_of_a_channel_may_have_other_types_of_numbers(paths: JobPaths) -> None:
    (paths.channel("train") / "data.csv").unlink()
    for part, x in enumerate((pa.array([2**53 + 1] * 30), pa.array([0.5] * 30), pa.array([Decimal("1.25")] * 30))):
        rows = table(30, start=30 * part)
        rows = rows.set_column(rows.column_names.index("x"), "x", x)
        pq.write_table(rows, paths.channel("train") / f"part-{part}.parquet")
    values = read(prepare(paths))["tabular"].combine_chunks().flatten().to_numpy().reshape(90, -1)[:, 0]
    assert values[::30].tolist() == [2.0**53, 0.5, 1.25]


def test_duplicate_ids_are_a_warning_and_kept(paths: JobPaths, caplog: pytest.LogCaptureFixture) -> None:
    write_table(paths.channel("test") / "data.csv", table(4, id=["a", "b", "a", "a"]))
    prepared = prepare(paths)
    assert "test: 2 rows repeat an id of an earlier row, e.g. 'a'; they are kept" in caplog.text
    assert read(prepared, "test")["id"].to_pylist() == ["a", "b", "a", "a"]
    assert prepared.summary["splits"]["test"]["duplicate_ids"] == 2


def test_ids_that_train_has_as_well_are_a_warning(paths: JobPaths, caplog: pytest.LogCaptureFixture) -> None:
    write_table(paths.channel("train") / "data.csv", table(20, id=[f"a{i}" for i in range(20)]))
    write_table(paths.channel("test") / "data.csv", table(4, id=["b", "a1", "a2", "c"]))
    prepared = prepare(paths)
    assert "test: ids that train has as well: 2." in caplog.text
    assert [prepared.summary["splits"][split]["ids_of_train"] for split in ("train", "test")] == [0, 2]


def test_groups_that_train_has_as_well_are_a_warning(paths: JobPaths, caplog: pytest.LogCaptureFixture) -> None:
    for split, shops in (("train", [*range(18), None, None]), ("val", [50, 51, 52, None]), ("test", [3, 3, 4, None])):
        write_table(paths.channel(split) / "data.csv", table(len(shops), shop=shops))
    prepared = prepare(paths, group_name="shop")
    assert "test: groups that train has as well: 2." in caplog.text
    assert [prepared.summary["splits"][split]["groups_of_train"] for split in SPLITS] == [0, 0, 2]


@pytest.mark.parametrize("setting", ["tokenizer", "secondary_tokenizer"])
def test_a_text_without_words_for_a_vocabulary_is_named(paths: JobPaths, setting: str) -> None:
    for split in SPLITS:
        write_table(paths.channel(split) / "data.csv", table(20, u=["<br>", None] * 10))
    hp = settings(
        text_name=None,
        primary_text_name="text",
        secondary_text_name="u",
        model_class="trimodal_bert",
        secondary_text_processing_steps=["html_normalizer", "tokenizer"],
        **{"tokenizer": "tiny", setting: "from_scratch"},
    )
    with pytest.raises(ContractError) as error:
        prepare_data(paths, hp)
    expected = f"{setting}: from_scratch learns its vocabulary from the text of column 'u' in train, and there is none"
    assert (error.value.cause, setting in error.value.fix) == (expected, True)


def test_unlabelled_rows_are_dropped_from_train_and_kept_elsewhere(paths: JobPaths) -> None:
    labels = [None if i % 10 == 0 else i % 2 for i in range(20)]
    for split in ("train", "val"):
        write_table(paths.channel(split) / "data.csv", table(20, label=labels))
    with pytest.raises(ContractError, match="2 of 20 training rows"):
        prepare(paths)
    prepared = prepare(paths, drop_unlabelled=True)
    assert prepared.rows["train"] == 18
    assert read(prepared)["row"].to_pylist() == [i for i in range(20) if i % 10]
    assert read(prepared, "val")["label"].to_pylist() == [-100 if label is None else label for label in labels]
    summary = prepared.summary["splits"]
    assert (summary["train"]["dropped_unlabelled"], summary["train"]["unlabelled"]) == (2, 0)
    assert (summary["val"]["dropped_unlabelled"], summary["val"]["unlabelled"]) == (0, 2)


def test_progress_counts_the_rows_that_are_dropped(paths, monkeypatch, caplog):
    monkeypatch.setattr(split_file, "ROWS_PER_SLICE", 30)
    monkeypatch.setattr(split_file, "SECONDS_BETWEEN_LINES", 0)
    write_table(paths.channel("train") / "data.csv", table(60, label=[None] * 30 + [0, 1] * 15))
    with caplog.at_level(logging.INFO):
        assert prepare(paths, drop_unlabelled=True).rows["train"] == 30
    for number in (30, 60):
        assert any(line.startswith(f"train: {number} of 60 rows prepared, ") for line in caplog.messages)


def test_the_summary_describes_the_data(paths: JobPaths) -> None:
    write_table(paths.channel("test") / "data.csv", table(4, x=[1, None, 3, 5], c=["a", "new", None, "b"]))
    summary = json.loads(json.dumps(prepare(paths).summary, allow_nan=False))["splits"]["test"]
    numeric, text = summary["numeric"]["x"], summary["texts"]["text"]
    assert (numeric["count"], numeric["missing"], numeric["imputed"], numeric["mean"]) == (3, 1, 1, 3.0)
    assert summary["categories"]["c"] == {"distinct": 4, "missing": 1, "unseen_rows": 1}
    assert summary["classes"] == {"0": 2, "1": 2}
    assert (text["column"], text["records"], text["empty_records"]) == ("text", 4, 1)
    assert text["tokens_per_record"]["max"] >= text["tokens_per_record"]["p50"] > 2


def test_two_texts_have_columns_and_tokenizers_of_their_own(paths: JobPaths) -> None:
    given = {"text_name": None, "primary_text_name": "text", "secondary_text_name": "c", "cat_field_list": []}
    prepared = prepare(paths, model_class="trimodal", secondary_max_sen_len=5, **given)
    assert {"primary_tokens", "secondary_tokens"} < set(read(prepared).column_names)
    assert (prepared.folder / "tokenizer" / "secondary" / "tokenizer.json").is_file()
    assert prepared.encoders["primary"].weights_folder == paths.pretrained / "tiny"
    assert max(max(lengths) for lengths in read(prepared)["secondary_chunk_lengths"].to_pylist()) <= 5


def test_from_scratch_learns_a_vocabulary_of_each_column(paths: JobPaths) -> None:
    given = {"text_name": None, "primary_text_name": "text", "secondary_text_name": "c", "cat_field_list": []}
    hp = settings(model_class="trimodal", tokenizer="from_scratch", encoder_config={"vocab_size": 200}, **given)
    prepared = prepare_data(paths, hp)
    assert prepared.encoders["primary"].weights_folder is None
    vocabularies = [(files.config_folder / "tokenizer.json").read_text() for files in prepared.encoders.values()]
    assert ["shirt" in vocabulary for vocabulary in vocabularies] == [True, False]
    assert prepare_data(paths, hp).reused


def slice_workers(folder: Path, rows: int, num_workers: int) -> SliceWorkers:
    """Workers that have been fitted on `rows` rows."""
    preprocessor, folds = fit(folder, table(rows))
    preprocessor.fitted.save(folder)
    write_tokenizer(folder / "tokenizer")
    return SliceWorkers(folder, folds, num_workers=num_workers, seconds_alone=0)


def write_train(folder: Path, target: Path, workers: SliceWorkers) -> None:
    write_split(
        target, [folder / "train" / "part.parquet"], TableColumns.of(settings()),
        roles=["text"], expected_rows=40, workers=workers, settings=TRAIN,
    )  # fmt: skip


def write_in_processes(folder: Path, num_workers: int) -> Path:
    target = folder / "train.arrow"
    with slice_workers(folder, 12_000, num_workers) as workers:
        write_train(folder, target, workers)
        assert (workers._pool is None) == (num_workers == 1)
    return target


def test_several_processes_write_what_one_writes(tmp_path: Path) -> None:
    alone, together = write_in_processes(tmp_path / "one", 1), write_in_processes(tmp_path / "two", 2)
    assert alone.read_bytes() == together.read_bytes()


def test_a_worker_that_dies_is_an_error_at_once(tmp_path: Path) -> None:
    columns = table(1).column_names
    with slice_workers(tmp_path, 4000, 2) as workers:

        def slices() -> Iterator[TableSlice]:
            for number, part in enumerate(
                iter_tables([tmp_path / "train" / "part.parquet"], columns, rows_per_batch=50)
            ):
                if number == 20:
                    os.kill(next(iter(workers._pool._processes)), signal.SIGKILL)
                yield part

        start = time.monotonic()
        with pytest.raises(ContractError, match="a process that prepared data died"):
            list(workers.transform(slices(), TRAIN))
    assert time.monotonic() - start < 60


def test_a_wrong_value_in_a_worker_is_the_same_error(tmp_path: Path) -> None:
    path = write_table(tmp_path / "bad.csv", table(40, label=[i % 2 if i != 33 else 5 for i in range(40)]))
    slices = iter_tables([path], table(1).column_names, rows_per_batch=10)
    with (
        slice_workers(tmp_path, 40, 2) as workers,
        pytest.raises(ContractError, match=r"bad.csv: row 34, column 'label': '5' is not one of the labels"),
    ):
        list(workers.transform(slices, TRAIN))


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    full = pytest.raises(ContractError, match="/dev/full: the disk is full")
    with slice_workers(tmp_path, 40, 1) as workers, full:
        write_train(tmp_path, Path("/dev/full"), workers)


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, suffix: str) -> None:
    """The larger job reads 160 MB more, mostly blanks, which cost no tokenizing; both fill every read-ahead buffer, of
    which Arrow's CSV reader has about 150 MB."""
    code = (
        "import sys; from pathlib import Path; from testing.table_jobs import settings;"
        "from contracts.paths import JobPaths; from container.preprocessing.prepare import prepare_data;"
        "hp = settings(tokenizer='tiny', text_processing_steps=['text_normalizer', 'tokenizer']);"
        "prepare_data(JobPaths.resolve(sys.argv[1]), hp);"
        "print([line.split()[1] for line in Path('/proc/self/status').open() if line.startswith('VmHWM')][0])"
    )
    peaks = []
    for rows in (60_000, 100_000):
        texts = [f"good shirt{' ' * 4000}number {i}" for i in range(rows)]
        paths = write_job(tmp_path / str(rows), suffix=suffix, train=table(rows, text=texts))
        peaks.append(int(run_python(code, str(paths.root)).stdout) >> 10)
    assert peaks[1] - peaks[0] < 40, peaks
