"""Register with transformers an attention function that takes the chunk boundaries from a layout.

An encoder built with `attn_implementation=ATTENTION` builds no masks. Its caller passes the keyword `layout=`, which
transformers passes to every attention layer, with `sliding_window` for layers that have one.
"""

import logging
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, PretrainedConfig
from transformers.masking_utils import AttentionMaskInterface

from container.data.batch import PackedText
from container.job.log_once import log_once

varlen_attn: Callable[..., Any] | None
try:
    varlen_attn = import_module("torch.nn.attention.varlen").varlen_attn
except (ImportError, AttributeError):  # a torch built without flash attention
    varlen_attn = None

# The private operator below varlen_attn: its backward in C++ takes a quarter of the host's time (docs/gpu.md).
_OPERATOR = (
    "aten::_flash_attention_forward(Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, Tensor? cum_seq_k, "
    "SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, bool return_debug_mask, *, float? scale=None, "
    "SymInt? window_size_left=None, SymInt? window_size_right=None"
)


def is_known_operator(schema: str) -> bool:
    """Return whether an operator can be called as `varlen_attention` does; torch may change a private one."""
    return re.fullmatch(re.escape(_OPERATOR) + r"(, \S+ \w+=\w+)*\) -> \(Tensor output, .*\)", schema) is not None


flash_operator: Any = getattr(getattr(torch.ops.aten, "_flash_attention_forward", None), "default", None)
if flash_operator is not None and not is_known_operator(str(flash_operator._schema)):
    flash_operator = None

logger = logging.getLogger(__name__)

ATTENTION = "chunk_layout"

# The kernel's grid depends on the longest chunk. Rounding limits the number of different grids.
_LENGTH_STEP = 64


@dataclass(frozen=True)
class PackedLayout:
    """Concatenated chunks without padding: token `cu_seqlens[i]` begins chunk i.

    A compiled layer must not read `lengths`: torch.compile would recompile for every number of chunks.

    Attributes:
        cu_seqlens: chunk boundaries on the encoder's device. [S + 1] int32
        lengths: chunk lengths on the host. [S]
        longest: upper bound of the chunk lengths.
        flash: whether the device has the flash kernel.
    """

    cu_seqlens: Tensor
    lengths: tuple[int, ...]
    longest: int
    flash: bool

    @classmethod
    def of(cls, text: PackedText) -> "PackedLayout":
        return cls(text.cu_seqlens, text.lengths, rounded_length(text.longest_chunk), has_flash(text.cu_seqlens.device))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, window: int | None) -> Tensor:
        """Attend from every token, or from first tokens, to the tokens of the same chunk.

        Args:
            query: [1, heads, N, head_dim] packed, [S, heads, T, head_dim] dense; of first tokens, which have no window:
                [1, heads, S, head_dim] and [S, heads, 1, head_dim].
            key, value: [1, heads, N, head_dim] packed, [S, heads, T, head_dim] dense.
            scale: factor of the scores; None = 1 / sqrt(head_dim).
            window: largest distance to an attended token; None = the whole chunk.

        Returns:
            The context, in the shape of `query`.
        """
        boundaries, longest = self.cu_seqlens, self.longest  # of the queries
        if query.shape[2] < key.shape[2]:
            assert window is None, "kernels count a window from the last query"
            boundaries, longest = torch.arange(len(boundaries), dtype=boundaries.dtype, device=boundaries.device), 1
        context = varlen_attention(
            query.squeeze(0).transpose(0, 1),  # [N, heads, head_dim]; the backward of [0] would fill and copy
            key.squeeze(0).transpose(0, 1),
            value.squeeze(0).transpose(0, 1),
            (boundaries, self.cu_seqlens),
            longest=(longest, self.longest),
            flash=self.flash,
            scale=scale,
            window=window,
        )
        if context is not None:
            return context.transpose(0, 1).unsqueeze(0)
        # torch.compiler.disable has types for functions only.
        return self._attend_by_chunk(query, key, value, scale=scale, window=window)  # pyright: ignore[reportAttributeAccessIssue]

    def first_tokens(self, hidden: Tensor) -> Tensor:
        """Return the hidden states of each chunk's first token, [1, S, d] packed or [S, 1, d] dense."""
        return hidden.index_select(1, self.cu_seqlens[:-1])

    @torch.compiler.disable
    def _attend_by_chunk(
        self, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, window: int | None
    ) -> Tensor:
        """Call the kernel once per chunk; on CPU faster than padded buckets of lengths (benchmarks/log.md)."""
        warn_if_slow(query, window=window)
        # On CPU, the kernel's backward takes 6 times as long in bfloat16 as in float32 (benchmarks/log.md).
        widened = query.device.type == "cpu" and query.dtype != torch.float32
        dtype = torch.promote_types(query.dtype, torch.float32) if widened else query.dtype
        # Contiguous [heads, N, head_dim]: the kernel reads each head of a chunk from consecutive memory.
        query_lengths = (1,) * len(self.lengths) if query.shape[2] < key.shape[2] else self.lengths
        pairs = (query, query_lengths), (key, self.lengths), (value, self.lengths)
        chunks = (tensor.to(dtype).contiguous().split(lengths, dim=2) for tensor, lengths in pairs)
        longest = max(self.lengths)
        band = None if window is None or longest - 1 <= window else _band(longest, window, query.device)
        contexts = []
        with torch.autocast("cpu", enabled=False) if widened else nullcontext():
            for length, q, k, v in zip(self.lengths, *chunks):
                mask = None if band is None or length - 1 <= window else band[:length, :length]
                contexts.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale))
        context = torch.cat(contexts, dim=2)
        return context.to(query.dtype) if widened else context


@dataclass(frozen=True)
class DenseLayout:
    """One chunk per row, padded on the right, as in an exported graph; the methods are those of PackedLayout.

    Attributes:
        mask: 1 for a token, 0 for padding. [S, T]
        biases: the bias of each window, which all layers share.
    """

    mask: Tensor
    biases: dict[int | None, Tensor] = field(default_factory=dict)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, window: int | None) -> Tensor:
        # onnxruntime's optimizer recognizes attention by exactly these operations (export/variants.py).
        divisor = query.shape[-1] ** 0.5 if scale is None else 1 / scale
        scores = query.matmul(key.transpose(-1, -2)) / divisor + self.bias(window, query.dtype)  # [S, heads, T or 1, T]
        return scores.softmax(-1).matmul(value)

    def first_tokens(self, hidden: Tensor) -> Tensor:
        return hidden[:, :1]

    def bias(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Return 0 for an attended token and a large negative number for another. [S, 1, 1 or T, T]"""
        if window not in self.biases:
            self.biases[window] = self._bias(window, dtype)
        return self.biases[window]

    def _bias(self, window: int | None, dtype: torch.dtype) -> Tensor:
        hidden = 1 - self.mask.unsqueeze(1).unsqueeze(2).to(dtype)  # [S, 1, 1, T]
        if window is not None:
            far = (~_band(self.mask.shape[1], window, self.mask.device)).to(dtype)
            hidden = (hidden + far).clamp(max=1)  # [S, 1, T, T]
        # A finite minimum: -inf would turn rows without an attended token (padding) into NaN.
        return hidden * torch.finfo(dtype).min


Layout = PackedLayout | DenseLayout


def compute_first_tokens_only(attention: nn.Module, config: PretrainedConfig) -> Callable[[], None]:
    """Make a layer compute only each chunk's first token, from the queries of its `attention` on.

    The attention of first tokens to all tokens is transformers' cross-attention, with the same weights.

    Returns:
        A function that makes it compute every token again.
    """
    own = attention.get_submodule("self")
    every_token = type(own)
    with torch.device("meta"):
        own.__class__ = type(type(attention)(config, is_cross_attention=True).get_submodule("self"))
    hook = attention.register_forward_pre_hook(_query_first_tokens, with_kwargs=True)
    return partial(_compute_every_token, own, every_token, hook)  # a copy of the layer gets a copy of its own


def _compute_every_token(module: nn.Module, attention: type[nn.Module], hook: RemovableHandle) -> None:
    module.__class__ = attention
    hook.remove()


def _query_first_tokens(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    (hidden, *others), layout = args, kwargs["layout"]
    return (layout.first_tokens(hidden), *others), {**kwargs, "encoder_hidden_states": hidden}


def change_hidden_inputs(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Apply `change` to the hidden states that `module` reads, once for all its matrices.

    These are its first input and, if its keys and values are not those of its queries, `encoder_hidden_states`.
    """

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        others = kwargs.get("encoder_hidden_states")
        if others is not None:
            kwargs = {**kwargs, "encoder_hidden_states": change(others)}
        return (change(args[0]), *args[1:]), kwargs

    module.register_forward_pre_hook(hook, with_kwargs=True)


def as_autocast_would(hidden: Tensor) -> Tensor:
    """Cast `hidden` for a matrix product. Autocast itself casts, and stores, the input of each product again."""
    kind = hidden.device.type
    # torch 2.11 cannot compile is_autocast_available, which other kinds, such as meta, would need.
    if hidden.dtype == torch.float32 and kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return hidden.to(torch.get_autocast_dtype(kind))
    return hidden


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    boundaries: tuple[Tensor, Tensor],
    *,
    longest: tuple[int, int],
    flash: bool,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor | None:
    """Attend inside groups of tokens with one kernel; None if the device has none for these tensors.

    Args:
        query: [N, heads, head_dim]
        key, value: [M, heads, head_dim]
        boundaries: of the groups of queries and of keys. [B + 1] int32 each
        longest: upper bound of the lengths of the groups of queries and of keys.
        flash: whether the device has the flash kernel.
        scale, window: see PackedLayout.attend.

    Returns:
        [N, heads, head_dim]
    """
    if value.device.type == "cpu":
        return None
    query, key = query.to(value.dtype), key.to(value.dtype)  # rotary positions are float32 under autocast
    head_dim, half = value.shape[-1], value.dtype in (torch.float16, torch.bfloat16)
    if flash and half and head_dim % 8 == 0 and head_dim <= 256:
        left_and_right = -1 if window is None else window
        if flash_operator is None:
            assert varlen_attn is not None, "has_flash"
            windows = left_and_right, left_and_right
            return varlen_attn(query, key, value, *boundaries, *longest, scale=scale, window_size=windows)
        dropout, causal, debug_mask = 0.0, False, False
        windows = {"window_size_left": left_and_right, "window_size_right": left_and_right}
        arguments = query, key, value, *boundaries, *longest, dropout, causal, debug_mask
        return flash_operator(*arguments, scale=scale, **windows)[0]
    if window is None and head_dim % 8 == 0 and value.dtype in (torch.float16, torch.float32):
        return _memory_efficient_attention(query, key, value, boundaries, longest=longest, scale=scale)
    return None


def _memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    boundaries: tuple[Tensor, Tensor],
    *,
    longest: tuple[int, int],
    scale: float | None,
) -> Tensor:
    """See varlen_attention; float32, or float16 on a GPU before Ampere. torch calls it so for nested tensors."""
    batched = (tensor.unsqueeze(0) for tensor in (query, key, value))
    dropout, whole_groups, for_backward = 0.0, 0, torch.is_grad_enabled()
    scale = None if scale == value.shape[-1] ** -0.5 else scale  # torch cannot compile the backward of a given scale
    # The backward refuses a bound above the number of tokens, as rounding gives it (pytorch issue 129523).
    bounds = min(longest[0], query.shape[0]), min(longest[1], key.shape[0])
    context, *_ = torch.ops.aten._efficient_attention_forward(
        *batched, None, *boundaries, *bounds, dropout, whole_groups, for_backward, scale=scale
    )
    return context.squeeze(0)


def rounded_length(longest: int) -> int:
    """Return an upper bound of a length, one of few."""
    return -(-longest // _LENGTH_STEP) * _LENGTH_STEP


def _band(length: int, window: int, device: torch.device) -> Tensor:
    """Return True where two tokens are at most `window` apart. [length, length]"""
    position = torch.arange(length, device=device)
    return (position[:, None] - position[None, :]).abs() <= window


def warn_if_slow(query: Tensor, *, window: int | None = None) -> None:
    """Warn if attention from `query`, which runs group by group, runs on a GPU, and say why. [.., head_dim]"""
    if not query.is_cuda:
        return
    dtype = str(query.dtype).removeprefix("torch.")
    if query.shape[-1] % 8 or query.shape[-1] > 256:
        reason = f"no kernel takes heads of size {query.shape[-1]}"
    elif window is not None and query.dtype == torch.float32:
        reason = "windows have no kernel in float32, in which final predictions are computed"
    else:
        reason = "only flash attention has a kernel for it, on GPUs since Ampere"
    log_once(logger, logging.WARNING, f"attention in {dtype} on this GPU runs chunk by chunk, which is slow: {reason}")


@lru_cache
def has_flash(device: torch.device) -> bool:
    """Return whether `device` has the flash kernel for tensors in half precision."""
    exists = varlen_attn is not None and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if exists and flash_operator is None:
        logger.info(f"attention calls varlen_attn: torch {torch.__version__} has another _flash_attention_forward")
    return exists


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute one attention layer for transformers, without dropout (see TextEncoder)."""
    assert attention_mask is None, "_no_mask builds none"
    assert not getattr(module, "is_causal", False), "an encoder attends in both directions"
    # transformers' window includes tokens less than sliding_window away.
    window = None if sliding_window is None else sliding_window - 1
    context = layout.attend(query, key, value, scale=scaling, window=window)
    return context.transpose(1, 2), None  # [1, N, heads, head_dim]


def _no_mask(*_: Any, **__: Any) -> None:
    """Build no mask: the layout contains the boundaries."""


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, _no_mask)
