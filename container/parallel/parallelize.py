"""Parallelize a plain model over the mesh, for every strategy and combination."""

import contextlib
from collections.abc import Mapping
from functools import partial

import torch
from torch import nn

from container.models.classifier import Classifier
from container.parallel.branch import split_branches
from container.parallel.execution import DirectExecution, Execution
from container.parallel.layer_wrapping import checkpoint_activations, compile_layers, compiles
from container.parallel.mesh import RankMesh
from container.parallel.pipeline import build_pipeline
from container.parallel.replication import DataParallel, replicate
from container.parallel.sharding import accumulating, shard_module
from container.parallel.tensor import apply_tensor_parallel
from contracts.hyperparameters import Hyperparameters


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
    if "ddp" in features:
        data_parallel = replicate(model, ranks, hp)
    else:  # one rank has all records, or fully_shard's hooks sum the gradients
        no_sync = partial(accumulating, model, hp) if sharded else contextlib.nullcontext
        data_parallel = DataParallel(model, 1.0, no_sync)
    return DirectExecution(model, ranks, data_parallel=data_parallel, autocast=autocast)


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
