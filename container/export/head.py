"""Cut the head out of a graph: what follows the features of the texts, with the companion's trees and the decision."""

from pathlib import Path

import onnx
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

from contracts.artifacts import ONNX_FEATURES, ONNX_OUTPUT, ONNX_SCORES


def write_head(source: Path, target: Path) -> None:
    """Write the head of model.onnx, or of a variant, at `source`.

    Inputs: the features that `source` returns, and those of its inputs that the head reads too. Output: "scores", the
    input of the last softmax. [B, K]
    """
    model = onnx.load(str(source), load_external_data=False)
    graph = model.graph
    features = [value for value in graph.output if value.name.startswith(ONNX_FEATURES)]
    stops = {value.name for value in features}
    last = _softmax(graph)
    needed, nodes = {last.input[0]}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output) - stops:
            needed.update(node.input)
            nodes.append(node)
    nodes.append(onnx.helper.make_node("Identity", [last.input[0]], [ONNX_SCORES]))
    weights = [tensor for tensor in graph.initializer if tensor.name in needed]
    for tensor in weights:
        if uses_external_data(tensor):
            load_external_data_for_tensor(tensor, str(source.parent))
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
    inputs = [value for value in (*graph.input, *features) if value.name in needed]
    scores = onnx.helper.make_tensor_value_info(ONNX_SCORES, onnx.TensorProto.FLOAT, [None, None])
    nodes[:-1] = reversed(nodes[:-1])
    head = onnx.helper.make_graph(nodes, "head", inputs, [scores], weights)
    onnx.save(onnx.helper.make_model(head, opset_imports=model.opset_import, ir_version=model.ir_version), str(target))


def _softmax(graph: onnx.GraphProto) -> onnx.NodeProto:
    producers = {name: node for node in graph.node for name in node.output}
    node = producers[ONNX_OUTPUT]
    while node.op_type != "Softmax":
        node = producers[node.input[0]]
    return node
