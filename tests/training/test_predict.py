"""How a split is divided for predictions."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import RankMesh
from container.training.predict import predict_split, prediction_batch
from container.training.stop import StopFlag
from testing.encoder_families import hyperparameters, packed_batch


class Split:
    """Records with 10, 20, 30, ... tokens, or as many as `tokens` each."""

    def __init__(self, records: int, *, tokens: int | None = None) -> None:
        self.records = records
        self.tokens = tokens

    def __len__(self) -> int:
        return self.records

    def column(self, _):
        return pa.chunked_array([np.arange(self.records)])

    def token_counts(self, positions):
        return 10 * (positions + 1) if self.tokens is None else np.full(len(positions), self.tokens)

    def pack(self, positions):
        batch = packed_batch([[int(tokens)] for tokens in self.token_counts(positions)])
        return replace(batch, rows=torch.from_numpy(positions))


def sizes_of(records, **settings):
    """Return the records and the tokens of each batch that a model gets."""
    sizes = []

    def predict(batches):
        sizes.extend((len(batch.rows), batch.num_tokens) for batch in batches)
        return [torch.zeros(len(batch.rows), 2) for batch in batches]

    ranks = RankMesh(torch.device("cpu"), None, ParallelDegrees(), rank=0, world_size=1, coordinates={})
    execution = SimpleNamespace(ranks=ranks, num_microbatches=1, module=torch.nn.Module(), predict=predict)
    predict_split(execution, Split(records), hp=hyperparameters(**settings), stop=StopFlag())
    return sizes


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [(1, [4] * 20), (8, [32, 32, 16]), (16, [32, 32, 16]), (24, [24, 24, 24, 8]), (40, [40, 40])],
)
def test_small_batches_are_up_to_four_times_as_large_as_in_training_but_not_beyond_32_records(batch_size, expected):
    assert [records for records, _ in sizes_of(80, batch_size=batch_size)] == expected


@pytest.mark.parametrize(("batch_size", "expected"), [(1, 8), (32, 256), (100, 200), (300, 300)])
def test_on_a_gpu_they_are_up_to_eight_times_as_large_but_not_beyond_256_records(batch_size, expected):
    assert prediction_batch(hyperparameters(batch_size=batch_size), torch.device("cuda", 0)) == expected


def test_with_activation_checkpointing_batches_are_as_large_as_in_training():
    assert [records for records, _ in sizes_of(20, batch_size=8, activation_checkpointing=1)] == [8, 8, 4]


def test_batches_have_no_more_tokens_than_the_limit():
    assert sizes_of(6, batch_size=1) == [(4, 100), (2, 110)]
    assert sizes_of(6, batch_size=1, max_tokens_per_batch=50) == [(2, 50), (2, 50), (1, 60), (1, 50)]
