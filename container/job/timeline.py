"""Measure the phases of a job."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field


def duration(seconds: float) -> str:
    """Return the duration in a readable unit: 95 s, 12 min, 3.4 h."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@dataclass
class Timeline:
    """The phases of a job since `train` began.

    Attributes:
        started: time at which `train` began, by the monotonic clock that all processes of a host share.
        seconds: of each phase, in the order in which the phases first ended.
    """

    started: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)

    def mark(self, name: str) -> None:
        """End the current phase and add its time to `name`."""
        self.seconds[name] = self.seconds.get(name, 0.0) + self.elapsed() - sum(self.seconds.values())

    def elapsed(self) -> float:
        """Return the seconds since `train` began."""
        return time.monotonic() - self.started

    def shares(self) -> Iterator[tuple[str, float, float]]:
        """Yield the name, the seconds and the share of each phase."""
        total = sum(self.seconds.values())
        for name, seconds in self.seconds.items():
            yield name, seconds, seconds / total if total else 0.0

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.1f} s ({share:.0%})" for name, seconds, share in self.shares())
