"""Stopping on request: SIGTERM sets a flag, and all ranks act on it at the same step."""

import signal


class StopRequested(Exception):
    """All ranks agreed to stop here."""


class StopFlag:
    """Becomes true when this process is asked to end (SIGTERM, or Ctrl-C)."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request)

    def _request(self, *_: object) -> None:
        self.requested = True
