"""Define the metric that a job monitors: its name, its direction, and which of two validations is better."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from contracts.metrics import LOSSES

LOSS = "val/loss"


@dataclass(frozen=True)
class MonitoredMetric:
    """A metric on val that compares validations, trials of a search or networks of an ensemble.

    Attributes:
        name: as in the history of training, for example val/auroc.
    """

    name: str

    @classmethod
    def of(cls, setting: str) -> "MonitoredMetric":
        """Return the metric of a setting such as early_stop_metric, which may also be written as val_auroc."""
        return cls(setting if "/" in setting else setting.replace("val_", "val/", 1))

    @property
    def minimizes(self) -> bool:
        """Return whether the lowest value is the best one."""
        return self.name.removeprefix("val/") in LOSSES

    def rank(self, value: float | None, loss: float | None = None) -> tuple[float, float]:
        """Return a key that orders validations, the best first; an undefined value is the worst.

        Of equal values, the one with the lower val/loss is better: with a rare class, the F1 score is 0 at first. If
        the losses are equal too, the first stays the best.

        Args:
            loss: val/loss of the validation; None: unknown, or it does not compare the validations.
        """
        if value is None or not math.isfinite(value):
            return math.inf, math.inf
        second = math.inf if loss is None or math.isnan(loss) else loss
        return value if self.minimizes else -value, second

    def describe(self, values: Mapping[str, float | None], *, where: str = "on val") -> str:
        """Return values of the metric as text, by the names of the networks that have them."""
        return f"{self.name} {where}: {shown_values(values)}"


def shown_values(values: Mapping[str, float | None]) -> str:
    """Return values of a metric by name as text."""
    return ", ".join(f"{name} {'undefined' if value is None else f'{value:.6g}'}" for name, value in values.items())
