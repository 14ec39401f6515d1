"""Decide from measured shares whether to make the changes that docs/gpu.md lists."""

from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.encoders import BASE
from benchmarks.gpu_steps.clock import seconds_without_host
from benchmarks.gpu_steps.recorder import Recorder
from benchmarks.gpu_steps.results import Results

CASTS = ("aten::_to_copy", "aten::copy_", "aten::to")
FLASH = ("torch_attn::_varlen_attn", "torch_attn::_varlen_attn_backward", "aten::_flash_attention")
WIDTHS = (384, 768, 1024)


def run(check: Recorder) -> None:
    with check.part("one product for query, key and value"):
        _one_product(check)
    if not check.only_on_gpu("the shares that decide"):
        return
    steps = {
        name: value for name, value in Results.open(check.out).figures("speed").items() if name.startswith("step of")
    }
    for name, costs in steps.items():
        if BASE.name in name and "graphs" not in name:  # whose kernels belong to no operation
            _decide(check, name, costs)
    if not steps:
        check.note("the step speed has no trace of a step, from which these decisions follow")


def _decide(check: Recorder, name: str, costs: dict[str, Any]) -> None:
    """Record the share of each cost, its threshold, and the decision."""
    operations, busy = costs["operations"], costs["busy"]
    copies = sum(time for copy, (_, time) in costs["copies"].items() if "HtoD" in copy)
    for change, share, limit in (
        ("bfloat16 weights with float32 masters: casts", sum(operations.get(cast, 0) for cast in CASTS) / busy, 0.05),
        (
            "FlashAttention 3: attention",
            sum(time for op, time in operations.items() if op.startswith(FLASH)) / busy,
            0.15,
        ),
        ("one CUDA graph for a step: idle time", costs["idle_share"], 0.05),
        ("copies on a stream of their own: ms per step", copies, 0.1),
    ):
        decision = "worth making" if share > limit else "leave"
        check.add(
            "decisions",
            {"step": name, "change": change, "measured": share, "make if above": limit, "decision": decision},
        )


def _one_product(check: Recorder) -> None:
    """Time three products beside one of triple width, forward and backward in bfloat16."""
    for width in WIDTHS[: 1 if check.tiny else None]:
        for tokens in (64,) if check.tiny else (5_760, 23_040):
            hidden = torch.randn(tokens, width, device=check.device, dtype=torch.bfloat16, requires_grad=True)
            three = [nn.Linear(width, width, device=check.device, dtype=torch.bfloat16) for _ in range(3)]
            one = nn.Linear(width, 3 * width, device=check.device, dtype=torch.bfloat16)
            seconds = [seconds_without_host(partial(_backward, each, hidden), check.device) for each in (three, [one])]
            row = {"width": width, "tokens": tokens, "three_ms": 1000 * seconds[0], "one_ms": 1000 * seconds[1]}
            check.add("one_product", row)


def _backward(layers: list[nn.Linear], hidden: torch.Tensor) -> None:
    torch.cat([layer(hidden) for layer in layers], dim=1).backward(
        torch.ones(len(hidden), 3 * hidden.shape[1], device=hidden.device, dtype=hidden.dtype)
    )
