"""How a split is divided for predictions."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import torch

from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import RankMesh
from container.training.predict import predict_split
from testing.encoder_families import hyperparameters, packed_batch


class Split:
    """Records with 10, 20, 30, ... tokens."""

    def __len__(self) -> int:
        return 6

    def column(self, _):
        return pa.chunked_array([np.arange(6)])

    def token_counts(self, positions):
        return 10 * (positions + 1)

    def pack(self, positions):
        batch = packed_batch([[int(tokens)] for tokens in self.token_counts(positions)])
        return replace(batch, rows=torch.from_numpy(positions))


def sizes_of(**settings):
    """Return the records and the tokens of each batch that a model gets."""
    sizes = []

    def predict(batches):
        sizes.extend((len(batch.rows), batch.num_tokens) for batch in batches)
        return [torch.zeros(len(batch.rows), 2) for batch in batches]

    ranks = RankMesh(torch.device("cpu"), None, ParallelDegrees(), rank=0, world_size=1, coordinates={})
    execution = SimpleNamespace(ranks=ranks, num_microbatches=1, module=torch.nn.Module(), predict=predict)
    predict_split(execution, Split(), hp=hyperparameters(**settings), between_batches=lambda: None)
    return sizes


def test_batches_have_batch_size_records_and_no_more_tokens_than_the_limit():
    assert sizes_of(batch_size=4) == [(4, 100), (2, 110)]
    assert sizes_of(batch_size=4, max_tokens_per_batch=50) == [(2, 50), (2, 50), (1, 60), (1, 50)]
