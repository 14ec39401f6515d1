import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from container.evaluation.predictions import SplitPredictions, write_predictions


def predictions(ids, raw_labels, probabilities):
    chunked = None if raw_labels is None else pa.chunked_array([raw_labels])
    return SplitPredictions("test", pa.chunked_array([ids]), chunked, np.zeros(len(ids)), np.array(probabilities))


PROBABILITIES = [[0.1, 0.9], [1 / 3, 2 / 3]]


@pytest.mark.parametrize(("file_format", "separator"), [("csv", ","), ("tsv", "\t")])
def test_a_text_file_keeps_ids_and_labels_to_the_letter(tmp_path, file_format, separator):
    made = predictions(["007", 'a"b,\tc'], ["yes", None], PROBABILITIES)
    path = write_predictions(tmp_path, made, id_name="id", label_name="y", file_format=file_format)
    assert path.name == f"test_predictions.{file_format}"
    read = pd.read_csv(path, sep=separator, dtype={"id": str})
    assert read.columns.tolist() == ["id", "y", "prob_class_0", "prob_class_1"]
    assert read["id"].tolist() == ["007", 'a"b,\tc']
    assert pd.isna(read["y"][1])
    assert read[["prob_class_0", "prob_class_1"]].to_numpy().tolist() == PROBABILITIES


def test_parquet_keeps_the_types_of_the_input(tmp_path):
    made = predictions(pa.array([1, 2], pa.int32()), pa.array([True, False]), PROBABILITIES)
    path = write_predictions(tmp_path, made, id_name="id", label_name="y", file_format="parquet")
    schema = pa.parquet.read_schema(path)
    assert schema.field("id").type == pa.int32()
    assert schema.field("y").type == pa.bool_()


def test_an_input_without_labels_gives_predictions_without_them(tmp_path):
    made = predictions(["a", "b"], None, PROBABILITIES)
    path = write_predictions(tmp_path, made, id_name="id", label_name="y", file_format="csv")
    assert pd.read_csv(path).columns.tolist() == ["id", "prob_class_0", "prob_class_1"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["test_predictions.csv"]
