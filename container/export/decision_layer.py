"""container.decision as a module, so that the exported graph gives the probabilities that are served."""

import torch
from torch import Tensor, nn

from container.decision.calibrators import Isotonic
from container.decision.decision import Decision


class DecisionLayer(nn.Module):
    """Logits -> calibrated and corrected probabilities, as Decision.probabilities computes them."""

    def __init__(self, decision: Decision) -> None:
        super().__init__()
        calibrator = decision.calibrator
        self.calibrator: nn.Module = (
            IsotonicLines(calibrator)
            if isinstance(calibrator, Isotonic)
            else TemperatureSoftmax(calibrator.to_json()["temperature"])
        )
        self.corrects_prior = decision.prior is not None
        if decision.prior is not None:
            self.register_buffer("ratios", torch.tensor(decision.prior.ratios, dtype=torch.float32))  # [2]

    def forward(self, logits: Tensor) -> Tensor:
        """[B, K] -> [B, K]"""
        probabilities = self.calibrator(logits)
        if not self.corrects_prior:
            return probabilities
        shifted = probabilities * self.ratios
        return shifted / shifted.sum(-1, keepdim=True)


class TemperatureSoftmax(nn.Module):
    """softmax(logits / temperature)."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, logits: Tensor) -> Tensor:
        """[B, K] -> [B, K]"""
        return (logits if self.temperature == 1 else logits / self.temperature).softmax(-1)


class IsotonicLines(nn.Module):
    """Lines between knots as a sum of ramps: first height + sum of rises, each clamped to its stretch."""

    def __init__(self, isotonic: Isotonic) -> None:
        super().__init__()
        lines = isotonic.lines
        stretches = max(1, *(len(line.x) - 1 for line in lines))
        starts, widths, rises = torch.zeros(3, len(lines), stretches, dtype=torch.float64)  # [L, M - 1] each
        widths.fill_(1)  # lines with fewer knots end in stretches that do not rise
        for place, line in enumerate(lines):
            x, y = torch.tensor(line.x, dtype=torch.float64), torch.tensor(line.y, dtype=torch.float64)
            count = len(x) - 1
            starts[place, :count], widths[place, :count], rises[place, :count] = x[:-1], x.diff(), y.diff()
        first = torch.tensor([line.y[0] for line in lines])
        for name, values in (("first", first), ("starts", starts), ("widths", widths), ("rises", rises)):
            self.register_buffer(name, values.to(torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        """[B, K] -> [B, K]"""
        if len(self.first) == 1:
            positive = self._bend(logits[:, 1:] - logits[:, :1])  # [B, 1]
            return torch.cat([1 - positive, positive], dim=-1)
        itself = torch.eye(logits.shape[1], dtype=torch.bool, device=logits.device)
        others = logits[:, None, :].masked_fill(itself, torch.finfo(logits.dtype).min)  # [B, K, K]
        bent = self._bend(logits - others.logsumexp(-1))
        return bent / bent.sum(-1, keepdim=True)

    def _bend(self, log_odds: Tensor) -> Tensor:
        """[B, L] -> [B, L]"""
        along = ((log_odds[..., None] - self.starts) / self.widths).clamp(0, 1)  # [B, L, M - 1]
        return self.first + (along * self.rises).sum(-1)
