"""Packed equals padded on this device: values and gradients of every family, by the kernel that is meant."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_steps.recorder import Recorder
from container.models.backbone import build_encoder
from container.models.encoder import TextEncoder
from testing.encoder_families import MAX_LENGTH, PACKED_FAMILIES, hyperparameters, packed_text, write_config
from testing.packed_forward import Kernels, padded_states, reference_of

TOLERANCE = {torch.bfloat16: 0.1, torch.float32: 1e-3}  # as in tests/models/test_packed_encoders.py
CHUNKS = [[7, 30], [MAX_LENGTH], [2]]
LONG_CHUNKS = [[2], [1], [512], [63, 64, 65], [300, 7]]  # the first is an empty text: its two special tokens
KERNEL = {torch.bfloat16: "aten._flash_attention_forward", torch.float32: "aten._efficient_attention_forward"}


def run(check: Recorder) -> None:
    check.only_on_gpu("which kernel attended")
    dtypes = [torch.float32] if check.tiny else [torch.bfloat16, torch.float32]
    for dtype in dtypes:
        for family in PACKED_FAMILIES:
            with check.part(f"{family} in {dtype}"):
                _compare(check, family, family, dtype, CHUNKS)
    for dtype in dtypes:
        for size in (32, 64, 96, 128) if not check.tiny else (32,):
            sizes = {"hidden_size": 2 * size, "num_attention_heads": 2, "max_position_embeddings": 512}
            with check.part(f"heads of {size} in {dtype}"):
                _compare(check, f"heads of {size}, chunks of 1 to 512", "bert", dtype, LONG_CHUNKS, **sizes)
    with check.part("few tokens"):
        _compare(check, "a batch of 5 tokens", "bert", torch.float32, [[5]])


def _compare(
    check: Recorder, name: str, family: str, dtype: torch.dtype, chunks: Sequence[Sequence[int]], **sizes: Any
) -> None:
    """Compare packed states and gradients in `dtype` on the device with transformers' padded ones in float64."""
    torch.manual_seed(0)
    folder = check.folder / f"{family}{len(chunks)}{sizes.get('hidden_size', '')}"
    files = write_config(folder, family, initializer_range=0.05, **sizes)
    encoder = build_encoder(hyperparameters().text_fields[0], files, pooling=None).double()
    text = packed_text(chunks)
    expected, exact = _padded(encoder, folder, text)
    encoder = encoder.float().to(check.device)
    with Kernels() as kernels, torch.autocast(check.device, dtype, enabled=dtype != torch.float32):
        found = encoder.token_states(text.to(check.device))
    gradients = torch.autograd.grad(_projection(found), list(encoder.backbone.parameters()))
    what = f"{name}, {str(dtype).removeprefix('torch.')}"
    check.at_most(f"{what}: states", _difference(found, expected), TOLERANCE[dtype])
    # Relative to 1 + the largest: key biases have an exact gradient of zero, and rounding noise here.
    largest = max(_difference(ours, exact[name]) / (1 + float(exact[name].abs().max()))
                  for (name, _), ours in zip(encoder.backbone.named_parameters(), gradients))  # fmt: skip
    check.at_most(f"{what}: gradients", largest, TOLERANCE[dtype])
    windows = family == "modernbert" and dtype == torch.float32  # only the flash kernel has windows
    if check.on_gpu and not windows:
        check.holds(
            f"{what}: by {KERNEL[dtype]}", set(kernels.names) == {KERNEL[dtype]}, value=sorted(set(kernels.names))
        )


def _padded(encoder: TextEncoder, folder: Path, text: Any) -> tuple[Tensor, dict[str, Tensor]]:
    reference = reference_of(encoder, folder, "sdpa")
    expected = padded_states(reference, text, pad=encoder.pad_token_id)
    names, weights = zip(*reference.named_parameters())
    gradients = torch.autograd.grad(_projection(expected), weights, allow_unused=True)
    return expected.detach(), {name: gradient for name, gradient in zip(names, gradients) if gradient is not None}


def _projection(states: Tensor) -> Tensor:
    """Return the sum of the states times fixed random numbers."""
    direction = torch.randn(states.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (states * direction.to(states)).sum()


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double().cpu() - expected).abs().max())
