"""Scale the loss for float16, in which small gradients would vanish."""

from dataclasses import dataclass

from torch import Tensor

_START = 2.0**16
_GROWTH_INTERVAL = 2000


@dataclass
class LossScaler:
    """Dynamic loss scaling (Micikevicius et al. 2018): halve after an overflow, double after 2000 steps without one.

    Unlike in torch.amp.GradScaler, the global gradient norm decides, so that ranks with different shards skip the same
    steps.
    """

    factor: float = 1.0
    good_steps: int = 0
    enabled: bool = False

    @classmethod
    def start(cls, *, enabled: bool) -> "LossScaler":
        return cls(_START if enabled else 1.0, enabled=enabled)

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.factor if self.enabled else loss

    def update(self, *, finite: bool) -> None:
        """Adapt the scale to whether the gradients of a step were finite."""
        if not self.enabled:
            return
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.factor = max(1.0, self.factor / 2)
        elif self.good_steps == _GROWTH_INTERVAL:
            self.factor, self.good_steps = self.factor * 2, 0

    @property
    def searching(self) -> bool:
        """Whether an overflow is expected: the scale is above 1 and can be halved."""
        return self.enabled and self.factor > 1
