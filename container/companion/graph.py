"""Write the companion as ONNX graphs, and compute it with them: in the job as in serving."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from container.companion.bag import BUCKETS, MULTIPLIER, TokenBag
from container.companion.linear import LinearText
from container.companion.nodes import LOGITS, OPSETS, SCORES, Graph
from container.companion.parts import ChosenParts
from container.cores import threads_of
from container.data.records import RecordArrays, onnx_inputs
from container.onnx_session import open_session
from contracts.artifacts import ONNX_FEATURES, ONNX_TABULAR
from contracts.text_fields import ModelTextField, TextInputs

_IR_VERSION = 10
_LARGEST_WEIGHT = 32_767  # of int16
_MOST_TOKENS = 65_536  # of a batch's inputs, with padding


@dataclass(frozen=True)
class Companion:
    """A fitted companion.

    Attributes:
        graph: from token ids, masks and the table to logits [B, K] and the scores of the texts [B, S].
    """

    graph: onnx.ModelProto

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return logits and scores from the inputs of model.onnx. [B, K], [B, S] float32"""
        feed = {node.name: inputs[node.name] for node in self._session.get_inputs()}
        logits, scores = self._session.run([LOGITS, SCORES], feed)
        return np.asarray(logits), np.asarray(scores)

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        return open_session(self.graph.SerializeToString(), threads=threads_of(_MOST_TOKENS))


def predict(
    companion: Companion, parts: Sequence[RecordArrays], texts: Sequence[TextInputs]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits [N, K] and the scores [N, S] of the records of `parts`, computed as in serving."""
    logits, scores = [], []
    for part in parts:
        shapes = part.shapes
        order = np.lexsort((part.row, *shapes.T[::-1]))  # similar shapes need little padding
        found = [companion(onnx_inputs(texts, part.take(some))) for some in _batches(shapes, order)]
        back = np.argsort(order)
        for kept, columns in zip((logits, scores), zip(*found), strict=True):
            kept.append(np.concatenate(columns)[back])
    return np.concatenate(logits), np.concatenate(scores)


def _batches(shapes: np.ndarray, records: np.ndarray) -> Iterator[np.ndarray]:
    """Divide `records` into parts of at most _MOST_TOKENS padded tokens, or one record.

    Args:
        shapes: chunks and longest chunk of each text of all records. [R, 2 n]
    """
    largest = shapes[records].max(axis=0).reshape(-1, 2)
    if len(records) == 1 or len(records) * largest.prod(axis=1).sum() <= _MOST_TOKENS:
        yield records
        return
    for half in np.array_split(records, 2):
        yield from _batches(shapes, half)


def build_companion(
    fields: Sequence[ModelTextField],
    bags: Sequence[TokenBag],
    linear: LinearText,
    parts: ChosenParts,
    *,
    num_numbers: int,
    classes: np.ndarray,
    log_shares: np.ndarray,
) -> Companion:
    """Return the companion that computes `linear` and `parts`.

    Args:
        parts: read the table, the scores and the number of tokens of each text, or the table alone.
        num_numbers: columns of the table.
        classes: the M classes that the parts were fitted on. [M]
        log_shares: of each other class, the logarithm of its share; of `classes`, that of the share left for them. [K]
    """
    graph = Graph()
    masks = _add_scores(graph, fields, bags, linear)
    features = [graph.input(ONNX_TABULAR, TensorProto.FLOAT, ["batch", num_numbers])] if num_numbers else []
    if parts.num_columns > num_numbers:
        features += [SCORES, *(_token_count(graph, field, mask) for field, mask in zip(fields, masks, strict=True))]
    logits = parts.add(graph, graph.add("Concat", *features, axis=1))
    _add_logits(graph, logits, classes=classes, log_shares=log_shares)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", None]) for name in (LOGITS, SCORES)]
    built = helper.make_graph(graph.nodes, "companion", graph.inputs, outputs, graph.constants)
    return Companion(helper.make_model(built, opset_imports=OPSETS, ir_version=_IR_VERSION))


def _add_scores(
    graph: Graph, fields: Sequence[ModelTextField], bags: Sequence[TokenBag], linear: LinearText
) -> Sequence[str]:
    """Add the nodes of `LinearText.scores`, and return the name of each text's mask.

    Weights and inverse document frequencies are 16-bit integers, so that sums of their products are exact. In floating
    point, a sum depends on the padding of the batch, and the smallest difference can cross a threshold of a tree.
    """
    scores, masks = [], []
    for field, bag, weights in zip(fields, bags, linear.weights, strict=True):
        shape = ["batch", f"{field.role}_chunks", f"{field.role}_length"]
        ids, mask = (
            graph.input(key, TensorProto.INT64, shape) for key in (field.input_ids_key, field.attention_mask_key)
        )
        scores.append(_text_score(graph, field, (ids, mask), bag, weights))
        masks.append(mask)
    if not scores:
        graph.add("Slice", ONNX_TABULAR, *(graph.constant([each], np.int64) for each in (0, 0, 1)), output=SCORES)
        return masks
    if len(scores) > 1:
        scores.append(graph.add("Sum", *scores))
    scores[-1] = graph.add("Add", scores[-1], graph.constant(linear.bias, np.float32))
    graph.add("Concat", *scores, output=SCORES, axis=1)
    return masks


def _token_count(graph: Graph, field: ModelTextField, mask: str) -> str:
    """Add the nodes of `token_counts` for one text, and return its name. [B, 1]"""
    count = graph.add("ReduceSum", mask, graph.constant([1, 2], np.int64), keepdims=0)
    column = graph.add("Unsqueeze", count, graph.constant([1], np.int64))
    return graph.add("Cast", column, output=f"{ONNX_FEATURES}{field.role}.tokens", to=TensorProto.FLOAT)


def _text_score(
    graph: Graph, field: ModelTextField, inputs: tuple[str, str], bag: TokenBag, weights: np.ndarray
) -> str:
    """Add the nodes of one text's score, from its ids and mask, and return its name. [B, C]"""
    (ids, mask), whole = inputs, np.iinfo(np.int64).max
    known = graph.add("Min", ids, graph.constant(len(bag.terms_of_tokens) - 1, np.int64))
    tokens = graph.add("Mul", graph.take(bag.terms_of_tokens, np.uint16, at=known), mask)  # padding has term 0
    left, right = graph.slice(ids, 0, -1, axis=2), graph.slice(ids, 1, whole, axis=2)
    mixed = graph.add("Add", graph.add("Mul", left, graph.constant(MULTIPLIER, np.int64)), right)
    bucket = graph.add("Mod", mixed, graph.constant(BUCKETS, np.int64))
    both = graph.slice(mask, 1, whole, axis=2)
    pairs = graph.add("Mul", graph.take(bag.terms_of_pairs, np.uint16, at=bucket), both)
    terms = graph.add("Concat", tokens, pairs, axis=2)  # [B, C, 2 T - 1]
    scale = np.abs(weights).max(axis=0) / _LARGEST_WEIGHT  # [C]
    scale[scale == 0] = 1
    idf = graph.take(bag.idf[:, None], np.int16, at=terms)  # [B, C, 2 T - 1, 1]
    products = graph.add("Mul", graph.take(np.rint(weights / scale), np.int16, at=terms), idf)
    numerators = graph.sum_of_chunks(products)  # [B, C]
    squares = graph.add("Max", graph.sum_of_chunks(graph.add("Mul", idf, idf)), graph.constant(1, np.int64))  # [B, 1]
    norm = graph.add("Sqrt", graph.add("Cast", squares, to=TensorProto.FLOAT))
    ratio = graph.add("Div", graph.add("Cast", numerators, to=TensorProto.FLOAT), norm)
    return graph.add("Mul", ratio, graph.constant(scale, np.float32), output=f"{ONNX_FEATURES}{field.role}.score")


def _add_logits(graph: Graph, logits: str, *, classes: np.ndarray, log_shares: np.ndarray) -> None:
    """Add the nodes from the logits of M classes to the logarithms of the probabilities of all K classes."""
    fitted_on = np.isin(np.arange(len(log_shares)), classes)
    if fitted_on.all():
        graph.add("LogSoftmax", logits, output=LOGITS, axis=1)
        return
    column = np.where(fitted_on, np.cumsum(fitted_on) - 1, 0)
    placed = graph.add("Gather", graph.add("LogSoftmax", logits, axis=1), graph.constant(column, np.int64), axis=1)
    kept = graph.add("Mul", placed, graph.constant(fitted_on, np.float32))
    graph.add("Add", kept, graph.constant(log_shares, np.float32), output=LOGITS)
