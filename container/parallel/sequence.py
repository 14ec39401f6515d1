"""Sequence parallelism: between the split matrices of a layer, each rank of the "tp" axis has a slice of the tokens."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from container.models.attention import PackedLayout
from container.models.dropout import Dropout
from container.parallel.tensor_modules import gather, replace_forward, shared


@dataclass(frozen=True)
class FilledLayout(PackedLayout):
    """A layout with a last chunk of filler tokens if the number of ranks does not divide the number of tokens.

    Attributes:
        tokens: the number of real tokens.
    """

    tokens: int

    @classmethod
    def extending(cls, layout: PackedLayout, *, fillers: int) -> "FilledLayout":
        values = {field.name: getattr(layout, field.name) for field in dataclasses.fields(PackedLayout)}
        if fillers:
            end = layout.cu_seqlens[-1:] + fillers
            values |= {"cu_seqlens": torch.cat([layout.cu_seqlens, end]), "lengths": (*layout.lengths, fillers)}
        return cls(**values, tokens=sum(layout.lengths))


class SlicedTokens:
    """Splits the hidden states of one encoder's layers by tokens.

    It replaces the forward of norms and dropouts in place. The gradients of norms are summed over the ranks; each rank
    applies its tokens' part of the dropout mask.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._tokens = 0  # real tokens of the current layer

    def slice_around(self, stack: nn.Module) -> None:
        """Slice the tokens at the input of `stack`, which runs the layers, and gather them at its output."""
        stack.register_forward_pre_hook(self._slice, with_kwargs=True)
        stack.register_forward_hook(self._gather, with_kwargs=True)

    def slice_between(self, layer: nn.Module) -> None:
        """Make the norms and dropouts of `layer` compute on slices."""
        for module in layer.modules():
            if isinstance(module, nn.LayerNorm):
                replace_forward(module, self._norm)
            elif isinstance(module, Dropout):
                replace_forward(module, self._dropout)

    def count_at(self, attention: nn.Module) -> None:
        """Count the real tokens of a layer at the start of its `attention`, before any dropout.

        A count at the start of the stack would be wrong for checkpointed layers, which run again, and for several
        microbatches in flight.
        """
        attention.register_forward_pre_hook(self._count, with_kwargs=True)

    def _slice(self, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        hidden = args[0] if args else kwargs["hidden_states"]  # [1, N, d]
        layout = kwargs["layout"]
        assert isinstance(layout, PackedLayout), "a dense layout is for export"
        fillers = -hidden.shape[1] % self._mesh.size()
        whole = DTensor.from_local(F.pad(hidden, (0, 0, 0, fillers)), self._mesh, [Replicate()], run_check=False)
        local = whole.redistribute(placements=[Shard(1)]).to_local()  # [1, N / tp, d]
        kwargs = {**kwargs, "layout": FilledLayout.extending(layout, fillers=fillers)}
        return ((local, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": local})

    def _gather(self, _: nn.Module, __: tuple, kwargs: dict[str, Any], output: Any) -> Any:
        output.last_hidden_state = gather(output.last_hidden_state, self._mesh, dim=1)[:, : kwargs["layout"].tokens]
        return output

    def _count(self, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        self._tokens = kwargs["layout"].tokens

    def _norm(self, norm: nn.LayerNorm, local: Tensor) -> Tensor:
        weight, bias = (p if p is None else shared(p, self._mesh) for p in (norm.weight, norm.bias))
        return F.layer_norm(local, norm.normalized_shape, weight, bias, norm.eps)

    def _dropout(self, dropout: Dropout, local: Tensor) -> Tensor:
        """Draw the whole mask on every rank and apply a slice, so that a seed gives the same result without slices."""
        if not dropout.training or dropout.p == 0:
            return local
        size, rank = self._mesh.size(), self._mesh.get_local_rank()
        factors = dropout.draw_factors(torch.Size((1, self._tokens, local.shape[2])), like=local)  # [1, N, d]
        filled = F.pad(factors, (0, 0, 0, size * local.shape[1] - self._tokens))
        return local * filled.chunk(size, dim=1)[rank]  # [1, N / tp, d]
