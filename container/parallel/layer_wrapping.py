"""Checkpoint activations of encoder layers, and compile the layers."""

from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from container.models.encoder import TextEncoder


def encoder_layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the layers of all encoders in `module` whose layers are known, in order."""
    encoders = (encoder for encoder in module.modules() if isinstance(encoder, TextEncoder))
    return [layer for encoder in encoders for layer in encoder.layers or ()]


def checkpoint_activations(module: nn.Module, *, every: int) -> None:
    """Recompute each `every`-th encoder layer's activations from its input in the backward pass; 0 = no layer.

    The recomputed dropout masks are the same. Only the layer's forward is replaced, so parameter names do not change.
    """
    for layer in encoder_layers_of(module)[::every] if every else ():
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def compile_layers(module: nn.Module, *, backend: str = "inductor") -> None:
    """Compile each encoder layer's forward for any number of tokens and chunks; its hooks are not compiled.

    Call this before `checkpoint_activations`: torch.compile cannot compile the function that a checkpoint calls.

    Args:
        backend: of torch.compile; inductor needs a C++ compiler (CPU) or Triton (CUDA).
    """
    for layer in encoder_layers_of(module):
        layer.forward = torch.compile(layer.forward, dynamic=True, backend=backend)
