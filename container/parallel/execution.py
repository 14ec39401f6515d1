"""A plain model, parallelised: what the loop calls, the same whatever the strategy."""

import contextlib
import inspect
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from container.data.batch import PackedBatch
from container.parallel.mesh import RankMesh

# torch 2.13 renamed it and warns about the old name.
_BUFFERS_KEYWORD = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)

Objective = Callable[[Tensor, PackedBatch], Tensor]


class Execution:
    """Runs steps of `module` over the mesh.

    Attributes:
        module: the plain model, whose parameters the optimizer and checkpoints see under plain names.
        replicated: what forward passes go through.
    """

    def __init__(
        self,
        module: nn.Module,
        ranks: RankMesh,
        *,
        replicated: nn.Module,
        autocast: Callable[[], contextlib.AbstractContextManager],
    ) -> None:
        self.module = module
        self.ranks = ranks
        self._replicated = replicated
        self._autocast = autocast

    def forward_backward(
        self,
        microbatches: Sequence[PackedBatch],
        *,
        objective: Objective,
        normaliser: Tensor,
        scale: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Gradients of sum(objective) / normaliser over the global batch; returns this rank's share of that loss.

        Args:
            objective: (logits [B, K], batch) -> sum over the batch, a scalar.
            normaliser: the same scalar on every rank, over the GLOBAL batch; never a mean of means.
            scale: what a gradient scaler does to a loss before its backward.
        """
        share = torch.zeros((), device=self.ranks.device)
        for i, batch in enumerate(microbatches):
            last = i == len(microbatches) - 1
            with contextlib.nullcontext() if last else self._unsynchronised():
                with self._autocast():
                    logits = self._replicated(batch)
                loss = objective(logits.float() if logits.dtype.itemsize < 4 else logits, batch) / normaliser
                # Replicas average their gradients, so data_size times the share gives the sum.
                scale(loss * self.ranks.data_size).backward()
            share += loss.detach().to(share.dtype)
        return share

    @torch.no_grad()
    def predict(self, batch: PackedBatch, *, exact: bool) -> Tensor:
        """Logits; `exact` computes in float32, as the exported model does, whatever training computes in. [B, K]"""
        with contextlib.nullcontext() if exact else self._autocast():
            logits = self.module(batch)
        return logits.float() if logits.dtype.itemsize < 4 else logits

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Global gradient norm before clipping to `max_norm`; infinity clips nothing."""
        return torch.nn.utils.clip_grad_norm_(self.module.parameters(), max_norm)

    def _unsynchronised(self) -> contextlib.AbstractContextManager:
        no_sync = getattr(self._replicated, "no_sync", contextlib.nullcontext)
        return no_sync()


def parallelize(module: nn.Module, ranks: RankMesh, *, precision: torch.dtype) -> Execution:
    """Move the plain model to this rank's device and replicate it over the mesh's data axis."""
    module.to(ranks.device)
    replicated: nn.Module = module
    if "dp_replicate" in ranks.degrees.axes:
        assert ranks.mesh is not None
        replicated = DistributedDataParallel(
            module,
            device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None,
            process_group=ranks.mesh.get_group("dp_replicate"),
            gradient_as_bucket_view=True,
            **{_BUFFERS_KEYWORD: False},  # ours are constants
        )

    def autocast() -> contextlib.AbstractContextManager:
        if precision == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(ranks.device.type, dtype=precision)

    return Execution(module, ranks, replicated=replicated, autocast=autocast)
