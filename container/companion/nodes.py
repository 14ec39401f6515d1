"""Collect the nodes of a companion's ONNX graph."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSETS = (helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3))
PREFIX = "companion."  # of every name inside the graphs
SCORES, LOGITS = f"{PREFIX}scores", f"{PREFIX}logits"


class Graph:
    """Collect nodes and constants under unique names."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, kind: int, shape: Sequence[str | int]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, value: npt.ArrayLike, dtype: type[np.generic]) -> str:
        name = f"{PREFIX}constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = output or f"{PREFIX}{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"{PREFIX}node{len(self.nodes)}", **attributes))
        return name

    def slice(self, value: str, start: int, end: int, *, axis: int) -> str:
        return self.add("Slice", value, *(self.constant([each], np.int64) for each in (start, end, axis)))

    def take(self, table: np.ndarray, dtype: type[np.generic], *, at: str) -> str:
        """Add the rows of an integer table at these positions, as int64."""
        return self.add("Cast", self.add("Gather", self.constant(table, dtype), at), to=TensorProto.INT64)

    def sum_of_chunks(self, value: str) -> str:
        """[B, chunks, terms, C] -> [B, C]"""
        return self.add("ReduceSum", value, self.constant([1, 2], np.int64), keepdims=0)

    def binary(self, score: str) -> str:
        """Add the logits of two classes, from the log-odds of the second. [B, 1] -> [B, 2]"""
        return self.add("Mul", score, self.constant([[-0.5, 0.5]], np.float32))

    def trees(self, model: Any, columns: str, value_of: Any, **options: bool) -> str:
        """Add the trees of a scikit-learn model over bins as trees over values; return their scores. [B, M]

        Args:
            value_of: from a feature and a boundary between its bins to the threshold of its values.
        """
        from skl2onnx import to_onnx
        from skl2onnx.common.data_types import FloatTensorType

        kind = FloatTensorType([None, model.n_features_in_])
        opsets = {opset.domain: opset.version for opset in OPSETS}
        options = {"zipmap": False, **options}
        write = cast(Any, to_onnx)  # its annotations do not allow these types
        converted = write(model, initial_types=[("features", kind)], options={id(model): options}, target_opset=opsets)
        ensemble = next(node for node in converted.graph.node if node.op_type == "TreeEnsembleClassifier")
        attributes = {part.name: part for part in ensemble.attribute}
        modes, features, values = (attributes[f"nodes_{name}"] for name in ("modes", "featureids", "values"))
        for i, (mode, feature) in enumerate(zip(modes.strings, features.ints, strict=True)):
            if mode != b"LEAF":
                values.floats[i] = value_of(feature, values.floats[i])
        name = f"{PREFIX}trees{len(self.nodes)}"
        ensemble.input[:], ensemble.output[:], ensemble.name = [columns], [f"{name}.label", f"{name}.scores"], name
        self.nodes.append(ensemble)
        return ensemble.output[1]
