"""Sequence parallelism: between the cut matrices of a layer, each rank of the "tp" axis has its share of the tokens."""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle

from container.models.attention import PackedLayout


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
            values = {"cu_seqlens": torch.cat([layout.cu_seqlens, end]), "lengths": (*layout.lengths, fillers)}
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
                module.forward = partial(self._norm, module)
            elif isinstance(module, nn.Dropout):
                module.forward = partial(self._dropout, module)

    def entry(self) -> ParallelStyle:
        """The style of an attention module: slices enter, and it works on all tokens."""
        return _Entry(self)

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
        output.last_hidden_state = self._whole(output.last_hidden_state).to_local()[:, : kwargs["layout"].tokens]
        return output

    def enter(self, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Pre-hook of an attention module: all tokens for its matrices; and how many of them are real.

        That is noted here, not in the layer before it: a layer that is recomputed passes here again, and pipelines have
        several microbatches under way.
        """
        self._tokens = kwargs["layout"].tokens
        return (self._whole(args[0]), *args[1:]), kwargs

    def _whole(self, own: Tensor) -> DTensor:
        """[1, N / tp, d] -> [1, N, d] on every rank."""
        return DTensor.from_local(own, self._mesh, [Shard(1)], run_check=False).redistribute(placements=[Replicate()])

    def _norm(self, norm: nn.LayerNorm, own: Tensor) -> Tensor:
        return F.layer_norm(own, norm.normalized_shape, self._shared(norm.weight), self._shared(norm.bias), norm.eps)

    def _shared(self, parameter: Tensor | None) -> Tensor | None:
        """`parameter`, whose gradient is the sum of what the ranks find for their tokens."""
        if parameter is None:
            return None
        replicas = DTensor.from_local(parameter, self._mesh, [Replicate()], run_check=False)
        return replicas.to_local(grad_placements=[Partial()])

    def _dropout(self, dropout: nn.Dropout, own: Tensor) -> Tensor:
        """Every rank draws the whole mask, as it would without slices, so that one seed gives one result everywhere."""
        if not dropout.training or dropout.p == 0:
            return own
        size, rank = self._mesh.size(), self._mesh.get_local_rank()
        mask = F.dropout(own.new_ones(1, self._tokens, own.shape[2]), dropout.p) != 0  # [1, N, d]
        kept = F.pad(mask, (0, 0, 0, size * own.shape[1] - self._tokens)).chunk(size, dim=1)[rank]  # [1, N / tp, d]
        return own.where(kept, 0) / (1 - dropout.p)


class _Entry(ParallelStyle):
    def __init__(self, tokens: SlicedTokens) -> None:
        super().__init__()
        self._tokens = tokens

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:  # noqa: ARG002
        module.register_forward_pre_hook(self._tokens.enter, with_kwargs=True)
        return module
