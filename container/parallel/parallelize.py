"""Parallelize a plain model over the mesh, for every strategy and combination."""

import contextlib
import inspect
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils._triton import has_triton
from torch.utils.checkpoint import checkpoint

from container.job.log_once import log_once
from container.job.processes import missing_for_compile
from container.models.classifier import Classifier
from container.models.encoder import encoder_layers_of
from container.parallel.branch import split_branches
from container.parallel.degrees import ParallelDegrees
from container.parallel.execution import DirectExecution, Execution
from container.parallel.mesh import RankMesh, is_one_host
from container.parallel.pipeline import build_pipeline
from container.parallel.sharding import accumulating, shard_module
from container.parallel.tensor import apply_tensor_parallel
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

_BUCKET_MIB = 100  # of gradients; torch's default of 25 is for networks between hosts
_MOST_GRAPHS = 64  # of the layers of a class; torch's default is 8
# torch 2.13 renames this argument and warns about the old name.
_NO_BUFFERS: dict[str, Any] = {
    next(
        name
        for name in ("forward_sync_buffers", "broadcast_buffers")
        if name in inspect.signature(DistributedDataParallel).parameters
    ): False
}


def parallelize(
    model: Classifier,
    ranks: RankMesh,
    hp: Hyperparameters,
    *,
    precision: torch.dtype,
    tokens_per_record: Mapping[str, float] | None = None,
) -> Execution:
    """Parallelize `model` in place over the mesh's axes and return its execution.

    Args:
        model: the plain model with the same weights on every rank, in float32 or float64.
        precision: dtype of matrix products.
        tokens_per_record: mean of each text by role, to balance pipeline stages; max_sen_len by default.
    """
    model.to(ranks.device)
    divide_layers(model, ranks, hp)
    features = ranks.degrees.features(hp)
    sharded = "fsdp" in features
    # fully_shard casts by its own policy; otherwise autocast does.
    autocast = partial(_autocast, ranks.device.type, torch.float32 if sharded else precision)
    shard = partial(shard_module, ranks=ranks, hp=hp, precision=precision) if sharded else keep_whole
    if ranks.size("pp") > 1:
        return build_pipeline(model, ranks, hp, autocast=autocast, shard=shard, tokens_per_record=tokens_per_record)
    shard(model)
    execution = partial(DirectExecution, model, ranks, autocast=autocast)
    if "ddp" in features:
        replicas = _replicate(model, ranks, hp)
        return execution(forward=replicas, loss_factor=float(ranks.data_size), no_sync=replicas.no_sync)
    # One rank has all records, or fully_shard's hooks sum the gradients.
    no_sync = partial(accumulating, model, hp) if sharded else contextlib.nullcontext
    return execution(forward=model, loss_factor=1.0, no_sync=no_sync)


def divide_layers(model: Classifier, ranks: RankMesh, hp: Hyperparameters) -> None:
    """Slice, compile and checkpoint the layers of `model` in place, and keep this rank's branch."""
    slices = ranks.submesh("tp")
    if slices is not None:
        apply_tensor_parallel(model, slices, sequence_parallel=hp.sequence_parallel)
    if compiles(hp, ranks.device, ranks.degrees):
        compile_layers(model)
    checkpoint_activations(model, every=hp.activation_checkpointing)
    group = ranks.group("branch")
    if group is not None:
        split_branches(model, group)


def keep_whole(module: nn.Module) -> None:
    """Leave `module` unsharded."""


def _autocast(device_type: str, precision: torch.dtype) -> contextlib.AbstractContextManager:
    if precision == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype=precision)


def checkpoint_activations(module: nn.Module, *, every: int) -> None:
    """Recompute each `every`-th encoder layer's activations from its input in the backward pass; 0 = no layer.

    The recomputed dropout masks are the same. Only the layer's forward is replaced, so parameter names do not change.
    """
    for layer in encoder_layers_of(module)[::every] if every else ():
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def compiles(hp: Hyperparameters, device: torch.device, degrees: ParallelDegrees) -> bool:
    """Return whether to compile encoder layers: as hp.compile says; auto = on GPUs, where a compiler exists.

    Layers of pipelines and slices are compiled only if asked for.
    """
    if hp.compile != "auto":
        return hp.compile
    if device.type != "cuda":
        return False
    reason = _reason_not_to_compile(degrees)
    if reason is not None:
        log_once(logger, logging.INFO, f"compile: auto: encoder layers are not compiled: {reason}")
    return reason is None


def _reason_not_to_compile(degrees: ParallelDegrees) -> str | None:
    sliced = [axis for axis in ("pp", "tp") if getattr(degrees, axis) > 1]
    if sliced:
        return f"the layers of {' and '.join(sliced)} are compiled with compile=true only"
    return missing_for_compile() if has_triton() else "PyTorch finds no Triton for this GPU"


def compile_layers(module: nn.Module, *, backend: str = "inductor") -> None:
    """Compile each encoder layer's forward for any number of tokens and chunks; its hooks are not compiled.

    Layers of one class share a limit of graphs. Each encoder needs one for training, and more for its evaluation, for
    float32, and for layers of another kind.

    Call this before `checkpoint_activations`: torch.compile cannot compile the function that a checkpoint calls.

    Args:
        backend: of torch.compile; inductor needs a C++ compiler, Python's header files and, on GPUs, Triton.
    """
    layers = encoder_layers_of(module)
    if layers:
        log_once(logger, logging.INFO, "encoder layers are compiled: the first steps take longer")
    torch._dynamo.config.recompile_limit = _MOST_GRAPHS
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True, backend=backend)


def _replicate(module: nn.Module, ranks: RankMesh, hp: Hyperparameters) -> DistributedDataParallel:
    """Replicate `module` over the mesh's replica axis; gradients are averaged in buckets, compressed if hp says so."""
    group = ranks.group("dp_replicate")
    replicas = DistributedDataParallel(
        module,
        device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None,
        process_group=group,
        gradient_as_bucket_view=True,
        **({"bucket_cap_mb": _BUCKET_MIB} if ranks.device.type == "cuda" and is_one_host() else {}),
        **_NO_BUFFERS,  # the model's buffers are constants
    )
    if hp.gradient_compression != "none":
        hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": compress_to_bfloat16}
        replicas.register_comm_hook(group, hooks[hp.gradient_compression])
    return replicas


def compress_to_bfloat16(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over `group` in bfloat16. torch's own hook does the same, but requires NCCL."""
    buffer = bucket.buffer()
    half = buffer.bfloat16().div_(group.size())
    work = dist.all_reduce(half, group=group, async_op=True)
    assert work is not None, "this rank is in the group"
    return work.get_future().then(lambda future: buffer.copy_(future.value()[0]))
