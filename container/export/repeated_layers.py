"""Trace one of an encoder's layers, and call it as a function for each of them.

Tracing takes nearly all the time of an export, and grows with the number of layers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import onnx_ir
import torch
from onnx_ir.passes import Sequential, common
from onnxscript import optimizer
from torch import Tensor, nn
from torch.export import Dim
from torch.onnx import ONNXProgram

from container.models.attention import DenseLayout
from container.models.encoder import TextEncoder
from container.models.ensemble import Network

_DOMAIN = "repeated_layers"
_FEWEST = 3  # equal layers; a trace of one takes as long as the traces of two in the graph
Trace = Callable[[nn.Module, tuple[Tensor, ...], tuple[dict[int, Dim], ...]], ONNXProgram]


@contextmanager
def calls_of_layers(model: Network, trace: Trace) -> Iterator[list[onnx_ir.Function]]:
    """Make the equal layers of the encoders of `model` call a function, in a graph that is traced in this context.

    Encoders with equal configs call the same function.

    Args:
        trace: traces a module with the inputs and their dynamic dimensions, without optimizing the graph.

    Yields:
        The functions, for `inline_layers`.
    """
    equal: dict[tuple[int, str], list[nn.Module]] = {}  # by the encoder's width and config
    for encoder in (module for module in model.modules() if isinstance(module, TextEncoder)):
        kind = encoder.width, encoder.backbone.config.to_json_string()
        equal.setdefault(kind, []).extend(encoder.repeated_layers)
    functions: list[onnx_ir.Function] = []
    replaced: list[nn.Module] = []
    try:
        for (width, _), layers in equal.items():
            if len(layers) < _FEWEST:
                continue
            functions.append(_function(layers[0], width, name=f"layer_{len(functions)}", trace=trace))
            for layer in layers:
                layer.forward = _Call(layer, functions[-1].name)
                replaced.append(layer)
        yield functions
    finally:
        for layer in replaced:
            del layer.forward


def inline_layers(functions: list[onnx_ir.Function], model: onnx_ir.Model) -> None:
    """Optimize the graph of `model` and the functions that it calls, and replace the calls by the functions' nodes."""
    model.functions.update({function.identifier(): function for function in functions})
    optimizer.optimize(model, inline=False)  # every function once, not the nodes of every layer
    for function in functions:  # a dimension has one name in all calls, but another size for each text
        for node in function:
            for value in node.outputs:
                value.shape = None
    common.InlinePass()(model)
    optimizer.fold_constants(model)  # transposes the weights
    Sequential(
        common.RemoveUnusedNodesPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
    )(model)


class _Call:
    """Stand for the forward of `layer`: a call of the function `name` with the weights of the layer."""

    def __init__(self, layer: nn.Module, name: str) -> None:
        self.layer, self.name = layer, name

    def __call__(self, hidden: Tensor, *_: Any, layout: DenseLayout, **__: Any) -> Tensor:
        inputs = (hidden, layout.bias(None, hidden.dtype), *self.layer.parameters())
        return torch.onnx.ops.symbolic(f"{_DOMAIN}::{self.name}", inputs, dtype=hidden.dtype, shape=hidden.shape)


class _Body(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        return self.layer(hidden, layout=DenseLayout(mask=bias, biases={None: bias}))


def _function(layer: nn.Module, width: int, *, name: str, trace: Trace) -> onnx_ir.Function:
    """Return a function of the hidden states [S, T, d], the bias of the scores [S, 1, 1, T] and the layer's weights."""
    chunks, length = Dim("layer_chunks"), Dim("layer_length")
    inputs = torch.zeros(2, 3, width), torch.zeros(2, 1, 1, 3)
    graph = trace(_Body(layer), inputs, ({0: chunks, 1: length}, {0: chunks, 3: length})).model.graph
    weights = [f"layer.{name}" for name, _ in layer.named_parameters()]
    graph.inputs.extend(graph.initializers.pop(name, None) or onnx_ir.Value(name=name) for name in weights)
    assert not graph.initializers, f"{list(graph.initializers)} are no weights of the layer"
    return onnx_ir.Function(_DOMAIN, name, graph=graph, attributes=())
