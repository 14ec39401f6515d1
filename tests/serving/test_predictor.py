from types import SimpleNamespace

import numpy as np
import pytest

from container.data.records import RecordArrays, TextArrays
from container.decision.decision import Decision
from container.predictor import Predictor
from contracts.errors import ContractError


def test_an_unknown_backend_is_named_with_the_known_ones(tmp_path):
    with pytest.raises(ContractError, match="(?s)'tensorrt'.*onnx, torch"):
        Predictor.load(tmp_path, backend="tensorrt")


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
    arrays = RecordArrays(rows, rows, np.zeros((len(rows), 0)), (text,))
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
