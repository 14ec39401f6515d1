"""Replicas by DistributedDataParallel, with what it can do to gradients on their way."""

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from container.parallel.mesh import RankMesh
from contracts.hyperparameters import Hyperparameters

# torch 2.13 renamed it and warns about the old name.
_NO_BUFFERS: dict[str, Any] = {
    next(
        name
        for name in ("forward_sync_buffers", "broadcast_buffers")
        if name in inspect.signature(DistributedDataParallel).parameters
    ): False
}


def _nothing() -> None:
    """Nothing is remembered."""


@dataclass(frozen=True)
class DataParallel:
    """How the gradients of ranks with different records come together.

    Attributes:
        forward: what a training step's forward goes through.
        loss_factor: what a rank's loss is multiplied by so that reduced gradients are the SUM over ranks.
        no_sync: a context in which a backward pass only accumulates gradients.
        forget: drop what compression remembers of earlier gradients; on every rank alike.
    """

    forward: nn.Module
    loss_factor: float
    no_sync: Callable[[], contextlib.AbstractContextManager]
    forget: Callable[[], None] = _nothing


def alone(module: nn.Module) -> DataParallel:
    """Nothing is left to do: one rank has all records, or the module's own hooks sum its gradients."""
    return DataParallel(module, 1.0, contextlib.nullcontext)


def replicate(module: nn.Module, ranks: RankMesh, hp: Hyperparameters) -> DataParallel:
    """`module` on every rank of the mesh's replica axis; gradients are averaged in buckets, compressed where asked."""
    replicas = DistributedDataParallel(
        module,
        device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None,
        process_group=ranks.group("dp_replicate"),
        bucket_cap_mb=hp.bucket_cap_mb,
        gradient_as_bucket_view=hp.gradient_as_bucket_view,
        **_NO_BUFFERS,  # the model's buffers are constants
    )
    group = ranks.group("dp_replicate")
    forget = _nothing
    if hp.gradient_compression == "fp16":
        replicas.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif hp.gradient_compression == "bf16":
        replicas.register_comm_hook(group, compress_to_bfloat16)
    elif hp.gradient_compression == "powersgd":
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=hp.powersgd_rank, start_powerSGD_iter=10)
        replicas.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        forget = partial(_forget_errors, state)
    return DataParallel(replicas, float(ranks.data_size), replicas.no_sync, forget)


def _forget_errors(state: powerSGD_hook.PowerSGDState) -> None:
    for memory in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
        memory.clear()


def compress_to_bfloat16(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A bucket's mean over `group`, sent in bfloat16. As torch's own, which refuses to run without NCCL."""
    buffer = bucket.buffer()
    half = buffer.bfloat16().div_(group.size())
    work = dist.all_reduce(half, group=group, async_op=True)
    assert work is not None, "this rank is in the group"
    return work.get_future().then(lambda future: buffer.copy_(future.value()[0]))
