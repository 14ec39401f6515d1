"""Tensor parallelism: the matrices of each layer cut over the ranks of the "tp" axis by a plan per family.

A layer costs two reductions of its activations forward, and two backward. What lies between the cut matrices (norms,
dropout, residuals) is computed on every rank alike; or, sequence parallel, each rank has its share of the tokens there,
and the two reductions become a gather and a scatter each. Either way dropout is what one process draws, as long as the
ranks' generators agree.
"""

from collections.abc import Mapping
from enum import Enum
from fnmatch import fnmatchcase

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

from container.models.classifier import Classifier
from container.models.encoder import TextEncoder
from container.models.families import FAMILIES, encoder_layers
from container.parallel.cut_modules import cut_columns, cut_entry, cut_rows, cut_width
from container.parallel.feasibility import SEQUENCE_PARALLEL_FAMILIES, TENSOR_PARALLEL_FAMILIES
from container.parallel.sequence import SlicedTokens
from contracts.errors import ContractError


class Cut(Enum):
    """What becomes of a module of a layer.

    ENTRY: attention, or what else has several matrices that hidden states enter: they do so once for all of them.
    COLUMNS: a Linear, each rank has some of its outputs (heads, or columns of the feed-forward).
    ROWS: a Linear, each rank has some of its inputs; the ranks' outputs are summed.
    """

    ENTRY = "entry"
    COLUMNS = "columns"
    ROWS = "rows"


_BERT = {
    "attention.self": Cut.ENTRY,
    "attention.self.query": Cut.COLUMNS,
    "attention.self.key": Cut.COLUMNS,
    "attention.self.value": Cut.COLUMNS,
    "attention.output.dense": Cut.ROWS,
    "intermediate.dense": Cut.COLUMNS,
    "output.dense": Cut.ROWS,
}

# Names are relative to a layer. ModernBERT has queries, keys and values in one matrix, and the two halves of its gated
# feed-forward in another: a rank's share of either is not one run of rows.
PLANS: dict[str, Mapping[str, Cut]] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    "distilbert": {
        "attention": Cut.ENTRY,
        "attention.q_lin": Cut.COLUMNS,
        "attention.k_lin": Cut.COLUMNS,
        "attention.v_lin": Cut.COLUMNS,
        "attention.out_lin": Cut.ROWS,
        "ffn.lin1": Cut.COLUMNS,
        "ffn.lin2": Cut.ROWS,
    },
    # No ENTRY: its attention adds the residual itself, and needs the hidden states as they are.
    "albert": {
        "albert_layers.*.attention.query": Cut.COLUMNS,
        "albert_layers.*.attention.key": Cut.COLUMNS,
        "albert_layers.*.attention.value": Cut.COLUMNS,
        "albert_layers.*.attention.dense": Cut.ROWS,
        "albert_layers.*.ffn": Cut.COLUMNS,
        "albert_layers.*.ffn_output": Cut.ROWS,
    },
    "nomic_bert": {
        "self_attn": Cut.ENTRY,
        "self_attn.q_proj": Cut.COLUMNS,
        "self_attn.k_proj": Cut.COLUMNS,
        "self_attn.v_proj": Cut.COLUMNS,
        "self_attn.o_proj": Cut.ROWS,
        "mlp": Cut.ENTRY,
        "mlp.gate_proj": Cut.COLUMNS,
        "mlp.up_proj": Cut.COLUMNS,
        "mlp.down_proj": Cut.ROWS,
    },
}


def apply_tensor_parallel(model: Classifier, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Cut `model` over `mesh` in place; parameters keep their names, and become DTensors where they are cut.

    Plain tensors, the same on every rank, remain: norms, position and token type tables, ELECTRA's and ALBERT's
    projection of the embeddings, and heads whose outputs do not divide.

    Args:
        model: the plain model, with the same weights on every rank; before recomputation, compilation and sharding.
        mesh: one axis, "tp", whose size divides heads and feed-forward columns (container/parallel/feasibility.py).
        sequence_parallel: between the cut matrices of a layer, each rank computes its share of the tokens.

    Raises:
        ContractError: an encoder whose family has no plan.
    """
    encoders = {role: branch.encoder for role, branch in model.branches.items()}
    for role, encoder in encoders.items():
        check_family(encoder.backbone.config.model_type, role=role, sequence_parallel=sequence_parallel)
    for encoder in dict.fromkeys(encoders.values()):  # one, where texts share it
        _cut_encoder(encoder, mesh, sequence_parallel=sequence_parallel)
    heads = [*model.branches.values(), model.tabular, model.fusion]
    backbones = {module for encoder in encoders.values() for module in encoder.backbone.modules()}
    for linear in dict.fromkeys(module for head in heads if head is not None for module in head.modules()):
        if isinstance(linear, nn.Linear) and linear not in backbones and linear.out_features % mesh.size() == 0:
            cut_columns(linear, mesh, outside=Replicate(), whole=True)


def check_family(model_type: str, *, role: str, sequence_parallel: bool) -> None:
    """Raise ContractError where there is no plan for the encoder of text `role`."""
    for setting, wanted, families in (
        ("tp_size", True, TENSOR_PARALLEL_FAMILIES),
        ("sequence_parallel", sequence_parallel, SEQUENCE_PARALLEL_FAMILIES),
    ):
        if wanted and model_type not in families:
            raise ContractError(
                f"{setting}: there is no plan by which the encoder of {role!r}, of model_type {model_type!r}, is cut; "
                f"there is one for {', '.join(sorted(families))}",
                "Leave sequence_parallel out, or use an encoder of one of these families."
                if setting == "sequence_parallel"
                else "Use an encoder of one of these families, or share the model out with dp_shard_size (fsdp) or "
                "pp_size (pipeline) instead.",
            )


def _cut_encoder(encoder: TextEncoder, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    backbone = encoder.backbone
    kind = backbone.config.model_type
    assert backbone.config.num_attention_heads % mesh.size() == 0, "checked with the degrees"
    words = backbone.get_input_embeddings()
    if words.embedding_dim % mesh.size() == 0:
        cut_width(words, mesh)
    tokens = SlicedTokens(mesh) if sequence_parallel else None
    layers = encoder_layers(backbone, FAMILIES[kind])
    for layer in layers:
        _cut_layer(layer, PLANS[kind], mesh, tokens)
    if tokens is not None:
        tokens.slice_around(backbone.get_submodule(FAMILIES[kind].layers.rpartition(".")[0]))


def _cut_layer(layer: nn.Module, plan: Mapping[str, Cut], mesh: DeviceMesh, tokens: SlicedTokens | None) -> None:
    outside = Replicate() if tokens is None else Shard(1)  # of the hidden states between cut matrices [1, N, d]
    entries = tuple(f"{name}." for name, cut in plan.items() if cut is Cut.ENTRY)
    for name, cut in plan.items():
        for module in _matching(layer, name):
            if cut is Cut.ENTRY:
                cut_entry(module, mesh, outside=outside)
                if tokens is not None:
                    tokens.count_at(module)
            elif cut is Cut.ROWS:
                cut_rows(module, mesh, outside=outside)
            else:
                cut_columns(module, mesh, outside=None if name.startswith(entries) else outside)
    if tokens is not None:
        tokens.slice_between(layer)


def _matching(layer: nn.Module, name: str) -> list[nn.Module]:
    """The modules of `layer` whose names match `name`, in which * stands for a number."""
    found = [module for own, module in layer.named_modules() if fnmatchcase(own, name)]
    assert found, f"{name} is in every layer of its family"
    return found
