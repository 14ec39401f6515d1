"""Measure the phases of a job."""

import time
from dataclasses import dataclass, field


@dataclass
class Timeline:
    """The consecutive phases of a job since `train` began.

    Processes pass it on as JSON: `asdict` converts it, and `Timeline(**content)` continues it.

    Attributes:
        started: time at which `train` began, in seconds since the epoch.
        spans: name and seconds of each phase.
    """

    started: float = field(default_factory=time.time)
    spans: list[tuple[str, float]] = field(default_factory=list)

    def mark(self, name: str) -> None:
        """End the current phase and record it as `name`."""
        self.spans.append((name, self.elapsed() - sum(seconds for _, seconds in self.spans)))

    def elapsed(self) -> float:
        """Return the seconds since `train` began."""
        return time.time() - self.started

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.spans)
