"""The facts about an Execution on which the training loop relies, for every placement of the model on ranks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from container.data.batch import PackedBatch
from container.models.build import build_classifier
from container.models.classifier import Classifier
from container.parallel.degrees import ParallelDegrees
from container.parallel.execution import at_least_float32
from container.parallel.mesh import build_mesh
from container.parallel.parallelize import parallelize
from container.preprocessing.prepared import EncoderFiles
from container.training.optimizer import step_optimizer
from contracts.hyperparameters import Hyperparameters
from testing.encoder_families import hyperparameters, packed_batch, standard_transform, write_config

RECORDS = 5
NORMALISER = 7.0
MAX_NORM = 0.01
# Rank 0 has three of the five records and rank 1 two, so that a mean of the ranks' means is not the mean.
CHUNKS = [[[5], [9, 3], [2]], [[4, 4], [12]]]
PLACEMENTS = [
    {"dp_replicate": 2}, {"dp_shard": 2}, {"tp": 2}, {"pp": 2}, {"branch": 2}, {"dp_shard": 2, "tp": 2},
    {"dp_replicate": 2, "branch": 2},
]  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One step on one rank, and the same step of a single process on all records.

    Attributes:
        share: this rank's part of the loss.
        norm: as gradient_norm returned it; of gradients that were multiplied by 8 and are divided again.
        clipped: the norm that this rank finds after clipping, over all ranks.
        predicted: logits of each microbatch, None on a rank that has none or only a copy.
    """

    share: float
    norm: float
    clipped: float
    predicted: list[Tensor] | None
    is_data_leader: bool
    is_last_stage: bool
    plain_loss: float
    plain_norm: float


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    write_config(folder, "bert")
    return folder


@pytest.fixture
def measure(rank_pool, encoder) -> Callable[..., list[Measured]]:
    def run(**degrees: int) -> list[Measured]:
        return rank_pool.run(one_step, encoder, world_size=ParallelDegrees(**degrees).product, **degrees)

    return run


def classifier(encoder: Path, hp: Hyperparameters) -> Classifier:
    files = [EncoderFiles(encoder)] * 2
    return build_classifier(hp, files, tabular_dim=3, numeric_transform=standard_transform(3))


def records_of(data_rank: int) -> PackedBatch:
    return packed_batch(CHUNKS[data_rank], CHUNKS[data_rank], tabular_dim=3, seed=data_rank)


def objective(logits: Tensor, batch: PackedBatch) -> Tensor:
    return F.cross_entropy(logits, batch.labels, reduction="sum")


def one_step(encoder: Path, **degrees: int) -> Measured:
    settings: dict[str, Any] = {f"{axis}_size": size for axis, size in degrees.items()}
    if "pp" in degrees:
        settings |= {"num_microbatches": 2, "pp_schedule": "GPipe"}
    hp = hyperparameters(model_class="trimodal_bert", tokenizer=str(encoder), batch_size=4, **settings)
    ranks = build_mesh(ParallelDegrees(**degrees))
    splits_records = ranks.data_size > 1
    own = [records_of(ranks.data_rank)] if splits_records else [records_of(0), records_of(1)]
    plain = classifier(encoder, hp)
    plain_loss = sum(objective(plain(batch), batch) for batch in (records_of(0), records_of(1))) / NORMALISER
    plain_loss.backward()
    plain_norm = torch.nn.utils.get_total_norm([weight.grad for weight in plain.parameters()])

    execution = parallelize(classifier(encoder, hp), ranks, hp, precision=torch.float32)
    share = execution.forward_backward(
        own, objective=objective, normaliser=torch.tensor(NORMALISER), scale_loss=lambda loss: loss * 8
    )
    norm = execution.gradient_norm(MAX_NORM, loss_scale=8)
    step_optimizer(torch.optim.SGD(execution.module.parameters(), lr=0.0, foreach=False), norm)
    clipped = execution.gradient_norm(math.inf).value.item()
    predicted = execution.predict(own)
    is_last_stage = ranks.coordinate("pp") == ranks.size("pp") - 1
    return Measured(
        share.item(),
        norm.value.item(),
        clipped,
        predicted,
        ranks.is_data_leader,
        is_last_stage,
        plain_loss.item(),
        plain_norm.item(),
    )


@pytest.mark.parametrize("degrees", PLACEMENTS, ids=str)
def test_the_gradient_norm_is_the_plain_model_s_wherever_its_weights_are(measure, degrees):
    for found in measure(**degrees):
        assert found.norm == pytest.approx(found.plain_norm, rel=1e-5)
        assert found.plain_norm > 10 * MAX_NORM
        assert found.clipped == pytest.approx(MAX_NORM, rel=1e-3)


@pytest.mark.parametrize("degrees", PLACEMENTS, ids=str)
def test_the_shares_of_all_ranks_add_up_to_the_loss_over_the_global_normaliser(measure, degrees):
    results = measure(**degrees)
    assert sum(found.share for found in results) == pytest.approx(results[0].plain_loss, rel=1e-6)


@pytest.mark.parametrize("degrees", [{"tp": 2}, {"branch": 2}, {"dp_shard": 2, "tp": 2}], ids=str)
def test_a_rank_that_only_has_a_copy_contributes_no_loss_and_predicts_none(measure, degrees):
    results = measure(**degrees)
    assert {found.is_data_leader for found in results} == {True, False}
    for found in results:
        assert (found.predicted is not None) == found.is_data_leader
        assert (found.share != 0) == found.is_data_leader


def test_in_a_pipeline_the_last_stage_alone_has_the_loss_and_the_predictions(measure):
    results = measure(pp=2)
    assert [found.is_last_stage for found in results] == [False, True]
    for found in results:
        assert (found.predicted is not None) == found.is_last_stage
        assert (found.share != 0) == found.is_last_stage


def test_every_replica_predicts_its_own_records(measure):
    counts = [[len(logits) for logits in found.predicted] for found in measure(dp_replicate=2)]
    assert counts == [[3], [2]]


def norm_of_infinite_gradients(encoder: Path) -> tuple[float, float, bool]:
    """Return the norm of gradients with an infinite element, whether it says so, and whether it left them alone."""
    hp = hyperparameters(model_class="trimodal_bert", tokenizer=str(encoder))
    execution = parallelize(classifier(encoder, hp), build_mesh(ParallelDegrees()), hp, precision=torch.float32)
    gradients = []
    for weight in execution.module.parameters():
        weight.grad = torch.ones_like(weight)
        gradients.append(weight.grad)
    gradients[0].flatten()[0] = math.inf
    before = [gradient.clone() for gradient in gradients]
    norm = execution.gradient_norm(MAX_NORM)
    return norm.value.item(), norm.nonfinite.item(), all(map(torch.equal, gradients, before))


def test_gradients_with_a_norm_that_is_not_finite_are_not_scaled(rank_pool, encoder):
    ((norm, nonfinite, unchanged),) = rank_pool.run(norm_of_infinite_gradients, encoder, world_size=1)
    assert math.isinf(norm)
    assert nonfinite == 1
    assert unchanged


@pytest.mark.parametrize(
    ("given", "used"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64, torch.float64)],
)
def test_a_loss_is_computed_in_float32_at_least(given, used):
    assert at_least_float32(torch.zeros(2, dtype=given)).dtype == used
