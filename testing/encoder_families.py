"""Tiny random encoders of every family, and batches for them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from container.data.batch import PackedBatch, PackedText
from container.preprocessing.numeric_transform import NumericTransformParameters
from contracts.hyperparameter_files import parse_hyperparameters
from contracts.hyperparameters import Hyperparameters
from contracts.model_classes import model_class

VOCABULARY = 90
MAX_LENGTH = 64

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": MAX_LENGTH,
    "initializer_range": 0.3,
}
_ROBERTA = {**_SIZES, "max_position_embeddings": MAX_LENGTH + 2, "pad_token_id": 1, "type_vocab_size": 1}

PACKED_FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {**_SIZES},
    "roberta": {**_ROBERTA},
    "xlm-roberta": {**_ROBERTA},
    "camembert": {**_ROBERTA},
    "distilbert": {
        "vocab_size": VOCABULARY,
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 40,
        "max_position_embeddings": MAX_LENGTH,
        "initializer_range": 0.3,
    },
    "electra": {**_SIZES, "embedding_size": 16},
    "albert": {**_SIZES, "embedding_size": 16, "num_hidden_layers": 3},
    # Layer 0 is global, layers 1 and 2 see 4 tokens to either side.
    "modernbert": {
        **_SIZES,
        "num_hidden_layers": 3,
        "local_attention": 8,
        "global_attn_every_n_layers": 3,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "cls_token_id": 1,
        "eos_token_id": 2,
        "sep_token_id": 2,
    },
    "nomic_bert": {**_SIZES},
}
PADDED_FAMILIES: dict[str, dict[str, Any]] = {
    "deberta-v2": {
        **_SIZES,
        "relative_attention": True,
        "position_buckets": 8,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "mpnet": {**_SIZES, "max_position_embeddings": MAX_LENGTH + 2, "pad_token_id": 1},
}
ALL_FAMILIES = {**PACKED_FAMILIES, **PADDED_FAMILIES}


@dataclass(frozen=True)
class Files:
    config_folder: Path
    weights_folder: Path | None = None


def write_config(folder: Path, family: str, **overrides: Any) -> Files:
    """A folder with the config.json of a tiny encoder without dropout."""
    sizes = ALL_FAMILIES[family]
    folder.mkdir(parents=True, exist_ok=True)
    no_dropout = {
        "hidden_dropout_prob": 0.0,
        "dropout": 0.0,
        "embedding_dropout": 0.0,
        "mlp_dropout": 0.0,
        "attention_probs_dropout_prob": 0.1,
    }
    config = {"model_type": family, **no_dropout, **sizes, **overrides}
    (folder / "config.json").write_text(json.dumps(config))
    return Files(folder)


def hyperparameters(**values: Any) -> Hyperparameters:
    """A configuration of a bert, with what is not named left at its default."""
    defaults: dict[str, Any] = {
        "id_name": "id",
        "label_name": "label",
        "model_class": "bert",
        "max_sen_len": MAX_LENGTH,
        "hidden_common_dim": 12,
        "dropout": 0.0,
        "fusion_dropout": 0.0,
    }
    architecture = model_class(values.get("model_class", "bert"))
    two = {"primary_text_name": "chat", "secondary_text_name": "events"}
    defaults |= ({}, {"text_name": "chat"}, two)[architecture.num_texts]
    if architecture.table == "needed":
        defaults["tab_field_list"] = ["price"]
    if architecture.encoder != "transformer":
        defaults["dropout_keep"] = 1.0
    if values.get("num_classes", 2) > 2:
        defaults |= {"is_binary": False, "multiclass_categories": [f"c{i}" for i in range(values["num_classes"])]}
    defaults = {name: value for name, value in defaults.items() if name not in values}
    if values.get("model_class", "bert") == "bert":
        defaults.pop("fusion_dropout", None)
    return parse_hyperparameters({**defaults, **values})


def standard_transform(num_inputs: int) -> NumericTransformParameters:
    return NumericTransformParameters(
        "standard",
        mean=tuple(float(i) for i in range(num_inputs)),
        scale=tuple(2.0 + i for i in range(num_inputs)),
        bins=((-1.0, 0.0, 2.0),) * num_inputs,
    )


def packed_text(chunk_lengths: Sequence[Sequence[int]], *, seed: int = 0) -> PackedText:
    """Random tokens (none is a padding id) for records whose chunks have these lengths."""
    random = torch.Generator().manual_seed(seed)
    lengths = [length for chunks in chunk_lengths for length in chunks]
    return PackedText.of_chunks(
        torch.randint(3, VOCABULARY, (sum(lengths),), generator=random),
        lengths=lengths,
        chunk_record=torch.tensor([record for record, chunks in enumerate(chunk_lengths) for _ in chunks]),
    )


def packed_batch(
    *texts: Sequence[Sequence[int]], tabular_dim: int = 0, num_classes: int = 2, seed: int = 0
) -> PackedBatch:
    """A batch of len(texts[0]) records with one chunk layout per text field; without a text, of 4."""
    random = torch.Generator().manual_seed(seed)
    num_records = len(texts[0]) if texts else 4
    return PackedBatch(
        texts=tuple(packed_text(chunks, seed=seed + place) for place, chunks in enumerate(texts)),
        tabular=torch.randn(num_records, tabular_dim, generator=random) * 3,
        labels=torch.randint(num_classes, (num_records,), generator=random),
        rows=torch.arange(num_records),
        weights=torch.ones(num_records),
    )


def record(batch: PackedBatch, index: int) -> PackedBatch:
    """One record of a batch as a batch of its own."""
    texts = []
    for text in batch.texts:
        chunks = [place for place, owner in enumerate(text.chunk_record.tolist()) if owner == index]
        begin, end = int(text.cu_seqlens[chunks[0]]), int(text.cu_seqlens[chunks[-1] + 1])
        lengths = tuple(text.lengths[place] for place in chunks)
        texts.append(
            PackedText.of_chunks(
                text.tokens[begin:end], lengths=lengths, chunk_record=torch.zeros(len(chunks), dtype=torch.int64)
            )
        )
    at = slice(index, index + 1)
    return PackedBatch(tuple(texts), batch.tabular[at], batch.labels[at], batch.rows[at], batch.weights[at])


class HiddenCasts(TorchDispatchMode):
    """Counts casts of hidden states [1, N, width] from float32 to bfloat16 in a block with autocast on the CPU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.count = 0
        self._width = width
        self._autocast = torch.autocast("cpu", torch.bfloat16)

    def __enter__(self) -> Self:
        self._autocast.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._autocast.__exit__(*error)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **kwargs or {})
        if operation is torch.ops.aten._to_copy.default and args[0].ndim == 3 and args[0].shape[-1] == self._width:
            self.count += (args[0].dtype, result.dtype) == (torch.float32, torch.bfloat16)
        return result
