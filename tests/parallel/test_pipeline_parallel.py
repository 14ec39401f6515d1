"""Pipelines over real processes: one process's losses, gradients and predictions under every schedule."""

import gc
import logging
import math
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from container.data.batch import PackedBatch
from container.models.build import build_classifier
from container.models.classifier import Classifier
from container.models.lora import add_lora
from container.parallel.degrees import ParallelDegrees
from container.parallel.execution import Execution
from container.parallel.mesh import RankMesh, build_mesh
from container.parallel.parallelize import parallelize
from container.parallel.pipeline import SCHEDULES
from container.training.objective import WeightedCrossEntropy
from contracts.hyperparameters import Hyperparameters
from testing.encoder_families import hyperparameters, packed_batch, standard_transform, write_config
from testing.rank_pool import RankPool

pytestmark = pytest.mark.slow

CLASS_WEIGHTS = [1.0, 3.0]
ZERO_BUBBLE = ("InterleavedZeroBubble", "ZBVZeroBubble")


@dataclass(frozen=True)
class Case:
    """A pipeline, and what it is given: `steps` steps of two passes of four microbatches."""

    schedule: str
    degrees: dict[str, int]
    families: tuple[str, ...] = ("bert", "bert")
    values: tuple[tuple[str, Any], ...] = ()
    layers: int = 3
    precision: torch.dtype = torch.float32
    scale: float = 1.0
    steps: int = 2

    @property
    def world_size(self) -> int:
        return math.prod(self.degrees.values())

    @property
    def hp(self) -> Hyperparameters:
        return hyperparameters(
            model_class="trimodal_bert" if len(self.families) == 2 else "multimodal_bert",
            pp_schedule=self.schedule,
            **{"num_microbatches": 4, **dict(self.values)},
        )


@dataclass(frozen=True)
class Reading:
    """The results of one rank: its part of each step's loss, and its relative differences from one process."""

    shares: list[float]
    expected_losses: list[float]
    gradients: dict[str, float]
    missing: list[str]
    predictions: list[list[list[float]]] | None
    expected_predictions: list[list[list[float]]]
    names: list[str]
    plain_names: list[str]
    norm: float
    expected_norm: float


def build(folder: Path, case: Case) -> Classifier:
    """On every rank the same weights, as a job's ranks have; of a size at which attention is not all or nothing."""
    hp, own = case.hp, folder / str(torch.distributed.get_rank())
    files = [
        write_config(own / field.role, family, num_hidden_layers=case.layers, initializer_range=0.1)
        for field, family in zip(hp.text_fields, case.families)
    ]
    model = build_classifier(hp, files, tabular_dim=3, numeric_transform=standard_transform(3))
    add_lora(model, hp)
    return model


def microbatches(case: Case, step: int, *, data_rank: int = 0) -> list[PackedBatch]:
    """Eight uneven ones, longer in the second step; the last only fills its slot."""
    random = torch.Generator().manual_seed(1000 * step + data_rank)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    def text(records: int) -> list[list[int]]:
        return [[draw(2, 20 + 20 * step) for _ in range(draw(1, 4))] for _ in range(records)]

    batches = []
    for seed in range(8):
        records = draw(1, 5)
        texts = [text(records) for _ in case.families]
        batches.append(packed_batch(*texts, tabular_dim=3, seed=seed + 10 * step + 100 * data_rank))
    last = batches[-1]
    batches[-1] = replace(last, weights=torch.zeros_like(last.weights), rows=torch.full_like(last.rows, -1))
    return batches


def one_process(
    model: Classifier, batches: Sequence[PackedBatch], objective: WeightedCrossEntropy, precision: torch.dtype
) -> tuple[float, dict[str, Tensor], Tensor]:
    """Loss, gradients, and what normalises them."""
    normaliser = sum((objective.record_weights(batch).sum() for batch in batches), start=torch.zeros(()))
    total = 0.0
    model.zero_grad(set_to_none=True)
    for batch in batches:
        with torch.autocast("cpu", dtype=precision, enabled=precision != torch.float32):
            logits = model(batch)
        loss = objective(logits.float(), batch) / normaliser
        loss.backward()
        total += loss.item()
    return total, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, normaliser


def steps_of(case: Case, folder: Path) -> Reading:
    """Compare the pipeline with one process on the same weights and microbatches; every rank runs this."""
    plain = build(folder, case)
    if case.precision != torch.float32:
        # As stages do. Gradients of queries of first tokens alone are rounded apart from those of keys and values.
        for branch in plain.branches.values():
            branch.encoder.compute_every_token()
    ranks, execution = pipeline(case, folder)
    objective = WeightedCrossEntropy(CLASS_WEIGHTS, torch.device("cpu"))
    shares, losses, gradients, missing = [], [], {}, []
    for step in range(case.steps):
        everything = [microbatches(case, step, data_rank=rank) for rank in range(ranks.data_size)]
        of_all = [batch for own in everything for batch in own]
        loss, expected, normaliser = one_process(plain, of_all, objective, case.precision)
        losses.append(loss)
        execution.module.zero_grad(set_to_none=True)
        share = execution.forward_backward(
            everything[ranks.data_rank],
            objective=objective,
            normaliser=normaliser,
            scale_loss=lambda loss: loss * case.scale,
        )
        shares.append(share.item())
        for name, parameter in execution.module.named_parameters():
            if parameter.grad is None:
                missing += [name] * parameter.requires_grad
                continue
            difference = (full(parameter.grad) / case.scale - expected[name]).abs().max()
            # A key's bias has no gradient but rounding noise: softmax does not see what all scores have in common.
            size = expected[name].abs().max().clamp(min=1e-4)
            gradients[name] = max(gradients.get(name, 0.0), (difference / size).item())
    norm = execution.gradient_norm(0.5, loss_scale=case.scale).value.item()
    expected_norm = torch.nn.utils.get_total_norm(list(expected.values())).item()
    predicted = execution.predict(everything[ranks.data_rank])
    with torch.no_grad(), torch.autocast("cpu", dtype=case.precision, enabled=case.precision != torch.float32):
        plain_logits = [plain(batch).float() for batch in everything[ranks.data_rank]]
    return Reading(
        shares=shares,
        expected_losses=losses,
        gradients=gradients,
        missing=missing,
        predictions=None if predicted is None else [logits.tolist() for logits in predicted],
        expected_predictions=[logits.tolist() for logits in plain_logits],
        names=list(execution.module.state_dict()),
        plain_names=list(plain.state_dict()),
        norm=norm,
        expected_norm=expected_norm,
    )


def pipeline(case: Case, folder: Path) -> tuple[RankMesh, Execution]:
    ranks = build_mesh(ParallelDegrees(**case.degrees))
    return ranks, parallelize(build(folder, case), ranks, case.hp, precision=case.precision)


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@pytest.fixture
def run(rank_pool: RankPool, tmp_path: Path) -> Callable[[Case], list[Reading]]:
    return lambda case: rank_pool.run(steps_of, case, tmp_path, world_size=case.world_size)


def assert_one_process(readings: list[Reading], case: Case, *, rel: float = 1e-5) -> None:
    """Losses, gradients under plain names, gradient norm, predictions."""
    for step in range(case.steps):
        total = sum(reading.shares[step] for reading in readings)
        assert total == pytest.approx(readings[0].expected_losses[step], rel=rel)
    for reading in readings:
        assert reading.missing == []
        assert max(reading.gradients.values(), default=0.0) < rel, max(reading.gradients, key=reading.gradients.get)
        assert reading.norm == pytest.approx(reading.expected_norm, rel=rel)
    speakers = [reading for reading in readings if reading.predictions is not None]
    assert len(speakers) == case.degrees.get("dp_replicate", 1) * case.degrees.get("dp_shard", 1)
    for reading in speakers:
        for logits, expected in zip(reading.predictions, reading.expected_predictions, strict=True):
            torch.testing.assert_close(torch.tensor(logits), torch.tensor(expected), rtol=rel, atol=rel)


def figures_with_a_slow_stage(case: Case, folder: Path, slow: int) -> list[dict[str, float]]:
    """Return a rank's figures of a step whose stage `slow` sleeps 20 ms in each forward pass, and of no step."""
    ranks, execution = pipeline(case, folder)
    for stage in execution._stages:
        if stage.plan.index == slow:
            stage.register_forward_pre_hook(lambda *_: time.sleep(0.02))
    normaliser = torch.tensor(1.0)
    objective = WeightedCrossEntropy(CLASS_WEIGHTS, ranks.device)
    for _ in range(2):
        execution.figures(detail=True)
        execution.forward_backward(
            microbatches(case, 0), objective=objective, normaliser=normaliser, scale_loss=lambda loss: loss
        )
    return [execution.figures(detail=False), execution.figures(detail=False)]


@pytest.mark.parametrize("schedule", ["1F1B", "Interleaved1F1B", "ZBVZeroBubble"])
def test_the_time_of_each_stage_and_the_idle_share_of_its_rank_are_measured(
    rank_pool: RankPool, tmp_path: Path, schedule: str
) -> None:
    case, slow = Case(schedule, {"pp": 2}, layers=4), 1
    for figures, nothing in rank_pool.run(figures_with_a_slow_stage, case, tmp_path, slow, world_size=2):
        assert nothing == {}
        count = 2 * SCHEDULES[schedule].stages_per_rank
        assert set(figures) == {f"stage_{i}/{name}" for i in range(count) for name in ("milliseconds", "idle_percent")}
        assert figures["stage_1/milliseconds"] > 80
        rank = SCHEDULES[schedule].rank_of(slow, 2)
        idle = [figures[f"stage_{1 - rank}/idle_percent"], figures[f"stage_{rank}/idle_percent"]]
        assert idle[0] > idle[1] + 10


@pytest.mark.long
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "families"), [(2, ("bert",)), (4, ("bert", "modernbert"))])
def test_a_pipeline_computes_what_one_process_computes(run: Any, schedule: str, stages: int, families: Any) -> None:
    case = Case(schedule, {"pp": stages}, families, layers=4)
    readings = run(case)
    assert_one_process(readings, case)
    names = [name for reading in readings for name in reading.names]
    assert sorted(names) == sorted(readings[0].plain_names)


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["1F1B", *ZERO_BUBBLE])
def test_sharded_stages_compute_what_one_process_computes(run: Any, schedule: str) -> None:
    values = (("strategy", "fsdp"), ("sharding_strategy", "FULL_SHARD"))
    case = Case(schedule, {"pp": 2, "dp_shard": 2}, values=values, steps=1)
    assert_one_process(run(case), case)


@pytest.mark.parametrize(
    ("axis", "second_family", "values"),
    [("dp_replicate", "bert", ()), ("branch", "electra", ()), ("tp", "electra", (("sequence_parallel", True),))],
)
def test_stages_beside_another_axis_compute_what_one_process_computes(
    run: Any, axis: str, second_family: str, values: Any
) -> None:
    case = Case("ZBVZeroBubble", {"pp": 2, axis: 2}, ("bert", second_family), values=values, steps=1)
    assert_one_process(run(case), case)


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["1F1B", "Interleaved1F1B"])
def test_checkpointed_layers_give_the_same_gradients(run: Any, schedule: str) -> None:
    case = Case(schedule, {"pp": 2}, values=(("activation_checkpointing", 1),), steps=1)
    assert_one_process(run(case), case)


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["Interleaved1F1B", "InterleavedZeroBubble"])
def test_frozen_tables_in_a_stage_change_nothing_for_the_others(run: Any, schedule: str) -> None:
    """One layer and four stages: the first is the embeddings alone, of which the norm learns."""
    case = Case(schedule, {"pp": 2}, ("bert",), values=(("is_embeddings_trainable", False),), layers=1, steps=1)
    assert_one_process(run(case), case)


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
def test_adapters_in_stages_learn_as_in_one_process_and_a_stage_may_have_none(run: Any, schedule: str) -> None:
    """With 1F1B, the first stage is the frozen embeddings alone."""
    values = (("lora_rank", 2), ("reinit_layers", 0))
    case = Case(schedule, {"pp": 2}, ("bert",), values=values, layers=2, steps=1)
    readings = run(case)
    assert_one_process(readings, case)
    assert (readings[0].gradients == {}) == (schedule == "1F1B")


@pytest.mark.long
@pytest.mark.parametrize(("schedule", "family"), [("InterleavedZeroBubble", "albert"), ("ZBVZeroBubble", "deberta-v2")])
def test_an_encoder_that_uses_weights_several_times_gets_their_gradients(run: Any, schedule: str, family: str) -> None:
    """It is one block, behind the first stage, where weight passes are apart from others."""
    case = Case(schedule, {"pp": 2}, ("distilbert", family))
    assert_one_process(run(case), case)


def test_half_precision_computes_inside_the_stages_and_travels_as_float32(run: Any) -> None:
    case = Case("1F1B", {"pp": 2}, ("bert",), precision=torch.bfloat16)  # one text: it is cut in its middle
    assert_one_process(run(case), case)


def test_a_scaled_loss_scales_every_stage(run: Any) -> None:
    case = Case("Interleaved1F1B", {"pp": 2}, scale=2.0**10, steps=1)
    assert_one_process(run(case), case)


class HeldActivations:
    """Counts the microbatches of which a layer keeps anything for its backward pass."""

    def __init__(self, layer: torch.nn.Module) -> None:
        self.peak = 0
        self._seen = 0
        self._kept: Counter[int] = Counter()
        self._forward = layer.forward
        layer.forward = self._watched

    def _watched(self, *arguments: Any, **named: Any) -> Any:
        microbatch, self._seen = self._seen, self._seen + 1

        class Kept:
            def __init__(own, tensor: Tensor) -> None:
                own.tensor = tensor
                self._kept[microbatch] += 1

            def __del__(own) -> None:
                self._kept[microbatch] -= 1

        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            output = self._forward(*arguments, **named)
        self.peak = max(self.peak, sum(count > 0 for count in self._kept.values()))
        return output


def held_microbatches(case: Case, folder: Path) -> int:
    """The most microbatches of which this rank held activations at once."""
    _, execution = pipeline(case, folder)
    layer = next(layer for branch in execution.module.branches.values() for layer in branch.encoder.layers)
    held = HeldActivations(layer)
    objective = WeightedCrossEntropy(CLASS_WEIGHTS, torch.device("cpu"))
    execution.forward_backward(
        microbatches(case, 0), objective=objective, normaliser=torch.tensor(9.0), scale_loss=lambda loss: loss
    )
    return held.peak


@pytest.mark.parametrize(("schedule", "expected"), [("1F1B", [4, 3, 2, 1]), ("GPipe", [8, 8, 8, 8])])
def test_1f1b_holds_a_microbatch_a_stage_that_follows_and_gpipe_all(
    rank_pool: RankPool, tmp_path: Path, schedule: str, expected: list[int]
) -> None:
    case = Case(schedule, {"pp": 4}, values=(("num_microbatches", 8),))
    assert rank_pool.run(held_microbatches, case, tmp_path, world_size=4) == expected


def weights_kept(case: Case, folder: Path) -> tuple[int, int, int]:
    """Weights of the whole model, those of this rank's part, and those that are still in memory."""
    model = build(folder, case)
    every = [weakref.ref(parameter) for parameter in model.parameters()]
    execution = parallelize(model, build_mesh(ParallelDegrees(**case.degrees)), case.hp, precision=case.precision)
    gc.collect()
    kept = sum(reference() is not None for reference in every)
    return len(every), len(list(execution.module.parameters())), kept


@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
def test_a_rank_frees_the_weights_of_the_other_stages(rank_pool: RankPool, tmp_path: Path, schedule: str) -> None:
    readings = rank_pool.run(weights_kept, Case(schedule, {"pp": 2}), tmp_path, world_size=2)
    assert sum(own for _, own, _ in readings) == readings[0][0]
    for _, own, kept in readings:
        assert own == kept


def logged(case: Case, folder: Path) -> list[str]:
    """Return a rank's log messages while it builds its pipeline for training, and again for prediction."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("container.parallel.pipeline")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    ranks = build_mesh(ParallelDegrees(**case.degrees))
    for _ in range(2):
        tokens = {"primary": 400.0, "secondary": 10.0}
        parallelize(build(folder, case), ranks, case.hp, precision=case.precision, tokens_per_record=tokens)
    return [record.getMessage() for record in records]


def test_the_first_rank_prints_the_stages_once(rank_pool: RankPool, tmp_path: Path) -> None:
    first, second = rank_pool.run(logged, Case("1F1B", {"pp": 2}), tmp_path, world_size=2)
    assert second == []
    (table,) = first
    assert table.splitlines()[0] == "pipeline of 2 stages (1F1B):"
    assert "to head" in table.splitlines()[-1]
    assert table.splitlines()[-1].split()[4].startswith("primary"), "the long text is cut, the short one is not"
