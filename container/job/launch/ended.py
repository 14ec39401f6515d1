"""Define how a worker ended, and that a signal ended its launcher."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ended:
    """The end of a worker that failed.

    Attributes:
        exitcode: negative: the signal that ended it.
        at: time at which the agent noticed it, in seconds since the epoch, rounded down.
    """

    rank: int
    pid: int
    exitcode: int
    at: float


class Signalled(Exception):
    """A signal has asked the launcher to end; the workers have ended.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
