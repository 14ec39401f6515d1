"""Wrap single layers of the encoders: activation checkpointing and compilation."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from container.models.encoder import TextEncoder


def encoder_layers_of(module: nn.Module) -> list[nn.Module]:
    """Every layer of every encoder in `module` whose layers are known, in order."""
    return list(_layers(module))


def checkpoint_activations(module: nn.Module, *, every: int) -> None:
    """Keep only the input of each `every`-th encoder layer and compute the rest again in the backward pass; 0 = none.

    Dropout draws the same numbers again. The layer's own forward is replaced, not the layer: names stay.
    """
    if every == 0:
        return
    for layer in encoder_layers_of(module)[::every]:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def compile_layers(module: nn.Module, *, backend: str = "inductor") -> None:
    """Compile each encoder layer's forward for any number of tokens and chunks; hooks around it stay as they are.

    Before `checkpoint_activations`: a checkpoint may call what is compiled, but hides from torch.compile what it calls.

    Args:
        backend: torch.compile's; inductor needs a C++ compiler (CPU) or Triton (CUDA).
    """
    for layer in encoder_layers_of(module):
        layer.forward = torch.compile(layer.forward, dynamic=True, backend=backend)


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    for encoder in module.modules():
        if isinstance(encoder, TextEncoder) and encoder.layers is not None:
            yield from encoder.layers
