"""Draw the masks of dropout from 16-bit random integers on the CPU, where drawing them is the cost of dropout."""

import torch
from torch import Tensor, nn

_VALUES = 1 << 16


class Dropout(nn.Dropout):
    """nn.Dropout that draws one random 64-bit integer for four elements, instead of a number for each.

    torch draws on one core, whatever their number. p is rounded to a multiple of 1 / 65,536, and the elements that are
    kept are scaled by the rounded value. Other devices and compiled layers draw as nn.Dropout does.
    """

    def forward(self, input: Tensor) -> Tensor:
        drawn_here = input.device.type == "cpu" and not torch.compiler.is_compiling()
        if not self.training or self.p == 0 or not drawn_here:
            return super().forward(input)
        return input * self.draw_factors(input.shape, like=input)

    def draw_factors(self, shape: torch.Size, *, like: Tensor) -> Tensor:
        """Return 0 for the elements of `shape` that are dropped, and 1 / (1 - p) for the others."""
        if like.device.type != "cpu":
            return nn.functional.dropout(like.new_ones(shape), self.p)
        dropped = min(round(self.p * _VALUES), _VALUES - 1)
        integers = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
        drawn = integers.view(torch.int16)[: shape.numel()].view(shape)
        kept = torch.ge(drawn, dropped - _VALUES // 2, out=like.new_empty(shape))  # faster than a cast of booleans
        return kept.mul_(_VALUES / (_VALUES - dropped))


def draw_faster(model: nn.Module) -> None:
    """Replace every nn.Dropout in `model` by a Dropout."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))
