"""Record how long each part of a job takes."""

import time
from dataclasses import dataclass, field


@dataclass
class Timeline:
    """The named parts of a job, one after another, since `train` began.

    A job passes it on from process to process: `asdict` makes plain JSON of it, and `Timeline(**content)` continues it.

    Attributes:
        started: when `train` began, in seconds since the epoch.
        spans: name and seconds of each part; a part begins where the one before it ended.
    """

    started: float = field(default_factory=time.time)
    spans: list[tuple[str, float]] = field(default_factory=list)

    def mark(self, name: str) -> None:
        """End the current part of the job and call it `name`."""
        self.spans.append((name, self.elapsed() - sum(seconds for _, seconds in self.spans)))

    def elapsed(self) -> float:
        """Return the seconds since `train` began."""
        return time.time() - self.started

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.spans)
