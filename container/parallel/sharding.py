"""Shard parameters, gradients and optimizer state over the data axes with fully_shard (FSDP2)."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from container.models.encoder import TextEncoder, encoder_layers_of
from container.parallel.degrees import DATA_AXES
from container.parallel.mesh import RankMesh
from contracts.hyperparameters import Hyperparameters


def shard_module(module: nn.Module, *, ranks: RankMesh, hp: Hyperparameters, precision: torch.dtype) -> None:
    """Shard `module` in place over the mesh's data axes; its gradients are summed over them.

    dp_shard shards and dp_replicate replicates the shards; a shard axis of size 1 makes replicas. Encoders are computed
    and communicated in `precision`; the small heads, which read unscaled numbers, in float32.

    Args:
        module: a whole model or a pipeline stage; the caller runs its forward.
    """
    mesh = ranks.submesh(*DATA_AXES)
    assert mesh is not None, "there is a data axis"
    offload = CPUOffloadPolicy(pin_memory=ranks.device.type == "cuda") if hp.cpu_offload else OffloadPolicy()
    shard = partial(fully_shard, mesh=mesh, offload_policy=offload)
    _leave_recurrent_weights_in_place(module)
    reshard_after_forward = hp.sharding_strategy == "FULL_SHARD" and ranks.size("dp_shard") > 1
    backbones = [encoder.backbone for encoder in module.modules() if isinstance(encoder, TextEncoder)]
    in_backbones = {child for backbone in backbones for child in backbone.modules()}
    for unit in _units(module):
        policy = _policy(precision if unit in in_backbones else torch.float32, hp, is_backbone=unit in backbones)
        shard(unit, reshard_after_forward=reshard_after_forward, mp_policy=policy)
    # The backward pass needs the root's parameters immediately after its forward: they stay gathered.
    shard(module, reshard_after_forward=False)
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            unit.set_gradient_divide_factor(1.0)  # a sum; the default is a mean
            # Otherwise torch asks for a sum scaled by 1.0, which gloo does not have and NVLink switches do not compute.
            unit.set_force_sum_reduction_for_comms(True)


@contextmanager
def accumulating(module: nn.Module, hp: Hyperparameters) -> Iterator[None]:
    """Keep the gradients of the block's backward passes on this rank: all of them, or those between replicas.

    The first backward pass after the block reduces their sum.
    """
    assert isinstance(module, FSDPModule), "the root is sharded"
    communicate = (
        module.set_requires_gradient_sync if hp.fsdp_accumulation == "whole" else module.set_requires_all_reduce
    )
    communicate(False)
    try:
        yield
    finally:
        communicate(True)


def reshard(module: nn.Module) -> None:
    """Free gathered parameters in `module`, so that its next forward gathers the current shards.

    After a forward without a backward, parameters with reshard_after_forward=False are still gathered.
    """
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            unit.reshard()


def _leave_recurrent_weights_in_place(module: nn.Module) -> None:
    """Stop recurrent layers in `module` from moving their weights into one buffer, as they do for cuDNN.

    fully_shard gathers weights into the buffers of the first forward: a moved weight would never change again.
    """
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase):
            layer.flatten_parameters = lambda: None


def _units(module: nn.Module) -> list[nn.Module]:
    """Return the modules whose parameters are gathered and freed together, inner ones first."""
    # Every backbone is a unit, because the precision changes there.
    wanted = {encoder.backbone for encoder in module.modules() if isinstance(encoder, TextEncoder)}
    wanted |= set(encoder_layers_of(module))
    return [unit for unit in module.modules() if unit in wanted and unit is not module][::-1]


def _policy(precision: torch.dtype, hp: Hyperparameters, *, is_backbone: bool) -> MixedPrecisionPolicy:
    if precision == torch.float32:
        return MixedPrecisionPolicy()
    output = torch.float32 if is_backbone else None
    return MixedPrecisionPolicy(precision, reduce_dtype=getattr(torch, hp.fsdp_reduce_dtype), output_dtype=output)
