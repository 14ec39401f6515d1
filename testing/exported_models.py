"""Model folders that need no training: random weights of a class, or a linear graph with known weights."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import torch
from onnx import TensorProto, helper, numpy_helper

from container.data.records import RecordArrays
from container.data.split import pack_records
from container.decision.decision import Decision
from container.export.head import write_head
from container.export.onnx import export_onnx
from container.models.build import build_classifier
from container.preprocessing.prepared import EncoderFiles
from container.preprocessing.transform import Preprocessor
from contracts import artifacts
from testing.table_jobs import fit, settings, table

ENCODER = "encoder"


def _table(rows: int) -> pa.Table:
    return table(rows, other=["thank you", "late parcel. bad shirt"] * (rows // 2))


def preprocessed_model(folder: Path, decision: Decision, **given: Any) -> tuple[Preprocessor, Any]:
    """Write everything but the graph of a model on _table with these hyperparameters to folder/model."""
    hp = settings(**given)
    preprocessor, _ = fit(folder, _table(60), hp)
    model = folder / "model"
    preprocessor.fitted.save(model)
    for field in hp.text_fields:
        copytree(folder / ENCODER, model / artifacts.tokenizer_folder(field.role), dirs_exist_ok=True)
    decision.save(model)
    (model / artifacts.HYPERPARAMETERS).write_text(json.dumps(hp.model_dump(mode="json")))
    return preprocessor, hp


def random_model(folder: Path, decision: Decision, **given: Any) -> Path:
    """Return a model folder with random weights, large enough to make the logits differ."""
    preprocessor, hp = preprocessed_model(folder, decision, **given)
    fitted, torch_state = preprocessor.fitted, torch.random.get_rng_state()
    torch.manual_seed(0)
    model = build_classifier(
        hp,
        [EncoderFiles(folder / ENCODER, None)] * len(hp.text_fields),
        tabular_dim=len(fitted.feature_columns),
        numeric_transform=fitted.numeric_transform,
        num_codes=fitted.num_codes,
    ).eval()
    torch.random.set_rng_state(torch_state)
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and "embeddings" not in name:
            weight.data.normal_(0, 0.15, generator=torch.Generator().manual_seed(len(name)))
    records = RecordArrays.from_batch(preprocessor.transform(_table(8)).batch, [field.role for field in hp.text_fields])
    export_onnx(
        model,
        hp,
        folder / "model" / artifacts.MODEL_ONNX,
        samples=[pack_records(records.take(np.arange(4)))],
        decision=decision,
    )
    return folder / "model"


def linear_model(folder: Path, weights: np.ndarray, *, of_tokens: float, bias: float) -> Path:
    """Return a model folder whose logit is weights * table + of_tokens * number of tokens + bias; two classes.

    Args:
        weights: of the table's values: x, y and the risk of c. [3]
    """
    preprocessed_model(folder, Decision())
    path = folder / "model" / artifacts.MODEL_ONNX
    constants = {
        "axes": np.array([1, 2]), "one": np.array([1]), "tokens": np.array([[of_tokens]], np.float32),
        "weights": weights[:, None].astype(np.float32), "bias": np.float32(bias), "zero": np.float32(0),
    }  # fmt: skip
    steps = [
        ("ReduceSum", ["attention_mask", "axes"], "count", {"keepdims": 0}),
        ("Cast", ["count"], "number", {"to": TensorProto.FLOAT}),
        ("Unsqueeze", ["number", "one"], "features.text", {}),
        ("MatMul", ["tabular", "weights"], "of_table", {}),
        ("MatMul", ["features.text", "tokens"], "of_text", {}),
        ("Sum", ["of_table", "of_text", "bias"], "logit", {}),
        ("Mul", ["logit", "zero"], "other", {}),
        ("Concat", ["other", "logit"], "logits", {"axis": 1}),
        ("Softmax", ["logits"], "probabilities", {"axis": 1}),
    ]
    nodes = [helper.make_node(kind, inputs, [output], **options) for kind, inputs, output, options in steps]
    ids = [
        helper.make_tensor_value_info(n, TensorProto.INT64, ["b", "c", "t"]) for n in ("input_ids", "attention_mask")
    ]
    inputs = [*ids, helper.make_tensor_value_info("tabular", TensorProto.FLOAT, ["b", len(weights)])]
    outputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", None]) for n in ("probabilities", "features.text")
    ]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "linear", inputs, outputs, initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), str(path))
    write_head(path, path.with_name(artifacts.head_file(None)))
    return folder / "model"
