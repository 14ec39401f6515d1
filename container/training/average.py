"""An exponential moving average of the weights, often better than the last ones (Polyak and Juditsky 1992)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from container.parallel.execution import Execution, local_part


class WeightAverage:
    """The moving average of the trainable weights that this rank holds: its part of the model, or its shards of it.

    After optimizer step t (from 0) it becomes d * average + (1 - d) * weights with d = min(decay, (1 + t) / (10 + t)):
    a short run is not the average of its random beginnings. A function of t, so resuming needs no count of its own.

    Args:
        module: as the optimizer sees it; before anything was computed with it.
        decay: 0 = no average is kept.
    """

    def __init__(self, module: nn.Module, *, decay: float) -> None:
        self._decay = decay
        self._of: dict[str, Tensor] = {}
        self._pairs: dict[nn.Parameter, Tensor] = {}
        for name, weight in module.named_parameters(remove_duplicate=False):
            if not decay or not weight.requires_grad:
                continue
            if weight not in self._pairs:
                self._pairs[weight] = weight.detach().clone().to(torch.promote_types(weight.dtype, torch.float32))
            self._of[name] = self._pairs[weight]

    @property
    def state(self) -> dict[str, Tensor]:
        """The averages themselves, distributed as the weights are, under the names of the weights."""
        return dict(self._of)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after optimizer step `step`."""
        if not self._pairs:
            return
        decay = min(self._decay, (1 + step) / (10 + step))
        # Asked for anew each time: fully_shard may move a parameter's shard when it first computes.
        weights, averages = ([local_part(tensor) for tensor in side] for side in (self._pairs, self._pairs.values()))
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]: torch's stub does not export it
            averages, weights, 1 - decay
        )

    @contextmanager
    def in_place_of_weights(self, execution: Execution) -> Iterator[None]:
        """Within it `execution` computes with the averages; nothing may be trained or saved meanwhile."""
        self._exchange(execution)
        try:
            yield
        finally:
            self._exchange(execution)

    @torch.no_grad()
    def _exchange(self, execution: Execution) -> None:
        if not self._pairs:
            return
        for weight, average in self._pairs.items():
            ours, other = local_part(weight), local_part(average)
            kept = ours.clone()
            ours.copy_(other)
            other.copy_(kept)
        execution.reshard()
