"""Replicate a model with DistributedDataParallel, with optional gradient compression."""

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

# torch 2.13 renames this argument and warns about the old name.
_NO_BUFFERS: dict[str, Any] = {
    next(
        name
        for name in ("forward_sync_buffers", "broadcast_buffers")
        if name in inspect.signature(DistributedDataParallel).parameters
    ): False
}


def _no_compression() -> None:
    """Do nothing: there is no state of earlier gradients."""


@dataclass(frozen=True)
class DataParallel:
    """The reduction of gradients over ranks with different records.

    Attributes:
        forward: the module that a training step calls.
        loss_factor: factor of each rank's loss that makes the reduced gradients the SUM over ranks.
        no_sync: a context in which a backward pass accumulates gradients, without some or all communication.
        reset_compression: delete the compression's state of earlier gradients; called on every rank.
    """

    forward: nn.Module
    loss_factor: float
    no_sync: Callable[[], contextlib.AbstractContextManager]
    reset_compression: Callable[[], None] = _no_compression


def replicate(module: nn.Module, ranks: RankMesh, hp: Hyperparameters) -> DataParallel:
    """Replicate `module` over the mesh's replica axis; gradients are averaged in buckets, compressed if hp says so."""
    group = ranks.group("dp_replicate")
    replicas = DistributedDataParallel(
        module,
        device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None,
        process_group=group,
        gradient_as_bucket_view=True,
        **_NO_BUFFERS,  # the model's buffers are constants
    )
    reset = _no_compression
    if hp.gradient_compression == "fp16":
        replicas.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif hp.gradient_compression == "bf16":
        replicas.register_comm_hook(group, compress_to_bfloat16)
    elif hp.gradient_compression == "powersgd":
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=hp.powersgd_rank, start_powerSGD_iter=10)
        replicas.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        reset = partial(_reset, state)
    return DataParallel(replicas, float(ranks.data_size), replicas.no_sync, reset)


def _reset(state: powerSGD_hook.PowerSGDState) -> None:
    for memory in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
        memory.clear()


def compress_to_bfloat16(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over `group` in bfloat16. torch's own hook does the same, but requires NCCL."""
    buffer = bucket.buffer()
    half = buffer.bfloat16().div_(group.size())
    work = dist.all_reduce(half, group=group, async_op=True)
    assert work is not None, "this rank is in the group"
    return work.get_future().then(lambda future: buffer.copy_(future.value()[0]))
