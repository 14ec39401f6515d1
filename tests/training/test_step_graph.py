"""What a graph of a step relies on, without a GPU: its operations, its inputs, and what it does where it cannot be."""

import logging
import math
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from container.data.batch import PackedBatch
from container.data.filling import filled, shapes_of
from container.job.log_once import log_once
from container.job.preflight import check_settings
from container.models import attention, record_tokens
from container.models.build import build_classifier
from container.parallel.degrees import ParallelDegrees
from container.parallel.encoder_checks import check_graphs, reason_against_graphs
from container.parallel.execution import GradientNorm
from container.parallel.mesh import RankMesh
from container.parallel.parallelize import parallelize
from container.training import step_graph, train
from container.training.checkpoint import load_weights
from container.training.job_data import JobData
from container.training.objective import WeightedCrossEntropy
from container.training.optimizer import build_optimizer, step_optimizer
from container.training.step_graph import StepGraphs, UpdateGraph, step_graphs
from container.training.train import build_model
from contracts.errors import ContractError
from contracts.model_classes import MODEL_CLASSES
from contracts.paths import JobPaths
from testing.encoder_families import (
    ALL_FAMILIES,
    MAX_LENGTH,
    hyperparameters,
    packed_batch,
    standard_transform,
    write_config,
)
from testing.jobs import write_job
from tests.contracts.test_every_hyperparameter import train as train_in_process

META, CPU = torch.device("meta"), torch.device("cpu")
# Of one bucket, but no length, and no number of chunks of a record, is the same.
TWO_OF_A_BUCKET = ([[40], [9, 13], [2], [20], [60]], [[5], [40, 20], [62], [7], [11]])


class Operations(TorchDispatchMode):
    """Records the operations of a block: their scalars, and the shapes, dtypes and devices of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []
        self.devices: set[str] = set()
        self.computing = 0  # views launch no kernel

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.computing += not operation.is_view
        self.found.append((str(operation), tree_map(self._described, (args, kwargs))))
        result = operation(*args, **kwargs)
        tree_map(self._described, result)
        return result

    def _described(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        self.devices.add(value.device.type)
        return tuple(value.shape), value.dtype


def execution_of(
    folder: Path, name: str, device: torch.device, *, family: str = "bert", layers: int | None = None, **settings: Any
) -> Any:
    """Return hyperparameters and an execution of the class, with random weights."""
    heads = {"hidden_common_dim": 32, "fusion_attention_heads": 4} if name.endswith("cross_attn") else {}
    hp = hyperparameters(model_class=name, **heads, **settings)
    sizes = {} if layers is None else {"num_hidden_layers": layers}
    files = [write_config(folder / field.role, family, **sizes) for field in hp.text_fields]
    columns = 0 if hp.architecture.table == "none" else 3
    torch.manual_seed(0)
    model = build_classifier(hp, files, tabular_dim=columns, numeric_transform=standard_transform(columns)).train()
    ranks = RankMesh(device, None, ParallelDegrees(), rank=0, world_size=1, coordinates={})
    return hp, parallelize(model, ranks, hp, precision=torch.float32)


def batches_of(hp: Any) -> list[PackedBatch]:
    """Return two filled batches of one bucket."""
    columns = 0 if hp.architecture.table == "none" else 3
    texts = len(hp.text_fields)
    return [
        filled(packed_batch(*[chunks] * texts, tabular_dim=columns, seed=seed), [(MAX_LENGTH, 1)] * texts)
        for seed, chunks in enumerate(TWO_OF_A_BUCKET)
    ]


def test_the_batches_of_this_file_are_of_one_bucket():
    first, second = batches_of(hyperparameters())
    assert shapes_of(first) == shapes_of(second)
    assert first.texts[0].lengths != second.texts[0].lengths
    assert first.texts[0].record_lengths != second.texts[0].record_lengths


def operations(execution: Any, batch: PackedBatch) -> list[Any]:
    """Return the operations of a microbatch, all of which are on the device."""
    objective = WeightedCrossEntropy([1.0, 2.0], META, head=execution.module.fusion)
    normaliser, batch = torch.full((), 7.0, device=META), batch.to(META)
    execution.module.zero_grad()
    with Operations() as recorded:
        execution.forward_backward([batch], objective=objective, normaliser=normaliser, scale_loss=lambda loss: loss)
    assert recorded.devices == {"meta"}, "nothing is copied from the host"
    return recorded.found


def test_a_step_of_twelve_layers_has_at_most_540_operations_that_launch_a_kernel(tmp_path):
    """Forward, backward and norm, without autocast, which adds casts, and the optimizer, a launch for many weights."""
    hp, execution = execution_of(tmp_path, "bert", META, layers=12)
    objective, batch = WeightedCrossEntropy([1.0, 2.0], META), batches_of(hp)[0].to(META)
    with Operations() as recorded:
        execution.forward_backward(
            [batch], objective=objective, normaliser=torch.full((), 7.0, device=META), scale_loss=lambda loss: loss
        )
        execution.gradient_norm(1.0)
    assert 400 < recorded.computing <= 540


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODEL_CLASSES)
def test_a_class_has_the_same_device_operations_for_all_batches_of_a_bucket_or_a_reason(
    tmp_path, monkeypatch, name, half
):
    hp, execution = execution_of(tmp_path, name, META)
    if half:
        for module in (attention, record_tokens):
            monkeypatch.setattr(module, "has_flash", lambda _: True)
        execution.module.bfloat16()
    first, second = batches_of(hp)
    if name == "lstm":
        with pytest.raises(Exception, match="lengths|Lengths"):
            operations(execution, first.without_lengths())
        assert reason_against_graphs(hp, [], processes=1, has_gpu=True)
        return
    assert reason_against_graphs(hp, ["bert"], processes=1, has_gpu=True) is None
    expected = operations(execution, first)
    assert len(expected) > (20 if name == "tabular" else 80)
    for batch in (second, first.without_lengths()):
        assert operations(execution, batch) == expected


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_a_family_reads_no_length_on_the_host_or_is_named_as_padded(tmp_path, family, monkeypatch):
    for module in (attention, record_tokens):
        monkeypatch.setattr(module, "has_flash", lambda _: True)
    hp, execution = execution_of(tmp_path, "bert", META, family=family)
    execution.module.bfloat16()
    first, second = batches_of(hp)
    reason = reason_against_graphs(hp, [family], processes=1, has_gpu=True)
    if reason is None:
        assert operations(execution, second.without_lengths()) == operations(execution, first)
    else:
        assert family in reason
        with pytest.raises(Exception, match="lengths|Lengths"):
            operations(execution, first.without_lengths())


class StandIn:
    """Takes the place of a capture: computes again on the static tensors, while those of the batch are NaN."""

    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, work: Any) -> Any:
        def replay() -> torch.Tensor:
            self.replays += 1
            return work()

        return replay


@pytest.fixture
def poisoned(monkeypatch):
    call = step_graph.Graph.__call__

    def with_poison(graph: Any, batch: PackedBatch, normaliser: torch.Tensor) -> torch.Tensor:
        copies = batch.each(torch.clone)
        compute = graph._replay

        def replay() -> torch.Tensor:
            for tensor in (copies.tabular, copies.weights, *(text.tokens for text in copies.texts)):
                tensor.fill_(math.nan if tensor.is_floating_point() else -1)
            return compute()

        monkeypatch.setattr(graph, "_replay", replay, raising=True)
        try:
            return call(graph, copies, normaliser)
        finally:
            graph._replay = compute

    monkeypatch.setattr(step_graph.Graph, "__call__", with_poison)


@pytest.fixture(scope="module", autouse=True)
def group(one_rank):
    torch.set_num_threads(1)


def trained(root: Path, monkeypatch, capture: Any, **settings: Any) -> list[torch.Tensor]:
    """Train a job whose microbatches are computed by graphs of `capture`; None: without graphs, but filled."""

    def graphs_of(hp: Any, execution: Any) -> StepGraphs:
        longest = [field.max_sen_len for field in hp.text_fields]
        graphs = StepGraphs(execution.module, longest, capture=capture, must=True)
        if capture is None:
            graphs._stop_making()
        for weight in execution.module.parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(lambda of: places[of].add(of.grad.data_ptr()))
        return graphs

    places: dict[torch.nn.Parameter, set[int]] = defaultdict(set)

    monkeypatch.setattr(train, "step_graphs", graphs_of)
    monkeypatch.setattr(train, "capture_stream", lambda _: nullcontext())
    # The graph has the learning rates in float32, which have this one.
    overrides = {"max_epochs": 2, "batch_size": 4, "run_scheduler": False, "warmup_steps": 0, "seed": 1, **settings}
    overrides["lr"] = 2**-10
    job, done = train_in_process(write_job(root, overrides=overrides))
    model = build_model(job.hp, JobData.open(job).prepared, pretrained=False)
    load_weights(model, *done.checkpoints)
    assert done.state.skipped == 0
    assert {len(addresses) for addresses in places.values()} == {1}, "graphs add to gradients that stay in place"
    return list(model.state_dict().values())


@pytest.mark.parametrize("settings", [{}, {"accumulate_grad_batches": 2}], ids=str)
def test_replayed_graphs_train_to_the_same_weights_also_with_accumulation(tmp_path, monkeypatch, poisoned, settings):
    capture = StandIn()
    found = trained(tmp_path / "graphs", monkeypatch, capture, **settings)
    assert capture.replays > 10
    expected = trained(tmp_path / "plain", monkeypatch, None, **settings)
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_a_graph_of_the_update_reads_the_rates_the_clipping_and_the_decision_of_each_step(optimizer):
    """Two groups, one of them at half the rate; a third weight gets its first gradient in the fourth step."""
    hp = hyperparameters(optimizer=optimizer, lr=2.0**-5, head_lr=2.0**-6, momentum=0.5)
    captured = StandIn()
    results = []
    for update_of in (lambda built: partial(step_optimizer, built), lambda built: UpdateGraph(built, captured)):
        module = torch.nn.ModuleDict({name: torch.nn.Linear(3, 2) for name in ("backbone", "head", "late")})
        for i, weight in enumerate(module.parameters()):
            torch.nn.init.constant_(weight, 1 + i)
        built = build_optimizer(hp, module)
        update = update_of(built)
        for step, (skip, divisor) in enumerate([(0, 1), (0, 4), (1, 2), (0, 2), (0, 8)]):
            for name, weight in module.named_parameters():
                if "late" not in name or step >= 3:
                    weight.grad = torch.full_like(weight, math.inf if skip else step + 1.0)
            for group in built.param_groups:
                group["lr"] = 2.0 ** -(5 + step) * group["lr_scale"]
            update(GradientNorm(torch.tensor(1.0), torch.tensor(float(divisor)), torch.tensor(float(skip))))
            results.append([weight.detach().clone() for weight in module.parameters()])
    assert captured.replays == 3
    for plain, replayed in zip(results[:5], results[5:], strict=True):
        assert all(map(torch.equal, plain, replayed))
    assert all(map(torch.equal, results[1], results[2])), "a step without finite gradients changes nothing"
    assert {type(group["lr"]) for group in built.param_groups} == {float}


def test_a_resumed_run_with_graphs_trains_to_the_weights_of_one_without_an_interruption(
    tmp_path, monkeypatch, poisoned
):
    whole = trained(tmp_path / "whole", monkeypatch, StandIn(), load_ckpt=False)
    trained(tmp_path / "parts", monkeypatch, StandIn(), load_ckpt=False, max_epochs=1)
    capture = StandIn()
    resumed = trained(tmp_path / "parts", monkeypatch, capture, load_ckpt=False)
    assert capture.replays > 3
    assert all(map(torch.equal, resumed, whole))


def step_with(capture: Any, execution: Any, hp: Any, *, must: bool = False) -> tuple[StepGraphs, list[float]]:
    """Compute four microbatches of one bucket, and return their losses."""
    graphs = StepGraphs(execution.module, [MAX_LENGTH] * len(hp.text_fields), capture=capture, must=must)
    execution.graphs = graphs
    return graphs, [compute(execution, batch).item() for batch in [*batches_of(hp), *batches_of(hp)]]


def raising(error: Exception) -> Any:
    def capture(_: Any) -> Any:
        raise error

    return capture


def ending_in_another_error(_: Any) -> Any:
    """As a capture whose end fails after its allocation has."""
    try:
        raise torch.OutOfMemoryError("Tried to allocate 2 GiB")
    finally:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


def half_of(work: Any) -> Any:
    return lambda: work() / 2


@pytest.mark.parametrize(
    ("capture", "says"),
    [
        (raising(torch.OutOfMemoryError("Tried to allocate 2 GiB")), "goes on without graphs: Tried to allocate"),
        (raising(RuntimeError("CUDA error: out of memory")), "goes on without graphs: CUDA error"),
        (ending_in_another_error, "goes on without graphs: Tried to allocate"),
        (raising(RuntimeError("operation not permitted")), "cannot be captured: operation not permitted"),
        (half_of, "loss and gradient norm of a graph are"),
    ],
    ids=["memory", "memory of CUDA", "memory, then the end", "operation", "another loss"],
)
def test_what_cannot_be_captured_or_differs_is_computed_without_graphs_and_said_once(tmp_path, caplog, capture, says):
    hp, execution = execution_of(tmp_path, "bert", CPU)
    graphs, losses = step_with(capture, execution, hp)
    gradients = [weight.grad.clone() for weight in execution.module.parameters() if weight.grad is not None]
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert says in message
    assert not graphs._graphs
    assert not graphs._seen, "no batch is kept for a graph"
    execution.module.zero_grad()
    execution.graphs = None
    assert losses == [compute(execution, batch).item() for batch in [*batches_of(hp), *batches_of(hp)]]
    for found, weight in zip(gradients, [w for w in execution.module.parameters() if w.grad is not None], strict=True):
        torch.testing.assert_close(found, weight.grad)


def compute(execution: Any, batch: PackedBatch) -> torch.Tensor:
    objective = WeightedCrossEntropy([1.0, 2.0], CPU, head=execution.module.fusion)
    return execution.forward_backward(
        [batch], objective=objective, normaliser=torch.tensor(7.0), scale_loss=lambda loss: loss
    )


def test_a_capture_knows_no_length_of_its_batch_so_that_a_kernel_which_reads_one_is_no_graph(tmp_path, caplog):
    """On the CPU, attention is a loop over chunks."""

    def computing(work: Any) -> Any:
        work()
        return work

    hp, execution = execution_of(tmp_path, "bert", CPU)
    graphs, _ = step_with(computing, execution, hp)
    assert len(graphs) == 0
    assert "cannot be captured: its kernels depend on the lengths of chunks or records" in caplog.text


@pytest.mark.parametrize(("gibibytes", "fits"), [(8, True), (4, False)])
def test_a_graph_is_made_only_where_activations_fit_twice_beside_copies_of_the_gradients(
    tmp_path, monkeypatch, gibibytes, fits
):
    """1 GiB is held, and the activations take 2."""
    _, execution = execution_of(tmp_path, "bert", CPU)
    gib = 1 << 30
    for name, value in (("memory_allocated", gib), ("memory_reserved", gib), ("max_memory_allocated", 3 * gib)):
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (gibibytes * gib - gib, 80 * gib))
    graphs = StepGraphs(execution.module, [MAX_LENGTH], capture=StandIn(), must=False)
    assert graphs._has_room(torch.device("cuda")) == fits


@pytest.mark.parametrize(("has_room", "kept"), [(False, 1), (True, 0)])
def test_graphs_are_kept_if_another_does_not_fit_and_dropped_if_memory_runs_out_in_a_capture(
    tmp_path, monkeypatch, caplog, has_room, kept
):
    """A capture that failed may leave CUDA and its generator in a state that graphs cannot be replayed from."""
    hp, execution = execution_of(tmp_path, "bert", CPU)
    graphs, _ = step_with(StandIn(), execution, hp, must=True)
    monkeypatch.setattr(graphs, "_capture", raising(torch.OutOfMemoryError("Tried to allocate 2 GiB")))
    monkeypatch.setattr(graphs, "_has_room", lambda _: has_room)
    other = filled(packed_batch([[length] for length in (3, 4)]), [(MAX_LENGTH, 1)])
    for _ in range(2):
        compute(execution, other)
    assert len(graphs) == kept
    assert ("goes on without graphs" in caplog.text) == has_room


@pytest.mark.parametrize("capture", [raising(RuntimeError("operation not permitted")), half_of], ids=["fails", "half"])
def test_with_true_a_graph_that_is_impossible_or_wrong_is_an_error(tmp_path, capture):
    hp, execution = execution_of(tmp_path, "bert", CPU)
    with pytest.raises(ContractError, match="cuda_graphs: is true, but (the step cannot|loss and gradient)"):
        step_with(capture, execution, hp, must=True)


def test_a_shape_that_occurs_twice_as_often_replaces_the_graph_of_the_rarest_one(tmp_path, monkeypatch):
    """Jobs with two texts have more shapes than graphs; a capture for each of them would take longer than the steps."""
    monkeypatch.setattr(step_graph, "_MOST_GRAPHS", 2)
    _, execution = execution_of(tmp_path, "bert", CPU)
    graphs = StepGraphs(execution.module, [MAX_LENGTH], capture=StandIn(), must=True)
    execution.graphs = graphs
    batches = [filled(packed_batch([[length]] * 2), [(MAX_LENGTH, 1)]) for length in (10, 30, 60)]
    first, second, third = map(shapes_of, batches)
    for indices, expected in (((0, 0, 0, 1, 1, 2, 2, 2), [first, second]), ((2,), [first, third])):
        for index in indices:
            compute(execution, batches[index])
        assert list(graphs._graphs) == expected


def test_batches_of_two_texts_have_few_shapes_though_their_longest_records_differ():
    graphs, random = StepGraphs(torch.nn.Linear(1, 1), [512, 512], capture=StandIn(), must=True), Random(0)
    shapes = []
    for _ in range(200):
        texts = [[[min(512, round(random.lognormvariate(mean, 0.7)) + 1)] for _ in range(32)] for mean in (4.9, 3.9)]
        shapes += map(shapes_of, graphs.fill([packed_batch(*texts)]))
    assert len(set(shapes[20:])) < 60


@pytest.mark.parametrize(
    ("settings", "processes", "has_gpu", "reason"),
    [
        ({}, 1, False, "there is no GPU"),
        ({"model_class": "lstm"}, 1, True, "an LSTM"),
        ({"fp16": True}, 1, True, "fp16 changes the factor"),
        ({"activation_checkpointing": 1}, 1, True, "activation_checkpointing reads"),
        ({}, 2, True, "there are 2 processes"),
        ({"encoder_config": {"model_type": "mpnet"}}, 1, True, "of the family mpnet pad"),
    ],
    ids=str,
)
def test_true_is_an_error_where_a_graph_is_impossible(settings, processes, has_gpu, reason):
    kinds = [settings.get("encoder_config", {}).get("model_type", "bert")]
    check_graphs(hyperparameters(**settings), kinds, processes=processes, has_gpu=has_gpu)
    hp = hyperparameters(**settings, cuda_graphs=True)
    with pytest.raises(ContractError, match=f"cuda_graphs: is true, but .*{reason}"):
        check_graphs(hp, kinds, processes=processes, has_gpu=has_gpu)


def test_a_job_refuses_cuda_graphs_without_a_gpu(tmp_path):
    hp = hyperparameters(tokenizer="from_scratch", cuda_graphs=True)
    with pytest.raises(ContractError, match="there is no GPU"):
        check_settings(JobPaths(tmp_path), hp, hosts=1, per_host=1)


@pytest.mark.parametrize(("setting", "on_gpu"), [(False, True), ("auto", False)])
def test_there_are_no_graphs_and_no_line_with_false_or_without_a_gpu(tmp_path, caplog, setting, on_gpu):
    hp, execution = execution_of(tmp_path, "bert", CPU, cuda_graphs=setting)
    if on_gpu:
        execution.ranks = replace(execution.ranks, device=torch.device("cuda"))
    with caplog.at_level(logging.INFO):
        assert step_graphs(hp, execution) is None
    assert caplog.messages == []


def test_auto_says_on_a_gpu_why_there_are_no_graphs(tmp_path, caplog):
    log_once.cache_clear()
    hp, execution = execution_of(tmp_path, "lstm", CPU)
    execution.ranks = replace(execution.ranks, device=torch.device("cuda"))
    with caplog.at_level(logging.INFO):
        assert step_graphs(hp, execution) is None
    (message,) = caplog.messages
    assert message.startswith("cuda_graphs: auto: a step is not replayed as a graph: the kernels of an LSTM")
