"""Trace one of several equal modules, and call it as a function for each of them.

Tracing takes nearly all the time of an export, and grows with the number of layers and of networks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import onnx_ir
import torch
from onnx_ir.convenience import replace_all_uses_with
from onnx_ir.passes import Sequential, common
from onnxscript import optimizer
from torch import Tensor, nn
from torch.export import Dim
from torch.onnx import ONNXProgram

from container.models.attention import DenseLayout
from container.models.classifier import Classifier
from container.models.encoder import TextEncoder
from container.models.ensemble import Ensemble, Network

_DOMAIN = "repeated_layers"
_FEWEST = 3  # equal layers; a trace of one takes as long as the traces of two in the graph
Dims = dict[int, Dim]
Trace = Callable[[nn.Module, tuple[Tensor, ...], Any], ONNXProgram]
Compute = Callable[..., list[Tensor]]  # of a module and tensors


@contextmanager
def calls_of_layers(
    model: Network,
    trace: Trace,
    *,
    inputs: Sequence[Tensor],
    dims: Sequence[Dims],
    of_ensemble: list[onnx_ir.Function] | None = None,
) -> Iterator[list[onnx_ir.Function]]:
    """Make equal modules of `model` call functions, in a graph that is traced in this context.

    These are the networks of an ensemble, or the equal layers of a network's encoders.

    Args:
        trace: traces a module with the inputs and their dynamic dimensions, without optimizing the graph.
        inputs: input_ids and attention_mask of each text [B, C, T], then the table.
        dims: the dynamic dimensions of each of `inputs`.
        of_ensemble: an empty list, to which the functions of an ensemble are added; or those of an earlier export of
            networks of the same settings, which are called again.

    Yields:
        The functions, for `inline_layers`.
    """
    with ExitStack() as replaced:
        if not isinstance(model, Ensemble) or not model.branches:  # tracing tables takes no time
            yield _call_layers(model, trace, replaced)
            return
        first, functions = model.members[0], [] if of_ensemble is None else of_ensemble
        examples = _examples(first, inputs)
        if not functions:
            with ExitStack() as replaced_in_first:
                functions += _call_layers(first, trace, replaced_in_first)
                functions += _functions_of(first, trace, inputs=inputs, dims=dims, features=examples[0])
        for network in model.members:
            _call_methods(network, functions[-2:], replaced, examples=examples)
        yield functions


def inline_layers(functions: list[onnx_ir.Function], model: onnx_ir.Model) -> None:
    """Optimize the graph of `model` and the functions that it calls, and replace the calls by the functions' nodes."""
    model.functions.update({function.identifier(): function for function in functions})
    optimizer.optimize(model, inline=False)  # every function once, not the nodes of every call
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


def _call_layers(model: Network, trace: Trace, replaced: ExitStack) -> list[onnx_ir.Function]:
    """Make the equal layers of the encoders call a function; encoders with equal configs call the same one."""
    equal: dict[tuple[int, str], list[nn.Module]] = {}  # by the encoder's width and config
    for encoder in (module for module in model.modules() if isinstance(module, TextEncoder)):
        kind = encoder.width, encoder.backbone.config.to_json_string()
        equal.setdefault(kind, []).extend(encoder.repeated_layers)
    chunks, length = Dim("layer_chunks"), Dim("layer_length")
    functions: list[onnx_ir.Function] = []
    for (width, _), layers in equal.items():
        if len(layers) < _FEWEST:
            continue
        inputs = torch.zeros(2, 3, width), torch.zeros(2, 1, 1, 3)  # [S, T, d], and the bias of the scores [S, 1, 1, T]
        dims = {0: chunks, 1: length}, {0: chunks, 3: length}
        function = _function(f"layer_{len(functions)}", layers[0], _layer, trace=trace, inputs=inputs, dims=dims)
        functions.append(function)
        for layer in layers:
            _replace(layer, "forward", partial(_call_layer, function, layer), replaced)
    return functions


def _call_layer(
    function: onnx_ir.Function, layer: nn.Module, hidden: Tensor, *_: Any, layout: DenseLayout, **__: Any
) -> Tensor:
    return _call(function, layer, [hidden, layout.bias(None, hidden.dtype)], shapes=[hidden.shape])[0]


def _layer(layer: nn.Module, hidden: Tensor, bias: Tensor) -> list[Tensor]:
    return [layer(hidden, layout=DenseLayout(mask=bias, biases={None: bias}))]


def _encode(network: Classifier, *texts: Tensor) -> list[Tensor]:
    return network.encode_dense(list(zip(texts[::2], texts[1::2], strict=True)))


def _head(network: Classifier, *inputs: Tensor) -> list[Tensor]:
    count = len(network.branches)
    table = inputs[2 * count] if network.tabular is not None else None
    return [network.head_dense(list(inputs[:count]), inputs[count : 2 * count], table)]


@torch.no_grad()
def _examples(network: Classifier, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Return the features of the texts, [B, H] or [B, C * T, H] each, and the logits. [B, K]"""
    count = 2 * len(network.branches)
    features = _encode(network, *inputs[:count])
    return features, _head(network, *features, *inputs[1:count:2], *inputs[count:])[0]


def _functions_of(
    network: Classifier,
    trace: Trace,
    *,
    inputs: Sequence[Tensor],
    dims: Sequence[Dims],
    features: Sequence[Tensor],
) -> list[onnx_ir.Function]:
    """Return a function of the texts, that returns their features, and one of these, the masks and the table."""
    count, batch = len(network.branches), dims[0][0]
    texts, table = slice(2 * count), slice(2 * count, 2 * count + (network.tabular is not None))
    lengths = [{0: batch, 1: Dim(f"tokens_{i}")} for i in range(count)]  # of a record, C * T
    of_features = [each if values.ndim == 3 else {0: batch} for each, values in zip(lengths, features, strict=True)]
    masks = [mask.flatten(1) for mask in inputs[texts][1::2]]
    of_head = (*features, *masks, *inputs[table])
    head_dims = (*of_features, *lengths, *dims[table])
    encode = _function("encode", network, _encode, trace=trace, inputs=inputs[texts], dims=dims[texts])
    return [encode, _function("head", network, _head, trace=trace, inputs=of_head, dims=head_dims)]


def _call_methods(
    network: Classifier,
    functions: Sequence[onnx_ir.Function],
    replaced: ExitStack,
    *,
    examples: tuple[Sequence[Tensor], Tensor],
) -> None:
    """Make the methods of `network` call the functions that `_functions_of` returns, with results like `examples`."""
    (encode, head), (of_texts, of_records) = functions, examples

    def encode_dense(texts: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        shapes = []
        for each, (ids, _) in zip(of_texts, texts, strict=True):
            tokens = [ids.shape[1] * ids.shape[2]] if each.ndim == 3 else []
            shapes.append([ids.shape[0], *tokens, each.shape[-1]])
        return _call(encode, network, [tensor for pair in texts for tensor in pair], shapes=shapes)

    def head_dense(features: list[Tensor], masks: Sequence[Tensor], tabular: Tensor | None) -> Tensor:
        inputs = [*features, *(mask.flatten(1) for mask in masks), *([] if network.tabular is None else [tabular])]
        return _call(head, network, inputs, shapes=[[inputs[0].shape[0], of_records.shape[-1]]])[0]

    _replace(network, "encode_dense", encode_dense, replaced)
    _replace(network, "head_dense", head_dense, replaced)


def _replace(module: nn.Module, name: str, method: Callable[..., Any], replaced: ExitStack) -> None:
    setattr(module, name, method)
    replaced.callback(vars(module).pop, name, None)  # a network may be a member twice


class _Body(nn.Module):
    def __init__(self, module: nn.Module, compute: Compute) -> None:
        super().__init__()
        self.module, self.compute = module, compute

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        return self.compute(self.module, *inputs)


def _function(
    name: str, module: nn.Module, compute: Compute, *, trace: Trace, inputs: Sequence[Tensor], dims: Sequence[Dims]
) -> onnx_ir.Function:
    """Return `compute` as a function of the inputs and of the weights of `module`."""
    graph = trace(_Body(module, compute), tuple(inputs), {"inputs": tuple(dims)}).model.graph
    weights = [f"module.{name}" for name, _ in _weights(module)]
    graph.inputs.extend(graph.initializers.pop(name, None) or onnx_ir.Value(name=name) for name in weights)
    for value in graph.initializers.values():  # constants, which equal modules have in common; a function has none
        constant = onnx_ir.node("Constant", [], {"value": value.const_value})
        replace_all_uses_with(value, constant.outputs[0])
        graph.insert_before(graph[0], constant)
    graph.initializers.clear()
    return onnx_ir.Function(_DOMAIN, name, graph=graph, attributes=())


def _call(
    function: onnx_ir.Function, module: nn.Module, inputs: Sequence[Tensor], *, shapes: Sequence[Sequence[Any]]
) -> list[Tensor]:
    """Call the function in the graph that is traced, with the weights of `module`; return float32 of `shapes`."""
    operands = (*inputs, *(weight for _, weight in _weights(module)))
    operator, dtypes = f"{_DOMAIN}::{function.name}", [torch.float32] * len(shapes)
    return list(torch.onnx.ops.symbolic_multi_out(operator, operands, dtypes=dtypes, shapes=shapes))


def _weights(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]
