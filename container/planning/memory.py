"""Estimate the memory of a rank: run one of its training steps on fake tensors, and count their storages.

A fake tensor has a shape and no data. Model, strategy, loss and backward pass are those of a job, in a fake process
group, whose collectives do nothing. What differs on a GPU (attention, dropout, autocast) has the kernel's memory.
"""

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from container.data.batch import PackedBatch
from container.models import attention, backbone
from container.models.blocks import Carry, flatten, restrict
from container.models.classifier import Classifier
from container.models.dropout import Dropout
from container.parallel.degrees import ParallelDegrees
from container.parallel.execution import local_part
from container.parallel.mesh import RankMesh, build_mesh
from container.parallel.parallelize import divide_layers, keep_whole, parallelize
from container.parallel.pipeline import SCHEDULES, keep_gathered
from container.parallel.sharding import shard_module
from container.parallel.stages import Stage, plan_stages, real_rows
from container.planning.workload import DEVIATIONS, Workload
from container.training.objective import WeightedCrossEntropy
from contracts.consistency import microbatches_of
from contracts.hyperparameters import Hyperparameters

GIB = 1 << 30
_FLOAT = 4  # bytes
_WORKSPACE = 32 << 20  # of cuBLAS on a GPU
_STATES = {"SGD": 1, "Adam": 2, "AdamW": 2}  # numbers per trained weight


@dataclass(frozen=True)
class Memory:
    """The memory of a rank at the peak of a step, in bytes.

    Attributes:
        activations: what the peak needs beside the other three: activations, gathered weights, casts, workspaces.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations

    def in_gib(self) -> dict[str, float]:
        """Return the parts and the total in GiB."""
        parts = {name: getattr(self, name) for name in (*PARTS, "total")}
        return {name: round(size / GIB, 3) for name, size in parts.items()}

    def largest(self) -> str:
        """Return the name of the largest part."""
        return max(PARTS, key=lambda name: getattr(self, name))


PARTS = ("weights", "gradients", "optimizer", "activations")


@dataclass(frozen=True)
class Rank:
    """A rank of a job.

    Attributes:
        build: returns the plain model.
        batches: of one forward pass: a microbatch; of a pipeline, its microbatches.
        precision: dtype of matrix products.
        on_gpu: whether the rank computes on a GPU.
    """

    build: Callable[[], Classifier]
    hp: Hyperparameters
    degrees: ParallelDegrees
    batches: Sequence[PackedBatch]
    precision: torch.dtype
    on_gpu: bool


def job_memory(
    work: Workload, degrees: ParallelDegrees, *, precision: torch.dtype, on_gpu: bool, margin: float = DEVIATIONS
) -> Memory:
    """Return the memory of a step of the job's largest rank; see Workload.batch and step_memory."""
    count = microbatches_of(work.hp, degrees.pp)
    batch = work.batch(max(1, work.hp.batch_size // count), margin=margin)
    memory = step_memory(Rank(work.build, work.hp, degrees, [batch] * count, precision, on_gpu))
    # Graphs keep their own; with auto, they are made only where these fit.
    return replace(memory, activations=2 * memory.activations) if work.hp.cuda_graphs is True else memory


def step_memory(rank: Rank) -> Memory:
    """Return the memory of a step of the rank with the largest total.

    Raises:
        ContractError: the model cannot be built or divided like this.
    """
    degrees, hp = rank.degrees, rank.hp
    if degrees.tp > 1 and degrees.data_size > 1:
        return _sharded_slices(rank)
    local = replace(degrees, pp=1)
    if "ddp" in degrees.features(hp):
        local = ParallelDegrees()  # DistributedDataParallel refuses fake tensors; its buckets hold the gradients
    run = partial(_run_pipeline if degrees.pp > 1 else _run_step, rank)
    with fake_ranks(local, torch.device("cpu")) as ranks, _kernels_of(on_gpu=rank.on_gpu):
        if hp.architecture.encoder == "transformer":
            with FakeTensorMode(allow_non_fake_inputs=True):
                memory = run(ranks=ranks)
        else:
            memory = run(ranks=ranks)  # recurrent layers refuse fake tensors; these encoders are small
    if hp.cpu_offload and "fsdp" in degrees.features(hp):
        memory = replace(memory, weights=0, gradients=0, optimizer=0)
    return memory


def _sharded_slices(rank: Rank) -> Memory:
    """Return the memory of slices that are sharded: torch cannot run their step on fake tensors.

    Sharding adds to the activations of a slice what it adds to those of the whole model, divided by the slices.
    """
    degrees = rank.degrees
    alone = replace(degrees, dp_replicate=1, dp_shard=1)
    sliced, whole = (step_memory(replace(rank, degrees=each)) for each in (alone, replace(alone, tp=1)))
    hp = rank.hp.model_copy(update={"strategy": "fsdp", "tp_size": 1})
    sharded = step_memory(replace(rank, hp=hp, degrees=replace(degrees, tp=1)))
    added = (sharded.activations - whole.activations) / degrees.tp
    weights, gradients, optimizer = (
        part / degrees.dp_shard for part in (sliced.weights, sliced.gradients, sliced.optimizer)
    )
    return Memory(weights, gradients, optimizer, max(0.0, sliced.activations + added))


def _model_of(rank: Rank, tracker: "StorageTracker") -> Classifier:
    model = rank.build().train()
    for weight in model.parameters():
        tracker.add(weight)
    return model


def _run_step(rank: Rank, *, ranks: RankMesh) -> Memory:
    tracker = StorageTracker()
    model = _model_of(rank, tracker)
    objective = WeightedCrossEntropy([1.0] * rank.hp.num_classes, ranks.device)
    with tracker:
        execution = parallelize(model, ranks, rank.hp, precision=rank.precision)
        before = tracker.restart()
        accumulates, features = rank.hp.accumulate_grad_batches > 1, rank.degrees.features(rank.hp)
        whole = accumulates and "fsdp" in features and rank.hp.fsdp_accumulation == "whole"
        if (accumulates and not whole) or "ddp" in features:
            _allocate_gradients(model)  # of the pass before, or of the buckets
        batches = [_copied(batch) for _ in range(2 if whole else 1) for batch in rank.batches]
        execution.forward_backward(
            batches, objective=objective, normaliser=torch.ones(()), scale_loss=lambda loss: loss
        )
    return _memory(rank, model, tracker.peak - before)


def _allocate_gradients(model: nn.Module) -> None:
    for weight in model.parameters():
        if weight.requires_grad:
            weight.grad = torch.empty_like(weight)


def _run_pipeline(rank: Rank, *, ranks: RankMesh) -> Memory:
    """Return the larger memory of two ranks along pp: the first holds most microbatches, another has most weights."""
    hp, num_ranks, schedule = rank.hp, rank.degrees.pp, SCHEDULES[rank.hp.pp_schedule]
    rank_of = [schedule.rank_of(stage, num_ranks) for stage in range(num_ranks * schedule.stages_per_rank)]
    weights = [0] * num_ranks
    for plan in plan_stages(rank.build(), hp, rank_of=rank_of):
        weights[rank_of[plan.index]] += plan.parameters
    each = (_run_stages(rank, rank_of, ranks=ranks, pp_rank=pp_rank) for pp_rank in {0, weights.index(max(weights))})
    return max(each, key=lambda memory: memory.total)


def _run_stages(rank: Rank, rank_of: Sequence[int], *, ranks: RankMesh, pp_rank: int) -> Memory:
    """Run the stages of a rank alone on one microbatch, and add what the others keep that its schedule holds."""
    hp, num_ranks = rank.hp, rank.degrees.pp
    sharded = "fsdp" in rank.degrees.features(hp)
    shard = partial(shard_module, ranks=ranks, hp=hp, precision=rank.precision) if sharded else keep_whole
    casts = rank.precision != torch.float32 and not sharded
    autocast = partial(torch.autocast, "cpu", dtype=rank.precision if casts else torch.bfloat16, enabled=casts)
    tracker = StorageTracker()
    model = _model_of(rank, tracker)
    held = microbatches_held(hp.pp_schedule, len(rank.batches), ranks=num_ranks, pp_rank=pp_rank)
    with tracker:
        divide_layers(model, ranks, hp)
        plans = [plan for plan in plan_stages(model, hp, rank_of=rank_of) if rank_of[plan.index] == pp_rank]
        stages = [Stage(model, plan, autocast=autocast, dtype=torch.float32) for plan in plans]
        restrict(model, [block for plan in plans for block in plan.blocks], within=flatten(model), in_place=True)
        for stage in stages:
            shard(stage)
            keep_gathered(stage, hp)
        before = tracker.restart()
        earlier = held < len(rank.batches) or hp.accumulate_grad_batches > 1  # microbatches have left gradients
        if sharded:
            _keep_gradients(stages, rank.batches[0] if earlier else None)
        elif earlier:
            _allocate_gradients(model)
        pending = []
        for stage in stages:
            start = tracker.now
            inputs_and_outputs = _run_forward(stage, rank.batches[0])
            # Later microbatches find the weights that fully_shard gathered; autocast casts weights for each anew.
            first = sharded and not earlier
            gathered = sum(weight.numel() for weight in stage.parameters()) * rank.precision.itemsize if first else 0
            pending.append((*inputs_and_outputs, max(0, tracker.now - start - gathered)))
        others = round((held - 1) * sum(size for *_, size in pending))
        while pending:
            received, sent, _ = pending.pop()
            torch.autograd.backward(sent, [torch.empty_like(tensor) for tensor in sent])
            del received, sent
        peak = tracker.peak + others
        if sharded:
            tracker.restart()
            for stage in stages:
                PipelineStage.perform_reduce_grad(cast(PipelineStage, SimpleNamespace(submod=stage)), 1)
            peak = max(peak, tracker.peak)
    buffers = sum(_bytes(carry, rank.batches, model) for plan in plans for carry in (plan.receives, plan.sends))
    return _memory(rank, model, peak - before + buffers)


def _keep_gradients(stages: Sequence[Stage], batch: PackedBatch | None) -> None:
    """Have sharded stages keep whole gradients until the last microbatch, as a schedule does; make those of `batch`."""
    for stage in stages:
        assert isinstance(stage, FSDPModule), "the stage is sharded"
        stage.set_is_last_backward(False)
        stage.set_reshard_after_backward(False)
        stage.set_requires_gradient_sync(False)
        if batch is not None:
            _, sent = _run_forward(stage, batch)
            torch.autograd.backward(sent, [torch.empty_like(tensor) for tensor in sent])


def _run_forward(stage: Stage, batch: PackedBatch) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Return the inputs and outputs of a stage for a microbatch."""
    carry = stage.plan.receives
    rows = real_rows(batch, stage.text_indices).rows(carry)
    received = [torch.empty(n, width).requires_grad_() for n, width in zip(rows, carry.widths, strict=True)]
    result = stage(*received, batch=_copied(batch))
    return received, result if isinstance(result, tuple) else (result,)


def microbatches_held(schedule: str, count: int, *, ranks: int, pp_rank: int) -> float:
    """Return of how many microbatches a rank of the pipeline keeps activations; benchmarks/log.md has measurements."""
    if schedule == "GPipe":
        return count
    if schedule == "1F1B":
        return min(count, ranks - pp_rank)
    if schedule == "Interleaved1F1B":
        return min(count, (2 * (ranks - pp_rank - 1) + ranks + 1) / 2)
    return min(count, ranks)


def _bytes(carry: Carry, batches: Sequence[PackedBatch], model: Classifier) -> int:
    """Return the bytes of the buffers of what a stage receives or sends: values or gradients of each microbatch."""
    rows = [real_rows(batch, model.text_indices).rows(carry) for batch in batches]
    return sum(_FLOAT * n * width for each in rows for n, width in zip(each, carry.widths, strict=True))


def _memory(rank: Rank, model: nn.Module, peak: float) -> Memory:
    """Return the memory of a rank whose step allocates up to `peak` bytes beside weights and optimizer state."""
    parts = [(local_part(weight), weight.requires_grad) for weight in model.parameters()]
    weights = sum(part.numel() * part.element_size() for part, _ in parts)
    trained = sum(part.numel() * part.element_size() for part, is_trained in parts if is_trained)
    averages = 1 if rank.hp.ema_decay else 0
    states = _STATES[rank.hp.optimizer] if rank.hp.optimizer != "SGD" or rank.hp.momentum else 0
    workspace = _WORKSPACE if rank.on_gpu else 0
    return Memory(weights, trained, trained * (states + averages), max(0.0, peak - trained) + workspace)


class StorageTracker(TorchDispatchMode):
    """Count the bytes of all storages that are created in the block, until they are freed.

    Attributes:
        now, peak: bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "StorageTracker":
        resize = torch.UntypedStorage.resize_

        def tracked(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:  # fully_shard frees like this
            result = resize(storage, size)
            self._resize(storage._cdata, size)
            return result

        self._stack.enter_context(replaced(torch.UntypedStorage, "resize_", tracked))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.add(leaf)
        return result

    def add(self, tensor: Tensor) -> None:
        """Count the storage of `tensor`, once."""
        storage = local_part(tensor).untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            self._resize(key, storage.nbytes())
            weakref.finalize(storage, self._free, key).atexit = False

    def restart(self) -> int:
        """Return the bytes now, from which the next peak starts."""
        gc.collect()
        self.peak = self.now
        return self.now

    def _resize(self, key: int, size: int) -> None:
        if key in self._sizes:
            self.now += size - self._sizes[key]
            self.peak = max(self.peak, self.now)
            self._sizes[key] = size

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)


@contextmanager
def fake_ranks(degrees: ParallelDegrees, device: torch.device) -> Iterator[RankMesh]:
    """Yield the mesh of rank 0 in a fake process group."""
    assert not dist.is_initialized(), "a plan runs in a process of its own"
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=degrees.product)
    try:
        yield build_mesh(degrees, device=device)
    finally:
        dist.destroy_process_group()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of `owner` in the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _kernels_of(*, on_gpu: bool) -> Iterator[None]:
    """Allocate what the kernels of the device allocate; attention takes one call instead of one for each chunk."""
    with ExitStack() as stack:
        stack.enter_context(replaced(attention.PackedLayout, "attend", _attend_on_gpu if on_gpu else _attend_on_cpu))
        stack.enter_context(replaced(nn.Module, "to", lambda module, *_, **__: module))  # fake modules cannot be moved
        stack.enter_context(replaced(backbone, "_check_unknown_family", lambda *_, **__: True))
        if on_gpu:
            stack.enter_context(replaced(Dropout, "forward", _drop))
        yield


def _attend_on_gpu(_: Any, query: Tensor, key: Tensor, value: Tensor, **__: Any) -> Tensor:
    query, key, value = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))  # [N, heads, head_dim]
    return _Attention.apply(query.to(value.dtype), key.to(value.dtype), value).transpose(0, 1).unsqueeze(0)


def _attend_on_cpu(_: Any, query: Tensor, key: Tensor, value: Tensor, **__: Any) -> Tensor:
    dtype = torch.promote_types(query.dtype, torch.float32)
    parts = (tensor.to(dtype).contiguous() for tensor in (query, key, value))
    return torch.cat([_Attention.apply(*parts)]).to(query.dtype)  # of the contexts of all chunks


class _Attention(torch.autograd.Function):
    """Allocate and keep what a kernel for chunks of several lengths does. [N, heads, head_dim] or [1, heads, N, ...]"""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        context, sums = torch.empty_like(query), query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, context, sums)
        return context

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, *_ = ctx.saved_tensors
        _ = gradients[0].new_empty(query.shape, dtype=torch.float32)  # where the kernel adds up the queries' gradients
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _copied(batch: PackedBatch) -> PackedBatch:
    return batch.each(torch.empty_like)


def _drop(module: Dropout, hidden: Tensor) -> Tensor:
    if not module.training or module.p == 0:
        return hidden
    return torch.native_dropout(hidden, module.p, True)[0]  # with a mask of bytes
