"""The effects of the settings of replicas, shards and layers on two ranks; the parity tests compare the numbers."""

import shutil
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode

import container.parallel.parallelize as parallelize_module
from container.models.build import build_classifier
from container.models.encoder import encoder_layers_of
from container.parallel import sharding
from container.parallel.degrees import ParallelDegrees
from container.parallel.execution import DirectExecution
from container.parallel.mesh import build_mesh
from container.parallel.parallelize import compile_layers, parallelize
from container.preprocessing.prepared import EncoderFiles
from container.training.precision import precision_of
from testing.encoder_families import MAX_LENGTH, hyperparameters, packed_batch, write_config

LAYERS = 3
BACKBONE = "branches.text.encoder.backbone"
UNITS = LAYERS + 2  # layers, the rest of the backbone, the heads


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    write_config(folder, "bert", num_hidden_layers=LAYERS)
    return str(folder)


@pytest.fixture
def on_two_ranks(rank_pool, encoder):
    """Return what rank 0 reports about a job with these settings."""

    def run(function, **settings: Any):
        return rank_pool.run(function, encoder, world_size=2, **settings)[0]

    return run


def execution_of(encoder: str, **settings: Any) -> DirectExecution:
    hp = hyperparameters(tokenizer=encoder, **settings)
    torch.manual_seed(0)
    model = build_classifier(hp, [EncoderFiles(Path(encoder))], tabular_dim=0, numeric_transform=None)
    ranks = build_mesh(ParallelDegrees.resolve(hp, torch.distributed.get_world_size()))
    return parallelize(model, ranks, hp, precision=precision_of(hp, ranks.device))


def step(
    execution: DirectExecution,
    *,
    seed: int = 0,
    chunk_lengths: Sequence[Sequence[int]] | None = None,
    passes: int = 1,
) -> None:
    own = seed * 2 + execution.ranks.rank
    execution.module.zero_grad(set_to_none=True)
    execution.forward_backward(
        [packed_batch(chunk_lengths or [[5 + seed], [9, 3]], seed=own + 100 * i) for i in range(passes)],
        objective=lambda logits, batch: torch.nn.functional.cross_entropy(logits, batch.labels, reduction="sum"),
        normaliser=torch.tensor(4.0),
        scale_loss=lambda loss: loss,
    )


def gradients(encoder: str, *, steps: int = 1, passes: int = 1, **settings: Any) -> torch.Tensor:
    execution = execution_of(encoder, accumulate_grad_batches=passes, **settings)
    for seed in range(steps):
        step(execution, seed=seed, passes=passes)
    grads = [parameter.grad for parameter in execution.module.parameters() if parameter.grad is not None]
    return torch.cat([(g.full_tensor() if hasattr(g, "full_tensor") else g).flatten() for g in grads])


def compare_compiled(encoder: str) -> tuple[float, int]:
    """Return the largest gradient error of compiled layers over several batch lengths, and the number of graphs."""
    torch._dynamo.utils.counters.clear()
    apart = relative(gradients(encoder, steps=3, compile=True), gradients(encoder, steps=3))
    return apart, torch._dynamo.utils.counters["stats"]["unique_graphs"]


def graphs_of_ten_batches(encoder: str, **settings: Any) -> list[int]:
    """Return the number of graphs after each of ten batches with different numbers of chunks and lengths."""
    # A backend that needs no compiler; which graphs are made, and when they hold, is decided before any backend.
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        compiled.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    parallelize_module.compile_layers = partial(compile_layers, backend=backend)
    execution = execution_of(encoder, compile=True, **settings)
    made = []
    for seed in range(10):
        random = torch.Generator().manual_seed(seed)
        chunks = torch.randint(1, MAX_LENGTH, (1 + 7 * seed % 10,), generator=random)
        step(execution, chunk_lengths=[[length] for length in chunks.tolist()])
        made.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert compiled, "the backend was called"
    return made


class Collectives(TorchDispatchMode):
    """Counts the collectives of a block. torch's CommDebugMode fails in a second forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation.namespace == "c10d":
            self.counts[operation.overloadpacket.__name__] += 1
        return operation(*args, **kwargs or {})


def collectives(encoder: str, *, passes: int = 1, **settings: Any) -> dict[str, int]:
    execution = execution_of(encoder, accumulate_grad_batches=passes, **settings)
    step(execution, passes=passes)
    with Collectives() as collectives:
        step(execution, passes=passes)
    return dict(collectives.counts)


def units(encoder: str, **settings: Any) -> list[str]:
    module = execution_of(encoder, **settings).module
    return [name for name, unit in module.named_modules() if isinstance(unit, FSDPModule)]


def keeps_shards_outside(encoder: str, **settings: Any) -> bool:
    with mock.patch.object(sharding, "fully_shard", wraps=sharding.fully_shard) as fully_shard:
        execution_of(encoder, **settings)
    policies = [call.kwargs["offload_policy"] for call in fully_shard.call_args_list]
    return len(policies) > 0 and all(isinstance(policy, CPUOffloadPolicy) for policy in policies)


def calls_of_layers(encoder: str, **settings: Any) -> list[int]:
    """Return how often a step computes each encoder layer."""
    execution = execution_of(encoder, **settings)
    layers = encoder_layers_of(execution.module)
    calls = [0] * len(layers)

    def count(index: int) -> None:
        calls[index] += 1

    for i, layer in enumerate(layers):
        layer.attention.register_forward_hook(lambda *_, index=i: count(index))
    step(execution)
    return calls


def test_full_shards_are_gathered_again_for_the_backward_and_gradients_leave_in_pieces(on_two_ranks):
    full = on_two_ranks(collectives, strategy="fsdp")
    kept = on_two_ranks(collectives, strategy="fsdp", sharding_strategy="SHARD_GRAD_OP")
    assert full["_reduce_scatter_base_"] == kept["_reduce_scatter_base_"] == UNITS
    assert kept["_allgather_base_"] == UNITS
    assert full["_allgather_base_"] > kept["_allgather_base_"]


@pytest.mark.parametrize("passes", [1, 3])
def test_no_shard_gathers_nothing_and_sums_whole_gradients_once_for_all_passes(on_two_ranks, passes):
    found = on_two_ranks(collectives, passes=passes, strategy="fsdp", sharding_strategy="NO_SHARD")
    assert found == {"allreduce_": UNITS}


def test_accumulated_gradients_are_reduced_after_every_pass_or_once_as_asked_for(on_two_ranks):
    shards = on_two_ranks(collectives, passes=3, strategy="fsdp")
    whole = on_two_ranks(collectives, passes=3, strategy="fsdp", fsdp_accumulation="whole")
    assert (shards["_reduce_scatter_base_"], whole["_reduce_scatter_base_"]) == (3 * UNITS, UNITS)


@pytest.mark.parametrize("fsdp_accumulation", ["shards", "whole"])
@pytest.mark.parametrize("sharding_strategy", ["FULL_SHARD", "NO_SHARD"])
def test_gradients_accumulate_to_those_of_replicas(on_two_ranks, sharding_strategy, fsdp_accumulation):
    options = {"sharding_strategy": sharding_strategy, "fsdp_accumulation": fsdp_accumulation}
    found = on_two_ranks(gradients, steps=2, passes=3, strategy="fsdp", **options)
    assert relative(found, on_two_ranks(gradients, steps=2, passes=3)) < 1e-5


def test_units_are_layers(on_two_ranks):
    layers = [f"{BACKBONE}.encoder.layer.{i}" for i in range(LAYERS)]
    assert on_two_ranks(units, strategy="fsdp") == ["", BACKBONE, *layers]


def test_gradients_of_shards_are_summed_in_the_precision_that_is_asked_for(on_two_ranks):
    exact = on_two_ranks(gradients, strategy="fsdp", bf16=True)
    rounded = on_two_ranks(gradients, strategy="fsdp", bf16=True, fsdp_reduce_dtype="bfloat16")
    assert 1e-5 < relative(rounded, exact) < 2e-2


def test_cpu_offload_keeps_shards_outside_the_device(on_two_ranks):
    assert on_two_ranks(keeps_shards_outside, strategy="fsdp", cpu_offload=True)
    assert not on_two_ranks(keeps_shards_outside, strategy="fsdp")


@pytest.mark.parametrize(("gradient_compression", "error"), [("fp16", 2**-11), ("bf16", 2**-8)])
def test_compressed_gradients_are_the_sum_but_for_rounding(on_two_ranks, gradient_compression, error):
    exact = on_two_ranks(gradients)
    compressed = on_two_ranks(gradients, gradient_compression=gradient_compression)
    assert 0 < relative(compressed, exact) < 2 * error


@pytest.mark.parametrize(
    ("activation_checkpointing", "calls"), [(0, [1, 1, 1]), (1, [2, 2, 2]), (2, [2, 1, 2]), (3, [2, 1, 1])]
)
def test_every_nth_layer_is_computed_again_in_the_backward(on_two_ranks, activation_checkpointing, calls):
    assert on_two_ranks(calls_of_layers, activation_checkpointing=activation_checkpointing) == calls
    assert on_two_ranks(calls_of_layers, activation_checkpointing=activation_checkpointing, strategy="fsdp") == calls


def relative(value: torch.Tensor, expected: torch.Tensor) -> float:
    return float((value - expected).abs().max() / expected.abs().max())


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [{}, {"strategy": "fsdp"}, {"activation_checkpointing": 1}],
    ids=["replicas", "shards", "checkpointed"],
)
def test_layers_are_compiled_once_for_all_numbers_of_chunks_and_lengths(on_two_ranks, settings):
    made = on_two_ranks(graphs_of_ten_batches, **settings)
    assert made[0] > 0
    assert made[-1] <= made[1], "the second batch may show that a number of the first varies; then all is known"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_a_compiled_layer_gives_the_same_gradients(rank_pool, tmp_path):
    write_config(tmp_path, "bert", num_hidden_layers=1)
    apart, graphs = rank_pool.run(compare_compiled, str(tmp_path), world_size=1)[0]
    assert graphs > 0, "something was compiled"
    assert apart < 1e-5


@pytest.mark.parametrize(
    ("device", "local", "mebibytes"), [("cuda", "8", 100), ("cuda", "4", None), ("cpu", "8", None)], ids=str
)
def test_gradients_have_large_buckets_on_the_gpus_of_one_host(monkeypatch, device, local, mebibytes):
    given = {}
    monkeypatch.setattr(parallelize_module, "DistributedDataParallel", lambda _, **options: given.update(options))
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    ranks = SimpleNamespace(device=torch.device(device, 0), group=lambda _: None)
    parallelize_module._replicate(torch.nn.Linear(1, 1), ranks, hyperparameters())
    assert given.get("bucket_cap_mb") == mebibytes
