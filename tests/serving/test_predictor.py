import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
import pytest

from container.data.records import RecordArrays, TextArrays
from container.decision.decision import Decision, Threshold
from container.errors import RecordTooLongError
from container.predictor import Predictor
from container.preprocessing.numeric_transform import NumericTransformParameters
from container.preprocessing.transform import Preprocessor
from contracts.errors import ContractError
from testing.table_jobs import fit, table, write_tokenizer


def test_an_unknown_backend_is_named_with_the_known_ones(tmp_path):
    with pytest.raises(ContractError, match="(?s)'tensorrt'.*onnx, openvino, torch"):
        Predictor.load(tmp_path, backend="tensorrt")


@pytest.mark.parametrize("argument", ["batch_size", "max_tokens", "threads"])
@pytest.mark.parametrize("value", [0, -1, "2", 2.5])
def test_a_limit_that_is_no_positive_whole_number_is_named(tmp_path, argument, value):
    with pytest.raises(ContractError, match=f"{argument}: is {value!r}"):
        Predictor.load(tmp_path, **{argument: value})


def test_threads_without_onnx_runtime_are_an_error_that_names_the_backend(tmp_path):
    with pytest.raises(ContractError, match='(?s)threads: 2 needs.*backend="onnx"'):
        Predictor.load(tmp_path, backend="torch", threads=2)


def test_a_folder_with_a_packed_model_is_to_be_unpacked(tmp_path):
    (tmp_path / "model.tar.gz").touch()
    with pytest.raises(ContractError, match="unpack model.tar.gz"):
        Predictor.load(tmp_path)


def test_a_folder_that_is_no_model_folder_is_named(tmp_path):
    with pytest.raises(ContractError, match=str(tmp_path)):
        Predictor.load(tmp_path)


class Counted:
    """A backend that notes which records it is asked for at once."""

    def __init__(self):
        self.batches = []

    def probabilities(self, records, indices):
        self.batches.append(list(indices))
        return np.array([[part.row[i], 0.0] for part, i in zip(records, indices)])


def computed(lengths, *, batch_size=32):
    """Compute records of texts of these lengths in tokens, several numbers for several chunks; the batches."""
    chunks = [length if isinstance(length, tuple) else (length,) for length in lengths]
    flat = np.array([length for record in chunks for length in record])
    text = TextArrays(
        tokens=np.zeros(flat.sum(), np.int64),
        token_offsets=np.cumsum([0, *map(sum, chunks)]),
        chunk_lengths=flat,
        chunk_offsets=np.cumsum([0, *map(len, chunks)]),
    )
    rows = np.arange(len(chunks))
    arrays = RecordArrays(rows, rows, np.zeros((len(rows), 0)), (text,), np.ones(len(rows)))
    backend = Counted()
    preprocessor = SimpleNamespace(fitted=SimpleNamespace(class_labels=[0, 1]))
    predictor = Predictor(preprocessor, backend, decision=Decision(), batch_size=batch_size)
    found = predictor.compute([arrays] * len(rows), rows.tolist())
    np.testing.assert_array_equal(found[:, 0], rows)  # every record gets its own
    assert sorted(index for batch in backend.batches for index in batch) == rows.tolist()
    return [sorted(batch) for batch in backend.batches]


def test_records_of_like_length_are_computed_together():
    assert computed([10, 100, 11, 99, 10]) == [[0, 2, 4], [1, 3]]


def test_padding_stays_below_a_tenth():
    lengths = np.random.default_rng(0).integers(3, 500, 300).tolist()
    for batch in computed(lengths):
        assert max(lengths[i] for i in batch) * len(batch) <= 1.1 * sum(lengths[i] for i in batch)


def test_a_record_of_many_chunks_is_not_padded_with_one_of_few():
    assert computed([(50,), (10,) * 5, (50,)]) == [[0, 2], [1]]


def test_no_more_records_than_the_batch_size_are_computed_at_once():
    assert [len(batch) for batch in computed([7] * 10, batch_size=4)] == [4, 4, 2]


class Tokens:
    """A backend that returns the number of tokens and the first number of each record, and notes its runs."""

    def __init__(self):
        self.runs = []

    def probabilities(self, records, indices):
        tokens = [part.padded_tokens(i) for part, i in zip(records, indices)]
        self.runs.append(tokens)
        return np.array([[count, part.tabular[i][0]] for part, i, count in zip(records, indices, tokens)])


@pytest.fixture(scope="module")
def preprocessor(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("fit"), table(60))[0]


def of(preprocessor, **limits):
    return Predictor(preprocessor, Tokens(), decision=Decision(), batch_size=8, **limits)


FULL = {"text": "good shirt", "x": 1.5, "y": 2, "c": "a"}


@pytest.mark.parametrize(
    "records",
    [[{}, {}, {}], [FULL, {}], [{"id": 1, "label": "no"}], pd.DataFrame(index=range(3)), pd.DataFrame({"id": [1]}),
     pa.table({"id": [1, 2]}), pa.table({"id": [1, 2]}).select([]), pd.DataFrame([FULL]).drop(columns="x"),
     iter([{}])],
)  # fmt: skip
def test_records_without_the_models_columns_are_an_error_in_every_form(preprocessor, records):
    with pytest.raises(ContractError, match="column"):
        of(preprocessor).predict(records)


@pytest.mark.parametrize("records", [None, 3, np.array(3)])
def test_a_value_that_is_no_records_is_an_error_that_says_what_predict_accepts(preprocessor, records):
    with pytest.raises(ContractError, match=r"(?s)records: .* is of type .*a list of dicts, a DataFrame or an Arrow"):
        of(preprocessor).predict(records)


@pytest.mark.parametrize("records", [[], pd.DataFrame(), iter([]), pd.DataFrame([FULL]).head(0)])
def test_no_record_gets_no_probability(preprocessor, records):
    assert of(preprocessor).predict(records).shape == (0, len(of(preprocessor).class_labels))


@pytest.mark.parametrize("record", [{"text": "good"}, {"x": 1}, {"c": None}, {"y": 3, "other": []}])
def test_a_key_that_a_record_lacks_is_a_missing_value_alone_and_in_company(preprocessor, record):
    alone = of(preprocessor).predict([record])
    np.testing.assert_array_equal(of(preprocessor).predict(iter([FULL, record, FULL]))[1:2], alone)
    np.testing.assert_array_equal(of(preprocessor).predict([{**dict.fromkeys(FULL), **record}]), alone)


def test_a_run_has_at_most_max_tokens_and_the_probabilities_do_not_depend_on_it(preprocessor):
    records = [{**FULL, "text": "good " * (i % 7), "x": i} for i in range(40)]
    free, limited = of(preprocessor), of(preprocessor, max_tokens=20)
    np.testing.assert_array_equal(limited.predict(records), free.predict(records))
    assert max(len(run) * max(run) for run in limited._backend.runs) <= 20
    assert max(len(run) * max(run) for run in free._backend.runs) > 20


def test_a_record_with_more_than_max_tokens_is_named_with_its_column(preprocessor):
    with pytest.raises(
        RecordTooLongError, match=r"record 2: has at least 24 tokens.*at most 20.*column 'text' has 2 chunks"
    ):
        of(preprocessor, max_tokens=20).predict([FULL, {"text": "good " * 20}])


@pytest.mark.parametrize("cell", [[{"d": "a"}], [["a"]], {"d": "a"}, pd.Series(["a"]), frozenset("a")])
@pytest.mark.parametrize("as_table", [list, pd.DataFrame])
def test_a_cell_of_several_values_beside_a_string_is_named_with_its_column_and_record(preprocessor, cell, as_table):
    with pytest.raises(ContractError, match=r"record 2: column 'c' contains a (list|dict), not a single value"):
        of(preprocessor).predict(as_table([FULL, {**FULL, "c": cell}]))


def test_an_error_of_a_table_names_the_columns_that_it_has(preprocessor):
    with pytest.raises(ContractError, match="column 'text' is missing; the similar column 'texts' exists"):
        of(preprocessor).predict(pd.DataFrame([FULL]).rename(columns={"text": "texts"}))


def test_rules_of_an_earlier_version_with_settings_of_the_encoder_are_the_same_rules(preprocessor, tmp_path):
    preprocessor.fitted.save(tmp_path)
    file = tmp_path / "preprocessing.json"
    rules = json.loads(file.read_text())
    rules["text_fields"][0] |= {"reinit_layers": 2, "is_embeddings_trainable": True, "input_ids_key": "input_ids"}
    file.write_text(json.dumps(rules))
    write_tokenizer(tmp_path / "tokenizer")
    assert Preprocessor.load(tmp_path).fitted == preprocessor.fitted


def write_graph(folder, *, width, classes=2, ids="input_ids", weight=1.0):
    """Write a model.onnx that reads texts and numbers, and computes probabilities from the numbers."""
    tensor, kinds = onnx.helper.make_tensor_value_info, onnx.TensorProto
    inputs = [tensor(name, kinds.INT64, ["B", "C", "T"]) for name in (ids, "attention_mask")]
    weights = onnx.numpy_helper.from_array(np.full((width, classes), weight, np.float32), "weights")
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["tabular", "weights"], ["logits"]),
            onnx.helper.make_node("Softmax", ["logits"], ["probabilities"]),
        ],
        "graph",
        [*inputs, tensor("tabular", kinds.FLOAT, ["B", width])],
        [tensor("probabilities", kinds.FLOAT, ["B", classes])],
        [weights],
    )
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
        folder / "model.onnx",
    )


@pytest.mark.parametrize(
    ("foreign", "cause"),
    [
        ({"width": 4}, ": the model cannot compute a record that preprocessing.json"),
        ({"classes": 3}, ": the model cannot compute a record that preprocessing.json"),
        ({"weight": np.nan}, ": the model cannot compute a record that preprocessing.json"),
        (
            {"ids": "other_ids"},
            "/hyperparameters.json: names the text inputs input_ids, attention_mask, but model.onnx has the inputs o",
        ),
    ],
)
def test_a_graph_that_does_not_fit_the_preprocessing_is_an_error_when_the_folder_is_loaded(
    tmp_path, preprocessor, foreign, cause
):
    folder = tmp_path / "model"
    write_tokenizer(folder / "tokenizer")
    preprocessor.fitted.save(folder)
    Decision().save(folder)
    fitting = {"width": len(preprocessor.fitted.feature_columns)}
    write_graph(folder, **fitting)
    keys = {"text_input_ids_key": "input_ids", "text_attention_mask_key": "attention_mask"}
    (folder / "hyperparameters.json").write_text(json.dumps(keys))
    assert Predictor.load(folder).predict([FULL]).shape == (1, 2)
    write_graph(folder, **{**fitting, **foreign})
    with pytest.raises(ContractError, match=f"{folder}{cause}"):
        Predictor.load(folder)


def test_a_threshold_for_more_than_two_classes_is_an_error_when_the_folder_is_loaded(preprocessor):
    decision = Decision(threshold=Threshold())
    fitted = replace(
        preprocessor.fitted,
        class_labels=(0, 1, 2),
        is_binary=False,
        numeric_transform=NumericTransformParameters("none"),
    )
    with pytest.raises(ContractError, match=r"decision\.json: has a threshold, but preprocessing\.json has 3 class"):
        Predictor(Preprocessor(fitted, {}), Tokens(), decision=decision, batch_size=8)._check_model(Path("model"))


ZIPS = [f"{i % 40:04d}" for i in range(200)]  # 0000 to 0039


@pytest.fixture
def by_zip(tmp_path):
    preprocessor, _ = fit(tmp_path / "fit", table(200, c=ZIPS))
    return Predictor(preprocessor, Even(), decision=Decision(), batch_size=8)


class Even:
    def probabilities(self, records, indices):
        return np.full((len(records), 2), 0.5)


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        (list(range(10, 30)), True),  # a zip code that pandas read as a number
        (["0010"] * 11 + [7] * 9, False),
        (["0010"] * 10 + [7] * 10, True),
        ([None] * 100 + ["0010"] * 10 + [7] * 9, False),
        (list(range(19)), False),
    ],
)
def test_a_column_of_mostly_unknown_categories_is_a_warning_with_examples_of_both_sides(by_zip, caplog, values, warned):
    rows = table(len(values), c=[None if value is None else str(value) for value in values])
    by_zip.predict(rows)
    by_zip.predict(rows)
    found = [message for message in caplog.messages if "the training data lacks" in message]
    assert len(found) == warned
    if warned:
        assert found[0].startswith("column 'c': ")
        assert "such as '7'; it has" in found[0] or "such as '10', '11', '12', '13'; it has" in found[0]
        assert "it has '0000', '0001', '0002', '0003'." in found[0]
