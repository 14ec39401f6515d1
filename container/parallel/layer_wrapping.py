"""Checkpoint activations of encoder layers, and compile the layers."""

from functools import partial

import torch
from torch import nn
from torch.utils._triton import has_triton
from torch.utils.checkpoint import checkpoint

from container.models.encoder import TextEncoder
from container.parallel.degrees import ParallelDegrees
from container.processes import has_compiler
from contracts.hyperparameters import Hyperparameters

_MOST_GRAPHS = 64  # of the layers of a class; torch's default is 8


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


def compiles(hp: Hyperparameters, device: torch.device, degrees: ParallelDegrees) -> bool:
    """Return whether to compile encoder layers: as hp.compile says; auto = on GPUs, where a compiler exists.

    Layers of pipelines and slices are compiled only if asked for.
    """
    if hp.compile != "auto":
        return hp.compile
    return device.type == "cuda" and degrees.pp == degrees.tp == 1 and has_triton() and has_compiler()


def compile_layers(module: nn.Module, *, backend: str = "inductor") -> None:
    """Compile each encoder layer's forward for any number of tokens and chunks; its hooks are not compiled.

    Layers of one class share a limit of graphs. Each encoder needs one for training, and more for its evaluation, for
    float32, and for layers of another kind.

    Call this before `checkpoint_activations`: torch.compile cannot compile the function that a checkpoint calls.

    Args:
        backend: of torch.compile; inductor needs a C++ compiler (CPU) or Triton (CUDA).
    """
    torch._dynamo.config.recompile_limit = _MOST_GRAPHS
    for layer in encoder_layers_of(module):
        layer.forward = torch.compile(layer.forward, dynamic=True, backend=backend)
