"""Declare the known encoder families: how each computes and how its layers can be split. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Split(Enum):
    """List how tensor parallelism treats a module of a layer, in the terms of Megatron and PyTorch.

    INPUT: attention, or another module with several matrices: its input is prepared once for all of them.
    COLUMN_WISE: a Linear; each rank computes some of its outputs (heads, or columns of the feed-forward).
    ROW_WISE: a Linear; each rank reads some of its inputs, and the outputs are summed over the ranks.
    """

    INPUT = "input"
    COLUMN_WISE = "column-wise"
    ROW_WISE = "row-wise"


@dataclass(frozen=True)
class EncoderFamily:
    """Hold the facts about a Hugging Face model_type that differ between families.

    Attributes:
        packed: values and gradients equal those of the padded forward (tests/models/test_packed_encoders.py).
        layers: path of the backbone's ModuleList of layers; None = not known.
        shared_layers: the layers share one set of weights.
        tensor_plan: how each module of a layer is split, by its name in the layer; empty = it cannot be split.
        sequence_parallel: norms and dropout lie between the split matrices, and one module runs each layer.
        attention: module of a layer after which the layer computes each token alone. It gets the layout, has its
            matrices in a child `self`, and its class can also be built for cross-attention, with queries of other
            hidden states than keys and values. None = a layer has no such module.
        equal_layers: the layers differ in their weights only, and need only hidden states and the layout.
    """

    packed: bool
    layers: str | None
    shared_layers: bool = False
    tensor_plan: Mapping[str, Split] = field(default_factory=dict)
    sequence_parallel: bool = False
    attention: str | None = None
    equal_layers: bool = False

    @property
    def has_own_layers(self) -> bool:
        """Return whether layers can be treated one by one: compiled, sharded, reinitialized, with own rates."""
        return self.layers is not None and not self.shared_layers

    @property
    def without_own_layers(self) -> str:
        """Return why layers cannot be treated one by one, after the name of an encoder; only without has_own_layers."""
        assert not self.has_own_layers
        return "whose layers share one set of weights" if self.shared_layers else "whose layers are not known"

    @property
    def has_stages(self) -> bool:
        """Return whether a pipeline can place its layers on different ranks."""
        return self.packed and self.has_own_layers


def _plan(*, inputs: Sequence[str] = (), columns: Sequence[str], rows: Sequence[str]) -> dict[str, Split]:
    splits = {Split.INPUT: inputs, Split.COLUMN_WISE: columns, Split.ROW_WISE: rows}
    return {name: split for split, names in splits.items() for name in names}


_BERT_LIKE = EncoderFamily(
    packed=True,
    layers="encoder.layer",
    tensor_plan=_plan(
        inputs=["attention.self"],
        columns=["attention.self.query", "attention.self.key", "attention.self.value", "intermediate.dense"],
        rows=["attention.output.dense", "output.dense"],
    ),
    sequence_parallel=True,
    attention="attention",
    equal_layers=True,
)
FAMILIES: Mapping[str, EncoderFamily] = {
    "bert": _BERT_LIKE,
    "roberta": _BERT_LIKE,
    "xlm-roberta": _BERT_LIKE,
    "camembert": _BERT_LIKE,
    "distilbert": EncoderFamily(
        packed=True,
        layers="transformer.layer",
        tensor_plan=_plan(
            inputs=["attention"],
            columns=["attention.q_lin", "attention.k_lin", "attention.v_lin", "ffn.lin1"],
            rows=["attention.out_lin", "ffn.lin2"],
        ),
        sequence_parallel=True,
        equal_layers=True,
    ),
    "electra": _BERT_LIKE,
    # No INPUT: its attention module adds the residual itself and needs the hidden states unchanged.
    "albert": EncoderFamily(
        packed=True,
        layers="encoder.albert_layer_groups",
        shared_layers=True,
        tensor_plan=_plan(
            columns=[
                f"albert_layers.*.{name}" for name in ("attention.query", "attention.key", "attention.value", "ffn")
            ],
            rows=["albert_layers.*.attention.dense", "albert_layers.*.ffn_output"],
        ),
    ),
    # No tensor plan: one matrix holds queries, keys and values, and another both halves of the gated feed-forward.
    # A rank's part of either matrix is not contiguous.
    "modernbert": EncoderFamily(packed=True, layers="layers"),
    "nomic_bert": EncoderFamily(
        packed=True,
        layers="layers",
        tensor_plan=_plan(
            inputs=["self_attn", "mlp"],
            columns=["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"],
            rows=["self_attn.o_proj", "mlp.down_proj"],
        ),
    ),
    "deberta-v2": EncoderFamily(packed=False, layers="encoder.layer"),
    "mpnet": EncoderFamily(packed=False, layers="encoder.layer"),
}
_UNKNOWN = EncoderFamily(packed=False, layers=None)


def encoder_family(model_type: str) -> EncoderFamily:
    """Return the facts about `model_type`; a family that is not in the table runs padded."""
    return FAMILIES.get(model_type, _UNKNOWN)


def layered_families() -> list[str]:
    """Return the families whose layers have weights of their own, in alphabetical order."""
    return sorted(name for name, family in FAMILIES.items() if family.has_own_layers)


def tensor_parallel_families(*, sequence_parallel: bool = False) -> list[str]:
    """Return the families whose layers tensor parallelism can split, in alphabetical order."""
    split = {name: family for name, family in FAMILIES.items() if family.tensor_plan}
    return sorted(name for name, family in split.items() if family.sequence_parallel or not sequence_parallel)
