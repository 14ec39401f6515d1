"""Run steps of a parallelized model: the interface that the training loop calls, the same for every strategy."""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from container.data.batch import PackedBatch
from container.models.classifier import Classifier
from container.parallel.mesh import RankMesh
from container.parallel.sharding import reshard

Objective = Callable[[Tensor, PackedBatch], Tensor]
Microbatch = Callable[[PackedBatch, Tensor], Tensor]  # adds the gradients of a batch; normaliser -> loss
Autocast = Callable[[], contextlib.AbstractContextManager]


class Execution:
    """Runs steps of a model over the mesh.

    Attributes:
        module: this rank's part of the plain model; its parameters have the plain model's names.
        num_microbatches: the number of microbatches in one pass.
        graphs: called with a Microbatch and its arguments instead of it; None without (training/step_graph.py).
    """

    num_microbatches = 1
    graphs: Callable[[Microbatch, PackedBatch, Tensor], Tensor] | None = None

    def __init__(self, module: Classifier, ranks: RankMesh) -> None:
        self.module = module
        self.ranks = ranks
        self._gradients = Gradients(module, ranks)

    def forward_backward(
        self,
        microbatches: Sequence[PackedBatch],
        *,
        objective: Objective,
        normaliser: Tensor,
        scale_loss: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Compute the gradients of sum(objective) / normaliser over the global batch.

        Args:
            microbatches: on this rank's device; their number is a multiple of `num_microbatches`.
            objective: (logits [B, K], batch) -> sum over the batch, a scalar.
            normaliser: a scalar of the GLOBAL batch, the same on every rank; never a mean of means.
            scale_loss: applied to each loss before its backward pass.

        Returns:
            This rank's part of the loss, 0 if it has none or only a copy; the sum over all ranks is the loss.
        """
        raise NotImplementedError

    def predict(self, microbatches: Sequence[PackedBatch]) -> list[Tensor] | None:
        """Return the logits of each microbatch, [B, K] float32; None on a rank that has none or only a copy."""
        raise NotImplementedError

    def gradient_norm(self, max_norm: float, *, loss_scale: float = 1.0) -> "GradientNorm":
        """Return the global norm of gradients / `loss_scale`, and what clips it to `max_norm`; gradients stay."""
        return self._gradients.norm(max_norm, loss_scale=loss_scale)

    def figures(self, *, detail: bool) -> dict[str, float]:  # noqa: ARG002
        """Log and return what was measured since the last call, by name; called by all ranks together.

        Args:
            detail: log to the log file only.
        """
        return {}

    def reshard(self) -> None:
        """Free gathered parameters. Call this after weights were changed in place outside a training step."""
        reshard(self.module)


class DirectExecution(Execution):
    """Runs the whole step on every rank: replicas, shards, tensor slices, branches.

    Args:
        forward: the module that a training step calls: `module`, or its replica.
        loss_factor: factor of each rank's loss that makes the reduced gradients the SUM over ranks.
        no_sync: a context in which a backward pass accumulates gradients, without some or all communication.
    """

    def __init__(
        self,
        module: Classifier,
        ranks: RankMesh,
        *,
        forward: nn.Module,
        loss_factor: float,
        no_sync: Callable[[], contextlib.AbstractContextManager],
        autocast: Autocast,
    ) -> None:
        super().__init__(module, ranks)
        self._forward = forward
        self._loss_factor = loss_factor
        self._no_sync = no_sync
        self._autocast = autocast

    def forward_backward(
        self,
        microbatches: Sequence[PackedBatch],
        *,
        objective: Objective,
        normaliser: Tensor,
        scale_loss: Callable[[Tensor], Tensor],
    ) -> Tensor:
        def compute(batch: PackedBatch, normaliser: Tensor) -> Tensor:
            with self._autocast():
                logits = self._forward(batch)
            loss = objective(at_least_float32(logits), batch) / normaliser
            scale_loss(loss * self._loss_factor).backward()
            return loss.detach()

        run = compute if self.graphs is None else partial(self.graphs, compute)
        loss_sum = torch.zeros((), device=self.ranks.device)
        for i, batch in enumerate(microbatches):
            last = i == len(microbatches) - 1
            with contextlib.nullcontext() if last else self._no_sync():
                loss_sum += run(batch, normaliser).to(loss_sum.dtype)
        return loss_sum if self.ranks.is_data_leader else loss_sum.zero_()

    @torch.no_grad()
    def predict(self, microbatches: Sequence[PackedBatch]) -> list[Tensor] | None:
        logits = []
        for batch in microbatches:
            with self._autocast():
                logits.append(at_least_float32(self.module(batch)))
        return logits if self.ranks.is_data_leader else None


@dataclass(frozen=True)
class GradientNorm:
    """The global norm of the gradients, on their device: the host does not wait for it.

    Attributes:
        value: the norm before clipping. Scalar, float64
        divisor: of the gradients: clips them, and undoes the scale of the loss. Scalar, float32; None = 1
        nonfinite: 1 if the norm is not finite, so that the step must be skipped, else 0. Scalar, float32
    """

    value: Tensor
    divisor: Tensor | None
    nonfinite: Tensor


class Gradients:
    """The gradients of this rank's part of the model.

    To compute the global norm, each rank sums the squares of its local shards. It divides each by the number of ranks
    with the same shard. One sum over all ranks then gives every rank the same norm.
    """

    def __init__(self, module: nn.Module, ranks: RankMesh) -> None:
        self._ranks = ranks
        # With cpu_offload, the shards are on the host.
        self._device = next((parameter.device for parameter in module.parameters()), ranks.device)
        self._copies: dict[int, list[nn.Parameter]] = {}
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parts = math.prod(ranks.size(axis) for axis in _partitioned_axes(name, parameter))
                self._copies.setdefault(ranks.world_size // parts, []).append(parameter)

    def norm(self, max_norm: float, *, loss_scale: float) -> GradientNorm:
        """See Execution.gradient_norm."""
        square = torch.zeros((), dtype=torch.float64, device=self._device)
        for copies, parameters in self._copies.items():
            local = [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
            if local:
                square += _square_norm(local) / copies
        if set(self._copies) != {self._ranks.world_size}:  # otherwise every rank has all gradients
            self._ranks.sum(square)
        else:
            square *= self._ranks.world_size
        norm = square.sqrt() / loss_scale
        divisor = None
        if max_norm < math.inf or loss_scale != 1:
            divisor = ((norm + 1e-6) / max_norm).clamp(min=1) * loss_scale  # as torch.nn.utils.clip_grad_norm_
        return GradientNorm(norm, None if divisor is None else divisor.float(), norm.isfinite().logical_not().float())


def _square_norm(tensors: list[Tensor]) -> Tensor:
    """Return the sum of the squares of all elements, a float64 scalar."""
    if tensors[0].device.type != "cpu":
        norms = torch._foreach_norm(tensors)  # pyright: ignore[reportPrivateImportUsage]  as clip_grad_norm_ does
        return torch.stack(norms).double().square().sum()
    # On the CPU torch sums a tensor in one float32: an error of 1e-3 for BERT's word embeddings, so sum each row.
    rows = [torch.linalg.vector_norm(tensor, dim=-1) for tensor in tensors]
    return torch.stack([norms.double().square().sum() for norms in rows]).sum()


def _partitioned_axes(name: str, parameter: nn.Parameter) -> set[str]:
    """Return the mesh axes whose ranks have different values of parameter `name`, or do not have it."""
    axes = {"pp"}
    if name.startswith("branches."):
        axes.add("branch")
    if isinstance(parameter, DTensor):
        names = parameter.device_mesh.mesh_dim_names or ()
        # is_shard() is False for the strided shards that result if two axes split the same dimension.
        axes |= {axis for axis, placed in zip(names, parameter.placements, strict=True) if not placed.is_replicate()}
    return axes


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of `tensor`: the local part of a DTensor, or all of a plain tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def at_least_float32(logits: Tensor) -> Tensor:
    """Return half-precision logits as float32 for an accurate loss; leave other dtypes unchanged."""
    return logits.float() if logits.dtype.itemsize < 4 else logits
