import csv
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from container.evaluation.predictions import SplitPredictions, write_predictions
from container.tables.channel_files import iter_tables


def predictions(ids, raw_labels, probabilities):
    chunked = [pa.chunked_array([column]) for column in (ids, raw_labels)]
    return SplitPredictions("test", *chunked, np.zeros(len(ids)), np.array(probabilities))


def written(folder, made, *, file_format):
    """Written predictions of the label 7 for every record."""
    predicted = pa.array([7] * len(made.ids))
    return write_predictions(folder, made, predicted=predicted, id_name="id", label_name="y", file_format=file_format)


PROBABILITIES = [[0.1, 0.9], [1 / 3, 2 / 3]]


def written_again(file):
    """Predictions in the format of a file, whose column `id` is read in parts."""
    parts = [part.table["id"] for part in iter_tables([file], ["id"], rows_per_batch=2)]
    read = pa.chunked_array([chunk for part in parts for chunk in part.chunks])
    made = SplitPredictions("test", read, read, np.zeros(len(read)), np.full((len(read), 2), 0.5))
    return written(file.parent, made, file_format=file.suffix[1:])


@pytest.mark.parametrize(("file_format", "separator"), [("csv", ","), ("tsv", "\t")])
def test_a_text_file_keeps_ids_and_labels_to_the_letter(tmp_path, file_format, separator):
    made = predictions(["007", 'a"b,\tc'], ["yes", None], PROBABILITIES)
    path = written(tmp_path, made, file_format=file_format)
    assert path.name == f"test_predictions.{file_format}"
    read = pd.read_csv(path, sep=separator, dtype={"id": str})
    assert read.columns.tolist() == ["id", "y", "prob_class_0", "prob_class_1", "predicted_label"]
    assert read["predicted_label"].tolist() == [7, 7]
    assert read["id"].tolist() == ["007", 'a"b,\tc']
    assert pd.isna(read["y"][1])
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert read[["prob_class_0", "prob_class_1"]].to_numpy().tolist() == PROBABILITIES


@pytest.mark.parametrize(("before", "now"), [("csv", "parquet"), ("parquet", "tsv"), ("tsv", "csv")])
def test_predictions_replace_those_of_an_earlier_run_in_another_format(tmp_path, before, now):
    made = predictions(["a", "b"], ["yes", "no"], PROBABILITIES)
    for file_format in (before, now):
        written(tmp_path, made, file_format=file_format)
    assert [entry.name for entry in tmp_path.iterdir()] == [f"test_predictions.{now}"]


def test_parquet_keeps_the_types_of_the_input(tmp_path):
    made = predictions(pa.array([1, 2], pa.int32()), pa.array([True, False]), PROBABILITIES)
    path = written(tmp_path, made, file_format="parquet")
    schema = pa.parquet.read_schema(path)
    assert schema.field("id").type == pa.int32()
    assert schema.field("y").type == pa.bool_()


@pytest.mark.parametrize(
    "ids",
    [
        pa.array(["007", " x ", None, "", "a\nb", "007"]),
        pa.array([2**63 - 1, None, -7, 7, 7]),
        pa.array([2**64 - 1, 0], pa.uint64()),
        pa.array([1.0, 0.1, 1e300, None]),
        pa.array([Decimal("1.10"), None]),
        pa.array(["a", "b", "a"]).dictionary_encode(),
    ],
    ids=lambda ids: str(ids.type),
)
def test_ids_of_parquet_are_those_of_the_predictions(tmp_path, ids):
    pq.write_table(pa.table({"id": ids}), tmp_path / "in.parquet")
    assert pq.read_table(written_again(tmp_path / "in.parquet"))["id"].to_pylist() == ids.to_pylist()


def test_ids_of_csv_are_those_of_the_predictions(tmp_path):
    ids = ["007", " x ", "", "a\nb", 'q"', "007", "12345678901234567890123", "1.0", "1e5"]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "x"], *([each, "1"] for each in ids)])
    with written_again(tmp_path / "in.csv").open(newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == ids
