"""Compute container.decision as a torch module, so that the exported graph returns calibrated probabilities."""

import torch
from torch import Tensor, nn

from container.decision.calibrators import Isotonic
from container.decision.decision import Decision


class DecisionLayer(nn.Module):
    """Logits -> calibrated and corrected probabilities, as Decision.probabilities computes them."""

    log_ratios: Tensor  # [K], only with a correction of the shares

    def __init__(self, decision: Decision) -> None:
        super().__init__()
        calibrator = decision.calibrator
        self.lines = IsotonicLines(calibrator) if isinstance(calibrator, Isotonic) else None
        self.temperature = 1.0 if isinstance(calibrator, Isotonic) else calibrator.temperature
        self.corrects_prior = decision.prior is not None
        if decision.prior is not None:
            ratios = torch.tensor(decision.prior.ratios, dtype=torch.float64)
            self.register_buffer("log_ratios", ratios.log().to(torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        """[B, K] -> [B, K]"""
        # All steps use logarithms: near p = 1, 1 - p loses all precision in float32.
        scores = logits if self.lines is None else self.lines(logits)
        scores = scores if self.temperature == 1 else scores / self.temperature
        return (scores + self.log_ratios if self.corrects_prior else scores).softmax(-1)


class IsotonicLines(nn.Module):
    """Compute lines between knots, in log-odds, as the first height plus each interval's clamped rise.

    The outputs are logarithms of probabilities up to a constant per record.
    """

    first: Tensor  # [L]
    starts: Tensor  # [L, M - 1], as widths and rises
    widths: Tensor
    rises: Tensor

    def __init__(self, isotonic: Isotonic) -> None:
        super().__init__()
        lines = isotonic.lines
        intervals = max(1, *(len(line.log_odds) - 1 for line in lines))
        starts, widths, rises = torch.zeros(3, len(lines), intervals, dtype=torch.float64)  # [L, M - 1] each
        widths.fill_(1)  # lines with fewer knots are padded with level intervals
        for i, line in enumerate(lines):
            x, y = torch.tensor(line.log_odds, dtype=torch.float64), torch.from_numpy(line.heights)
            count = len(x) - 1
            starts[i, :count], widths[i, :count], rises[i, :count] = x[:-1], x.diff(), y.diff()
        first = torch.tensor([line.heights[0] for line in lines])
        for name, values in (("first", first), ("starts", starts), ("widths", widths), ("rises", rises)):
            self.register_buffer(name, values.to(torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        """[B, K] -> [B, K]"""
        if len(self.first) == 1:
            calibrated = self._interpolate(logits[:, 1:] - logits[:, :1])  # [B, 1]
            return torch.cat([torch.zeros_like(calibrated), calibrated], dim=-1)
        itself = torch.eye(logits.shape[1], dtype=torch.bool, device=logits.device)
        others = logits[:, None, :].masked_fill(itself, torch.finfo(logits.dtype).min)  # [B, K, K]
        return nn.functional.logsigmoid(self._interpolate(logits - others.logsumexp(-1)))

    def _interpolate(self, log_odds: Tensor) -> Tensor:
        """[B, L] -> [B, L]"""
        fractions = ((log_odds[..., None] - self.starts) / self.widths).clamp(0, 1)  # [B, L, M - 1]
        return self.first + (fractions * self.rises).sum(-1)
