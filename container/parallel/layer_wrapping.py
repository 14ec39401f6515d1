"""Checkpoint activations of encoder layers, and compile the layers."""

import logging
from functools import partial

import torch
from torch import nn
from torch.utils._triton import has_triton
from torch.utils.checkpoint import checkpoint

from container.log_once import log_once
from container.models.encoder import TextEncoder
from container.parallel.degrees import ParallelDegrees
from container.processes import missing_for_compile
from contracts.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

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
    if device.type != "cuda":
        return False
    reason = _reason_not_to_compile(degrees)
    if reason is not None:
        log_once(logger, logging.INFO, f"compile: auto: encoder layers are not compiled: {reason}")
    return reason is None


def _reason_not_to_compile(degrees: ParallelDegrees) -> str | None:
    sliced = [axis for axis in ("pp", "tp") if getattr(degrees, axis) > 1]
    if sliced:
        return f"the layers of {' and '.join(sliced)} are compiled with compile=true only"
    return missing_for_compile() if has_triton() else "PyTorch finds no Triton for this GPU"


def compile_layers(module: nn.Module, *, backend: str = "inductor") -> None:
    """Compile each encoder layer's forward for any number of tokens and chunks; its hooks are not compiled.

    Layers of one class share a limit of graphs. Each encoder needs one for training, and more for its evaluation, for
    float32, and for layers of another kind.

    Call this before `checkpoint_activations`: torch.compile cannot compile the function that a checkpoint calls.

    Args:
        backend: of torch.compile; inductor needs a C++ compiler, Python's header files and, on GPUs, Triton.
    """
    layers = encoder_layers_of(module)
    if layers:
        log_once(logger, logging.INFO, "encoder layers are compiled: the first steps take longer")
    torch._dynamo.config.recompile_limit = _MOST_GRAPHS
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True, backend=backend)
