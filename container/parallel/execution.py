"""A plain model, parallelised: what the loop calls, the same whatever the strategy."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from container.data.batch import PackedBatch
from container.models.classifier import Classifier
from container.parallel.branch import split_branches
from container.parallel.mesh import RankMesh
from container.parallel.recompute import compile_layers, recompute_layers
from container.parallel.replication import DataParallel, alone, replicate
from container.parallel.sharding import free_gathered, shard_module
from contracts.hyperparameters import Hyperparameters

Objective = Callable[[Tensor, PackedBatch], Tensor]
Autocast = Callable[[], contextlib.AbstractContextManager]


class Execution(Protocol):
    """Runs steps of a model over the mesh. One implementation per way of running a step.

    Attributes:
        module: this rank's part of the plain model, whose parameters the optimizer and checkpoints see under the plain
            model's names.
        microbatches: microbatches that one pass takes.
    """

    module: nn.Module
    ranks: RankMesh
    microbatches: int

    def forward_backward(
        self,
        microbatches: Sequence[PackedBatch],
        *,
        objective: Objective,
        normaliser: Tensor,
        scale: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Gradients of sum(objective) / normaliser over the global batch.

        Args:
            microbatches: on this rank's device; a multiple of `self.microbatches`.
            objective: (logits [B, K], batch) -> sum over the batch, a scalar.
            normaliser: the same scalar on every rank, over the GLOBAL batch; never a mean of means.
            scale: what a loss scaler does to a loss before its backward.

        Returns:
            This rank's share of that loss, 0 where it has none or only a copy: the sum over all ranks is the loss.
        """
        ...

    def predict(self, microbatches: Sequence[PackedBatch]) -> list[Tensor] | None:
        """Logits of each microbatch, [B, K] float32; None on a rank that has none or only a copy."""
        ...

    def clip_grad_norm(self, max_norm: float, *, scaled_by: float = 1.0) -> float:
        """Divide gradients by `scaled_by`, then clip their global norm to `max_norm`; returns it before clipping."""
        ...

    def weights_changed(self) -> None:
        """To be called after weights were changed in place other than by an optimizer step after a backward."""
        ...


class DirectExecution:
    """Each rank runs the whole step on its own records: replicas, shards, tensor slices, branches."""

    microbatches = 1

    def __init__(self, module: Classifier, ranks: RankMesh, *, data_parallel: DataParallel, autocast: Autocast) -> None:
        self.module = module
        self.ranks = ranks
        self._data_parallel = data_parallel
        self._autocast = autocast
        self._gradients = Gradients(module, ranks)

    def forward_backward(
        self,
        microbatches: Sequence[PackedBatch],
        *,
        objective: Objective,
        normaliser: Tensor,
        scale: Callable[[Tensor], Tensor],
    ) -> Tensor:
        share = torch.zeros((), device=self.ranks.device)
        for i, batch in enumerate(microbatches):
            last = i == len(microbatches) - 1
            with contextlib.nullcontext() if last else self._data_parallel.unsynchronised():
                with self._autocast():
                    logits = self._data_parallel.forward(batch)
                loss = objective(at_least_float32(logits), batch) / normaliser
                scale(loss * self._data_parallel.loss_factor).backward()
            share += loss.detach().to(share.dtype)
        return share if self.ranks.is_data_leader else share.zero_()

    @torch.no_grad()
    def predict(self, microbatches: Sequence[PackedBatch]) -> list[Tensor] | None:
        logits = []
        for batch in microbatches:
            with self._autocast():
                logits.append(at_least_float32(self.module(batch)))
        return logits if self.ranks.is_data_leader else None

    def clip_grad_norm(self, max_norm: float, *, scaled_by: float = 1.0) -> float:
        return self._gradients.clip(max_norm, scaled_by=scaled_by)

    def weights_changed(self) -> None:
        free_gathered(self.module)


class Gradients:
    """The gradients of this rank's part of the model, whatever holds the other parts.

    Every rank adds up the squares of its local shards, each divided by the number of ranks that hold the same numbers;
    one sum over the world then gives every rank the same norm.
    """

    def __init__(self, module: nn.Module, ranks: RankMesh) -> None:
        self._ranks = ranks
        self._copies: dict[int, list[nn.Parameter]] = {}
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parts = math.prod(ranks.size(axis) for axis in _partitioned_axes(name, parameter))
                self._copies.setdefault(ranks.world_size // parts, []).append(parameter)

    def clip(self, max_norm: float, *, scaled_by: float) -> float:
        """See Execution.clip_grad_norm."""
        square = torch.zeros((), dtype=torch.float64)
        grads = []
        for copies, parameters in self._copies.items():
            own = [_local(parameter.grad) for parameter in parameters if parameter.grad is not None]
            grads += own
            if own:
                square += _square_norm(own).cpu() / copies
        if set(self._copies) != {self._ranks.world_size}:  # else everyone holds everything already
            self._ranks.sum(square)
        else:
            square *= self._ranks.world_size
        norm = square.sqrt().item() / scaled_by
        factor = min(1.0, max_norm / (norm + 1e-6)) / scaled_by if math.isfinite(norm) else 1.0
        if factor != 1.0 and grads:
            torch._foreach_mul_(grads, factor)
        return norm


def _square_norm(tensors: list[Tensor]) -> Tensor:
    """Sum of the squares of all elements, as float64. Scalar."""
    if tensors[0].is_cuda:
        return torch.stack(torch._foreach_norm(tensors)).double().square().sum()
    # On the CPU torch adds up a whole tensor in one float32: 1e-3 off for BERT's word embeddings. Rows are short.
    rows = [torch.linalg.vector_norm(tensor, dim=-1) for tensor in tensors]
    return torch.stack([norms.double().square().sum() for norms in rows]).sum()


def _partitioned_axes(name: str, parameter: nn.Parameter) -> set[str]:
    """Mesh axes whose ranks hold different numbers under `name`, or do not hold it."""
    axes = {"pp"}
    if name.startswith("branches."):
        axes.add("branch")
    if isinstance(parameter, DTensor):
        names = parameter.device_mesh.mesh_dim_names or ()
        # is_shard() does not know the strided shards that result where two axes cut the same dimension.
        axes |= {axis for axis, placed in zip(names, parameter.placements, strict=True) if not placed.is_replicate()}
    return axes


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def at_least_float32(logits: Tensor) -> Tensor:
    """Half precision is too coarse for a loss; float64 stays."""
    return logits.float() if logits.dtype.itemsize < 4 else logits


def parallelize(
    model: Classifier,
    ranks: RankMesh,
    hp: Hyperparameters,
    *,
    precision: torch.dtype,
    tokens_per_record: Mapping[str, float] | None = None,
) -> Execution:
    """`model`, parallelised in place over the mesh's axes, computing in `precision`.

    Args:
        model: the plain model with the same weights on every rank, in float32 or float64.
        precision: of matrix products.
        tokens_per_record: mean of each text by role, to balance pipeline stages; max_sen_len where it is not known.
    """
    model.to(ranks.device)
    slices = ranks.submesh("tp")
    if slices is not None:
        from container.parallel.tensor import apply_tensor_parallel

        apply_tensor_parallel(model, slices, sequence_parallel=hp.sequence_parallel)
    if hp.compile:
        compile_layers(model)
    recompute_layers(model, every=hp.activation_checkpointing)
    group = ranks.group("branch")
    if group is not None:
        split_branches(model, group)

    composed = any(ranks.size(axis) > 1 for axis in ("pp", "branch", "tp"))
    sharded = ranks.size("dp_shard") > 1 or (ranks.data_size > 1 and (composed or hp.strategy in ("fsdp", "hsdp")))
    # Shards have their own precision, in which they also travel; everything else is cast as it is used.
    autocast = partial(_autocast, ranks.device.type, torch.float32 if sharded else precision)
    shard = partial(shard_module, ranks=ranks, hp=hp, precision=precision) if sharded else _leave
    if ranks.size("pp") > 1:
        from container.parallel.pipeline import build_pipeline

        return build_pipeline(model, ranks, hp, autocast=autocast, shard=shard, tokens_per_record=tokens_per_record)
    shard(model)
    replicated = ranks.data_size > 1 and not sharded
    data_parallel = replicate(model, ranks, hp) if replicated else alone(model)
    return DirectExecution(model, ranks, data_parallel=data_parallel, autocast=autocast)


def _leave(module: nn.Module) -> None:
    """No data axis: every rank keeps what it has."""


def _autocast(device_type: str, precision: torch.dtype) -> contextlib.AbstractContextManager:
    if precision == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype=precision)
