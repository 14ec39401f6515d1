"""The encoder families that are known: how each computes, and how its layers can be split. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Split(Enum):
    """How tensor parallelism treats a module of a layer (Megatron's and torch.distributed.tensor.parallel's terms).

    INPUT: attention, or another module with several matrices: its input is prepared once for all of them.
    COLUMN_WISE: a Linear; each rank computes some of its outputs (heads, or columns of the feed-forward).
    ROW_WISE: a Linear; each rank reads some of its inputs, and the outputs are summed over the ranks.
    """

    INPUT = "input"
    COLUMN_WISE = "column-wise"
    ROW_WISE = "row-wise"


@dataclass(frozen=True)
class EncoderFamily:
    """The facts about a Hugging Face model_type that differ between families.

    Attributes:
        packed: proven, values and gradients, equal to the padded forward (tests/models/test_packed_encoders.py).
        layers: path of the ModuleList of its layers in the backbone; None = not known.
        shared_layers: one set of weights is run several times.
        tensor_plan: how each module of a layer is split, by its name in the layer; empty = it cannot be split.
        sequence_parallel: norms and dropout lie between the split matrices, in layers that one module runs.
    """

    packed: bool
    layers: str | None
    shared_layers: bool = False
    tensor_plan: Mapping[str, Split] = field(default_factory=dict)
    sequence_parallel: bool = False

    @property
    def has_own_layers(self) -> bool:
        """Whether layers can be treated one by one: checkpointed, compiled, sharded, reinitialized."""
        return self.layers is not None and not self.shared_layers

    @property
    def has_stages(self) -> bool:
        """Whether a pipeline can place its layers on different ranks."""
        return self.packed and self.has_own_layers


def _bert_like() -> EncoderFamily:
    plan = {
        "attention.self": Split.INPUT,
        "attention.self.query": Split.COLUMN_WISE,
        "attention.self.key": Split.COLUMN_WISE,
        "attention.self.value": Split.COLUMN_WISE,
        "attention.output.dense": Split.ROW_WISE,
        "intermediate.dense": Split.COLUMN_WISE,
        "output.dense": Split.ROW_WISE,
    }
    return EncoderFamily(packed=True, layers="encoder.layer", tensor_plan=plan, sequence_parallel=True)


FAMILIES: Mapping[str, EncoderFamily] = {
    "bert": _bert_like(),
    "roberta": _bert_like(),
    "xlm-roberta": _bert_like(),
    "camembert": _bert_like(),
    "distilbert": EncoderFamily(
        packed=True,
        layers="transformer.layer",
        tensor_plan={
            "attention": Split.INPUT,
            "attention.q_lin": Split.COLUMN_WISE,
            "attention.k_lin": Split.COLUMN_WISE,
            "attention.v_lin": Split.COLUMN_WISE,
            "attention.out_lin": Split.ROW_WISE,
            "ffn.lin1": Split.COLUMN_WISE,
            "ffn.lin2": Split.ROW_WISE,
        },
        sequence_parallel=True,
    ),
    "electra": _bert_like(),
    # No INPUT: its attention adds the residual itself, and needs the hidden states as they are.
    "albert": EncoderFamily(
        packed=True,
        layers="encoder.albert_layer_groups",
        shared_layers=True,
        tensor_plan={
            "albert_layers.*.attention.query": Split.COLUMN_WISE,
            "albert_layers.*.attention.key": Split.COLUMN_WISE,
            "albert_layers.*.attention.value": Split.COLUMN_WISE,
            "albert_layers.*.attention.dense": Split.ROW_WISE,
            "albert_layers.*.ffn": Split.COLUMN_WISE,
            "albert_layers.*.ffn_output": Split.ROW_WISE,
        },
    ),
    # No tensor plan: queries, keys and values lie in one matrix, and the two halves of the gated feed-forward in
    # another. A rank's share of either is not one run of rows.
    "modernbert": EncoderFamily(packed=True, layers="layers"),
    "nomic_bert": EncoderFamily(
        packed=True,
        layers="layers",
        tensor_plan={
            "self_attn": Split.INPUT,
            "self_attn.q_proj": Split.COLUMN_WISE,
            "self_attn.k_proj": Split.COLUMN_WISE,
            "self_attn.v_proj": Split.COLUMN_WISE,
            "self_attn.o_proj": Split.ROW_WISE,
            "mlp": Split.INPUT,
            "mlp.gate_proj": Split.COLUMN_WISE,
            "mlp.up_proj": Split.COLUMN_WISE,
            "mlp.down_proj": Split.ROW_WISE,
        },
    ),
    "deberta-v2": EncoderFamily(packed=False, layers="encoder.layer"),
    "mpnet": EncoderFamily(packed=False, layers="encoder.layer"),
}
_UNKNOWN = EncoderFamily(packed=False, layers=None)


def encoder_family(model_type: str) -> EncoderFamily:
    """Return the facts about `model_type`; a family that is not in the table runs padded."""
    return FAMILIES.get(model_type, _UNKNOWN)


def tensor_parallel_families(*, sequence_parallel: bool = False) -> list[str]:
    """Return the families whose layers tensor parallelism can split, in alphabetical order."""
    return sorted(
        name for name, family in FAMILIES.items()
        if family.tensor_plan and (family.sequence_parallel or not sequence_parallel)
    )  # fmt: skip
