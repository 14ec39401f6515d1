import json
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from container.decision.decision import Decision, Threshold
from container.predictor import Predictor
from container.serving.model import ServedModel
from container.serving.predict import predict
from contracts.errors import ContractError
from testing.table_jobs import fit, table, write_table


class ByNumber:
    """A backend whose probability of the second class grows with the first input, in [0, 1]."""

    def probabilities(self, records, indices):
        second = np.array([1 / (1 + np.exp(-part.tabular[i][0] / 20)) for part, i in zip(records, indices)])
        return np.stack([1 - second, second], axis=1)


@pytest.fixture
def model(tmp_path, monkeypatch):
    """The folder of a model whose classes are `no` and `yes`, and which decides `yes` above 0.9."""
    labels = ["no" if i % 2 else "yes" for i in range(40)]
    preprocessor, _ = fit(tmp_path / "fit", table(40, label=labels))
    threshold = Threshold(0.9, "given")
    predictor = Predictor(preprocessor, ByNumber(), decision=Decision(threshold=threshold), batch_size=8)
    monkeypatch.setattr(ServedModel, "load", lambda *_: ServedModel(predictor, report_invalid=True))
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def read(path):
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    if path.suffix == ".jsonl":
        return pd.read_json(path, lines=True, dtype={"id": str})
    return pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",", dtype={"id": str})


def write_json_lines(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found.to_pylist()))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".jsonl"])
def test_each_format_is_read_and_written_with_the_same_predictions(model, tmp_path, suffix):
    write = write_json_lines if suffix == ".jsonl" else write_table
    given, out = write(tmp_path / f"new{suffix}", table(30)), tmp_path / f"out{suffix}"
    assert predict(model, [given], out) == 0
    found = read(out)
    assert [name for name in found.columns if name != "error"] == ["id", "predicted_label", "prob_no", "prob_yes"]
    assert found["id"].tolist() == table(30)["id"].to_pylist()
    expected = ServedModel.load("", None)._predictor.predict(table(30))
    np.testing.assert_allclose(found[["prob_no", "prob_yes"]], expected, rtol=1e-9)


def test_the_threshold_of_the_model_decides_the_label(model, tmp_path):
    out = tmp_path / "out.csv"
    predict(model, [write_table(tmp_path / "new.csv", table(30))], out)
    found = read(out)
    assert found["predicted_label"].tolist() == ["yes" if p >= 0.9 else "no" for p in found["prob_yes"]]
    assert ((found["prob_yes"] > 0.5) & (found["predicted_label"] == "no")).any()


def test_an_invalid_record_has_an_error_with_its_file_and_row_and_no_prediction(model, tmp_path, capsys):
    first, second = table(3), table(3, start=3, x=["1", "1,924.45", ""])
    (tmp_path / "new").mkdir()
    for number, found in enumerate((first, second)):
        write_table(tmp_path / f"new/{number}.csv", found)
    assert predict(model, [tmp_path / "new"], tmp_path / "out.csv") == 0
    found = read(tmp_path / "out.csv")
    assert found["error"].isna().tolist() == [True, True, True, True, False, True]
    assert found["error"][4].startswith(f"{tmp_path / 'new/1.csv'}: row 2, column 'x': '1,924.45' is not a number")
    assert found.loc[4, ["predicted_label", "prob_no", "prob_yes"]].isna().all()
    assert "1 of 6 records has no prediction" in capsys.readouterr().out


def test_a_table_without_the_id_column_is_numbered(model, tmp_path):
    predict(model, [write_table(tmp_path / "new.csv", table(3).drop_columns(["id", "label"]))], tmp_path / "out.csv")
    assert read(tmp_path / "out.csv")["row"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("given", "out", "cause"),
    [
        ("new.csv", "out.txt", "out.txt: the file name does not show the format"),
        ("new.csv", "new.csv", "new.csv is also an input"),
        ("new.csv", "missing/out.csv", "missing: is not a folder"),
        ("other.csv", "out.csv", "other.csv does not exist"),
        ("lacking.csv", "out.csv", "lacking.csv: column 'x' is missing"),
        ("wrong.csv", "out.csv", "none of the 2 records is valid: "),
    ],
)  # fmt: skip
def test_a_mistake_is_named_and_no_file_is_left(model, tmp_path, *, given, out, cause):
    write_table(tmp_path / "new.csv", table(3))
    write_table(tmp_path / "lacking.csv", table(3).drop_columns(["x"]))
    write_table(tmp_path / "wrong.csv", table(2, x=["a", "b"]))
    before = (tmp_path / "new.csv").read_bytes()
    with pytest.raises(ContractError, match=re.escape(cause)):
        predict(model, [tmp_path / given], tmp_path / out)
    assert not (tmp_path / "out.csv").exists()
    assert (tmp_path / "new.csv").read_bytes() == before


@pytest.mark.parametrize("exists", [True, False])
def test_predictions_are_written_to_the_file_to_which_a_link_leads(model, tmp_path, exists):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "scores.csv", tmp_path / "out.csv"
    link.symlink_to(target)
    if exists:
        target.write_text("before")
    assert predict(model, [write_table(tmp_path / "new.csv", table(3))], link) == 0
    assert link.is_symlink()
    assert len(read(target)) == 3
    assert list(target.parent.iterdir()) == [target]


def test_a_root_without_a_model_is_named(tmp_path):
    with pytest.raises(ContractError) as refused:
        predict(tmp_path / "model", [tmp_path / "new.csv"], tmp_path / "out.csv")
    assert refused.value.fix.startswith("Set --root to the folder of a completed job")


def test_rows_are_written_as_they_are_read(model, tmp_path, monkeypatch):
    given = tmp_path / "new.parquet"
    pq.write_table(pa.concat_tables([table(3000)] * 9), given)
    at_once = []
    decide = ServedModel.decide
    monkeypatch.setattr(
        ServedModel, "decide", lambda self, parts: at_once.append(len(parts[0].valid)) or decide(self, parts)
    )
    predict(model, [given], tmp_path / "out.parquet")
    assert sum(at_once) == 27_000
    assert max(at_once) <= 8192
