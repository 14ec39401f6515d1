"""Shards and sharded replicas by fully_shard (FSDP2): parameters, gradients and optimizer state over the data axes."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from container.models.encoder import TextEncoder
from container.parallel.degrees import DATA_AXES
from container.parallel.layer_wrapping import encoder_layers_of
from container.parallel.mesh import RankMesh
from contracts.hyperparameters import Hyperparameters


def shard_module(module: nn.Module, *, ranks: RankMesh, hp: Hyperparameters, precision: torch.dtype) -> None:
    """Shard `module` in place over the mesh's data axes; its gradients are summed over them.

    Over (dp_replicate, dp_shard) it is sharded inside and replicated outside; a shard axis of size 1 makes replicas.
    Encoders compute, and travel, in `precision`; the small heads, where raw numbers enter, stay in float32.

    Args:
        module: a whole model, or the part of it that one call runs; called through its own forward.
    """
    mesh = ranks.submesh(*DATA_AXES)
    assert mesh is not None, "there is a data axis"
    options = {
        "mesh": mesh,
        "offload_policy": CPUOffloadPolicy(pin_memory=ranks.device.type == "cuda")
        if hp.cpu_offload
        else OffloadPolicy(),
    }
    reshard = hp.sharding_strategy == "FULL_SHARD" and ranks.size("dp_shard") > 1
    backbones = [encoder.backbone for encoder in module.modules() if isinstance(encoder, TextEncoder)]
    inside = {child for backbone in backbones for child in backbone.modules()}
    for unit in _units(module, hp):
        policy = _policy(precision if unit in inside else torch.float32, hp, whole=unit in backbones)
        fully_shard(unit, reshard_after_forward=reshard, mp_policy=policy, **options)
    # Whatever calls the root needs its parameters at once for the backward: they stay where they are.
    fully_shard(module, reshard_after_forward=False, **options)
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            unit.set_gradient_divide_factor(1.0)  # a sum; the default is a mean
            if ranks.device.type == "cpu":
                unit.set_force_sum_reduction_for_comms(True)  # gloo has no scaled reduction


def free_gathered(module: nn.Module) -> None:
    """Free gathered parameters in `module`, so that its next forward gathers what the shards hold by then.

    A prediction without a backward leaves parameters gathered that are not freed after the forward.
    """
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            unit.reshard()


def _units(module: nn.Module, hp: Hyperparameters) -> list[nn.Module]:
    """What is gathered and freed as one, inner ones first."""
    # A backbone is a unit in any case: it is where precision changes.
    wanted = {encoder.backbone for encoder in module.modules() if isinstance(encoder, TextEncoder)}
    wanted |= set(encoder_layers_of(module) if hp.fsdp_wrap == "layer" else _large(module, hp.fsdp_min_params))
    outer_first = [unit for unit in module.modules() if unit in wanted and unit is not module]
    return outer_first[::-1]


def _large(module: nn.Module, min_params: int) -> Iterator[nn.Module]:
    """Modules with at least `min_params` parameters that no inner one has."""
    inner = [unit for child in module.children() for unit in _large(child, min_params)]
    yield from inner
    taken = {parameter for unit in inner for parameter in unit.parameters()}
    left = sum(parameter.numel() for parameter in module.parameters() if parameter not in taken)
    if left >= min_params and not isinstance(module, nn.ModuleList | nn.ModuleDict):  # those are never called
        yield module


def _policy(precision: torch.dtype, hp: Hyperparameters, *, whole: bool) -> MixedPrecisionPolicy:
    if precision == torch.float32:
        return MixedPrecisionPolicy()
    reduce = getattr(torch, hp.fsdp_reduce_dtype)
    return MixedPrecisionPolicy(
        param_dtype=precision, reduce_dtype=reduce, output_dtype=torch.float32 if whole else None
    )
