"""Write variants of model.onnx with fused operators or 8-bit weights; inputs and output stay the same."""

import math
import tempfile
from pathlib import Path

import numpy as np
import onnx

from container.errors import NotMade
from container.export import onnx as export
from container.models.ensemble import Network


def write_fused(source: Path, target: Path, model: Network) -> None:
    """Fuse attention, GELU and layer norms of `source` with onnxruntime.transformers; the results stay equal.

    Raises:
        NotMade: the graph has no operator that can be fused.
    """
    _fuse(source, target, model)
    graph = onnx.load(str(target), load_external_data=False).graph
    if not any(node.domain == "com.microsoft" for node in graph.node):
        raise NotMade("nothing in this graph can be fused; model.onnx is as fast")


def _fuse(source: Path, target: Path, model: Network) -> None:
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    heads, width = _attention_shape(model)
    options = FusionOptions("bert")
    options.enable_shape_inference = False  # it cannot follow the exporter's shapes
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder, export.silenced():
        prepared = Path(folder) / "prepared.onnx"
        graph = _prepared(onnx.load(str(source)))
        # The pattern for skip layer norms assumes a bias, which ModernBERT's norms do not have.
        norms = [node for node in graph.graph.node if node.op_type == "LayerNormalization"]
        options.enable_skip_layer_norm = all(len(node.input) == 3 for node in norms)
        large = _save(graph, prepared)
        fused = optimize_model(
            str(prepared),
            model_type="bert",
            num_heads=heads,
            hidden_size=width,
            optimization_options=options,
            opt_level=0,
        )
        fused.save_model_to_file(str(target), use_external_data_format=large)


def write_int8(source: Path, target: Path, model: Network) -> None:
    """Fuse, then store the weights of matrix products in 8 bits with a scale per column; activations are quantised at
    run time (dynamic quantisation).

    Weights use 7 of the 8 bits (reduce_range): on x86 without VNNI, sums of 8-bit products overflow, and the file must
    give the same numbers on every machine. Embeddings stay in float32: a lookup gains nothing.

    Raises:
        NotMade: most weights belong to recurrent or convolutional layers, which stay in float32.
    """
    from onnxruntime.quantization import quantize_dynamic

    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        fused = Path(folder) / "fused.onnx"
        _fuse(source, fused, model)
        with export.silenced():
            quantize_dynamic(
                str(fused),
                str(target),
                op_types_to_quantize=["MatMul", "Attention"],
                nodes_to_exclude=_products_of_stacks(fused),
                per_channel=True,
                reduce_range=True,
                use_external_data_format=fused.with_name(f"{fused.name}.data").exists(),
                # The type of fused operators, which its shape inference does not know.
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
            )
    share = _share_in_8_bits(target)
    if share < 0.5:
        raise NotMade(
            f"only {share:.0%} of the multiplied weights would be in 8 bits: recurrent and convolutional layers "
            "stay as they are, so model.onnx is as fast"
        )


def _share_in_8_bits(path: Path) -> float:
    """Return the share of weights that the file at `path` stores in 8 bits, among matrices that are not looked up."""
    graph = onnx.load(str(path), load_external_data=False).graph
    looked_up = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    matrices = [
        (tensor.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8), math.prod(tensor.dims))
        for tensor in graph.initializer
        if len(tensor.dims) > 1 and tensor.name not in looked_up
    ]
    return sum(size for in_8_bits, size in matrices if in_8_bits) / max(1, sum(size for _, size in matrices))


def _products_of_stacks(path: Path) -> list[str]:
    """Return the names of products with a stack of matrices, such as numeric embeddings: no kernel takes a scale per
    column of each matrix, and they are small."""
    graph = onnx.load(str(path), load_external_data=False).graph
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    return [node.name for node in graph.node if node.op_type == "MatMul" and ranks.get(node.input[1], 2) != 2]


WRITERS = {"fused": write_fused, "int8": write_int8}


def _attention_shape(model: Network) -> tuple[int, int]:
    """Return (heads, width) of the encoders, which the graph does not contain. If encoders differ, return (0, 0), with
    which attention is not fused."""
    configs = [getattr(getattr(branch.encoder, "backbone", None), "config", None) for branch in model.branches.values()]
    shapes = {
        (getattr(config, "num_attention_heads", 0), getattr(config, "hidden_size", 0)) for config in configs if config
    }
    return shapes.pop() if len(shapes) == 1 else (0, 0)


def _prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """Rewrite the graph to match the optimizer's patterns: without the exporter's shapes, which contradict its own, and
    with the mask's two new axes (container/models/attention.py) added one after the other."""
    graph = model.graph
    del graph.value_info[:]
    constants = {entry.name: entry for entry in graph.initializer}
    for position, node in reversed(list(enumerate(graph.node))):
        axes = constants.get(node.input[1]) if node.op_type == "Unsqueeze" else None
        if axes is None or onnx.numpy_helper.to_array(axes).tolist() != [1, 2]:
            continue
        halfway, first, second = (f"{node.output[0]}_{part}" for part in ("halfway", "axis_1", "axis_2"))
        for name, axis in ((first, 1), (second, 2)):
            graph.initializer.append(onnx.numpy_helper.from_array(np.array([axis]), name))
        graph.node.insert(position, onnx.helper.make_node("Unsqueeze", [node.input[0], first], [halfway]))
        node.input[0], node.input[1] = halfway, second
    return model


def _save(model: onnx.ModelProto, path: Path) -> bool:
    """Save; put the weights into a second file if one file cannot hold them, and return whether that was needed."""
    large = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > export.LARGEST_FILE
    onnx.save(model, str(path), save_as_external_data=large, location=f"{path.name}.data")
    return large
