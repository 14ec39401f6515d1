"""Sequence parallelism: between the cut matrices of a layer, each rank of the "tp" axis has its share of the tokens."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from container.models.attention import PackedLayout
from container.parallel.tensor_modules import gather, replace_forward, shared


@dataclass(frozen=True)
class FilledLayout(PackedLayout):
    """A layout whose last chunk may be of filler tokens, which make the tokens divide by the number of ranks.

    Attributes:
        tokens: that are real.
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
    """Cuts the hidden states of one encoder's layers by tokens.

    What layers compute outside their cut matrices is replaced in place: norms, whose gradients are summed over the
    ranks, and dropout, of whose mask each rank takes its tokens' part.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._tokens = 0  # real ones of the layer that is running

    def slice_around(self, stack: nn.Module) -> None:
        """Let `stack`, which runs the layers, take all tokens and give all tokens; in between they are sliced."""
        stack.register_forward_pre_hook(self._slice, with_kwargs=True)
        stack.register_forward_hook(self._gather, with_kwargs=True)

    def slice_between(self, layer: nn.Module) -> None:
        """Let the norms and dropouts of `layer` compute on slices."""
        for module in layer.modules():
            if isinstance(module, nn.LayerNorm):
                replace_forward(module, self._norm)
            elif isinstance(module, nn.Dropout):
                replace_forward(module, self._dropout)

    def count_at(self, attention: nn.Module) -> None:
        """Count the real tokens of a layer as its `attention` begins, before any dropout.

        Not in the layer before it: a checkpointed layer passes here again, and pipelines have several
        microbatches under way.
        """
        attention.register_forward_pre_hook(self._note, with_kwargs=True)

    def _slice(self, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        hidden = args[0] if args else kwargs["hidden_states"]  # [1, N, d]
        layout = kwargs["layout"]
        assert isinstance(layout, PackedLayout), "a dense layout is for export"
        fillers = -hidden.shape[1] % self._mesh.size()
        whole = DTensor.from_local(F.pad(hidden, (0, 0, 0, fillers)), self._mesh, [Replicate()], run_check=False)
        own = whole.redistribute(placements=[Shard(1)]).to_local()  # [1, N / tp, d]
        kwargs = {**kwargs, "layout": FilledLayout.extending(layout, fillers=fillers)}
        return ((own, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": own})

    def _gather(self, _: nn.Module, __: tuple, kwargs: dict[str, Any], output: Any) -> Any:
        output.last_hidden_state = gather(output.last_hidden_state, self._mesh, dim=1)[:, : kwargs["layout"].tokens]
        return output

    def _note(self, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        self._tokens = kwargs["layout"].tokens

    def _norm(self, norm: nn.LayerNorm, own: Tensor) -> Tensor:
        weight, bias = (p if p is None else shared(p, self._mesh) for p in (norm.weight, norm.bias))
        return F.layer_norm(own, norm.normalized_shape, weight, bias, norm.eps)

    def _dropout(self, dropout: nn.Dropout, own: Tensor) -> Tensor:
        """Every rank draws the whole mask, as it would without slices, so that one seed gives one result everywhere."""
        if not dropout.training or dropout.p == 0:
            return own
        size, rank = self._mesh.size(), self._mesh.get_local_rank()
        mask = F.dropout(own.new_ones(1, self._tokens, own.shape[2]), dropout.p) != 0  # [1, N, d]
        kept = F.pad(mask, (0, 0, 0, size * own.shape[1] - self._tokens)).chunk(size, dim=1)[rank]  # [1, N / tp, d]
        return own.where(kept, 0) / (1 - dropout.p)
