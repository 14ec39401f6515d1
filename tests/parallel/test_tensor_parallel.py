"""Tensor and sequence parallelism over real processes: one process's numbers from matrices cut over ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from container.data.batch import PackedBatch
from container.models.build import build_classifier
from container.models.classifier import Classifier
from container.models.families import tensor_parallel_families
from container.parallel.degrees import ParallelDegrees
from container.parallel.execution import Execution
from container.parallel.mesh import build_mesh
from container.parallel.parallelize import parallelize
from container.parallel.tensor import apply_tensor_parallel
from container.training.optimizer import step_optimizer
from container.training.precision import precision_of
from contracts.hyperparameters import Hyperparameters
from testing.encoder_families import (
    hyperparameters,
    packed_batch,
    standard_transform,
    write_config,
)

pytestmark = pytest.mark.slow

REL = 1e-5
STEPS, MICROBATCHES = 3, 2
TABULAR_DIM = 3
MAX_NORM = 0.5
TENSOR_FAMILIES = tensor_parallel_families()
SEQUENCE_FAMILIES = tensor_parallel_families(sequence_parallel=True)


@dataclass(frozen=True)
class Case:
    """A way of cutting a model of two texts, trained for STEPS steps of SGD under clipping."""

    degrees: dict[str, int]
    families: tuple[str, str] = ("bert", "bert")
    values: tuple[tuple[str, Any], ...] = ()
    dropout: float = 0.0

    @property
    def world_size(self) -> int:
        return ParallelDegrees(**self.degrees).product

    @property
    def hp(self) -> Hyperparameters:
        values = {"dropout": self.dropout, "fusion_dropout": self.dropout, **dict(self.values)}
        if "pp" in self.degrees:
            values |= {"pp_schedule": "1F1B", "num_microbatches": MICROBATCHES}
        return hyperparameters(model_class="trimodal_bert", **values)


@dataclass(frozen=True)
class Trained:
    """The results of a run on one rank: whole tensors of its part of the model, under their plain names.

    Attributes:
        losses: of each step, its share.
        gradients: of the first step, before clipping.
        norms: of the gradients, before clipping.
        predictions: logits of the last step's microbatches; None where it has none.
    """

    losses: list[float]
    gradients: dict[str, Tensor]
    norms: list[float]
    weights: dict[str, Tensor]
    predictions: Tensor | None


def build(folder: Path, case: Case) -> Classifier:
    """On every rank the same weights, as a job's ranks have them.

    They are small enough that attention is not all or nothing, which would magnify rounding.
    """
    hp, own = case.hp, folder / str(torch.distributed.get_rank())
    files = [
        write_config(
            own / field.role, family, hidden_dropout_prob=case.dropout, dropout=case.dropout, initializer_range=0.1
        )
        for field, family in zip(hp.text_fields, case.families, strict=True)
    ]
    torch.manual_seed(0)
    return build_classifier(hp, files, tabular_dim=TABULAR_DIM, numeric_transform=standard_transform(TABULAR_DIM))


def microbatches(step: int, *, data_rank: int = 0) -> list[PackedBatch]:
    """Records of one to three chunks; the tokens of a text are often odd in number."""
    random = torch.Generator().manual_seed(1000 * step + data_rank)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    def text(records: int) -> list[list[int]]:
        return [[draw(1, 20) for _ in range(draw(1, 4))] for _ in range(records)]

    sizes = [draw(1, 4) for _ in range(MICROBATCHES)]
    return [
        packed_batch(text(size), text(size), tabular_dim=TABULAR_DIM, seed=place + 10 * step + 100 * data_rank)
        for place, size in enumerate(sizes)
    ]


def objective(logits: Tensor, batch: PackedBatch) -> Tensor:
    return F.cross_entropy(logits, batch.labels, reduction="sum")


def train(execution: Execution, steps: Sequence[Sequence[PackedBatch]], *, records: Sequence[int]) -> Trained:
    """Args: records: of each step's global batch."""
    module = execution.module
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, foreach=False)
    losses, norms, gradients = [], [], {}
    for step, (batches, count) in enumerate(zip(steps, records, strict=True)):
        torch.manual_seed(step)
        module.zero_grad(set_to_none=True)
        share = execution.forward_backward(
            batches, objective=objective, normaliser=torch.tensor(float(count)), scale_loss=lambda loss: loss
        )
        losses.append(share.item())
        gradients = gradients or whole({name: p.grad for name, p in module.named_parameters() if p.grad is not None})
        norm = execution.gradient_norm(MAX_NORM)
        norms.append(norm.value.item())
        step_optimizer(optimizer, norm)
    module.eval()
    predictions = execution.predict(steps[-1])
    return Trained(
        losses, gradients, norms, whole(dict(module.named_parameters())),
        None if predictions is None else torch.cat(predictions),
    )  # fmt: skip


def whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: plain(tensor) for name, tensor in tensors.items()}


def plain(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def beside_one_process(case: Case, folder: Path) -> tuple[Trained, Trained]:
    """On every rank: a run under `case`, and one process's on the records of all ranks."""
    ranks = build_mesh(ParallelDegrees(**case.degrees))
    everything = [[microbatches(step, data_rank=rank) for rank in range(ranks.data_size)] for step in range(STEPS)]
    records = [sum(len(batch.rows) for own in step for batch in own) for step in everything]
    model = build(folder, case)
    execution = parallelize(model, ranks, case.hp, precision=precision_of(case.hp, ranks.device))
    ours = train(execution, [step[ranks.data_rank] for step in everything], records=records)
    alone = Case({}, case.families, dropout=case.dropout)
    uncut = build(folder, alone)
    if case.dropout and case.hp.sequence_parallel:  # which drops in every token of the last layer
        for branch in uncut.branches.values():
            branch.encoder.compute_every_token()
    precision = precision_of(alone.hp, ranks.device)
    single = parallelize(uncut, build_mesh(ParallelDegrees()), alone.hp, precision=precision)
    expected = train(single, [[batch for own in step for batch in own] for step in everything], records=records)
    return ours, expected


def relative(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Largest difference of each tensor to the expected one's largest number.

    The biases of attention's keys are measured against its query's: softmax does not see what all scores have in
    common, so the gradient of the former is rounding noise.
    """
    of_query = {"key.bias": "query.bias", "k_lin.bias": "q_lin.bias"}
    found = {}
    for name, tensor in ours.items():
        scale = next((name.replace(key, query) for key, query in of_query.items() if name.endswith(key)), name)
        found[name] = float((tensor - expected[name]).abs().max() / expected[scale].abs().max())
    return found


def assert_one_process(results: list[tuple[Trained, Trained]], *, rel: float = REL) -> None:
    """Losses, gradients and their norm, weights after training, predictions; each name on some rank."""
    expected = results[0][1]
    losses = [sum(ours.losses[step] for ours, _ in results) for step in range(STEPS)]
    assert losses == pytest.approx(expected.losses, rel=rel)
    assert {name for ours, _ in results for name in ours.weights} == set(expected.weights)
    for ours, _ in results:
        assert ours.norms == pytest.approx(expected.norms, rel=rel)
        assert {name for name in ours.gradients if name in expected.gradients} == set(ours.gradients)
        for kind in ("gradients", "weights"):
            found = relative(getattr(ours, kind), getattr(expected, kind))
            worst = max(found, key=found.get)
            assert found[worst] <= rel, f"{kind} of {worst}"


def assert_same_predictions(results: list[tuple[Trained, Trained]], *, data_size: int = 1) -> None:
    """Of one rank for each data rank, in order; one process has all records."""
    speakers = [ours.predictions for ours, _ in results if ours.predictions is not None]
    assert len(speakers) == data_size
    torch.testing.assert_close(torch.cat(speakers), results[0][1].predictions, rtol=REL, atol=REL)


@pytest.fixture
def run(rank_pool, tmp_path) -> Callable[[Case], list[tuple[Trained, Trained]]]:
    return lambda case: rank_pool.run(beside_one_process, case, tmp_path, world_size=case.world_size)


SP = (("sequence_parallel", True),)


def in_pairs(names: list[str]) -> list[tuple[str, str]]:
    """All of `names`, two a model."""
    return list(zip(names[::2], names[1::2], strict=True))


@pytest.mark.long
@pytest.mark.parametrize(
    ("families", "values"),
    [*((pair, ()) for pair in in_pairs(TENSOR_FAMILIES)), *((pair, SP) for pair in in_pairs(SEQUENCE_FAMILIES))],
    ids=str,
)
def test_families_cut_in_two_train_as_one_process_with_or_without_sequence_parallelism(run, families, values):
    results = run(Case({"tp": 2}, families, values))
    assert_one_process(results)
    assert_same_predictions(results)


@pytest.mark.long
@pytest.mark.parametrize(
    ("degrees", "values"),
    [
        ({"tp": 4}, ()),
        ({"tp": 4}, SP),
        ({"dp_replicate": 2, "tp": 2}, ()),
        ({"dp_shard": 2, "tp": 2}, ()),
        ({"dp_shard": 2, "tp": 2}, SP),
        ({"pp": 2, "tp": 2}, SP),
        ({"branch": 2, "tp": 2}, SP),
    ],
    ids=str,
)
def test_cuts_compose_with_every_other_axis(run, degrees, values):
    results = run(Case(degrees, ("bert", "electra"), values))
    assert_one_process(results)
    assert_same_predictions(results, data_size=degrees.get("dp_replicate", 1) * degrees.get("dp_shard", 1))


@pytest.mark.parametrize(
    "values", [(), SP, (*SP, ("activation_checkpointing", 1))], ids=["", "sequence", "checkpointed"]
)
def test_dropout_draws_what_one_process_draws(run, values):
    assert_one_process(run(Case({"tp": 2}, ("bert", "distilbert"), values, dropout=0.3)))


def cut(folder: Path, case: Case) -> tuple[Classifier, Classifier]:
    """The plain model, and the same one cut."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("tp",))
    model = build(folder, case)
    apply_tensor_parallel(model, mesh, sequence_parallel=case.hp.sequence_parallel)
    return build(folder, case), model


def state_of_cut(case: Case, folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, float]]:
    """Both states under their names, and of each tensor the share of its bytes that this rank keeps alive."""
    uncut, model = cut(folder, case)
    shares = {
        name: tensor.to_local().untyped_storage().nbytes() / (tensor.numel() * tensor.itemsize)
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, DTensor)
    }
    return uncut.state_dict(), whole(model.state_dict()), shares


@pytest.mark.parametrize("values", [(), SP], ids=["", "sequence"])
def test_the_state_has_the_plain_names_and_the_same_bits(rank_pool, tmp_path, values):
    for expected, ours, _ in rank_pool.run(state_of_cut, Case({"tp": 2}, values=values), tmp_path, world_size=2):
        assert list(ours) == list(expected)
        assert all(torch.equal(ours[name], expected[name]) for name in expected)


def test_a_rank_keeps_only_its_part_of_split_weights(rank_pool, tmp_path):
    for _, ours, shares in rank_pool.run(state_of_cut, Case({"tp": 4}), tmp_path, world_size=4):
        biases_of_sums = {
            name for name in shares if name.endswith(("attention.output.dense.bias", "output.dense.bias"))
        }
        assert {shares[name] for name in shares.keys() - biases_of_sums} == {0.25}
        cut_parameters = sum(ours[name].numel() for name in shares)
        assert cut_parameters > 0.85 * sum(tensor.numel() for tensor in ours.values())


def tokens_at_norms(case: Case, folder: Path) -> list[tuple[int, int]]:
    """Tokens of the text and tokens that this rank normalises, at each norm of the layers."""
    _, model = cut(folder, case)
    branch = model.branches["primary"]
    seen = []
    for layer in branch.encoder.layers:
        for module in layer.modules():
            if isinstance(module, nn.LayerNorm):
                module.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))
    text = microbatches(0)[0].texts[0]
    branch.encoder(text)
    return [(sum(text.lengths), own) for own in seen]


def test_each_rank_normalises_only_its_share_of_the_tokens(rank_pool, tmp_path):
    for seen in rank_pool.run(tokens_at_norms, Case({"tp": 4}, values=SP), tmp_path, world_size=4):
        assert len(seen) == 4
        assert all(own == -(-tokens // 4) for tokens, own in seen)
