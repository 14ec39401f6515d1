"""Keep an exponential moving average of the weights, often better than the last ones (Polyak and Juditsky 1992)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from container.parallel.execution import Execution, local_part


class WeightAverage:
    """The moving average of the trainable weights of this rank: of its part of the model, or its shards.

    After optimizer step t (from 0) it becomes d * average + (1 - d) * weights with d = min(decay, (1 + t) / (10 + t)),
    so that the random initial weights count little in a short run.

    Args:
        module: the module of the optimizer, before its first forward.
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
        """The averages under the names of the weights, distributed as the weights are."""
        return dict(self._of)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after optimizer step `step`."""
        if not self._pairs:
            return
        decay = min(self._decay, (1 + step) / (10 + step))
        # Read at each update: fully_shard may move a shard at its first forward.
        weights, averages = ([local_part(tensor) for tensor in side] for side in (self._pairs, self._pairs.values()))
        torch._foreach_lerp_(  # pyright: ignore[reportPrivateImportUsage]: torch's stub does not export it
            averages, weights, 1 - decay
        )

    @contextmanager
    def in_place_of_weights(self, execution: Execution) -> Iterator[None]:
        """Let `execution` compute with the averages; nothing may be trained or saved in the block."""
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
            current, other = local_part(weight), local_part(average)
            previous = current.clone()
            current.copy_(other)
            other.copy_(previous)
        execution.reshard()
