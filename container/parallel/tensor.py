"""Tensor parallelism: split the matrices of each layer over the ranks of the "tp" axis by a plan per family.

A layer costs two all-reduces of its activations forward, and two backward (the last may have a third, for its queries).
Every rank computes the norms, dropout and residuals between the split matrices. With sequence parallelism, each rank
computes them for its slice of the tokens, and each all-reduce becomes an all-gather and a reduce-scatter. Dropout masks
are those of a single process if the ranks' generators have the same state; with slices, of one that computes every
token of the last layer.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

from container.models.classifier import Classifier
from container.models.encoder import TextEncoder, encoder_layers, word_embeddings
from container.models.families import Split, encoder_family
from container.parallel.sequence import SlicedTokens
from container.parallel.tensor_modules import prepare_input, split_column_wise, split_embedding, split_row_wise


def apply_tensor_parallel(model: Classifier, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Split `model` over `mesh` in place; split parameters become DTensors under the same names.

    Norms, position and token type tables, the embedding projections of ELECTRA and ALBERT, and heads whose outputs do
    not divide evenly stay plain tensors, the same on every rank.

    Args:
        model: the plain model with the same weights on every rank, before compilation, activation checkpointing and
            sharding.
        mesh: one axis, "tp", whose size divides heads and feed-forward columns (container/parallel/encoder_checks.py).
        sequence_parallel: between the split matrices of a layer, each rank computes a slice of the tokens.
    """
    encoders = dict.fromkeys(branch.encoder for branch in model.branches.values())  # texts may share one
    for encoder in encoders:
        assert isinstance(encoder, TextEncoder), "other encoders are not in the table of families"
        _split_encoder(encoder, mesh, sequence_parallel=sequence_parallel)
    heads = [*model.branches.values(), model.tabular, model.fusion]
    backbones = {module for encoder in encoders for module in encoder.backbone.modules()}
    for linear in dict.fromkeys(module for head in heads if head is not None for module in head.modules()):
        if isinstance(linear, nn.Linear) and linear not in backbones and linear.out_features % mesh.size() == 0:
            split_column_wise(linear, mesh, outside=Replicate(), whole=True)


def _split_encoder(encoder: TextEncoder, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    backbone = encoder.backbone
    family = encoder_family(backbone.config.model_type)
    assert backbone.config.num_attention_heads % mesh.size() == 0, "checked with the degrees"
    words = word_embeddings(backbone)
    if words.embedding_dim % mesh.size() == 0:
        split_embedding(words, mesh)
    tokens = SlicedTokens(mesh) if sequence_parallel else None
    layers = encoder_layers(backbone, family)
    assert layers is not None
    assert family.layers is not None
    assert family.tensor_plan, "checked with the degrees"
    for layer in layers:
        _split_layer(layer, family.tensor_plan, mesh, tokens)
    if tokens is not None:
        encoder.compute_every_token()
        tokens.slice_around(backbone.get_submodule(family.layers.rpartition(".")[0]))


def _split_layer(layer: nn.Module, plan: Mapping[str, Split], mesh: DeviceMesh, tokens: SlicedTokens | None) -> None:
    outside = Replicate() if tokens is None else Shard(1)  # of the hidden states between split matrices [1, N, d]
    entries = tuple(f"{name}." for name, split in plan.items() if split is Split.INPUT)
    for name, split in plan.items():
        for module in _matching(layer, name):
            if split is Split.INPUT:
                prepare_input(module, mesh, outside=outside)
                if tokens is not None:
                    tokens.count_at(module)
            elif split is Split.ROW_WISE:
                split_row_wise(module, mesh, outside=outside)
            else:
                split_column_wise(module, mesh, outside=None if name.startswith(entries) else outside)
    if tokens is not None:
        tokens.slice_between(layer)


def _matching(layer: nn.Module, name: str) -> list[Any]:
    """Return the modules of `layer` whose names match `name`, in which * matches a number."""
    matching = [module for path, module in layer.named_modules() if fnmatchcase(path, name)]
    assert matching, f"{name} is in every layer of its family"
    return matching
