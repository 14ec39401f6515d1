"""The padded forward of transformers as reference for packed encoders, and the attention kernels of a block."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModel

from container.data.batch import PackedText
from container.models.encoder import TextEncoder


def reference_of(encoder: TextEncoder, folder: Path, attention: str | None) -> nn.Module:
    """The backbone as anyone would load it, in float64: transformers' own attention, a mask, no packing."""
    kind = {} if attention is None else {"attn_implementation": attention}
    reference = AutoModel.from_config(AutoConfig.from_pretrained(folder), **kind).double().eval()
    if getattr(reference, "pooler", None) is not None:
        reference.pooler = None
    reference.load_state_dict(encoder.backbone.state_dict())
    return reference


def padded(text: PackedText, *, pad: int, length: int = 0) -> tuple[Tensor, Tensor]:
    """(input_ids, attention_mask), each [S, T]"""
    shape = (len(text.lengths), max(length, *text.lengths))
    input_ids, mask = torch.full(shape, pad), torch.zeros(shape, dtype=torch.int64)
    for row, chunk in enumerate(text.tokens.split(text.lengths)):
        input_ids[row, : len(chunk)] = chunk
        mask[row, : len(chunk)] = 1
    return input_ids, mask


def padded_states(reference: nn.Module, text: PackedText, *, pad: int) -> Tensor:
    """[N, d]"""
    input_ids, mask = padded(text, pad=pad)
    states = reference(input_ids=input_ids, attention_mask=mask).last_hidden_state
    return torch.cat([row[:length] for row, length in zip(states, text.lengths)])


class Kernels(TorchDispatchMode):
    """Records operations of a block, attention by default, by name and with the arguments of their schema by name."""

    def __init__(self, *parts: str) -> None:
        super().__init__()
        self._parts = parts or ("attention", "attn")
        self.names: list[str] = []
        self.arguments: list[dict[str, Any]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(part in str(operation) for part in self._parts):
            self.names.append(str(operation).removesuffix(".default"))
            names = [argument.name for argument in operation._schema.arguments]
            self.arguments.append(dict(zip(names, args)) | (kwargs or {}))
        return operation(*args, **kwargs or {})
