"""The facts about fully_shard on which training on GPUs relies, imitated on the CPU."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from container.models.build import build_classifier
from container.models.classifier import Classifier
from container.parallel.degrees import ParallelDegrees
from container.parallel.mesh import build_mesh
from container.parallel.parallelize import parallelize
from container.preprocessing.prepared import EncoderFiles
from contracts.hyperparameters import Hyperparameters
from testing.encoder_families import hyperparameters, packed_batch, standard_transform, write_config

RATE = 0.5
CHUNKS = [[5], [9, 3], [2]]


def lstm(encoder: str) -> tuple[Hyperparameters, Classifier]:
    hp = hyperparameters(model_class="lstm", tokenizer=encoder, num_layers=2, strategy="fsdp")
    files = [EncoderFiles(Path(encoder))]
    return hp, build_classifier(hp, files, tabular_dim=0, numeric_transform=standard_transform(0))


def flatten_as_cudnn_does(layer: nn.RNNBase) -> None:
    """Move the weights of `layer` into other memory."""
    for weight in layer._flat_weights:
        if not isinstance(weight, DTensor):
            weight.data = weight.data.clone()


def logits_after_two_steps(encoder: str) -> tuple[Tensor, Tensor]:
    """Return the logits after two steps of gradient descent: of a sharded LSTM, and of a plain one."""
    flatten = nn.RNNBase.flatten_parameters
    nn.RNNBase.flatten_parameters = flatten_as_cudnn_does
    hp, model = lstm(encoder)
    execution = parallelize(model, build_mesh(ParallelDegrees(dp_shard=2)), hp, precision=torch.float32)
    batch = packed_batch(CHUNKS)
    for _ in range(2):
        execution.module.zero_grad()
        execution.forward_backward(
            [batch],
            objective=lambda logits, batch: F.cross_entropy(logits, batch.labels, reduction="sum"),
            normaliser=torch.tensor(float(dist.get_world_size())),
            scale_loss=lambda loss: loss,
        )
        descend(execution.module)
    (found,) = execution.predict([batch]) or ()
    nn.RNNBase.flatten_parameters = flatten
    _, plain = lstm(encoder)
    for _ in range(2):
        plain.zero_grad()
        F.cross_entropy(plain(batch), batch.labels, reduction="sum").backward()
        descend(plain)
    return found, plain(batch).detach()


@torch.no_grad()
def descend(module: nn.Module) -> None:
    for weight in module.parameters():
        if weight.grad is not None:
            weight.sub_(weight.grad, alpha=RATE)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    write_config(folder, "bert")
    return str(folder)


def test_a_sharded_lstm_trains_where_cudnn_moves_the_weights_of_a_plain_one(rank_pool, encoder):
    for found, expected in rank_pool.run(logits_after_two_steps, encoder, world_size=2):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
