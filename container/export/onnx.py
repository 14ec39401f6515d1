"""Export the classifier's padded forward to model.onnx, and compare it with the packed forward of PyTorch."""

import copy
import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import torch
from onnx_ir import Graph
from onnx_ir.convenience import replace_all_uses_with
from onnx_ir.passes.common import DeduplicateInitializersPass
from onnx_ir.tape import Tape
from torch import Tensor, nn
from torch.export import Dim
from torch.onnx import ONNXProgram

from container.companion.blend import Blend, BlendedCompanion
from container.companion.graph import LOGITS
from container.data.batch import PackedBatch
from container.data.records import TextArrays, pad_text
from container.decision.decision import Decision
from container.export.decision_layer import DecisionLayer
from container.export.head import write_head
from container.export.repeated_layers import calls_of_layers, inline_layers
from container.job.processes import without_collection
from container.models.ensemble import Network
from container.onnx_session import open_session
from contracts.artifacts import ONNX_FEATURES, ONNX_OUTPUT, ONNX_TABULAR, head_file
from contracts.errors import ContractError, first_line
from contracts.file_systems import move
from contracts.hyperparameters import Hyperparameters

UNCHANGED = Decision()
OPSET = 18
TOLERANCE = 1e-4
# A protobuf message is limited to 2 GiB; the weights of a larger model go into a second file.
LARGEST_FILE = 2**31 - 2**24

Feed = dict[str, np.ndarray]


@dataclass(frozen=True)
class OnnxReport:
    """Describe the exported file and the result of its check.

    Attributes:
        num_bytes: size of the file, and of the second file that has its weights if they do not fit into it.
        shapes: (B, C, T) of the first text in each comparison.
        max_difference: largest difference of a probability from PyTorch's.
        seconds: duration of export and checks.
    """

    num_bytes: int
    shapes: tuple[tuple[int, int, int], ...]
    max_difference: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.num_bytes / 1e6:.1f} MB, exported in {self.seconds:.1f} s; over {len(self.shapes)} shapes its "
            f"probabilities differ from PyTorch's by at most {self.max_difference:.1e}"
        )


def export_onnx(
    model: Network,
    hp: Hyperparameters,
    path: Path,
    *,
    samples: Sequence[PackedBatch],
    decision: Decision = UNCHANGED,
    companion: BlendedCompanion | None = None,
    of_ensemble: list[onnx_ir.Function] | None = None,
) -> OnnxReport:
    """Export `model` to `path`, which is created only after the file is complete and agrees with PyTorch.

    Inputs: per text field input_ids and attention_mask [B, C, T] int64, named by the field's keys, and "tabular"
    [B, n] float32 if the model has a table. Outputs: "probabilities" [B, num_classes], then the features of the texts,
    "features.ROLE" and those of the companion, which begin with this name. B, and each field's C and T, are dynamic.

    model.head.onnx in the same folder computes the rest of the graph from the features.

    Args:
        samples: at least one batch of records to compare on, held out from training if possible.
        decision: its calibration and prior correction become part of the graph, its threshold of the metadata.
        companion: becomes part of the graph.
        of_ensemble: functions that `calls_of_layers` adds or calls again.

    Raises:
        ContractError: the encoder's family cannot be exported.
        RuntimeError: the graph is not valid, or its probabilities differ from PyTorch's by more than 1e-4.
    """
    assert samples, "a comparison needs at least one batch"
    started = time.perf_counter()
    model = copy.deepcopy(model).to("cpu", torch.float32).eval()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        staged = Path(folder) / path.name
        with without_collection():
            _write(model, hp, staged, decision=decision, companion=companion, of_ensemble=of_ensemble)
        onnx.checker.check_model(str(staged))
        shapes, difference = check_parity(model, hp, staged, samples=samples, decision=decision, companion=companion)
        head = staged.with_name(head_file(None))
        write_head(staged, head)
        graph = [part for part in (staged.with_name(f"{path.name}.data"), staged) if part.exists()]
        num_bytes = sum(part.stat().st_size for part in graph)
        for part in (head, *graph):  # last the model, which cannot be loaded without its weights
            move(part, path.with_name(part.name))
    return OnnxReport(num_bytes, shapes, difference, time.perf_counter() - started)


def check_parity(
    model: Network,
    hp: Hyperparameters,
    path: Path,
    *,
    samples: Sequence[PackedBatch],
    decision: Decision = UNCHANGED,
    companion: BlendedCompanion | None = None,
) -> tuple[tuple[tuple[int, int, int], ...], float]:
    """Compare the file's probabilities with the packed forward of `model` on records of `samples`.

    Each sample is compared as it is, its first two records with extra padding, and its first record alone.

    Returns:
        (B, C, T) of the first text in each comparison, and the largest difference.

    Raises:
        RuntimeError: a difference above 1e-4, or a probability is NaN.
    """
    session = open_session(path, threads=torch.get_num_threads())
    shapes, largest = [], 0.0
    for sample in samples:
        with torch.no_grad():
            logits = model(sample).numpy()
        if companion is not None:
            logits = companion(logits, feed_of(model, hp, sample))
        expected = decision.probabilities(logits)
        for num_records, texts in _arrangements(hp, sample):
            feed = _feed(model, hp, texts, sample.tabular[:num_records])
            shape = tuple(texts[0][0].shape) if texts else (num_records, 0, 0)
            computed = np.asarray(session.run([ONNX_OUTPUT], feed)[0])  # [B, K]
            difference = float(np.abs(computed - expected[:num_records]).max())
            if not difference <= TOLERANCE:
                raise RuntimeError(
                    f"model.onnx: a probability differs from PyTorch's by {difference:.2e}, more than {TOLERANCE:.0e}, "
                    f"on text of shape {shape}"
                )
            shapes.append(shape)
            largest = max(largest, difference)
    return tuple(shapes), largest


def feed_of(model: Network, hp: Hyperparameters, sample: PackedBatch) -> Feed:
    """Return the graph's inputs for the records of `sample`, padded to the longest."""
    return _feed(model, hp, next(_arrangements(hp, sample))[1], sample.tabular)


class _Probabilities(nn.Module):
    """Compute probabilities, and the features of each text, from flat tensors."""

    def __init__(self, model: Network, num_texts: int, *, decision: Decision, blend: Blend | None) -> None:
        super().__init__()
        self.model = model
        self.num_texts = num_texts
        self.blend = blend
        self.decision = DecisionLayer(decision)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        texts = [(inputs[2 * i], inputs[2 * i + 1]) for i in range(self.num_texts)]
        tabular = None if self.model.tabular is None else inputs[2 * self.num_texts]
        features = self.model.encode_dense(texts)
        logits = self.model.head_dense(features, [mask for _, mask in texts], tabular)
        if self.blend is not None:
            logits = self.blend.network * logits + self.blend.companion * inputs[-1]
        return (self.decision(logits), *features)


def input_names(model: Network, hp: Hyperparameters) -> list[str]:
    """Return the names of the graph's inputs, in order."""
    names = [name for field in hp.text_fields for name in (field.input_ids_key, field.attention_mask_key)]
    return names if model.tabular is None else [*names, ONNX_TABULAR]


def _write(
    model: Network,
    hp: Hyperparameters,
    path: Path,
    *,
    decision: Decision,
    companion: BlendedCompanion | None,
    of_ensemble: list[onnx_ir.Function] | None,
) -> None:
    """Trace the dense forward and save the graph."""
    batch = Dim("batch")
    inputs: list[Tensor] = []
    dynamic: list[dict[int, Dim]] = []
    for i, field in enumerate(hp.text_fields):
        shape = (2, 3 + i, min(5 + i, field.max_sen_len))  # not 1, which the tracer treats as a constant
        mask = torch.ones(shape, dtype=torch.int64)
        inputs += [mask.clone(), mask]
        prefix = "" if field.role == "text" else f"{field.role}_"
        dims = {0: batch, 1: Dim(f"{prefix}chunks"), 2: Dim(f"{prefix}length", max=field.max_sen_len)}
        dynamic += [dims, dims]
    if model.tabular is not None:
        inputs.append(torch.zeros(2, model.tabular.num_inputs))
        dynamic.append({0: batch})
    names = input_names(model, hp)
    outputs = [ONNX_OUTPUT, *(f"{ONNX_FEATURES}{field.role}" for field in hp.text_fields)]
    if companion is not None:  # an input of the traced graph, which the companion's nodes then replace
        inputs.append(torch.zeros(2, hp.num_classes))
        dynamic.append({0: batch})
        names.append(LOGITS)
    blend = None if companion is None else companion.blend
    try:
        with silenced():
            with calls_of_layers(model, _trace, inputs=inputs, dims=dynamic, of_ensemble=of_ensemble) as functions:
                program = _trace(
                    _Probabilities(model, len(hp.text_fields), decision=decision, blend=blend),
                    tuple(inputs),
                    {"inputs": tuple(dynamic)},
                    input_names=names,
                    output_names=outputs,
                )
            inline_layers(functions, program.model)
    except Exception as error:
        families = sorted({branch.encoder.kind for branch in model.branches.values()})
        raise ContractError(
            f"model.onnx: an encoder of the family {' or '.join(families)} cannot be exported: {first_line(error)}",
            "Use an encoder of another family (bert, roberta, distilbert, electra, albert, modernbert, mpnet).",
        ) from error
    # The tracer stores a stack trace, with paths of this machine, in every node.
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()
    _rename_values(program.model.graph, {*names, *outputs})
    _pad_empty_inputs(program.model.graph)
    program.model.graph.metadata_props.clear()
    program.model.metadata_props.update(_metadata(hp, decision))
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    if hp.share_encoder:  # the exporter stores a transposed weight once for each text that uses it
        DeduplicateInitializersPass(size_limit=num_bytes)(program.model)
    program.save(path, external_data=num_bytes > LARGEST_FILE)
    if companion is not None:
        _insert(companion.companion.graph, path)


def _trace(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    dynamic_shapes: Any,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> ONNXProgram:
    """Trace a module, without optimizing its graph."""
    # torch's cache of fake tensors costs more than it saves: with dynamic dimensions, a shape rarely occurs twice.
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
        program = torch.onnx.export(
            module.eval(),
            inputs,
            dynamo=True,
            opset_version=OPSET,
            input_names=input_names,
            output_names=output_names,
            dynamic_shapes=dynamic_shapes,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    return program


def _insert(companion: onnx.ModelProto, path: Path) -> None:
    """Add the companion's nodes to the graph at `path`, in place of the input that has the name of their output."""
    model = onnx.load(str(path), load_external_data=False)
    graph, needed, nodes = model.graph, {LOGITS}, [*model.graph.node]
    padded = {value.name: f"{value.name}.padded" for value in graph.input}
    first = 1 + max(i for i, node in enumerate(nodes) if node.op_type == "Pad" and node.output[0] in padded.values())
    for node in reversed(companion.graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            copied = copy.deepcopy(node)
            copied.input[:] = [padded.get(name, name) for name in node.input]
            nodes.insert(first, copied)
    (replaced,) = (value for value in graph.input if value.name == LOGITS)
    graph.input.remove(replaced)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(each for each in companion.graph.initializer if each.name in needed)
    features = sorted(name for name in needed if name.startswith(ONNX_FEATURES))
    graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, None]) for name in features
    )
    known = {each.domain for each in model.opset_import}
    model.opset_import.extend(each for each in companion.opset_import if each.domain not in known)
    onnx.save(model, str(path))


def _rename_values(graph: Graph, names: set[str]) -> None:
    """Rename the values inside the graph that the tracer gave one of `names`, those of inputs and outputs."""
    values = [value for node in graph.all_nodes() for value in node.outputs if not value.is_graph_output()]
    for value in (*values, *graph.initializers.values()):
        if value.name in names:
            value.name = f"{value.name}.inner"  # no input has a dot in its name


def _pad_empty_inputs(graph: Graph) -> None:
    """Give an empty axis of the inputs one entry, and take the added record out of the probabilities.

    Otherwise the graph of no record (B = 0) would fail: the traced shapes, and operators such as FusedGemm, need one.
    The inputs and the output get dimensions of their own, because ONNX Runtime takes those of one name as equal.
    """

    def own(shape: onnx_ir.Shape | None) -> onnx_ir.Shape:
        return onnx_ir.Shape([size if isinstance(size, int) else f"any_{size}" for size in shape or ()])

    tape = Tape()
    zero, one = (tape.initializer(onnx_ir.tensor([value]), name=f"padding_{value}") for value in (0, 1))
    for given in graph.inputs:
        if given.name == LOGITS:  # the companion reads the padded inputs too
            continue
        padded = onnx_ir.Value(name=f"{given.name}.padded", shape=given.shape, type=given.type)
        given.shape = own(given.shape)
        replace_all_uses_with(given, padded)
        sizes = tape.op("Shape", [given])
        before, after = tape.op("Mul", [sizes, zero]), tape.op("Max", [tape.op("Sub", [one, sizes]), zero])
        tape.op("Pad", [given, tape.op("Concat", [before, after], {"axis": 0})], output=padded)
    graph.insert_before(graph[0], tape.nodes)
    for value in tape.initializers:
        graph.register_initializer(value)
    computed = graph.outputs[0]
    graph.outputs[0] = onnx_ir.Value(name=ONNX_OUTPUT, shape=own(computed.shape), type=computed.type)
    computed.name = f"{ONNX_OUTPUT}.padded"
    last = Tape(graph)
    count = last.op("Shape", [graph.inputs[0]], {"start": 0, "end": 1})
    last.op("Slice", [computed, zero, count, zero], output=graph.outputs[0])


def _metadata(hp: Hyperparameters, decision: Decision) -> dict[str, str]:
    metadata = {"model_class": hp.architecture.name, "num_classes": str(hp.num_classes)}
    if decision.threshold is not None:
        metadata["decision_threshold"] = repr(decision.threshold.value)
    if hp.multiclass_categories is not None:
        metadata["class_labels"] = json.dumps(hp.multiclass_categories)
    return metadata


def _arrangements(
    hp: Hyperparameters, sample: PackedBatch
) -> Iterator[tuple[int, list[tuple[np.ndarray, np.ndarray]]]]:
    """Yield a sample padded tightly, its first two records with an extra chunk and extra tokens, and its first.

    The number of records comes before their texts.
    """
    tight = []
    for text in sample.texts:
        boundaries, begins = text.cu_seqlens.numpy(), np.arange(len(sample.rows) + 1)
        chunk_offsets = np.searchsorted(text.chunk_record.numpy(), begins)
        arrays = TextArrays(text.tokens.numpy(), boundaries[chunk_offsets], np.asarray(text.lengths), chunk_offsets)
        tight.append(pad_text(arrays))
    yield len(sample.rows), tight
    padded = []
    for field, arrays in zip(hp.text_fields, tight):
        extra = min(3, field.max_sen_len - arrays[0].shape[2])
        padded.append(tuple(np.pad(array[:2], ((0, 0), (0, 1), (0, extra))) for array in arrays))
    yield min(2, len(sample.rows)), padded
    first = []
    for input_ids, mask in tight:
        num_chunks, length = int(mask[0].any(-1).sum()), int(mask[0].sum(-1).max())
        first.append((input_ids[:1, :num_chunks, :length], mask[:1, :num_chunks, :length]))
    yield 1, first


def _feed(model: Network, hp: Hyperparameters, texts: Sequence[tuple[np.ndarray, np.ndarray]], tabular: Tensor) -> Feed:
    arrays = [array for pair in texts for array in pair]
    if model.tabular is not None:
        arrays.append(tabular.numpy())
    return dict(zip(input_names(model, hp), arrays, strict=True))


@contextmanager
def silenced() -> Iterator[None]:
    """Silence the log lines, warnings and prints of the export tools."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with open(os.devnull, "w") as sink, redirect_stdout(sink), redirect_stderr(sink), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
