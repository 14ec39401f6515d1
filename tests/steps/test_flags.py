"""A step's settings as flags, and what a user of the command line may get wrong."""

import json

import pytest

from container.commands import main
from contracts.steps import SIGNATURE
from testing.table_jobs import table, write_table


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The folder of a step with a table of 200 rows."""
    for name in ("LABEL_FIELD", "ID_FIELD", "SPLIT_BY"):
        monkeypatch.delenv(name, raising=False)
    write_table(tmp_path / "processing/input/data/table.csv", table(200))
    return tmp_path


def preprocess(root, *arguments):
    return main(["preprocess", "--root", str(root), *arguments])


def test_flags_replace_variables(root, monkeypatch, capsys):
    monkeypatch.setenv("LABEL_FIELD", "missing")
    assert preprocess(root, "--label", "label", "--id", "id", "--split-by", "stratified", "--train-ratio", "0.5") == 0
    profile = json.loads((root / "processing/output/data_profile.json").read_text())
    assert profile["split_by"] == "stratified"
    assert profile["splits"]["train"]["rows"] == pytest.approx(100, abs=2)


@pytest.mark.parametrize("variable", ["SPLITBY", "split_by", "SPLIT_BYE"])
def test_a_variable_that_nearly_is_a_setting_is_an_error_that_names_it(root, monkeypatch, capsys, variable):
    monkeypatch.setenv(variable, "time")
    assert preprocess(root, "--label", "label") == 1
    assert f"environment variable {variable}: is not a variable of TabularPreprocessing; did you mean SPLIT_BY?" in (
        capsys.readouterr().err
    )


def test_help_lists_each_setting_with_its_meaning(capsys):
    with pytest.raises(SystemExit):
        main(["preprocess", "--help"])
    shown = capsys.readouterr().out
    assert "--label-field VALUE, --label VALUE" in " ".join(shown.split())
    assert "Column of the class label." in " ".join(shown.split())


def test_the_splits_are_copied_into_a_job_and_replaced_by_a_second_run(root, capsys):
    job = root / "job"
    for file_format in ("CSV", "PARQUET"):
        assert preprocess(root, "--label", "label", "--output-format", file_format, "--into-job", str(job)) == 0
    for split in ("train", "val", "test"):
        (path,) = (job / "input/data" / split).iterdir()
        assert path.name == f"{split}_processed_data.parquet"
    assert f"python -m container train --root {job}" in capsys.readouterr().out


def test_a_column_of_one_id_is_the_cause_of_an_empty_split(root, capsys):
    write_table(root / "processing/input/data/table.csv", table(200, id=["x"] * 200))
    assert preprocess(root, "--label", "label", "--id", "id") == 1
    assert "ID_FIELD: column 'id' has 1 distinct id in 200 rows." in capsys.readouterr().err


def test_the_index_that_pandas_saved_is_left_out(root, capsys):
    (root / "processing/input/data/table.csv").write_text(",id,text\n0,a,b\n1,c,d\n")
    assert main(["load-data", "--root", str(root)]) == 0
    assert json.loads((root / "processing/output/signature" / SIGNATURE).read_text()) == ["id", "text"]
    assert "2 rows, 1 csv file, into 1 file" in capsys.readouterr().out


def test_train_without_a_root_names_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ML_ROOT", str(tmp_path / "missing"))
    with pytest.raises(SystemExit):
        main(["train"])
    assert "missing does not exist; name the job's folder with --root DIR" in capsys.readouterr().err
