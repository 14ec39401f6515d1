"""A plain model, parallelised: what the loop calls, the same whatever the strategy."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from container.data.batch import PackedBatch
from container.models.classifier import Classifier
from container.parallel.mesh import RankMesh
from container.parallel.replication import DataParallel
from container.parallel.sharding import free_gathered

Objective = Callable[[Tensor, PackedBatch], Tensor]
Autocast = Callable[[], contextlib.AbstractContextManager]


class Execution(Protocol):
    """Runs steps of a model over the mesh. One implementation per way of running a step.

    Attributes:
        module: this rank's part of the plain model, whose parameters the optimizer and checkpoints see under the plain
            model's names.
        microbatches: microbatches that one pass takes.
    """

    module: Classifier
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
            with contextlib.nullcontext() if last else self._data_parallel.no_sync():
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
        norm = self._gradients.clip(max_norm, scaled_by=scaled_by)
        if not math.isfinite(norm):
            self._data_parallel.forget()  # the feedback of this step's errors would make every later one as bad
        return norm

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
            own = [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
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
            # As torch.nn.utils.clip_grads_with_norm_ does; torch does not export it.
            torch._foreach_mul_(grads, factor)  # pyright: ignore[reportPrivateImportUsage]
        return norm


def _square_norm(tensors: list[Tensor]) -> Tensor:
    """Sum of the squares of all elements, as float64. Scalar."""
    if tensors[0].is_cuda:
        norms = torch._foreach_norm(tensors)  # pyright: ignore[reportPrivateImportUsage]  as clip_grad_norm_ does
        return torch.stack(norms).double().square().sum()
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


def local_part(tensor: Tensor) -> Tensor:
    """Return what this rank holds of `tensor`: the local part of a DTensor, or all of a plain tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def at_least_float32(logits: Tensor) -> Tensor:
    """Half precision is too coarse for a loss; float64 stays."""
    return logits.float() if logits.dtype.itemsize < 4 else logits
